//! Buckets of several shards, and the partitions below them.

use weirgate_tests as fixtures;

mod merged;
mod partitions;
mod partitions_conflicts;
mod partitions_reads;
mod parts;
mod shards;
mod split_ends;
mod trouble;
mod unfinished;
