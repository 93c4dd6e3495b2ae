//! Writes a shard as the attributes of its item.

use super::escrow::is_implied;
use super::lease::write_leases;
use crate::attr::{self, Field};
use crate::write::{AttributeUpdate, Path, Value};
use crate::{ActivitySample, LimitName, LimitState, Pause, Scaling, Shard};

/// Returns all attributes of a shard's item except its keys, as changes that write them.
#[must_use]
pub fn write_shard(shard: &Shard) -> Vec<AttributeUpdate> {
    let set = |name: &'static str, value: Value| AttributeUpdate::Set(Path::of(name), value);
    let ((gsi2pk, gsi2sk), (gsi3pk, gsi3sk)) = (shard.key.by_resource(), shard.key.by_entity());
    let mut changes = vec![
        set(attr::GSI2PK, Value::Text(gsi2pk)),
        set(attr::GSI2SK, Value::Text(gsi2sk)),
        set(attr::GSI3PK, Value::Text(gsi3pk)),
        set(attr::GSI3SK, Value::Text(gsi3sk)),
        set(attr::SHARD_COUNT, Value::Int(i64::from(shard.shard_count))),
        set(attr::REFILLED_AT, Value::Int(shard.refilled_at.0)),
        set(attr::WRITE_SEQ, Value::Int(shard.write_seq)),
        set(attr::BIRTH, Value::Int(shard.birth_seq)),
        set(attr::HOUR, Value::Int(shard.hour.0)),
        set(attr::TAKES, Value::Count(shard.acquires.total)),
        set(attr::TAKES_HOUR_BASE, Value::Count(shard.acquires.bases.hour)),
        set(attr::TAKES_DAY_BASE, Value::Count(shard.acquires.bases.day)),
        set(attr::WRITE_UNITS, Value::Int(999_000)),
    ];
    if let Some(version) = shard.config_version {
        changes.push(set(attr::VERSION, Value::Int(version.number)));
        let since = version.scaled_since();
        changes.extend(since.map(|at| set(attr::BOUNDARY, Value::Int(at.0))));
    }
    changes.extend(shard.limits_changed_at.map(|at| set(attr::RULE_AT, Value::Int(at.0))));
    changes.extend(shard.ttl.map(|ttl| set(attr::TTL, Value::Int(ttl.0))));
    changes.extend(
        shard.last_write_id.as_ref().map(|op| set(attr::LAST_WRITE_ID, Value::text(op.as_str()))),
    );
    changes.extend(shard.edit.map(|edit| set(attr::EDIT, Value::Int(edit.0))));
    if let Some(Pause { until, lasts }) = shard.pause {
        changes.extend([
            set(attr::PAUSED_UNTIL, Value::Int(until.0)),
            set(attr::PAUSE_LENGTH, Value::Int(lasts.0)),
        ]);
    }
    changes.extend(shard.leases.as_ref().map(|leases| set(attr::LEASES, write_leases(leases))));
    let Scaling { hot_at, sample: look, min_shards, lease_bytes_at_split: split_bytes } =
        shard.scaling;
    changes.extend(hot_at.map(|at| set(attr::HOT, Value::Int(at.0))));
    changes
        .extend((min_shards > 0).then(|| set(attr::MIN_SHARDS, Value::Int(i64::from(min_shards)))));
    changes.extend((split_bytes > 0).then(|| set(attr::SPLIT_BYTES, Value::Int(split_bytes))));
    if let Some(ActivitySample { at, write_seq: v }) = look {
        changes.extend([
            set(attr::SAMPLE_AT, Value::Int(at.0)),
            set(attr::SAMPLE_WRITE_SEQ, Value::Int(v)),
        ]);
    }
    if let Some(due) = shard.due_at {
        changes.push(set(attr::DUE, Value::Int(due.0)));
        changes.push(set(attr::DUE_SHARD, Value::Text(shard.key.due_shard())));
    }
    changes.extend(shard.limits.iter().flat_map(|(name, state)| write_limit(name, state)));
    changes.extend(shard.escrow.as_deref().map(|child| set(attr::ESCROW, write_escrow(child))));
    changes
}

/// Returns the attributes of one limit, as changes that write them.
pub(crate) fn write_limit(
    name: &LimitName,
    state: &LimitState,
) -> impl Iterator<Item = AttributeUpdate> {
    let LimitState { available: tk, consumed: tc, bases, rule, window_end } = *state;
    let has = move |field: &Field| *field != Field::WindowEnd || rule.kind().has_window();
    Field::ALL.into_iter().filter(has).map(move |field| {
        let number = match field {
            Field::Tokens => Value::Int(tk.0),
            Field::Consumed => Value::Count(tc.0),
            Field::Capacity => Value::Int(rule.capacity.0),
            Field::RefillAmount => Value::Int(rule.refill_amount.0),
            Field::RefillPeriod => Value::Int(rule.refill_period_ms),
            Field::WindowEnd => Value::Int(window_end.0),
            Field::HourBase => Value::Count(bases.hour),
            Field::DayBase => Value::Count(bases.day),
        };
        AttributeUpdate::Set(Path::limit(name, field), number)
    })
}

/// Returns the escrow from which `child` will be created.
pub(crate) fn write_escrow(child: &Shard) -> Value {
    let kept = |change| match change {
        AttributeUpdate::Set(path, value) if !is_implied(&path.0[0]) => {
            Some((path.0[0].to_string(), value))
        }
        _ => None,
    };
    Value::Map(write_shard(child).into_iter().filter_map(kept).collect())
}
