//! The escrow of a split: a map in the old half's item with the attributes of the new half. It
//! lacks those that follow from the old half, and counters that begin at 0.

use crate::attr;

/// Returns whether an attribute of a new half follows from the old half.
pub(super) fn is_implied(attribute: &str) -> bool {
    const IMPLIED: [&str; 7] = [
        attr::GSI2PK,
        attr::GSI2SK,
        attr::GSI3PK,
        attr::GSI3SK,
        attr::SHARD_COUNT,
        attr::LEASES,
        attr::DUE_SHARD,
    ];
    let is_counter = attr::counts_usage(attribute) && attribute != attr::HOUR;
    IMPLIED.contains(&attribute) || is_counter
}

#[cfg(test)]
mod tests {
    use crate::item::write_escrow;
    use crate::{Attr, BucketKey, ItemError, Shard, ShardIndex, write_shard};
    use std::collections::BTreeMap;

    use super::*;
    use crate::LimitsVersion;
    use crate::write::{AttributeUpdate, Value, split};
    use crate::{EpochMillis, Limit, WriteId, read_shard};

    const VERSION: LimitsVersion = LimitsVersion { number: 3, boundary: EpochMillis(60_000) };

    fn attr(value: &Value) -> Attr<'_> {
        match value {
            // Leaked, as this is a test and they are borrowed by what is read.
            Value::Int(number) => Attr::N(number.to_string().leak()),
            Value::Count(number) => Attr::N(number.to_string().leak()),
            Value::Text(text) => Attr::S(text),
            Value::Bool(is) => Attr::Bool(*is),
            Value::Map(map) => {
                Attr::M(map.iter().map(|(name, value)| (name.as_str(), attr(value))).collect())
            }
            other => panic!("{other:?} is in no bucket"),
        }
    }

    fn read(shard: &Shard, escrow: &Value) -> Result<Shard, ItemError> {
        let pk = shard.key.item_key().pk;
        let item = write_shard(shard);
        let sets = item.iter().map(|change| match change {
            AttributeUpdate::Set(path, value) => (path.0[0].as_ref(), attr(value)),
            other => panic!("{other:?}"),
        });
        let sets = sets.filter(|(name, _)| *name != attr::ESCROW);
        read_shard(sets.chain([(attr::PK, Attr::S(&pk)), (attr::ESCROW, attr(escrow))]))
    }

    /// Half of a bucket, the other half of which is yet to be made.
    fn parent() -> Shard {
        let limits =
            [Limit::per_minute("rpm", 60).unwrap(), Limit::concurrent("slots", 4).unwrap()];
        let key = BucketKey::parse("default/BUCKET#e-1#gpt-4#1").unwrap();
        let image = Shard {
            shard_count: 2,
            config_version: Some(VERSION),
            ..Shard::full(key, &limits, EpochMillis(7))
        };
        let first = split(&image, 2, WriteId::from_bits(1), EpochMillis(9_000));
        let escrow = first.changes.into_iter().find_map(|change| match change {
            AttributeUpdate::Set(path, escrow) if path.0[0] == attr::ESCROW => Some(escrow),
            _ => None,
        });
        read(&Shard { shard_count: 4, ..image }, &escrow.expect("a split has one")).unwrap()
    }

    #[test]
    fn an_escrow_is_read_as_it_was_written() {
        let parent = parent();
        let half = parent.escrow.as_deref().unwrap();
        assert_eq!(
            (half.shard(), half.config_version, half.scaling.min_shards),
            (ShardIndex { index: 3, count: 4 }, Some(VERSION), 2)
        );
        assert_eq!(
            (half.write_seq, half.birth_seq, half.refilled_at),
            (9_000_001, 9_000_001, EpochMillis(9_000))
        );
        assert_eq!(half.leases, Some(BTreeMap::new()));
        let again = read(&parent, &write_escrow(half)).unwrap();
        assert_eq!(again.escrow, parent.escrow);
    }

    #[test]
    fn a_damaged_escrow_is_named() {
        let parent = parent();
        let Value::Map(sound) = write_escrow(parent.escrow.as_deref().unwrap()) else {
            panic!("a map")
        };
        let may_lack = [
            attr::DUE,
            attr::SAMPLE_AT,
            attr::SAMPLE_WRITE_SEQ,
            attr::MIN_SHARDS,
            attr::LAST_WRITE_ID,
            attr::VERSION,
            attr::BOUNDARY,
        ];
        for name in sound.keys().filter(|name| *name != attr::WRITE_UNITS) {
            let mut damaged = sound.clone();
            damaged.insert(name.clone(), Value::Map(BTreeMap::new()));
            let error = read(&parent, &Value::Map(damaged)).unwrap_err();
            assert_eq!(error.attribute, format!("escrow.{name}"));
            let mut lacking = sound.clone();
            lacking.remove(name);
            let read = read(&parent, &Value::Map(lacking));
            assert!(
                may_lack.contains(&name.as_str())
                    || read.unwrap_err().attribute.starts_with("escrow."),
                "{name}"
            );
        }
        assert_eq!(read(&parent, &Value::Int(1)).unwrap_err().attribute, attr::ESCROW);
        let mut nested = sound.clone();
        nested.insert(attr::ESCROW.to_owned(), Value::Map(sound.clone()));
        assert_eq!(read(&parent, &Value::Map(nested)).unwrap_err().attribute, "escrow.escrow");
        for shard_count in [1, 2] {
            // Shard 1 is the new half there, so it has none.
            let odd = Shard { shard_count, ..parent.clone() };
            assert_eq!(
                read(&odd, &Value::Map(sound.clone())).unwrap_err().attribute,
                attr::SHARD_COUNT
            );
        }
    }
}
