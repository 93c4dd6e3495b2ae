//! One state of the model.

use std::sync::Arc;

use crate::model::client::Client;
use crate::model::function::FunctionRun;
use crate::model::ledger::Ledger;
use crate::model::sent::Sent;
use crate::model::table::{Row, Table};

/// Everything that decides what can happen next, and the ledger.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// Ticks of the one clock.
    pub now: i64,
    /// The items.
    pub table: Table,
    /// The clients.
    pub clients: [Client; 2],
    /// A request that is still under way, though its client does not wait any more.
    pub late: Option<Arc<Sent>>,
    /// What a function has read and not yet written.
    pub work: Option<FunctionRun>,
    /// Faults that may still happen.
    pub faults: u8,
    /// Works of the functions that may still begin.
    pub works: u8,
    /// An operator's changes of balances that were applied.
    pub edits: Vec<Arc<Sent>>,
    /// Ledger of grants, returns and records.
    pub ledger: Ledger,
    /// Whether a split or a merge created or lost tokens.
    pub is_uneven: bool,
    /// A take happened right after one that was for the same.
    pub is_repeated: bool,
    /// An operator's change left other balances than it should, or was made twice.
    pub is_misedited: bool,
    /// A take counted for an hour before the one it was planned in.
    pub is_belated: bool,
    /// Shards after each write, if the bounds keep the stream.
    pub stream: Vec<(usize, Option<Arc<Row>>)>,
}
