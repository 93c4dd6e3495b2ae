//! A usage snapshot's item.

use std::collections::{BTreeMap, BTreeSet};

use super::parse::{count, integer};
use super::{Attr, ItemError};
use crate::{LimitName, MilliTotal, ShardUsageCopy, Snapshot, Usage, attr};

/// The shard, or the carry, that an attribute counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Shard(u32),
    Carry,
}

/// Reads a snapshot from all attributes of its item.
///
/// # Errors
/// [`ItemError`] naming the attribute that is wrong or missing.
pub fn read_snapshot<'a>(
    item: impl Iterator<Item = (&'a str, Attr<'a>)>,
) -> Result<Snapshot, ItemError> {
    let (mut carry, mut carried) = (Usage::default(), BTreeMap::new());
    let (mut unfinished, mut finals) = (BTreeSet::new(), BTreeSet::new());
    let (mut copied_at, mut usage) = (BTreeMap::new(), BTreeMap::<u32, Usage>::new());
    for (name, value) in item {
        if name == attr::FINAL {
            finals = shards(name, &value)?;
        } else if name == attr::UNFINISHED {
            unfinished = shards(name, &value)?;
        } else if let Some(shard) = name.strip_prefix("#c").and_then(canonical) {
            let lives = numbers(name, &value)?
                .iter()
                .map(|v| integer(name, &Attr::N(v)));
            carried.insert(shard, lives.collect::<Result<_, _>>()?);
        } else if let Some(shard) = name.strip_prefix('q').and_then(canonical) {
            copied_at.insert(shard, integer(name, &value)?);
        } else if let Some((counted, owner)) = owner(name) {
            let of = match owner {
                Owner::Shard(shard) => usage.entry(shard).or_default(),
                Owner::Carry => &mut carry,
            };
            if counted.is_empty() || counted == attr::TOTAL_EVENTS {
                of.acquires = count(name, &value)?;
            } else if let Ok(limit) = LimitName::new(counted) {
                of.tokens.insert(limit, tokens(name, &value)?);
            }
        }
    }
    let mut shards: BTreeMap<u32, ShardUsageCopy> = BTreeMap::new();
    for (shard, usage) in usage {
        if usage == Usage::default() && !copied_at.contains_key(&shard) {
            continue;
        }
        let v = copied_at.remove(&shard).ok_or_else(|| {
            ItemError::missing(
                &attr::copied_at(shard),
                "the `v` that the shard's numbers are of",
            )
        })?;
        shards.insert(
            shard,
            ShardUsageCopy {
                write_seq: v,
                usage,
                is_final: finals.contains(&shard),
            },
        );
    }
    let without_usage = |(shard, v)| {
        (
            shard,
            ShardUsageCopy {
                write_seq: v,
                usage: Usage::default(),
                is_final: finals.contains(&shard),
            },
        )
    };
    shards.extend(copied_at.into_iter().map(without_usage));
    Ok(Snapshot {
        shards,
        carry,
        carried,
        unfinished,
    })
}

/// Returns the limit that an attribute counts, and its owner. The empty name and `total_events`
/// count acquires.
fn owner(name: &str) -> Option<(&str, Owner)> {
    match name.split_once('#') {
        None => Some((name, Owner::Shard(0))),
        Some((counted, "c")) => Some((counted, Owner::Carry)),
        Some((counted, shard)) => Some((counted, Owner::Shard(canonical(shard)?))),
    }
}

/// Parses a shard index in its only spelling.
fn canonical(digits: &str) -> Option<u32> {
    let shard: u32 = digits.parse().ok()?;
    (shard.to_string() == digits).then_some(shard)
}

fn shards(name: &str, value: &Attr<'_>) -> Result<BTreeSet<u32>, ItemError> {
    let wrong = || ItemError::new(name, value, "a set of shard numbers");
    numbers(name, value)?
        .iter()
        .map(|number| canonical(number).ok_or_else(wrong))
        .collect()
}

