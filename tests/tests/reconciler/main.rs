//! The reconciler on a table that others write.

use weirgate_tests as fixtures;

mod costs;
mod cycle;
mod interleaved;
mod long_runs;
mod merge;
mod merge_races;
mod preview;
mod races;
mod repair;
mod rest;
mod restores;
mod tenants_reconciler;
