//! The fields of one record, and the record that they make.

use std::borrow::Cow;

use serde::de::MapAccess;
use weirgate_shared::{BUCKET_SK, BucketKey, Hour, MAX_SHARDS, attr};

use super::image::Image;
use super::record::{After, Record};
use crate::json::{Attribute, Fields, Object, Text, Typed, raw, skip};
use crate::timestamp;

/// A record's fields, before the record is classified.
#[derive(Default)]
pub(super) struct RawRecord<'a> {
    source: Option<Cow<'a, str>>,
    event: Option<Cow<'a, str>>,
    pub(super) sequence_number: Option<Cow<'a, str>>,
    created: Option<&'a str>,
    size_bytes: Option<usize>,
    pub(super) keys: Keys<'a>,
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
                let mut image = Image::old();
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
    pub(super) fn into_record(self, index: usize) -> Result<Option<Record>, String> {
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
                return Err(format!("eventName is {other:?}, must be INSERT, MODIFY or REMOVE"));
            }
        };
        let old = has_old.then(|| self.old.ok_or("OldImage is missing")).transpose()?;
        let new = has_new.then(|| self.new.ok_or("NewImage is missing")).transpose()?;
        let is_ours = |image: &Option<Image>| image.as_ref().is_none_or(|image| image.is_ours());
        if key.shard >= MAX_SHARDS || !is_ours(&old) || !is_ours(&new) {
            return Ok(None);
        }
        let created = self.created.ok_or("ApproximateCreationDateTime is missing")?;
        let at = timestamp::seconds(created).ok_or_else(|| {
            format!("ApproximateCreationDateTime is {created}, must be seconds since 1970, of the years 1970 to 9998")
        })?;
        let before = old.map(|image| image.before(key.clone())).transpose()?;
        // Leases and indexed keys are not read, so the attributes do not give the size. DynamoDB
        // reports the size of the keys and both images, which are nearly equal.
        let images = usize::from(has_old) + usize::from(has_new);
        let size_bytes =
            self.size_bytes.unwrap_or_default().saturating_sub(pk.len() + sk.len() + 4) / images;
        let after = new.map_or(Ok(After::Gone), |image| image.after(key, size_bytes))?;
        let latest = Hour(Hour::of(at).0.saturating_add(HOURS_AHEAD));
        let hours = [before.as_ref().map(|before| before.hour), after.hour()];
        if let Some(hour) = hours.into_iter().flatten().find(|hour| *hour > latest) {
            let (hour, written) = (hour.0, Hour::of(at).0);
            return Err(format!(
                "attribute uh is {hour}, must be an hour that has begun: it was written in {written}"
            ));
        }
        Ok(Some(Record { index, at, before, after }))
    }
}

#[derive(Default)]
pub(super) struct Keys<'a> {
    pub(super) pk: Option<Cow<'a, str>>,
    pub(super) sk: Option<Cow<'a, str>>,
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
