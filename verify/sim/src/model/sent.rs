//! A write that was sent.

use std::hash::{Hash, Hasher};

use weirgate_shared::write::Action;
use weirgate_shared::{EpochMillis, MilliTokens, WriteId};

use crate::model::guard::Kind;

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
        Self {
            kind,
            actions,
            clock,
            admitted: MilliTokens::ZERO,
            ops: vec![],
        }
    }
}
