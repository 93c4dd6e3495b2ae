//! Grants after the acquire: adjustments, leases, answers that were lost.

use weirgate_tests as fixtures;

mod adjust_in_doubt;
mod balances;
mod dry_runs;
mod edits;
mod ended;
mod fault_props;
mod halfway;
mod leases;
mod lifetimes;
mod lifetimes_usage;
mod more;
mod refunds;
mod restored;
mod unknown;
mod unknown_settle;
mod untaken;