fn numbers<'v, 'a>(name: &str, value: &'v Attr<'a>) -> Result<&'v [&'a str], ItemError> {
    if let Attr::Numbers(numbers) = value {
        Ok(numbers)
    } else {
        Err(ItemError::new(name, value, "a set of numbers"))
    }
}

/// Parses an amount in tokens, with at most three decimals.
fn tokens(name: &str, value: &Attr<'_>) -> Result<MilliTotal, ItemError> {
    let parsed = if let Attr::N(text) = value {
        milli(text)
    } else {
        None
    };
    parsed.ok_or_else(|| {
        ItemError::new(
            name,
            value,
            "an amount of tokens with three decimals at most",
        )
    })
}

fn milli(text: &str) -> Option<MilliTotal> {
    let (sign, size) = text.strip_prefix('-').map_or((1, text), |size| (-1, size));
    let (whole, part) = size.split_once('.').unwrap_or((size, ""));
    let is_plain = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || part.len() > 3 || !is_plain(whole) || !is_plain(part) {
        return None;
    }
    let digits: i128 = format!("{whole}{part:0<3}").parse().ok()?;
    Some(MilliTotal(sign * digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_they_are_written() {
        for amount in [
            0,
            1,
            -1,
            1000,
            1250,
            -2500,
            1_000_000_010,
            i64::MAX.into(),
            i64::MIN.into(),
            i128::MAX,
        ] {
            assert_eq!(
                milli(&MilliTotal(amount).to_string()),
                Some(MilliTotal(amount))
            );
        }
        for wrong in [
            "",
            "-",
            ".",
            "1.2345",
            "1e3",
            "+1",
            "1.-2",
            "170141183460469231731687303715884105.728",
            "1 ",
        ] {
            assert_eq!(milli(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_snapshot_reads_at_a_glance() {
        let item = [
            ("PK", Attr::S("default/ENTITY#e-1")),
            ("rpm", Attr::N("3.5")),
            ("rpm#12", Attr::N("-2")),
            ("rpm#c", Attr::N("7")),
            ("total_events", Attr::N("4")),
            ("#12", Attr::N("1")),
            ("total_events#c", Attr::N("9")),
            ("q0", Attr::N("100")),
            ("q12", Attr::N("200")),
            ("final", Attr::Numbers(vec!["12"])),
            ("unfinished#c", Attr::Numbers(vec!["3"])),
            ("#c12", Attr::Numbers(vec!["50", "60"])),
            ("ttl", Attr::N("1")),
        ];
        let rpm = |milli| [(LimitName::new("rpm").unwrap(), MilliTotal(milli))].into();
        let copied = |v, milli, acquires, is_final| ShardUsageCopy {
            write_seq: v,
            usage: Usage {
                tokens: rpm(milli),
                acquires,
            },
            is_final,
        };
        let read = read_snapshot(item.iter().cloned()).unwrap();
        assert_eq!(
            read.shards,
            [
                (0, copied(100, 3500, 4, false)),
                (12, copied(200, -2000, 1, true))
            ]
            .into()
        );
        assert_eq!(
            (read.carry, read.unfinished),
            (
                Usage {
                    tokens: rpm(7000),
                    acquires: 9
                },
                [3].into()
            )
        );
        assert_eq!(read.carried, [(12, [50, 60].into())].into());
        for (name, value, attribute) in [
            ("q0", Attr::S("far"), "q0"),
            ("#c12", Attr::Numbers(vec!["far"]), "#c12"),
            ("rpm", Attr::S("x"), "rpm"),
            ("final", Attr::N("1"), "final"),
            ("tpm#4", Attr::N("1"), "q4"),
        ] {
            let other = item.iter().filter(|(known, _)| *known != name).cloned();
            let error = read_snapshot(other.chain([(name, value)])).unwrap_err();
            assert_eq!(error.attribute, attribute, "{error}");
        }
    }
}
