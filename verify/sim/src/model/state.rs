//! One state of the model.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use weirgate_shared::write::Action;
use weirgate_shared::{EpochMillis, MilliTokens, WriteId};

use crate::model::client::Client;
use crate::model::guard::Kind;
use crate::model::ledger::Ledger;
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
    /// Window that the tokens of each lease were taken from, if the limit is a quota.
    pub windows: BTreeMap<WriteId, EpochMillis>,
    /// A balance grew by more than what came back into its own window.
    pub is_misreturned: bool,
    /// A take was of a window that had ended by the clock that planned it.
    pub is_of_ended: bool,
    /// A take counted for an hour before the one it was planned in.
    pub is_belated: bool,
    /// Shards after each write, if the bounds keep the stream.
    pub stream: Vec<(usize, Option<Arc<Row>>)>,
}

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

/// A write as it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// Purpose of the write.
    pub kind: Kind,
    /// Actions of the write.
    pub actions: Vec<Action>,
    /// Clock that planned it.
    pub clock: EpochMillis,
    /// Amount that it takes.
    pub admitted: MilliTokens,
    /// Writes of the same client for the same, this one among them, of which one at most may
    /// happen.
    pub ops: Vec<WriteId>,
}

impl Hash for Sent {
    fn hash<H: Hasher>(&self, state: &mut H) {
        format!("{self:?}").hash(state);
    }
}

impl Sent {
    /// A write that takes nothing.
    pub(crate) const fn of(kind: Kind, actions: Vec<Action>, clock: EpochMillis) -> Self {
        Self { kind, actions, clock, admitted: MilliTokens::ZERO, ops: vec![] }
    }
}
