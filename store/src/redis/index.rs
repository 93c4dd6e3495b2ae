//! Names of keys, and the members of the sorted sets that list items.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use weirgate_shared::write::INTERIM;
use weirgate_shared::{Attr, BUCKET_SK, ItemKey, SNAPSHOT_SK, attr};

use super::field;
use crate::request::{Listing, Range};
use crate::{Index, Item, attribute, indexes};

/// Separates the parts of a member; no key has it.
const END: char = '\0';
/// Is above every text.
const ABOVE: u8 = 0xff;
/// Digits of a number in a member, which orders numbers as texts.
const DIGITS: usize = 20;

/// Returns the Lua statements that name the indexes and attributes for `apply.lua`.
pub(super) fn constants() -> String {
    let all = [(attr::PK, attr::SK)].into_iter();
    let all = all.chain(indexes().map(|index| (index.hash, index.range.0)));
    let all: Vec<_> = all.collect();
    let pairs: Vec<_> =
        all.iter().map(|(hash, range)| format!("{{ '{hash}', '{range}' }}")).collect();
    let listed = all.iter().flat_map(|(hash, range)| [*hash, *range]);
    let listed: Vec<_> =
        listed.chain([attr::TTL]).map(|name| format!("changed['{name}'] ~= nil")).collect();
    let names = [
        ("TTL", attr::TTL),
        ("BUCKET_SK", BUCKET_SK),
        ("SNAPSHOT_SK", SNAPSHOT_SK),
        ("HOUR", attr::HOUR),
        ("BIRTH", attr::BIRTH),
        ("SEQUENCE", attr::WRITE_SEQ),
        ("LIVE", attr::REFILLED_AT),
    ];
    let names = names.map(|(name, value)| format!("local {name} = '{value}'\n"));
    format!(
        "{}local INTERIM = {INTERIM}\nlocal INDEX_COUNT = {}\n\
         local indexes = function () return {{ {} }} end\n\
         local function is_listed(changed) return {} end\n",
        names.concat(),
        all.len(),
        pairs.join(", "),
        listed.join(" or "),
    )
}

/// Names of the keys of one table.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    name: String,
    /// The sorted sets of the indexes, the table's own first, in the order of [`indexes`].
    indexes: Vec<String>,
    /// What every write needs, in the order of `apply.lua`: the indexes, the expiries, the stream, and the
    /// number of writes.
    pub(super) of_writes: Vec<String>,
    /// The stream of images of shards.
    pub(super) records: String,
    /// The lock of its reader.
    pub(super) lock: String,
    /// The number of writes.
    pub(super) writes: String,
}

impl Keys {
    pub(super) fn new(name: &str) -> Self {
        let names = ["items"].into_iter();
        let names = names.chain(indexes().map(|index| index.name));
        let key = |part: &str| key(name, part);
        let indexes: Vec<_> = names.map(key).collect();
        let (records, writes) = (key("records"), key("writes"));
        let others = [key("expiries"), records.clone(), writes.clone()];
        Self {
            name: name.to_owned(),
            of_writes: indexes.iter().cloned().chain(others).collect(),
            indexes,
            lock: format!("{records}:lock"),
            records,
            writes,
        }
    }

    /// Returns the key of an item.
    pub(super) fn item(&self, key: &ItemKey) -> String {
        let ItemKey { pk, sk } = key;
        self.key(&format!("{pk} {sk}"))
    }

    /// Returns the key of a transaction's token.
    pub(super) fn token(&self, token: &str) -> String {
        self.key(&format!("token {token}"))
    }

    fn key(&self, part: &str) -> String {
        key(&self.name, part)
    }

    pub(super) fn of_index(&self, index: Option<Index>) -> &str {
        let is = |known: &Index| Some(*known) == index;
        let at = indexes().iter().position(is).map_or(0, |at| at + 1);
        &self.indexes[at]
    }
}

/// Returns `{table}:{{table}}:{part}`. A cluster chooses the slot by what is in braces, so all of a table are in
/// one: a write changes its item and the indexes, and a transaction any items, at once or not at all.
fn key(table: &str, part: &str) -> String {
    format!("{table}:{{{table}}}:{part}")
}

