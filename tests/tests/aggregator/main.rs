//! The aggregator on records of a real stream, and the replay of its failures.

use weirgate_tests as fixtures;

mod batches;
mod faults;
mod props;
mod refill;
mod replay;
mod replay_props;
mod restored;
mod restored_table;
mod samples;
mod split;
mod split_busy;
mod tenants_aggregator;
mod usage;
mod usage_cost;
