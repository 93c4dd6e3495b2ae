//! The client on a table: what it takes, settles, reads, and does when the table does not answer.

/// What an acquire takes, answers and costs.
mod acquire {
    mod admission;
    mod blocking;
    mod bypass;
    mod classes;
    mod coalesce;
    mod cold;
    mod cost;
    mod frozen;
    mod items;
    mod limits;
    mod modes;
    mod partial;
    mod pauses;
    mod peek;
    mod queue;
    mod quotas;
    mod refused;
    mod runtimes;
    mod schedules;
    mod scope;
    mod stale_views;
    mod tenants;
    mod together;
    mod transactions;
}

/// Grants after the acquire: adjustments, leases, answers that were lost.
mod settle {
    mod adjust_in_doubt;
    mod balances;
    mod doubts;
    mod dropped;
    mod dry_runs;
    mod edits;
    mod halfway;
    mod leases;
    mod lifetimes;
    mod lifetimes_usage;
    mod lost_settlements;
    mod lost_takes;
    mod more;
    mod refunds;
    pub(crate) mod restored;
    mod untaken;
}

/// Buckets of several shards, and the partitions below them.
mod shards {
    mod faults;
    mod partitions;
    mod parts;
    mod sharded;
    mod split_ends;
    mod unfinished;
}

/// What the table knows, read through the client: usage reports, lists; and the table itself.
mod read {
    mod costs;
    mod erase;
    mod erased;
    mod lists;
    mod purge;
    mod report_costs;
    mod reports;
    mod unreadable;
}

/// A table that does not answer, and clocks that are wrong.
mod outage {
    mod breaker_gauge;
    mod clock_steps;
    mod clocks;
    mod deadlines;
    mod local_buckets;
    mod saturated;
    mod unavailable;
    mod unreachable;
}

/// Prefetched tokens.
mod prefetch {
    mod acquires;
    mod blocks;
    mod edge;
    mod outstanding;
}

/// The table in memory: it answers as the embedded DynamoDB does, and applications test with it.
mod in_memory {
    mod application;
    mod requests;
    mod shadow;
}

/// Many processes on one bucket; `make herds` runs these at full size.
mod load {
    mod contended;
    mod denials;
    mod heat;
    mod herd;
    mod vendor;
}

mod tenants_batches;
