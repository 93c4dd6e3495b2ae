//! Unconfirmed writes of a take: their responses were lost, so they may have been applied.

use std::sync::Arc;

use weirgate_shared::MilliTokens;
use weirgate_store::StoreError;

use super::super::settle::MAX_CLOCK_SKEW;
use super::{TakeAttempt, Unconfirmed, pause};
use crate::session::deadline;
use crate::values::{Error, count};

impl TakeAttempt<'_> {
    /// Records one more unconfirmed write. Returns how many there are.
    pub(super) fn note_unconfirmed(&mut self, error: StoreError) -> u32 {
        let (error, v_before) = (
            Arc::new(error),
            self.seen.as_ref().map(|shard| shard.write_seq),
        );
        let first = Unconfirmed {
            writes: 0,
            v_before,
            error: Arc::clone(&error),
            until: deadline(self.session.settings.timeout),
        };
        let doubt = self.unconfirmed.get_or_insert(first);
        doubt.writes += 1;
        doubt.error = error;
        u32::try_from(doubt.writes).unwrap_or(u32::MAX)
    }

    /// Reads the shard, because there is no view while an earlier write is unconfirmed.
    pub(super) async fn read_after_unconfirmed(&mut self) -> Result<(), Error> {
        match self.state.read_shard(self.session).await {
            Ok(()) => self.missing = self.state.may_be_created(),
            Err(Error::Store(error)) if error.kind.is_transient() => pause(1, &self.waiters).await,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Counts tokens that unconfirmed writes may have taken. `known` of these writes are accounted
    /// for, and the write sequence `v` may show that fewer were applied. Until its lease may have
    /// expired, a take is certain: a repeated one fails if one of its leases is in the item.
    pub(super) fn count_unconfirmed_tokens(&self, known: i64, v: Option<i64>) {
        let Some(doubt) = &self.unconfirmed else {
            return;
        };
        let made = doubt
            .v_before
            .zip(v)
            .map_or(i64::MAX, |(before, v)| v.saturating_sub(before));
        let by = self.session.now().plus(MAX_CLOCK_SKEW);
        let mut leases = self.leases.iter().flatten();
        let is_certain = v.is_some() && leases.any(|(_, lease)| lease.expires_at > by);
        let writes = if is_certain {
            0
        } else {
            (doubt.writes - known).min(made).max(0)
        };
        if writes == 0 {
            return;
        }
        let needs: MilliTokens = self.asks.iter().map(|ask| ask.amount).sum();
        let milli = u64::try_from(needs.0.saturating_mul(writes)).unwrap_or_default();
        count(&self.session.counters.unconfirmed_millitokens, milli);
        tracing::warn!(
            bucket = self.state.key.item_key().pk,
            milli,
            "unconfirmed writes count as taken"
        );
    }
}
