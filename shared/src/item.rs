//! Item codec: attributes to [`Shard`](crate::Shard) or [`Snapshot`](crate::Snapshot), and back.
//! Never guesses: an error names the wrong attribute.

mod attribute;
mod audit;
mod config;
mod description;
mod edit;
mod error;
mod escrow;
mod key;
mod lease;
mod limit_fields;
mod operation;
mod parse;
mod shard;
mod shard_reader;
mod shard_writer;
mod snapshot;
mod stamp;
mod switches;

pub use attribute::{Attr, write_units};
pub use audit::{PURGE, read_audit, write_audit};
pub use config::{
    PlanCount, know_quotas, read_config, read_entity, read_plan_count, read_schema, write_config,
    write_entity,
};
pub use description::{read_description, write_description};
pub use edit::read_edit;
pub use error::ItemError;
pub use key::read_key;
pub(crate) use lease::write_held;
pub use lease::{read_leases, read_readable_leases, write_lease, write_leases};
pub use operation::read_operation;
pub use shard::{is_merged, read_live, read_shard};
pub use shard_reader::ShardReader;
pub use shard_writer::write_shard;
pub(crate) use shard_writer::{write_escrow, write_limit};
pub use snapshot::read_snapshot;
pub use stamp::read_stamp;
pub use switches::read_switches;
pub(crate) use switches::write_switches;
