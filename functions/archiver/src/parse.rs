//! Parses an event of the table's stream to the expired audit events in it.
//!
//! The mapping's filter lets only those through. The same is checked here, because a mapping that
//! was created manually may have no filter, and an event may be sent manually.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use weirgate_shared::{AuditKey, ItemKey};

/// Beginning of the sort key of audit events.
const AUDIT: &str = "#AUDIT#";
/// Principal that deletes expired items.
/// <https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/time-to-live-ttl-streams.html>
const TIME_TO_LIVE: &str = "dynamodb.amazonaws.com";

/// The expired audit events of one event of the stream.
#[derive(Debug, Default)]
pub struct Batch {
    /// Number of records in the event.
    pub records: usize,
    /// Number of records that are of no expired audit event.
    pub skipped: usize,
    /// The others.
    pub expired: Vec<Expired>,
}

/// An audit event that the table has deleted as expired.
#[derive(Debug, Clone)]
pub struct Expired {
    /// Sequence number of its record in the stream.
    pub sequence_number: String,
    /// Key of its item, and the item in DynamoDB's JSON. `None` if either is missing, or if the key
    /// is not one that this version writes.
    pub item: Option<(AuditKey, Box<RawValue>)>,
    /// The record as Lambda sent it.
    pub record: Box<RawValue>,
}

/// An event that does not come from a DynamoDB stream.
#[derive(Debug, thiserror::Error)]
#[error(
    "expected an event of a DynamoDB stream, an object with a list of Records, or an object of the \
     failure bucket with one in payload: {0}"
)]
pub struct NotAnEvent(String);

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, rename = "Records")]
    records: Option<Vec<&'a RawValue>>,
    /// In an object of the failure bucket: the event as text.
    payload: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    event_name: Option<Cow<'a, str>>,
    user_identity: Option<Identity<'a>>,
    #[serde(borrow)]
    dynamodb: Option<Change<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity<'a> {
    principal_id: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Change<'a> {
    #[serde(borrow)]
    keys: Option<Keys<'a>>,
    old_image: Option<&'a RawValue>,
    sequence_number: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Keys<'a> {
    #[serde(borrow, rename = "PK")]
    pk: Text<'a>,
    #[serde(borrow, rename = "SK")]
    sk: Text<'a>,
}

#[derive(Deserialize)]
struct Text<'a> {
    #[serde(borrow, rename = "S")]
    text: Cow<'a, str>,
}

/// Reads an event.
///
/// # Errors
/// [`NotAnEvent`] if it is not one, or if an expired audit event in it has no sequence number, so
/// that its failure could not be told.
pub fn records(event: &str) -> Result<Batch, NotAnEvent> {
    let of = |error: serde_json::Error| NotAnEvent(error.to_string());
    let event: Event<'_> = serde_json::from_str(event).map_err(of)?;
    match (event.records, event.payload) {
        (Some(records), _) => expired(&records),
        (None, Some(payload)) => {
            let event: Event<'_> = serde_json::from_str(&payload).map_err(of)?;
            let records = event.records;
            expired(&records.ok_or_else(|| NotAnEvent("payload has no Records".to_owned()))?)
        }
        (None, None) => Err(NotAnEvent("Records is missing".to_owned())),
    }
}

fn expired(records: &[&RawValue]) -> Result<Batch, NotAnEvent> {
    let mut batch = Batch {
        records: records.len(),
        ..Batch::default()
    };
    for (index, record) in records.iter().enumerate() {
        // A record of another shape is of another source.
        let read: Option<Record<'_>> = serde_json::from_str(record.get()).ok();
        let Some(change) = read.and_then(Record::expired_audit_event) else {
            batch.skipped += 1;
            continue;
        };
        let sequence_number = change.sequence_number.filter(|number| !number.is_empty());
        let missing = || NotAnEvent(format!("record {index} has no SequenceNumber"));
        let key = change.keys.and_then(|keys| {
            let (pk, sk) = (keys.pk.text.into_owned(), keys.sk.text.into_owned());
            AuditKey::parse(&ItemKey { pk, sk })
        });
        let image = change
            .old_image
            .filter(|image| image.get().starts_with('{'));
        batch.expired.push(Expired {
            sequence_number: sequence_number.ok_or_else(missing)?.into_owned(),
            item: key.zip(image.map(ToOwned::to_owned)),
            record: (*record).to_owned(),
        });
    }
    Ok(batch)
}

