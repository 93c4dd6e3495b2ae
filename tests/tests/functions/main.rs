//! The aggregator on records of a real stream, the replay of its failures, and the reconciler on a
//! table that others write.

use weirgate_tests as fixtures;

mod aggregator {
    mod deliveries;
    mod faults;
    mod refill;
    mod replay;
    mod restored;
    mod samples;
    mod split;
    mod split_faults;
    mod tenants_aggregator;
    mod usage;
    mod usage_cost;
}
mod reconciler {
    mod costs;
    mod failures;
    mod long_runs;
    mod merge;
    mod merge_races;
    mod preview;
    mod races;
    mod repair;
    mod rest;
    mod restores;
    mod tenants_reconciler;
}
