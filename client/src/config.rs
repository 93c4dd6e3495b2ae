//! Which limits are in force: read from the table, cached, and changed.

mod ancestors;
mod edit;
mod freshness;
mod functions;
mod load;
mod resolve;
mod schema;
mod stored;
mod switches;

pub(crate) use ancestors::{Ancestors, ancestors, read_entities};
pub(crate) use edit::ConfigEdit;
pub(crate) use freshness::{Freshness, ResolvedConfig};
pub(crate) use functions::check_functions;
pub(crate) use resolve::{LimitsSlot, LoadWait, resolve};
pub(crate) use schema::check as check_schema;
pub(crate) use stored::{key, stored, unreadable};
pub(crate) use switches::{read_switches, stored_switches};
