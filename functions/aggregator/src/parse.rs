//! A stream event to records, one pass over its text, borrowed from it. Absence is decoded as absence, never as zero.
//!
//! Not with `aws_lambda_events`: its types turn a missing timestamp into 1970 and a missing image into an empty one, and
//! fail the whole event for one attribute they do not know.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use weirgate_shared::attr::{self, Field};
use weirgate_shared::{Attr, BUCKET_SK, Bucket, BucketKey, BucketReader, EpochMillis, ItemError, MilliTokens};

use crate::json::{Attribute, Fields, Object, Size, Text, Typed, raw, skip};
use crate::timestamp;

/// The records of one event.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    /// Those that say what was used of a bucket.
    pub records: Vec<Record>,
    /// The sequence number of every record of the event, by index.
    pub sequence_numbers: Vec<Option<Cow<'a, str>>>,
    /// How many are not about buckets, or say that one is gone.
    pub skipped: usize,
    /// Those about buckets that cannot be read.
    pub undecodable: Vec<Undecodable>,
}

/// What one record says was used of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its place in the event, from 0.
    pub index: usize,
    /// When the write happened, to the second or better.
    pub at: EpochMillis,
    /// The bucket shard after the write, without its leases.
    pub bucket: Bucket,
    /// `v` before and after the write, if the item counts its writes.
    pub span: Option<(i64, i64)>,
    /// Net consumed of each limit, in the order of the bucket's limits.
    pub used: Vec<MilliTokens>,
    /// Granted acquires.
    pub events: i64,
}

/// A record that is about a bucket and cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undecodable {
    /// Its place in the event, from 0.
    pub index: usize,
    /// What is wrong with it.
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

/// The text of each record, for the log. A second pass over the event, and one for all of them: whoever writes ten thousand
/// items that nobody can read must not keep the function from everybody else's for minutes.
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
    fn field<A: MapAccess<'a>>(&mut self, name: Cow<'a, str>, object: &mut A) -> Result<(), A::Error> {
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
            match raw.judge(index) {
                Ok(Some(record)) => batch.records.push(record),
                Ok(None) => batch.skipped += 1,
                Err(why) => batch.undecodable.push(Undecodable { index, why }),
            }
        }
    }
}

/// A record's fields, before anything is known about whose they are.
#[derive(Default)]
struct RawRecord<'a> {
    source: Option<Cow<'a, str>>,
    event: Option<Cow<'a, str>>,
    sequence_number: Option<Cow<'a, str>>,
    created: Option<&'a str>,
    size_bytes: Option<usize>,
    keys: Keys<'a>,
    new: Option<NewImage>,
    old: Option<OldImage<'a>>,
}

impl<'a> Fields<'a> for RawRecord<'a> {
    fn field<A: MapAccess<'a>>(&mut self, name: Cow<'a, str>, object: &mut A) -> Result<(), A::Error> {
        match &*name {
            "eventSource" => self.source = object.next_value_seed(Text)?,
            "eventName" => self.event = object.next_value_seed(Text)?,
            // The one object of a record whose fields are wanted; its names do not occur outside of it.
            "dynamodb" => drop(object.next_value_seed(Object(self))?),
            "SequenceNumber" => self.sequence_number = object.next_value_seed(Text)?,
            "ApproximateCreationDateTime" => self.created = Some(raw(object)?),
            "SizeBytes" => self.size_bytes = raw(object)?.parse().ok(),
            "Keys" => drop(object.next_value_seed(Object(&mut self.keys))?),
            "NewImage" => {
                let mut image = NewImage::default();
                self.new = object.next_value_seed(Object(&mut image))?.then_some(image);
            }
            "OldImage" => {
                let mut image = OldImage::default();
                self.old = object.next_value_seed(Object(&mut image))?.then_some(image);
            }
            _ => skip(object)?,
        }
        Ok(())
    }
}

