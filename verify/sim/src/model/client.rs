//! A client: its views, its lease and its open request.

use std::sync::Arc;

use weirgate_shared::{EpochMillis, MilliTokens, WriteId};

use crate::model::table::Row;

/// One client.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// It has crashed.
    pub is_gone: bool,
    /// Requests it may still make.
    pub left: u8,
    /// Last view of each shard.
    pub views: [Option<Arc<Row>>; 2],
    /// Grant that the client holds.
    pub grant: Option<Grant>,
    /// Request that the client waits for.
    pub open: Option<OpenRequest>,
}

/// A lease, as its holder has recorded it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Where it is.
    pub shard: usize,
    /// Its id.
    pub id: WriteId,
    /// Amount of the lease.
    pub amount: MilliTokens,
    /// Expiry of the lease.
    pub expires: EpochMillis,
    /// The shard's share of the limit when it was taken.
    pub(crate) ceiling: MilliTokens,
    /// End of the window of a quota that it was taken from, as the client knows it.
    pub(crate) window: Option<EpochMillis>,
    /// It was made to last longer.
    pub is_renewed: bool,
    /// Its item was deleted.
    pub is_lost: bool,
}

/// A client's next request to the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// So many tokens.
    Take(MilliTokens),
    /// To end its lease.
    Release,
    /// Rolls back the unused tokens.
    RollBack,
    /// Renews its lease.
    Renew,
}

/// A request of a client, until it is decided.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OpenRequest {
    pub(crate) kind: RequestKind,
    pub(crate) shard: usize,
    /// When the write under way was planned; none is while the last one's outcome is unknown.
    pub sent: Option<i64>,
    /// Writes so far, and how many of them were made before the present round.
    pub writes: u8,
    pub(crate) round: u8,
    /// When the lease of this round begins.
    pub(crate) since: i64,
    /// Whether only the part that fits is returned.
    pub(crate) is_cut: bool,
}

impl Client {
    /// Returns whether a view shows a second shard.
    pub(crate) fn knows_of_two(&self) -> bool {
        self.views.iter().flatten().any(|row| row.bucket().shard_count > 1)
    }

    /// Returns the lease that no other process may have ended.
    pub(crate) fn relies_on(&self, now: EpochMillis) -> Option<&Grant> {
        self.grant.as_ref().filter(|grant| {
            grant.expires > now
                && !grant.is_lost
                && !self.open.as_ref().is_some_and(OpenRequest::ends)
        })
    }
}

impl OpenRequest {
    pub(crate) const fn ends(&self) -> bool {
        matches!(self.kind, RequestKind::Release | RequestKind::RollBack)
    }

    /// Writes once more. After an unknown outcome the lease stays, and tells.
    pub(crate) fn write(&mut self, now: i64) {
        self.writes += 1;
        self.sent = Some(now);
    }

    /// Begins another round: the writes before it have not happened, or count as taken.
    pub(crate) fn begin(&mut self, now: i64) {
        (self.round, self.since) = (self.writes, now);
        self.write(now);
    }
}
