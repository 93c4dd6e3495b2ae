//! What the tests of several files set up, and what is measured and computed for pages. What these
//! stand on is in the crate `weirgate-testkit`.
//!
//! - [`bench`](mod@bench): what `make bench` measures
//! - [`scaling`]: how far one key goes, and what a month costs, computed
//! - [`number`], [`page`]: numbers and computed parts of pages

#![allow(missing_docs, missing_debug_implementations, reason = "read and used by tests alone")]

use std::time::Duration;

use weirgate_store::Table;
use weirgate_testkit::Dynamo;

pub mod aggregator;
pub mod bench;
pub mod discarded;
pub mod fleet;
pub mod number;
pub mod page;
pub mod recorder;
pub mod scaling;
pub mod sharded;
pub mod stored;

/// An empty table, and a client of it.
pub async fn fresh() -> (Dynamo, Table) {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    (dynamo, table)
}

/// A client that waits so many milliseconds for every answer.
pub async fn slow(dynamo: &Dynamo, ms: u64) -> Table {
    let slow = dynamo.clone().with_latency(Duration::from_millis(ms));
    slow.table().await
}

/// Checks some fields of a value: `assert_has!(summary, splits: 1, failed: 0; "{case}")`.
#[macro_export]
macro_rules! assert_has {
    ($value:expr, $($field:ident: $expected:expr),+ $(; $($why:tt)+)?) => {{
        let (value, why) = (&$value, String::new() $(+ &format!($($why)+))?);
        $(assert_eq!(value.$field, $expected, "{} of {value:?} {why}", stringify!($field));)+
    }};
}