impl<'a> Record<'a> {
    /// Returns the change if time to live has deleted an audit event.
    fn expired_audit_event(self) -> Option<Change<'a>> {
        let principal = self
            .user_identity
            .and_then(|identity| identity.principal_id);
        let is_expired = self.event_name.as_deref() == Some("REMOVE")
            && principal.as_deref() == Some(TIME_TO_LIVE);
        let is_audit = |keys: &Keys<'_>| keys.sk.text.starts_with(AUDIT);
        self.dynamodb
            .filter(|change| is_expired && change.keys.as_ref().is_some_and(is_audit))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn record() -> Value {
        json!({
            "eventName": "REMOVE",
            "userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"},
            "dynamodb": {
                "Keys": {"PK": {"S": "prod/AUDIT#openai"}, "SK": {"S": "#AUDIT#01JDGPAWQR0000000000000000"}},
                "OldImage": {"principal": {"S": "ops"}},
                "SequenceNumber": "300",
            },
        })
    }

    fn read(records: &[Value]) -> Batch {
        records_of(&json!({"Records": records}).to_string()).unwrap()
    }

    fn records_of(event: &str) -> Result<Batch, NotAnEvent> {
        super::records(event)
    }

    #[test]
    fn an_expired_audit_event_is_taken_with_its_key_and_its_item() {
        let batch = read(&[record()]);
        assert_eq!((batch.records, batch.skipped), (1, 0));
        let (key, item) = batch.expired[0].item.as_ref().unwrap();
        assert_eq!(key.item_key().pk, "prod/AUDIT#openai");
        assert_eq!(item.get(), r#"{"principal":{"S":"ops"}}"#);
        assert_eq!(batch.expired[0].sequence_number, "300");
    }

    #[test]
    fn what_no_time_to_live_has_deleted_or_is_no_audit_event_is_skipped() {
        let without = |pointer: &str, value: Value| {
            let mut record = record();
            *record.pointer_mut(pointer).unwrap() = value;
            record
        };
        for other in [
            without("/eventName", json!("MODIFY")),
            without("/userIdentity", Value::Null),
            without("/userIdentity/principalId", json!("123456789012")),
            without("/dynamodb/Keys/SK/S", json!("#STATE")),
            without("/dynamodb", Value::Null),
            json!({"eventSource": "aws:kinesis"}),
            json!(7),
        ] {
            let batch = read(std::slice::from_ref(&other));
            assert_eq!((batch.skipped, batch.expired.len()), (1, 0), "{other}");
        }
    }

    #[test]
    fn one_that_cannot_be_read_is_taken_as_a_record() {
        let mut keyless = record();
        keyless["dynamodb"]["Keys"]["PK"]["S"] = json!("prod/GROUPS#a");
        let mut imageless = record();
        imageless["dynamodb"]["OldImage"] = Value::Null;
        for odd in [keyless, imageless] {
            let batch = read(std::slice::from_ref(&odd));
            assert!(batch.expired[0].item.is_none());
            let kept: Value = serde_json::from_str(batch.expired[0].record.get()).unwrap();
            assert_eq!(kept, odd);
        }
    }

    #[test]
    fn an_object_of_the_failure_bucket_is_an_event() {
        let event = json!({"Records": [record()]}).to_string();
        let object = json!({"requestContext": {}, "payload": event}).to_string();
        assert_eq!(records_of(&object).unwrap().expired.len(), 1);
    }

    #[test]
    fn what_is_no_event_is_refused_with_what_it_must_be() {
        let mut nameless = record();
        nameless["dynamodb"]["SequenceNumber"] = json!("");
        let nameless = json!({"Records": [nameless]}).to_string();
        for (event, why) in [
            ("[]", "invalid length 0"),
            ("{}", "Records is missing"),
            (r#"{"payload": "{}"}"#, "payload has no Records"),
            (&nameless, "record 0 has no SequenceNumber"),
        ] {
            let error = records_of(event).unwrap_err().to_string();
            assert!(error.contains(why), "{event}: {error}");
            assert!(
                error.starts_with("expected an event of a DynamoDB stream"),
                "{error}"
            );
        }
    }
}
