//! Ledger of grants and returns, kept beside the table and compared with it.

use std::collections::BTreeMap;

use weirgate_shared::{EpochMillis, MilliTokens, RefillRule, ShardIndex, refill_between};

/// The takes and returns between two writes, by the clocks that planned them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Span {
    from: EpochMillis,
    to: EpochMillis,
    /// Grants less returns.
    net: i64,
}

/// The ledger of the one limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Ledger {
    /// Grants less what expired leases and returns gave back, by the applied takes.
    pub used: i64,
    /// The same by the records of the stream.
    pub recorded: i128,
    /// Number of applied takes.
    pub takes: i64,
    /// The same by the records of the stream.
    pub recorded_takes: i128,
    /// What an operator's changes added to the balance, less what they removed.
    pub edited: i64,
    /// Grants of a quota less what came back, by the end of the window of the item.
    pub windows: BTreeMap<EpochMillis, i64>,
    /// Every interval that ends with the last write, but those that can never be the first to hold
    /// too much.
    spans: Vec<Span>,
}

impl Ledger {
    /// Enters a write that was planned at `clock`. An interval begins with a take.
    pub fn enter(&mut self, clock: EpochMillis, admitted: MilliTokens, back: MilliTokens) {
        if admitted > MilliTokens::ZERO {
            self.spans.push(Span { from: clock, to: clock, net: 0 });
        }
        for span in &mut self.spans {
            span.from = span.from.min(clock);
            span.to = span.to.max(clock);
            span.net += admitted.0 - back.0;
        }
        self.spans.sort_unstable();
        self.spans.dedup();
        let all = self.spans.clone();
        // One within another that holds as much will always hold too much first.
        let is_covered = |span: &Span| {
            all.iter().any(|other| {
                other != span
                    && other.from >= span.from
                    && other.to <= span.to
                    && other.net >= span.net
            })
        };
        self.spans.retain(|span| !is_covered(span));
    }

    /// Begins again with a new bucket.
    pub fn restart(&mut self) {
        self.edited = self.used;
        self.spans.clear();
    }

    /// I1: returns whether no window grants more than the quota.
    pub fn is_within_windows(&self, quota: MilliTokens) -> bool {
        self.windows.values().all(|net| *net <= quota.0)
    }

    /// I1: returns whether no interval grants more than the capacity and its refill.
    pub fn is_within(&self, rule: &RefillRule) -> bool {
        let most = |span: &Span| {
            rule.capacity + refill_between(rule, ShardIndex::UNSPLIT, span.from, span.to)
        };
        self.spans.iter().all(|span| span.net <= most(span).0)
    }
}
