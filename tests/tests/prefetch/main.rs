//! Prefetched tokens.

use weirgate_tests as fixtures;

mod acquires;
mod edge;
mod outstanding;
mod prefetch;
mod props;
