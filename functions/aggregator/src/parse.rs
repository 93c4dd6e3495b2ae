//! Parses a stream event to records, in one pass over its text, and borrows from it. A missing
//! value stays missing, never zero.
//!
//! Does not use `aws_lambda_events`: its types turn a missing timestamp into 1970 and a missing
//! image into an empty one, and fail the whole event for one unknown attribute.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use weirgate_shared::{
    Attr, BUCKET_SK, BucketKey, EpochMillis, Hour, ItemError, MAX_SHARDS, Meter, Shard,
    ShardReader, attr,
};

use crate::json::{Attribute, Fields, Map, Object, Size, Text, Typed, raw, skip};
use crate::timestamp;

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

/// One write to a bucket shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Index in the event, from 0.
    pub index: usize,
    /// Time of the write, to the second or better.
    pub at: EpochMillis,
    /// Usage counters before the write; `None` if there was no item.
    pub before: Option<Meter>,
    /// Shard after the write.
    pub after: After,
}

/// A shard after a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum After {
    /// A live shard, without its leases.
    Live(Box<Shard>),
    /// Usage counters of a shard that was merged away.
    Merged(Meter),
    /// No item: it was deleted.
    Gone,
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
    whole
        .map(|whole| whole.records.into_iter().map(RawValue::get).collect())
        .unwrap_or_default()
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
            match raw.judge(index) {
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

/// A record's fields, before the record is classified.
#[derive(Default)]
struct RawRecord<'a> {
    source: Option<Cow<'a, str>>,
    event: Option<Cow<'a, str>>,
    sequence_number: Option<Cow<'a, str>>,
    created: Option<&'a str>,
    size_bytes: Option<usize>,
    keys: Keys<'a>,
    new: Option<Image>,
    old: Option<Image>,
}

impl<'a> Fields<'a> for RawRecord<'a> {
    fn field<A: MapAccess<'a>>(
        &mut self,
        name: Cow<'a, str>,
        object: &mut A,
    ) -> Result<(), A::Error> {
        match &*name {
            "eventSource" => self.source = object.next_value_seed(Text)?,
            "eventName" => self.event = object.next_value_seed(Text)?,
            // The only object of a record whose fields are read; its field names do not occur
            // outside.
            "dynamodb" => drop(object.next_value_seed(Object(self))?),
            "SequenceNumber" => self.sequence_number = object.next_value_seed(Text)?,
            "ApproximateCreationDateTime" => self.created = Some(raw(object)?),
            "SizeBytes" => self.size_bytes = raw(object)?.parse().ok(),
            "Keys" => drop(object.next_value_seed(Object(&mut self.keys))?),
            "NewImage" => {
                let mut image = Image::default();
                self.new = object.next_value_seed(Object(&mut image))?.then_some(image);
            }
            "OldImage" => {
                let mut image = Image {
                    is_old: true,
                    ..Image::default()
                };
                self.old = object.next_value_seed(Object(&mut image))?.then_some(image);
            }
            _ => skip(object)?,
        }
        Ok(())
    }
}

/// Hours that a writer's clock may be ahead when it rolls a shard.
const HOURS_AHEAD: i64 = 1;

impl RawRecord<'_> {
    /// Returns the record if it is of one of our shards, and `None` if not. Returns the reason if
    /// it is, but cannot be read.
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
        let key = BucketKey::parse(&pk)
            .ok_or("PK is not {namespace}/BUCKET#{entity}#{resource}#{shard}")?;
        let (has_old, has_new) = match self.event.as_deref() {
            Some("INSERT") => (false, true),
            Some("MODIFY") => (true, true),
            Some("REMOVE") => (true, false),
            other => {
                return Err(format!(
                    "eventName is {other:?}, it takes INSERT, MODIFY or REMOVE"
                ));
            }
        };
        let old = has_old
            .then(|| self.old.ok_or("OldImage is missing"))
            .transpose()?;
        let new = has_new
            .then(|| self.new.ok_or("NewImage is missing"))
            .transpose()?;
        let is_ours = |image: &Option<Image>| {
            image
                .as_ref()
                .is_none_or(|image| image.reader.counts_writes())
        };
        if key.shard >= MAX_SHARDS || !is_ours(&old) || !is_ours(&new) {
            return Ok(None);
        }
        let created = self
            .created
            .ok_or("ApproximateCreationDateTime is missing")?;
        let at = timestamp::seconds(created).ok_or_else(|| {
            format!("ApproximateCreationDateTime is {created}, it takes seconds since 1970, of the years 1970 to 9998")
        })?;
        let before = old.map(|image| image.before(key.clone())).transpose()?;
        // Leases and indexed keys are not read, so the attributes do not give the size. DynamoDB
        // reports the size of the keys and both images, which are nearly equal.
        let images = usize::from(has_old) + usize::from(has_new);
        let size_bytes = self
            .size_bytes
            .unwrap_or_default()
            .saturating_sub(pk.len() + sk.len() + 4)
            / images;
        let after = new.map_or(Ok(After::Gone), |image| image.after(key, size_bytes))?;
        let latest = Hour(Hour::of(at).0.saturating_add(HOURS_AHEAD));
        let hours = [before.as_ref().map(|before| before.hour), after.hour()];
        if let Some(hour) = hours.into_iter().flatten().find(|hour| *hour > latest) {
            let (hour, written) = (hour.0, Hour::of(at).0);
            return Err(format!(
                "attribute uh is {hour}, it takes an hour that has begun: it was written in {written}"
            ));
        }
        Ok(Some(Record {
            index,
            at,
            before,
            after,
        }))
    }
}

