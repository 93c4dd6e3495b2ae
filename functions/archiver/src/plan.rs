//! Plans an expired event's object.
//!
//! The name follows from the key of the event's item, so a record that comes again is the same
//! object: an event is archived once.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use weirgate_shared::{Attr, AuditEvent, AuditKey, AuditSubject, Namespace, read_audit};

use crate::parse::Expired;

/// One object of the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Name, of ASCII characters that a URL's path can contain as they are, and `%`.
    pub name: String,
    /// JSON.
    pub body: String,
    /// Whether this version could read the event.
    pub is_readable: bool,
}

#[derive(Serialize)]
struct Body<'a> {
    namespace: &'a Namespace,
    /// As `weirgate audit --json` prints it; `null` if this version cannot read it.
    event: Option<AuditEvent>,
    /// The item as DynamoDB had it, so nothing is lost.
    item: &'a RawValue,
}

/// Returns the object of an expired event: `audit/{namespace}/entity/{entity}/{id}.json`,
/// `audit/{namespace}/resource/{resource}/{id}.json` or `audit/{namespace}/system/{id}.json`. Ids
/// sort by time, so a list of one subject is its history.
///
/// An event whose key is of another version becomes its whole record, under
/// `unrecognized/{sequence number}.json`.
#[must_use]
pub fn object(expired: &Expired) -> Object {
    let Some((key, item)) = &expired.item else {
        return Object {
            name: format!("unrecognized/{}.json", escaped(&expired.sequence_number)),
            body: expired.record.get().to_owned(),
            is_readable: false,
        };
    };
    let event = event(item);
    let is_readable = event.is_some();
    let body = Body {
        namespace: &key.namespace,
        event,
        item,
    };
    Object {
        name: name(key),
        // Names are text, and the item is JSON already.
        body: serde_json::to_string(&body).unwrap_or_else(|_| item.get().to_owned()),
        is_readable,
    }
}

fn name(key: &AuditKey) -> String {
    let (namespace, id) = (&key.namespace, key.id);
    match &key.of {
        AuditSubject::Entity(entity) => {
            format!(
                "audit/{namespace}/entity/{}/{id}.json",
                escaped(entity.as_str())
            )
        }
        AuditSubject::Resource(resource) => {
            format!(
                "audit/{namespace}/resource/{}/{id}.json",
                escaped(resource.as_str())
            )
        }
        AuditSubject::System => format!("audit/{namespace}/system/{id}.json"),
    }
}

/// Returns the text with `%XX` for all but letters, digits, and `_`, `.` and `-`. A name is then one
/// part of a path, with none of the characters that S3 advises against.
fn escaped(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' | b'.' | b'-' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

/// Returns the event that an item is, as far as this version can read it.
fn event(item: &RawValue) -> Option<AuditEvent> {
    let item: Value = serde_json::from_str(item.get()).ok()?;
    let attributes = item.as_object()?.iter();
    read_audit(attributes.map(|(name, value)| (name.as_str(), attribute(value)))).ok()
}

/// Returns an attribute in DynamoDB's JSON as the decoder takes it.
fn attribute(value: &Value) -> Attr<'_> {
    let typed = value.as_object().and_then(|typed| typed.iter().next());
    match typed.map(|(kind, value)| (kind.as_str(), value)) {
        Some(("N", Value::String(text))) => Attr::N(text),
        Some(("S", Value::String(text))) => Attr::S(text),
        Some(("BOOL", Value::Bool(is))) => Attr::Bool(*is),
        Some(("M", Value::Object(entries))) => Attr::M(
            entries
                .iter()
                .map(|(name, value)| (name.as_str(), attribute(value)))
                .collect(),
        ),
        Some(("NS", Value::Array(numbers))) => {
            Attr::Numbers(numbers.iter().filter_map(Value::as_str).collect())
        }
        _ => Attr::Other,
    }
}

