//! The image of an item in a record.

use std::borrow::Cow;

use serde::de::MapAccess;
use weirgate_shared::{Attr, BucketKey, ItemError, Meter, ShardReader, attr};

use super::record::After;
use crate::json::{Attribute, Fields, Map, Object, Size, Typed, skip};

/// The item before or after a write. Of the old one, only usage counters are read; of the new one,
/// all but its leases, of which the size is enough, because a split copies what it does not divide.
#[derive(Default)]
pub(super) struct Image {
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
            || matches!(&*name, attr::WRITE_SEQ | attr::REFILLED_AT);
        let is_needed =
            is_counted || !self.is_old && (name.starts_with("b_") || &*name == attr::SHARD_COUNT);
        match &*name {
            _ if is_needed => {}
            _ if self.is_old => return skip(object),
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
            _ => {}
        }
        let value = object.next_value_seed(Typed)?;
        let read = self.reader.attribute(&name, &borrowed(&value));
        // An attribute that only a split needs must not prevent a copy of usage.
        self.flaw = self.flaw.take().or(read.err().filter(|_| is_needed));
        Ok(())
    }
}

impl Image {
    /// Returns an image that reads only usage counters.
    pub(super) fn old() -> Self {
        Self { is_old: true, ..Self::default() }
    }

    /// Returns whether this software wrote the item.
    pub(super) const fn is_ours(&self) -> bool {
        self.reader.counts_writes()
    }

    pub(super) fn before(self, key: BucketKey) -> Result<Meter, String> {
        let of_old = |flaw: ItemError| format!("OldImage: {flaw}");
        self.flaw.map_or(Ok(()), |flaw| Err(of_old(flaw)))?;
        self.reader.meter(key).map_err(of_old)
    }

    pub(super) fn after(self, key: BucketKey, size_bytes: usize) -> Result<After, String> {
        self.flaw.map_or(Ok(()), |flaw| Err(flaw.to_string()))?;
        if self.reader.is_merged() {
            return self.reader.meter(key).map(After::Merged).map_err(|flaw| flaw.to_string());
        }
        let mut shard = self.reader.finish(key).map_err(|flaw| flaw.to_string())?;
        // The size of both images lags behind growing leases, and some emulators report none.
        (shard.size_bytes, shard.lease_bytes) =
            (size_bytes.max(self.lease_bytes), self.lease_bytes);
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
