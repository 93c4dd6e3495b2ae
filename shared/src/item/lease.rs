//! The leases of a bucket shard, a map in its item.

use std::collections::BTreeMap;

use super::attribute::Attr;
use super::error::ItemError;
use super::parse::{entries, integer, write_id};
use crate::attr;
use crate::write::Value;
use crate::{EpochMillis, Lease, LimitName, MilliTokens, WriteId};

/// Returns a lease as the value of `h.{id}`.
#[must_use]
pub fn write_lease(lease: &Lease) -> Value {
    let mut map = BTreeMap::from([
        (attr::LEASE_EXPIRY.to_owned(), Value::Int(lease.expires_at.0)),
        (attr::LEASE_TOKENS.to_owned(), write_held(lease)),
        (attr::LEASE_OWNER.to_owned(), Value::text(&lease.owner)),
    ]);
    if !lease.windows.is_empty() {
        let end = |(limit, end): (&LimitName, &EpochMillis)| (limit.to_string(), Value::Int(end.0));
        let ends = lease.windows.iter().map(end).collect();
        map.insert(attr::LEASE_WINDOWS.to_owned(), Value::Map(ends));
    }
    Value::Map(map)
}

/// Returns a lease's tokens as the value of `h.{id}.t`.
pub(crate) fn write_held(lease: &Lease) -> Value {
    Value::Map(
        lease
            .tokens
            .iter()
            .map(|(limit, tokens)| (limit.to_string(), Value::Int(tokens.0)))
            .collect(),
    )
}

/// Returns all leases as the value of `h`.
#[must_use]
pub fn write_leases(leases: &BTreeMap<WriteId, Lease>) -> Value {
    Value::Map(leases.iter().map(|(id, lease)| (id.to_string(), write_lease(lease))).collect())
}

/// Reads the leases from all attributes of a shard's item; none if it has no leases.
///
/// # Errors
/// [`ItemError`] naming the attribute that is wrong or missing.
pub fn read_leases<'a>(
    mut item: impl Iterator<Item = (&'a str, Attr<'a>)>,
) -> Result<BTreeMap<WriteId, Lease>, ItemError> {
    let found = item.find(|(name, _)| *name == attr::LEASES);
    found.map_or_else(|| Ok(BTreeMap::new()), |(_, value)| leases(&value))
}

/// Reads the readable leases from all attributes of a shard's item: one that cannot be read hides no
/// other.
pub fn read_readable_leases<'a>(
    mut item: impl Iterator<Item = (&'a str, Attr<'a>)>,
) -> BTreeMap<WriteId, Lease> {
    let found = item.find(|(name, _)| *name == attr::LEASES);
    let all = found.as_ref().and_then(|(_, value)| entries(attr::LEASES, value).ok());
    let all = all.into_iter().flatten();
    all.filter_map(|(id, held)| named_lease(id, held).ok()).collect()
}

pub(super) fn leases(value: &Attr<'_>) -> Result<BTreeMap<WriteId, Lease>, ItemError> {
    entries(attr::LEASES, value)?.iter().map(|(id, held)| named_lease(id, held)).collect()
}

fn named_lease(id: &str, held: &Attr<'_>) -> Result<(WriteId, Lease), ItemError> {
    Ok((write_id(attr::LEASES, &Attr::S(id))?, lease(held)?))
}

fn lease(value: &Attr<'_>) -> Result<Lease, ItemError> {
    let (mut expires, mut tokens, mut owner) = (None, BTreeMap::new(), String::new());
    let mut windows = BTreeMap::new();
    let amounts = |at: &'static str, of: &Attr<'_>| {
        let amount = |(limit, amount): &(&str, Attr<'_>)| {
            let limit = LimitName::new(*limit)
                .map_err(|error| ItemError::new(at, &Attr::S(limit), error.rule))?;
            Ok((limit, integer(at, amount)?))
        };
        let entries = entries(at, of)?;
        entries.iter().map(amount).collect::<Result<Vec<_>, ItemError>>()
    };
    for (name, value) in entries(attr::LEASES, value)? {
        match (*name, value) {
            (attr::LEASE_EXPIRY, at) => expires = Some(EpochMillis(integer("h.e", at)?)),
            (attr::LEASE_OWNER, Attr::S(text)) => owner = (*text).to_owned(),
            (attr::LEASE_TOKENS, held) => {
                let held = amounts("h.t", held)?;
                tokens.extend(held.into_iter().map(|(limit, amount)| (limit, MilliTokens(amount))));
            }
            (attr::LEASE_WINDOWS, ends) => {
                let ends = amounts("h.q", ends)?;
                windows.extend(ends.into_iter().map(|(limit, end)| (limit, EpochMillis(end))));
            }
            _ => {}
        }
    }
    let expires = expires.ok_or_else(|| ItemError::missing("h.e", "epoch milliseconds"))?;
    Ok(Lease { expires_at: expires, tokens, windows, owner })
}
