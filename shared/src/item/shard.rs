//! A shard's item: all of it, its usage counters, or whether it was merged away.

use super::attribute::Attr;
use super::error::ItemError;
use super::shard_reader::ShardReader;
use crate::{BucketKey, Meter, Shard, attr};

/// Reads a shard from all attributes of its item, keys included.
///
/// # Errors
/// [`ItemError`] naming the attribute that is wrong or missing.
pub fn read_shard<'a>(item: impl Iterator<Item = (&'a str, Attr<'a>)>) -> Result<Shard, ItemError> {
    let (reader, key) = read(item)?;
    reader.finish(key)
}

/// Reads the usage counters of a shard's item, live or merged away.
///
/// # Errors
/// [`ItemError`] naming the attribute that is wrong or missing.
pub fn read_live<'a>(item: impl Iterator<Item = (&'a str, Attr<'a>)>) -> Result<Meter, ItemError> {
    let (reader, key) = read(item)?;
    reader.meter(key)
}

fn read<'a>(
    item: impl Iterator<Item = (&'a str, Attr<'a>)>,
) -> Result<(ShardReader, BucketKey), ItemError> {
    let (mut reader, mut key) = (ShardReader::default(), None);
    for (name, value) in item {
        if let (attr::PK, Attr::S(pk)) = (name, &value) {
            key = BucketKey::parse(pk);
        }
        reader.attribute(name, &value)?;
    }
    Ok((reader, key.ok_or_else(|| ItemError::missing(attr::PK, "the key of a bucket"))?))
}

/// Returns whether the item with these attributes is a shard that was merged away.
#[must_use]
pub fn is_merged<'a>(attributes: impl Iterator<Item = &'a str>) -> bool {
    let (mut is_live, mut has_birth) = (false, false);
    for name in attributes {
        is_live |= matches!(name, attr::REFILLED_AT | attr::SHARD_COUNT);
        has_birth |= name == attr::BIRTH;
    }
    has_birth && !is_live
}
