//! A usage snapshot's item. A limit's attribute has its name before a `#`, and any other attribute
//! has no `#` or begins with it, so no name of a limit is that of another attribute. Releases before 0.10
//! wrote the numbers of shard 0 under the names of limits alone.

use std::collections::{BTreeMap, BTreeSet};

use super::parse::{count, entries, integer};
use super::{Attr, ItemError};
use crate::{LimitName, MilliTotal, ShardUsageCopy, Snapshot, Usage, attr};

/// Attribute with the acquires of shard 0 in a snapshot of a release before 0.10.
const FIRST_TAKES: &str = "total_events";

/// Reads a snapshot from all attributes of its item. Each copy has its acquires: one without them is
/// incomplete, and not without usage.
///
/// # Errors
/// [`ItemError`] naming the attribute that is wrong or missing.
pub fn read_snapshot<'a>(
    item: impl Iterator<Item = (&'a str, Attr<'a>)>,
) -> Result<Snapshot, ItemError> {
    let (mut snapshot, mut finals) = (Snapshot::default(), BTreeSet::new());
    let (mut copied_at, mut usage) = (BTreeMap::new(), BTreeMap::<u32, Usage>::new());
    let (mut whole, mut others) = (BTreeSet::new(), vec![]);
    for (name, value) in item {
        if name == attr::FINAL {
            finals = shards(name, &value)?;
        } else if let Some(shard) = name.strip_prefix('q').and_then(canonical) {
            copied_at.insert(shard, integer(name, &value)?);
        } else if let Some((limit, owner)) = name.split_once('#') {
            if let Some(life) = owner.strip_prefix('u').filter(|_| limit.is_empty()) {
                if let Some((shard, v)) = life.split_once('#') {
                    let v = integer(name, &Attr::N(v))?;
                    let life = canonical(shard).map(|shard| (shard, v));
                    let life = life.ok_or_else(|| ItemError::new(name, &value, "of a shard"))?;
                    snapshot.unfinished.insert(life, set_aside(name, &value)?);
                }
            } else if let Some(shard) = owner.strip_prefix('c').and_then(canonical) {
                let lives = numbers(name, &value)?.iter();
                let lives = lives.map(|v| integer(name, &Attr::N(v)));
                snapshot.carried.insert(shard, lives.collect::<Result<_, _>>()?);
            } else if owner == "c" {
                amount(&mut snapshot.carry, limit, name, &value)?;
            } else if let Some(shard) = canonical(owner) {
                amount(usage.entry(shard).or_default(), limit, name, &value)?;
                whole.extend(limit.is_empty().then_some(shard));
            }
        } else {
            others.push((name, value));
        }
    }
    if copied_at.contains_key(&0) && !whole.contains(&0) {
        let known = first_shard(&others)?;
        whole.extend(known.is_some().then_some(0));
        usage.extend(known.map(|known| (0, known)));
    }
    if let Some(shard) = copied_at.keys().find(|shard| !whole.contains(shard)) {
        let takes = "the acquires of the shard";
        return Err(ItemError::missing(&attr::copied_takes(*shard), takes));
    }
    for (shard, usage) in usage {
        let write_seq = copied_at.remove(&shard).ok_or_else(|| {
            let takes = "the `v` that the shard's numbers are of";
            ItemError::missing(&attr::copied_at(shard), takes)
        })?;
        let is_final = finals.contains(&shard);
        let copy = ShardUsageCopy { write_seq, usage, is_final };
        snapshot.shards.insert(shard, copy);
    }
    Ok(snapshot)
}

