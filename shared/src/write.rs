//! Planned writes as data: changes and their conditions. The store renders and runs them.

mod balances;
mod changes;
mod conditions;
mod configure;
mod copy;
mod credit;
mod due;
mod erase;
mod expire;
mod lower;
mod merge;
mod operate;
mod pause;
mod refill;
mod replace;
mod roll;
mod settle;
mod split;
mod take;
mod ttl;
mod update;

use changes::{add_tokens, count_write, set_write_id};
use conditions::{
    has_kind, push_new, require_limits, require_refilled_at, require_same_leases,
    require_shard_count, same_window,
};
use update::{tokens, window_end};

pub use balances::{BalanceChange, change_balances};
pub use configure::{
    MAX_ANCESTORS, PLAN_STEP, count_entity, count_level, describe_entity, mark_functions,
    no_entities, purge_config, same_config, same_parent, set_entity, write_audit_event,
    write_config, write_schema_version,
};
pub use copy::{INTERIM, MAX_CARRIED_LIMITS, MAX_LIVES, UsageCopy};
pub use due::{forget_due, postpone};
pub use erase::erase_shard;
pub use expire::{ExpiredLeases, expire, sample};
pub use lower::lower_balance;
pub use merge::{merge, merged, recreate, remove_covered, require_unchanged};
pub use operate::{record_operation, write_switches};
pub use pause::{pause_ordered, pause_reported};
pub use refill::refill;
pub use replace::{REST_INTERVAL, REVIEW_INTERVAL};
pub use roll::Roll;
pub use settle::{LeaseChange, LimitDelta, Settle, clear_due};
pub use split::{finish_writes, is_abandoned, may_split, split, update_min_shards};
pub use take::{Contention, Place, Take, max_leases};
pub use update::{Action, AttributeUpdate, Condition, Path, Update, Value};