impl After {
    const fn hour(&self) -> Option<Hour> {
        match self {
            Self::Live(shard) => Some(shard.hour),
            Self::Merged(meter) => Some(meter.hour),
            Self::Gone => None,
        }
    }
}

#[derive(Default)]
struct Keys<'a> {
    pk: Option<Cow<'a, str>>,
    sk: Option<Cow<'a, str>>,
}

impl<'a> Fields<'a> for Keys<'a> {
    fn field<A: MapAccess<'a>>(
        &mut self,
        name: Cow<'a, str>,
        object: &mut A,
    ) -> Result<(), A::Error> {
        let Attribute::S(text) = object.next_value_seed(Typed)? else {
            return Ok(());
        };
        match &*name {
            attr::PK => self.pk = Some(text),
            attr::SK => self.sk = Some(text),
            _ => {}
        }
        Ok(())
    }
}

/// The item before or after a write. Of the old one, only usage counters are read; of the new one,
/// also the input of a refill or a split, and the size of its leases.
#[derive(Default)]
struct Image {
    is_old: bool,
    reader: ShardReader,
    lease_bytes: usize,
    flaw: Option<ItemError>,
}

impl<'a> Fields<'a> for Image {
    fn field<A: MapAccess<'a>>(
        &mut self,
        name: Cow<'a, str>,
        object: &mut A,
    ) -> Result<(), A::Error> {
        // The token attributes show which limits a shard has.
        let is_counted = attr::counts_usage(&name)
            || name.ends_with("_tk")
            || matches!(&*name, attr::V | attr::RF);
        let is_needed = is_counted
            || !self.is_old
                && (name.starts_with("b_")
                    || matches!(&*name, attr::WRITE_UNITS | attr::SHARD_COUNT));
        match &*name {
            _ if is_needed => {}
            _ if self.is_old => return skip(object),
            attr::HOT | attr::DUE | attr::MIN_SHARDS | attr::SPLIT_BYTES | attr::VERSION => {}
            attr::ESCROW => {
                let mut map = Map::default();
                object.next_value_seed(Object(&mut map))?;
                let entries = map.0.iter().map(|(name, value)| (&**name, borrowed(value)));
                // A damaged escrow is reported when the item itself is read.
                let _ = self.reader.attribute(&name, &Attr::M(entries.collect()));
                return Ok(());
            }
            attr::LEASES => {
                self.lease_bytes = object.next_value_seed(Size)?;
                return Ok(());
            }
            _ => return skip(object),
        }
        let value = object.next_value_seed(Typed)?;
        let read = self.reader.attribute(&name, &borrowed(&value));
        // An attribute that only a split needs must not prevent a copy of usage.
        self.flaw = self.flaw.take().or(read.err().filter(|_| is_needed));
        Ok(())
    }
}

impl Image {
    fn before(self, key: BucketKey) -> Result<Meter, String> {
        let of_old = |flaw: ItemError| format!("OldImage: {flaw}");
        self.flaw.map_or(Ok(()), |flaw| Err(of_old(flaw)))?;
        self.reader.meter(key).map_err(of_old)
    }

    fn after(self, key: BucketKey, size_bytes: usize) -> Result<After, String> {
        self.flaw.map_or(Ok(()), |flaw| Err(flaw.to_string()))?;
        if self.reader.is_merged() {
            return self
                .reader
                .meter(key)
                .map(After::Merged)
                .map_err(|flaw| flaw.to_string());
        }
        let mut shard = self.reader.finish(key).map_err(|flaw| flaw.to_string())?;
        (shard.size_bytes, shard.lease_bytes) = (size_bytes, self.lease_bytes);
        Ok(After::Live(Box::new(shard)))
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