impl RawRecord<'_> {
    /// The record, if it says what was used of a bucket; `None` if it does not; why it cannot be read, if it should.
    fn judge(self, index: usize) -> Result<Option<Record>, String> {
        if self.source.is_some_and(|source| source != "aws:dynamodb") {
            return Ok(None);
        }
        let (Some(pk), Some(sk)) = (self.keys.pk, self.keys.sk) else {
            return Err("Keys has no texts PK and SK".to_owned());
        };
        if sk != BUCKET_SK || !pk.contains("/BUCKET#") {
            return Ok(None);
        }
        let key = BucketKey::parse(&pk).ok_or("PK is not {namespace}/BUCKET#{entity}#{resource}#{shard}")?;
        let old = match self.event.as_deref() {
            Some("REMOVE") => return Ok(None),
            Some("INSERT") => OldImage::default(),
            Some("MODIFY") => self.old.ok_or("OldImage is missing")?,
            other => return Err(format!("eventName is {other:?}, it takes INSERT, MODIFY or REMOVE")),
        };
        let new = self.new.ok_or("NewImage is missing")?;
        let flaw = new.flaw.or(old.flaw);
        flaw.map_or(Ok(()), |flaw| Err(flaw.to_string()))?;
        let mut bucket = new.reader.finish(key).map_err(|flaw| flaw.to_string())?;
        bucket.lease_bytes = new.lease_bytes;
        // Leases and indexed keys are not read, so the size is not known from the attributes. DynamoDB says what the
        // keys and both images measure; the images are of nearly the same size.
        let images = if self.event.as_deref() == Some("INSERT") { 1 } else { 2 };
        bucket.size_bytes = self.size_bytes.unwrap_or_default().saturating_sub(pk.len() + sk.len() + 4) / images;

        let created = self.created.ok_or("ApproximateCreationDateTime is missing")?;
        let at = timestamp::seconds(created).ok_or_else(|| {
            format!("ApproximateCreationDateTime is {created}, it takes seconds since 1970, of the years 1970 to 9998")
        })?;
        let before = |limit: &str| old.consumed.get(limit).copied().unwrap_or_default();
        let used: Vec<_> =
            bucket.limits.iter().map(|(name, state)| state.tc - MilliTokens(before(name.as_str()))).collect();
        // Without `v` it is other software's item, whose acquires leave our own callers' `takes` as it is.
        let events = match bucket.takes.filter(|_| bucket.v.is_some()) {
            Some(takes) => takes.saturating_sub(old.takes.unwrap_or_default()),
            // Nothing counts the acquires of such an item; a write that changes no consumption is none.
            None => i64::from(used.iter().any(|used| *used != MilliTokens::ZERO)),
        };
        let span = match (images, old.v, bucket.v) {
            (1, _, Some(v)) => v.checked_sub(1).map(|before| (before, v)),
            (_, Some(before), Some(v)) if v > before => Some((before, v)),
            _ => None,
        };
        Ok(Some(Record { index, at, bucket, span, used, events }))
    }
}

#[derive(Default)]
struct Keys<'a> {
    pk: Option<Cow<'a, str>>,
    sk: Option<Cow<'a, str>>,
}

impl<'a> Fields<'a> for Keys<'a> {
    fn field<A: MapAccess<'a>>(&mut self, name: Cow<'a, str>, object: &mut A) -> Result<(), A::Error> {
        let Attribute::S(text) = object.next_value_seed(Typed)? else { return Ok(()) };
        match &*name {
            attr::PK => self.pk = Some(text),
            attr::SK => self.sk = Some(text),
            _ => {}
        }
        Ok(())
    }
}

/// The item after the write: what a refill or a split needs to know of it. Of its leases that is their size.
#[derive(Default)]
struct NewImage {
    reader: BucketReader,
    lease_bytes: usize,
    flaw: Option<ItemError>,
}

impl<'a> Fields<'a> for NewImage {
    fn field<A: MapAccess<'a>>(&mut self, name: Cow<'a, str>, object: &mut A) -> Result<(), A::Error> {
        let is_counted =
            name.starts_with("b_") || matches!(&*name, attr::RF | attr::V | attr::TAKES | attr::SHARD_COUNT);
        match &*name {
            _ if is_counted => {}
            attr::HOT | attr::DUE | attr::MIN_SHARDS | attr::SPLIT_BYTES => {}
            attr::LEASES => {
                self.lease_bytes = object.next_value_seed(Size)?;
                return Ok(());
            }
            _ => return skip(object),
        }
        let value = object.next_value_seed(Typed)?;
        let read = self.reader.attribute(&name, &borrowed(&value));
        // What only a split asks for is no reason to lose what was used.
        self.flaw = self.flaw.take().or(read.err().filter(|_| is_counted));
        Ok(())
    }
}

/// The item before the write: only what usage is the difference from.
#[derive(Default)]
struct OldImage<'a> {
    v: Option<i64>,
    takes: Option<i64>,
    consumed: BTreeMap<Cow<'a, str>, i64>,
    flaw: Option<ItemError>,
}

impl<'a> Fields<'a> for OldImage<'a> {
    fn field<A: MapAccess<'a>>(&mut self, name: Cow<'a, str>, object: &mut A) -> Result<(), A::Error> {
        let limit = Field::parse(&name).filter(|(_, field)| *field == Field::Consumed).map(|(limit, _)| limit);
        if limit.is_none() && !matches!(&*name, attr::V | attr::TAKES) {
            return skip(object);
        }
        let value = object.next_value_seed(Typed)?;
        let number = match &value {
            Attribute::N(text) => text.parse().ok(),
            _ => None,
        };
        let Some(number) = number else {
            self.flaw = Some(ItemError {
                attribute: format!("{name} of OldImage"),
                value: format!("{value:?}"),
                takes: "a whole number within 64 bits",
            });
            return Ok(());
        };
        match (&name, limit) {
            (Cow::Borrowed(name), Some(_)) => {
                let limit = Field::parse(name).map_or("", |(limit, _)| limit);
                self.consumed.insert(Cow::Borrowed(limit), number);
            }
            (_, Some(limit)) => drop(self.consumed.insert(Cow::Owned(limit.to_owned()), number)),
            _ if name == attr::V => self.v = Some(number),
            _ => self.takes = Some(number),
        }
        Ok(())
    }
}

fn borrowed<'v>(value: &'v Attribute<'_>) -> Attr<'v> {
    match value {
        Attribute::N(text) => Attr::N(text),
        Attribute::S(text) => Attr::S(text),
        Attribute::Bool(is) => Attr::Bool(*is),
        Attribute::Other => Attr::Other,
    }
}
