//! A stamp's item.

use super::parse::{entries, integer};
use super::{Attr, ItemError};
use crate::{EpochMillis, LimitName, MilliTokens, RefillRule, Stamp, attr};

/// Reads a stamp from all attributes of its item.
///
/// # Errors
/// [`ItemError`] naming the attribute that is wrong or missing.
pub fn read_stamp<'a>(item: impl Iterator<Item = (&'a str, Attr<'a>)>) -> Result<Stamp, ItemError> {
    let (mut at, mut until, mut shards, mut held) = (None, None, None, None);
    for (name, value) in item {
        match name {
            attr::AT => at = Some(EpochMillis(integer(name, &value)?)),
            attr::UNTIL => until = Some(EpochMillis(integer(name, &value)?)),
            attr::SHARDS => {
                let count = u32::try_from(integer(name, &value)?);
                shards =
                    Some(count.map_err(|_| ItemError::new(name, &value, "a number of shards"))?);
            }
            attr::LIMITS => {
                held = Some(entries(name, &value)?.iter().map(limit).collect::<Result<_, _>>()?)
            }
            _ => {}
        }
    }
    let missing = |name| move || ItemError::missing(name, "what its instant has");
    Ok(Stamp {
        at: at.ok_or_else(missing(attr::AT))?,
        until: until.ok_or_else(missing(attr::UNTIL))?,
        shards: shards.ok_or_else(missing(attr::SHARDS))?,
        available: held.ok_or_else(missing(attr::LIMITS))?,
    })
}

/// Reads the balance of all shards for one limit, and its rule.
fn limit<'a>(
    (name, value): &(&'a str, Attr<'a>),
) -> Result<(LimitName, (MilliTokens, RefillRule)), ItemError> {
    let inside = |field: &str| format!("{}.{name}.{field}", attr::LIMITS);
    let field = |wanted: &str| {
        let found = entries(&inside(""), value)?.iter().find(|(name, _)| *name == wanted);
        let (_, value) = found.ok_or_else(|| ItemError::missing(&inside(wanted), "a number"))?;
        integer(&inside(wanted), value)
    };
    let rule = RefillRule {
        capacity: MilliTokens(field("cp")?),
        refill_amount: MilliTokens(field("ra")?),
        refill_period_ms: field("rp")?,
    };
    let limit = LimitName::new(*name)
        .map_err(|error| ItemError::new(attr::LIMITS, &Attr::S(name), error.rule))?;
    Ok((limit, (MilliTokens(field("tk")?), rule)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item() -> Vec<(&'static str, Attr<'static>)> {
        let numbers = [
            ("tk", Attr::N("2000")),
            ("cp", Attr::N("600000")),
            ("ra", Attr::N("10")),
            ("rp", Attr::N("1")),
        ];
        vec![
            (attr::AT, Attr::N("7")),
            (attr::UNTIL, Attr::N("9")),
            (attr::SHARDS, Attr::N("64")),
            (attr::LIMITS, Attr::M(vec![("rpm", Attr::M(numbers.into()))])),
        ]
    }

    #[test]
    fn a_stamp_is_read() {
        let stamp = read_stamp(item().into_iter()).unwrap();
        assert_eq!((stamp.at, stamp.until, stamp.shards), (EpochMillis(7), EpochMillis(9), 64));
        let rule = RefillRule {
            capacity: MilliTokens(600_000),
            refill_amount: MilliTokens(10),
            refill_period_ms: 1,
        };
        assert_eq!(
            stamp.available,
            [(LimitName::new("rpm").unwrap(), (MilliTokens(2_000), rule))].into()
        );
    }

    #[test]
    fn a_damaged_stamp_is_named() {
        let named = |item: Vec<_>| read_stamp(item.into_iter()).unwrap_err().attribute;
        for at in 0..4 {
            let mut lacking = item();
            let (name, _) = lacking.remove(at);
            assert_eq!(named(lacking), name);
            let mut damaged = item();
            damaged[at].1 = Attr::Other;
            assert_eq!(named(damaged), name);
        }
        let mut many = item();
        many[2].1 = Attr::N("4294967296");
        assert_eq!(named(many), attr::SHARDS);
        for (name, value, error) in [
            ("rpm", Attr::M(vec![]), "limits.rpm.cp"),
            ("rpm", Attr::Other, "limits.rpm."),
            ("a name", Attr::M(vec![]), "limits.a name.cp"),
        ] {
            let mut damaged = item();
            damaged[3].1 = Attr::M(vec![(name, value)]);
            assert_eq!(named(damaged), error);
        }
    }
}