/// Reads the usage of shard 0 from the attributes without a `#`, as releases before 0.10 wrote it;
/// `None` if they have no acquires.
fn first_shard(attributes: &[(&str, Attr<'_>)]) -> Result<Option<Usage>, ItemError> {
    let mut usage = Usage::default();
    if !attributes.iter().any(|(name, _)| *name == FIRST_TAKES) {
        return Ok(None);
    }
    for (name, value) in attributes {
        match (*name, value) {
            (FIRST_TAKES, _) => amount(&mut usage, "", name, value)?,
            (attr::TTL, _) => {}
            (limit, Attr::N(_)) => amount(&mut usage, limit, name, value)?,
            _ => {}
        }
    }
    Ok(Some(usage))
}

/// Reads the amount of a limit, or of acquires, whose limit is empty.
fn amount(of: &mut Usage, limit: &str, name: &str, value: &Attr<'_>) -> Result<(), ItemError> {
    if limit.is_empty() {
        of.acquires = count(name, value)?;
    } else if let Ok(limit) = LimitName::new(limit) {
        of.tokens.insert(limit, tokens(name, value)?);
    }
    Ok(())
}

/// Reads the usage of a life without a final copy.
fn set_aside(name: &str, value: &Attr<'_>) -> Result<Usage, ItemError> {
    let mut usage = Usage::default();
    for (limit, value) in entries(name, value)? {
        let limit = limit.trim_end_matches('#');
        amount(&mut usage, limit, name, value)?;
    }
    Ok(usage)
}

/// Parses a shard index in its only spelling.
fn canonical(digits: &str) -> Option<u32> {
    let shard: u32 = digits.parse().ok()?;
    (shard.to_string() == digits).then_some(shard)
}

fn shards(name: &str, value: &Attr<'_>) -> Result<BTreeSet<u32>, ItemError> {
    let wrong = || ItemError::new(name, value, "a set of shard numbers");
    numbers(name, value)?.iter().map(|number| canonical(number).ok_or_else(wrong)).collect()
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
    let parsed = if let Attr::N(text) = value { milli(text) } else { None };
    parsed.ok_or_else(|| {
        ItemError::new(name, value, "an amount of tokens with three decimals at most")
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
            assert_eq!(milli(&MilliTotal(amount).to_string()), Some(MilliTotal(amount)));
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
            ("rpm#0", Attr::N("3.5")),
            ("rpm#12", Attr::N("-2")),
            ("rpm#c", Attr::N("7")),
            ("#0", Attr::N("4")),
            ("#12", Attr::N("1")),
            ("#c", Attr::N("9")),
            ("q0", Attr::N("100")),
            ("q12", Attr::N("200")),
            ("final", Attr::Numbers(vec!["12"])),
            ("#u3#70", Attr::M(vec![("rpm", Attr::N("7")), ("#", Attr::N("9"))])),
            ("#c12", Attr::Numbers(vec!["50", "60"])),
            ("ttl", Attr::N("1")),
        ];
        let rpm = |milli| [(LimitName::new("rpm").unwrap(), MilliTotal(milli))].into();
        let copied = |v, milli, acquires, is_final| ShardUsageCopy {
            write_seq: v,
            usage: Usage { tokens: rpm(milli), acquires },
            is_final,
        };
        let read = read_snapshot(item.iter().cloned()).unwrap();
        assert_eq!(
            read.shards,
            [(0, copied(100, 3500, 4, false)), (12, copied(200, -2000, 1, true))].into()
        );
        assert_eq!(
            (read.carry, read.unfinished),
            (copied(0, 7000, 9, false).usage, [((3, 70), copied(0, 7000, 9, false).usage)].into())
        );
        assert_eq!(read.carried, [(12, [50, 60].into())].into());
        for (name, value, attribute) in [
            ("q0", Attr::S("far"), "q0"),
            ("#c12", Attr::Numbers(vec!["far"]), "#c12"),
            ("rpm#0", Attr::S("x"), "rpm#0"),
            ("#u3#70", Attr::S("x"), "#u3#70"),
            ("final", Attr::N("1"), "final"),
            ("tpm#4", Attr::N("1"), "q4"),
            ("q4", Attr::N("1"), "#4"),
        ] {
            let other = item.iter().filter(|(known, _)| *known != name).cloned();
            let error = read_snapshot(other.chain([(name, value)])).unwrap_err();
            assert_eq!(error.attribute, attribute, "{error}");
        }
        // No copy is without acquires.
        for name in ["#0", "#12"] {
            let other = item.iter().filter(|(known, _)| *known != name).cloned();
            let error = read_snapshot(other).unwrap_err();
            assert_eq!(error.attribute, name, "{error}");
        }
    }

    /// As the function of 0.8.0 wrote it, and after a copy of this one.
    #[test]
    fn a_snapshot_of_an_older_release_has_its_usage() {
        let old = [
            ("PK", Attr::S("default/ENTITY#e-1")),
            ("SK", Attr::S("#USAGE#gpt-4#daily#2026-11-20T00:00:00Z")),
            ("q0", Attr::N("9")),
            ("rpm", Attr::N("5.5")),
            ("total_events", Attr::N("4")),
            ("q1", Attr::N("8")),
            ("rpm#1", Attr::N("2")),
            ("#1", Attr::N("1")),
            ("final", Attr::Numbers(vec!["0", "1"])),
            ("ttl", Attr::N("1")),
        ];
        let copied = |write_seq, rpm, acquires| ShardUsageCopy {
            write_seq,
            usage: Usage {
                tokens: [(LimitName::new("rpm").unwrap(), MilliTotal(rpm))].into(),
                acquires,
            },
            is_final: true,
        };
        let read = read_snapshot(old.iter().cloned()).unwrap();
        let expected = [(0, copied(9, 5_500, 4)), (1, copied(8, 2_000, 1))];
        assert_eq!(read.shards, expected.into());
        let next = [("rpm#0", Attr::N("7")), ("#0", Attr::N("6"))];
        let read = read_snapshot(old.iter().cloned().chain(next)).unwrap();
        assert_eq!(read.shards[&0], copied(9, 7_000, 6));
    }
}