impl Object {
    /// Returns the name as a path of a URL: the `%` of the name is escaped itself.
    #[must_use]
    pub fn path(&self) -> Cow<'_, str> {
        match self.name.contains('%') {
            true => self.name.replace('%', "%25").into(),
            false => Cow::Borrowed(&self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weirgate_shared::{AuditId, EntityId, EpochMillis, Resource};

    use super::*;

    const SEQUENCE_NUMBER: &str = "100000000000000000007";

    fn key(of: AuditSubject) -> AuditKey {
        AuditKey {
            namespace: Namespace::new("prod").unwrap(),
            of,
            id: AuditId::new(EpochMillis(1_795_195_341_000), 7),
        }
    }

    fn expired(key: AuditKey, attributes: &Value) -> Expired {
        let raw = |value: &Value| serde_json::value::to_raw_value(value).unwrap();
        let mut item = attributes.clone();
        let of = key.item_key();
        (item["PK"], item["SK"]) = (json!({"S": of.pk}), json!({"S": of.sk}));
        Expired {
            sequence_number: SEQUENCE_NUMBER.to_owned(),
            record: raw(&json!({"dynamodb": {"OldImage": item}})),
            item: Some((key, raw(&item))),
        }
    }

    #[test]
    fn a_name_is_the_subject_and_the_time_and_no_two_keys_share_one() {
        let id = AuditId::new(EpochMillis(1_795_195_341_000), 7);
        let entity = |name: &str| AuditSubject::Entity(EntityId::new(name).unwrap());
        let resource = |name: &str| AuditSubject::Resource(Resource::new(name).unwrap());
        for (of, expected) in [
            (entity("openai"), "entity/openai"),
            (entity("user:1@x.y"), "entity/user%3A1%40x.y"),
            (resource("api/search"), "resource/api%2Fsearch"),
            (resource("a/.."), "resource/a%2F.."),
            (AuditSubject::System, "system"),
        ] {
            assert_eq!(name(&key(of)), format!("audit/prod/{expected}/{id}.json"));
        }
        // S3's longest name has 1,024 bytes.
        assert!(name(&key(entity(&"a:".repeat(128)))).len() < 1_024);
    }

    #[test]
    fn an_object_has_the_event_to_read_and_the_item_as_it_was() {
        let attributes = json!({
            "action": {"S": "set_switch"}, "principal": {"S": "ops"}, "at": {"N": "1795195341000"},
            "after": {"M": {"switch": {"S": "stopped"}}}, "ttl": {"N": "1802971341"},
        });
        let object = object(&expired(key(AuditSubject::System), &attributes));
        assert!(object.is_readable);
        let body: Value = serde_json::from_str(&object.body).unwrap();
        assert_eq!(body["namespace"], "prod");
        assert_eq!(body["event"]["at_ms"], 1_795_195_341_000_i64);
        assert_eq!(body["event"]["change"]["kind"], "switch");
        assert_eq!(body["event"]["change"]["after"], "stopped");
        assert_eq!(body["item"]["ttl"], attributes["ttl"]);
        assert_eq!(body["item"]["PK"]["S"], "prod/AUDIT##SYSTEM");
    }

    #[test]
    fn an_event_of_a_later_version_is_archived_as_its_item() {
        let attributes = json!({"action": {"S": "set_future"}, "more": {"L": [{"B": "AA=="}]}});
        let object = object(&expired(key(AuditSubject::System), &attributes));
        assert!(!object.is_readable && object.name.starts_with("audit/prod/system/"));
        let body: Value = serde_json::from_str(&object.body).unwrap();
        assert_eq!(
            (&body["event"], &body["item"]["more"]),
            (&Value::Null, &attributes["more"])
        );
    }

    #[test]
    fn a_key_of_a_later_version_is_archived_as_its_record() {
        let mut odd = expired(key(AuditSubject::System), &json!({}));
        odd.item = None;
        let object = object(&odd);
        assert_eq!(object.name, format!("unrecognized/{SEQUENCE_NUMBER}.json"));
        assert_eq!(
            (object.body.as_str(), object.is_readable),
            (odd.record.get(), false)
        );
    }
}
