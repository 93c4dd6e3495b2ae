//! Buckets of several shards, and the partitions below them.

#[path = "../fixtures/mod.rs"]
mod fixtures;

mod merged;
mod partitions;
mod partitions_conflicts;
mod partitions_reads;
mod parts;
mod shards;
mod split_ends;
mod trouble;
mod unfinished;
