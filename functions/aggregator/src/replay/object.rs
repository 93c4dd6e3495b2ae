//! Reads the event of one object of the failure bucket: an invocation record, whose payload is the
//! whole event as text.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde_json::value::RawValue;

/// Lambda's record of a batch it gave up. Other fields name the function and the reason.
#[derive(Deserialize)]
struct Invocation<'a> {
    /// The event as JSON text. Accepts JSON itself too, which some tools unpack it to.
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    #[serde(borrow, rename = "DDBStreamBatchInfo")]
    batch: Option<&'a RawValue>,
    /// Records of a bare event, such as one from the log.
    #[serde(borrow, rename = "Records")]
    records: Option<&'a RawValue>,
}

/// Returns the event in an object.
///
/// # Errors
/// What is wrong with it, and what to do.
pub fn event(text: &str) -> Result<Cow<'_, str>, String> {
    let expected = "expected an object of the failure bucket, with the stream's event in `payload`";
    let object: Invocation<'_> =
        serde_json::from_str(text).map_err(|error| format!("{expected}: {error}"))?;
    match object {
        Invocation { payload: Some(payload), .. } if payload.get().starts_with('"') => {
            let event: Cow<'_, str> = serde_json::from_str::<String>(payload.get())
                .map(Cow::Owned)
                .map_err(|error| format!("its payload is no text: {error}"))?;
            Ok(event)
        }
        Invocation { payload: Some(payload), .. } => Ok(Cow::Borrowed(payload.get())),
        Invocation { records: Some(_), .. } => Ok(Cow::Borrowed(text)),
        Invocation { batch: Some(_), .. } => {
            Err("it has no payload, so it comes from a queue or a topic, which get \
            only the place of the records. While that is younger than 24 hours, create the mapping again at TRIM_HORIZON"
                .to_owned())
        }
        _ => Err(format!("{expected}; it has neither that nor Records")),
    }
}

/// A table of records. A table of the same name in another region or account is another table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableArn(String);

impl TableArn {
    /// Returns the table in `arn:aws:dynamodb:{region}:{account}:table/{name}/stream/{label}`.
    #[must_use]
    pub fn of_stream(arn: &str) -> Option<Self> {
        let table = arn.split_once("/stream/").map_or(arn, |(table, _)| table);
        let (place, name) = table.split_once(":table/")?;
        // DynamoDB allows no other characters, and these are safe in the command that an error
        // suggests.
        let is_of = |text: &str, marks: &[u8]| {
            text.bytes().all(|byte| byte.is_ascii_alphanumeric() || marks.contains(&byte))
        };
        let is_named = place.split(':').count() == 5 && is_of(place, b":-");
        (is_named && !name.is_empty() && is_of(name, b"_.-")).then(|| Self(table.to_owned()))
    }

    /// Returns the table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit_once(":table/").map_or("", |(_, name)| name)
    }

    /// Returns the table's region.
    #[must_use]
    pub fn region(&self) -> &str {
        self.0.split(':').nth(3).unwrap_or_default()
    }
}

impl fmt::Display for TableArn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the tables of the event's records; `None` for a record that does not name one.
///
/// # Errors
/// What is wrong with it, if it is no event.
pub fn tables(event: &str) -> Result<BTreeSet<Option<TableArn>>, String> {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(borrow, rename = "Records")]
        records: Vec<Source<'a>>,
    }
    #[derive(Deserialize)]
    struct Source<'a> {
        #[serde(borrow, rename = "eventSource")]
        service: Option<Cow<'a, str>>,
        #[serde(borrow, rename = "eventSourceARN")]
        arn: Option<Cow<'a, str>>,
    }
    let event: Event<'_> = serde_json::from_str(event).map_err(|error| error.to_string())?;
    // Records of another service are not copied, so the name does not matter.
    let ours = event
        .records
        .iter()
        .filter(|record| record.service.as_deref().is_none_or(|name| name == "aws:dynamodb"));
    Ok(ours.map(|record| record.arn.as_deref().and_then(TableArn::of_stream)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_is_read_as_text_as_json_and_by_itself() {
        let bare =
            r#"{"Records":[{"eventSourceARN":"arn:aws:dynamodb:eu-west-1:1:table/t.1/stream/x"}]}"#;
        let escaped = serde_json::to_string(bare).unwrap();
        let named =
            BTreeSet::from([Some(TableArn("arn:aws:dynamodb:eu-west-1:1:table/t.1".to_owned()))]);
        for object in [
            bare.to_owned(),
            format!(r#"{{"version":"1.0","payload":{escaped}}}"#),
            format!(r#"{{"payload":{bare}}}"#),
        ] {
            let event = event(&object).unwrap();
            assert_eq!(tables(&event), Ok(named.clone()), "{object}");
        }
    }

    #[test]
    fn a_table_is_named_by_all_that_stands_before_its_stream() {
        let stream =
            "arn:aws-cn:dynamodb:cn-north-1:123456789012:table/t.1/stream/2026-11-20T00:00:00.000";
        let table = TableArn::of_stream(stream).unwrap();
        assert_eq!((table.name(), table.region()), ("t.1", "cn-north-1"));
        assert_eq!(TableArn::of_stream(&table.to_string()), Some(table));
        for other in [
            "",
            "t.1",
            "arn:aws:sqs:eu-west-1:1:t.1",
            "arn:aws:dynamodb:eu-west-1:1:table/",
            ":table/t",
            "arn:aws:dynamodb:eu-west-1:1:table/t\u{1b}]0;x\u{7}",
            "arn:aws:dynamodb:eu-west-1:1:table/t; rm -rf ~",
            "arn:aws:dynamodb:eu-west-1:1:table/t\n",
            "arn:aws:dynamodb:$(id):1:table/t",
        ] {
            assert_eq!(TableArn::of_stream(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_no_such_object_is_refused_with_what_it_lacks() {
        for (object, why) in [
            (r#"{"DDBStreamBatchInfo":{}}"#, "no payload"),
            ("{}", "neither"),
            ("[1]", "expected an object"),
            ("", "expected an object"),
            (r#"{"payload":"\ud800"}"#, "payload is no text"),
        ] {
            let error = event(object).unwrap_err();
            assert!(error.contains(why), "{object}: {error}");
        }
        for (records, tables) in
            [("{}", None), (r#"{"eventSource":"aws:kinesis"}"#, Some(BTreeSet::new()))]
        {
            let of = super::tables(&format!(r#"{{"Records":[{records}]}}"#)).unwrap();
            assert_eq!(of, tables.unwrap_or_else(|| BTreeSet::from([None])));
        }
    }
}