/// Returns the bounds of a listing, the lower one first, as `ZRANGE ... BYLEX` takes them.
pub(super) fn bounds(listing: &Listing<'_>) -> [Vec<u8>; 2] {
    let hash = listing.partition;
    let within = |from: &str| format!("[{hash}{END}{from}").into_bytes();
    let below = |to: String, end: u8| {
        let mut bound = format!("({hash}{END}{to}").into_bytes();
        bound.push(end);
        bound
    };
    // What follows a sort key in a member begins with `END`, which is below 1.
    let [mut lower, mut upper] = match listing.keys {
        Range::StartingWith(prefix) => [within(prefix), below(prefix.to_owned(), ABOVE)],
        Range::Between(first, last) => [within(first), below(last.to_owned(), 1)],
        Range::UpTo(last) => [within(""), below(padded(last), 1)],
    };
    if let Some(after) = listing.after.as_ref().and_then(|item| member(item, listing)) {
        let bound = format!("({after}").into_bytes();
        match listing.is_descending {
            true => upper = bound,
            false => lower = bound,
        }
    }
    [lower, upper]
}

/// Returns the bounds of all items whose partition key begins with `prefix`, after this one.
pub(super) fn bounds_of_scan(prefix: &str, after: Option<&Item>) -> [Vec<u8>; 2] {
    let after = after.and_then(Item::key).map(|key| format!("({}{END}{}", key.pk, key.sk));
    let mut upper = format!("({prefix}").into_bytes();
    upper.push(ABOVE);
    [after.unwrap_or_else(|| format!("[{prefix}")).into_bytes(), upper]
}

fn padded(number: i64) -> String {
    format!("{:0DIGITS$}", number.max(0))
}

/// Returns the member of an item, of which at least the keys are there.
fn member(item: &Item, listing: &Listing<'_>) -> Option<String> {
    let ItemKey { pk, sk } = item.key()?;
    if listing.index.is_none() {
        return Some(format!("{pk}{END}{sk}"));
    }
    let (hash, range) = listing.names();
    let text = |wanted: &str| {
        item.attributes().find(|(name, _)| *name == wanted).and_then(|(_, value)| match value {
            Attr::S(text) => Some(text.to_owned()),
            Attr::N(number) => number.parse().ok().map(padded),
            _ => None,
        })
    };
    Some(format!("{}{END}{}{END}{pk}{END}{sk}", text(hash)?, text(range)?))
}

/// Returns whether an entry of an index is of an item with these fields of the index's keys. It may be of an
/// earlier item under the same key.
pub(super) fn matches(shown: &Item, index: Index, fields: &[String; 2]) -> bool {
    let Index { hash, range, .. } = index;
    let [Some(seen_hash), Some(seen_range)] = fields.each_ref().map(|text| field::value(text))
    else {
        return false;
    };
    let order = |value: &AttributeValue| match value {
        AttributeValue::N(number) => {
            let whole = number.split('.').next();
            whole.and_then(|whole| whole.parse().ok()).map(padded)
        }
        AttributeValue::S(text) => Some(text.clone()),
        _ => None,
    };
    shown.0.get(hash) == Some(&seen_hash)
        && shown.0.get(range.0).and_then(order) == order(&seen_range)
}

/// Returns the key of the item of a member, and the attributes that an index shows of it.
pub(super) fn parse(member: &str, index: Option<Index>) -> Option<(ItemKey, Item)> {
    let mut parts = member.split(END).map(str::to_owned);
    let mut shown = HashMap::new();
    if let Some(index) = index {
        let (hash, range) = (parts.next()?, parts.next()?);
        let range = match index.range.1 {
            "N" => AttributeValue::N(range.parse::<u64>().ok()?.to_string()),
            _ => AttributeValue::S(range),
        };
        shown.insert(index.hash.to_owned(), AttributeValue::S(hash));
        shown.insert(index.range.0.to_owned(), range);
    }
    let key = ItemKey { pk: parts.next()?, sk: parts.next()? };
    shown.extend(attribute::key(&key));
    Some((key, Item(shown)))
}
