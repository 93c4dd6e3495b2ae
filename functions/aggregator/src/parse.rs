//! Parses a stream event to records, in one pass over its text, and borrows from it. A missing
//! value stays missing, never zero.
//!
//! Does not use `aws_lambda_events`: its types turn a missing timestamp into 1970 and a missing
//! image into an empty one, and fail the whole event for one unknown attribute.

mod image;
mod raw_record;
mod record;

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::json::{Fields, Object, skip};
use raw_record::RawRecord;

pub use record::{After, Record};

/// The records of one event.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    /// Records of shards.
    pub records: Vec<Record>,
    /// Sequence number of every record of the event, by index.
    pub sequence_numbers: Vec<Option<Cow<'a, str>>>,
    /// Number of records that are not of our shards.
    pub skipped: usize,
    /// Records of shards that cannot be read.
    pub undecodable: Vec<Undecodable>,
}

/// A record of a shard that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undecodable {
    /// Index in the event, from 0.
    pub index: usize,
    /// Partition key of its item, empty if it has none.
    pub pk: String,
    /// Decoding error.
    pub why: String,
}

/// An event that does not come from a DynamoDB stream.
#[derive(Debug, thiserror::Error)]
#[error("expected an event of a DynamoDB stream, an object with a list of Records: {0}")]
pub struct NotAnEvent(String);

/// Reads an event.
///
/// # Errors
/// [`NotAnEvent`] if it is not an object with a list of `Records`.
pub fn records(event: &str) -> Result<Batch<'_>, NotAnEvent> {
    let mut event_fields = Event::default();
    let mut json = serde_json::Deserializer::from_str(event);
    let is_object = Object(&mut event_fields)
        .deserialize(&mut json)
        .and_then(|is_object| json.end().map(|()| is_object))
        .map_err(|error| NotAnEvent(error.to_string()))?;
    match event_fields.batch {
        Some(batch) => Ok(batch),
        None if is_object => Err(NotAnEvent("Records is missing".to_owned())),
        None => Err(NotAnEvent("it is no object".to_owned())),
    }
}

/// Returns the text of each record, for the log, in one second pass over the event for all of them.
/// A pass for each would take minutes for ten thousand undecodable items of one tenant, and delay
/// all others.
#[must_use]
pub fn texts(event: &str) -> Vec<&str> {
    #[derive(Deserialize)]
    struct Whole<'a> {
        #[serde(borrow, rename = "Records")]
        records: Vec<&'a RawValue>,
    }
    let whole: Option<Whole<'_>> = serde_json::from_str(event).ok();
    whole.map(|whole| whole.records.into_iter().map(RawValue::get).collect()).unwrap_or_default()
}

#[derive(Default)]
struct Event<'a> {
    batch: Option<Batch<'a>>,
}

impl<'a> Fields<'a> for Event<'a> {
    fn field<A: MapAccess<'a>>(
        &mut self,
        name: Cow<'a, str>,
        object: &mut A,
    ) -> Result<(), A::Error> {
        if name == "Records" {
            self.batch = Some(object.next_value_seed(Records)?);
            return Ok(());
        }
        skip(object)
    }
}

struct Records;

impl<'a> DeserializeSeed<'a> for Records {
    type Value = Batch<'a>;
    fn deserialize<D: Deserializer<'a>>(self, value: D) -> Result<Batch<'a>, D::Error> {
        value.deserialize_seq(self)
    }
}

impl<'a> Visitor<'a> for Records {
    type Value = Batch<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of Records")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut array: A) -> Result<Batch<'a>, A::Error> {
        let mut batch = Batch::default();
        loop {
            let mut raw = RawRecord::default();
            if array.next_element_seed(Object(&mut raw))?.is_none() {
                return Ok(batch);
            }
            let index = batch.sequence_numbers.len();
            batch.sequence_numbers.push(raw.sequence_number.take());
            let pk = raw.keys.pk.clone();
            match raw.into_record(index) {
                Ok(Some(record)) => batch.records.push(record),
                Ok(None) => batch.skipped += 1,
                Err(why) => {
                    let pk = pk.unwrap_or_default().into_owned();
                    batch.undecodable.push(Undecodable { index, pk, why });
                }
            }
        }
    }
}
