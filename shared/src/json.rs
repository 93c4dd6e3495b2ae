//! Public values to JSON and back: the feature `serde`.
//!
//! The name of a field states its unit: `_tokens` or `tokens`, `_ms`. Tokens are numbers, exact to
//! the millitoken up to 10^12 tokens; instants are milliseconds since 1970. A value that a
//! constructor refuses is refused with the same text.
//!
//! - `units`: amounts and instants
//! - `names`: validated names, ids of audit events, the decision for outages
//! - `limits`: limits and configurations
//! - `window`: windows of quotas
//! - `schedule`: schedules of limits
//! - `audit`: levels and audit events
//! - `description`: display names and labels

mod audit;
mod description;
mod limits;
mod names;
mod schedule;
mod units;
mod window;

pub(crate) use audit::{EventFields, LevelFields};
pub(crate) use description::DescriptionFields;
pub(crate) use limits::{ConfigFields, LimitFields, LimitJson};
