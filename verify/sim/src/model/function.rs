//! A function's read that waits for its write.

use std::sync::Arc;

use crate::model::guard::Kind;
use crate::model::sent::Sent;
use crate::model::table::Row;

/// A function's read that waits for its write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FunctionRun {
    /// Job of the function.
    pub job: Job,
    /// When it read.
    pub read: i64,
    pub(crate) rows: [Option<Arc<Row>>; 3],
    /// Its answer was lost, and it is to write the same again.
    pub sent: Option<Arc<Sent>>,
}

/// A write of a function, and its shard.
pub type Job = (Kind, usize);
