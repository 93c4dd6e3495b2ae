//! How a hold ends: by a release, a rollback, or because it is dropped.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Adjustment, Hold, Stage};
use crate::queue::Ending;
use crate::values::{Amounts, Error, HoldSettlement};

impl Hold {
    /// Ends the hold: its slots return, its rate tokens stay consumed. Without a lease it writes
    /// nothing.
    pub(crate) async fn release(mut self) -> Result<HoldSettlement, Error> {
        self.stage = Stage::Claimed;
        let done = if self.has_lease() {
            self.end(|_| Ending::Release(Amounts::new())).await
        } else {
            Ok(HoldSettlement::Applied)
        };
        // Set after the await, so a hold dropped before the response is still released.
        self.stage = Stage::Settled;
        done
    }

    /// Adjusts limits and ends the hold as [`release`](Self::release) does. An end under a lease is one
    /// write, which is repeatable: the lease is there, or it was settled.
    pub(crate) async fn release_with(
        mut self,
        adjustments: Vec<(&str, Adjustment)>,
    ) -> Result<HoldSettlement, Error> {
        if !self.has_lease() {
            let mut is_begun = false;
            for (limit, adjustment) in adjustments {
                let adjusted = self.adjust(limit, adjustment).await;
                adjusted.map_err(|error| error.halfway(is_begun))?;
                is_begun = true;
            }
            return self.release().await;
        }
        let _ = self.end_adjusting().await;
        let mut used = vec![Amounts::new(); self.parts.len()];
        for (limit, adjustment) in adjustments {
            for (at, pool, amount) in self.adjusted_parts(limit, adjustment) {
                used[at].insert(pool, amount);
            }
        }
        self.stage = Stage::Claimed;
        let done = self.end(|at| Ending::Release(used[at].clone())).await;
        self.stage = Stage::Settled;
        done
    }

    /// Makes a drop roll the hold back, unless its token still settles it.
    pub(crate) fn unclaim(mut self) -> Self {
        if self.stage == Stage::Claimed {
            self.stage = Stage::Unclaimed;
        }
        self
    }

    /// Ends the hold and returns all tokens.
    ///
    /// In a task of its own that begins at once, so a rollback whose caller goes away is made too.
    pub(crate) fn roll_back(mut self) -> impl Future<Output = Result<HoldSettlement, Error>> {
        // The task is responsible now, so a hold that is dropped with it is not rolled back twice.
        self.stage = Stage::Claimed;
        let (session, (send, done)) = (Arc::clone(&self.session), oneshot::channel());
        session.spawn(async move {
            let ended = self.end(|_| Ending::RollBack).await;
            self.stage = Stage::Settled;
            drop(self);
            // Without a caller only the log needs it.
            if let Err(Err(error)) = send.send(ended) {
                tracing::warn!(%error, "tokens of a dropped rollback could not be returned");
            }
        });
        async { done.await.unwrap_or_else(|_| Err(Self::ended())) }
    }

    /// Ends all parts. A failed part does not stop the others.
    async fn end(
        &mut self,
        ending: impl Fn(usize) -> Ending + Send,
    ) -> Result<HoldSettlement, Error> {
        let _ = self.end_adjusting().await;
        let mut ended = vec![];
        let pooled = std::mem::take(&mut self.pooled_acquires);
        if let Some(pool) = self.bucket.pool.as_ref().filter(|_| pooled != 0) {
            pool.add_unreported(-pooled);
        }
        for at in 0..self.parts.len() {
            // The first write subtracts the acquires.
            let acquires = -std::mem::take(&mut self.counted_acquires);
            ended.push(self.end_part(at, &ending(at), acquires).await);
        }
        HoldSettlement::all(ended)
    }

    async fn end_part(
        &mut self,
        at: usize,
        ending: &Ending,
        acquires: i64,
    ) -> Result<HoldSettlement, Error> {
        if self.return_to_pool(at, self.parts[at].amounts.clone()) {
            return Ok(HoldSettlement::Applied);
        }
        self.parts[at]
            .end(&self.session, &self.limits, ending, acquires)
            .await
    }

    /// Ends a hold that was dropped at this stage.
    async fn end_dropped(mut self, stage: Stage) {
        if stage == Stage::Unclaimed {
            if let Err(error) = self.end(|_| Ending::RollBack).await {
                tracing::warn!(%error, "tokens of a dropped request could not be returned");
            }
        } else if let Err(error) = self.end(|_| Ending::Release(Amounts::new())).await {
            tracing::warn!(%error, "a dropped lease could not be released; it expires by itself");
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let stage = std::mem::replace(&mut self.stage, Stage::Settled);
        let has_work = match stage {
            Stage::Unclaimed => !self.parts.is_empty(),
            Stage::Claimed => self.has_lease(),
            Stage::Restored | Stage::Settled => false,
        };
        if !has_work {
            return;
        }
        let hold = Self {
            session: Arc::clone(&self.session),
            bucket: Arc::clone(&self.bucket),
            parts: std::mem::take(&mut self.parts),
            limits: self.limits.clone(),
            class: self.class.take(),
            taken_at: self.taken_at,
            starts_at: self.starts_at,
            counted_acquires: self.counted_acquires,
            pooled_acquires: self.pooled_acquires,
            is_shadow: self.is_shadow,
            stage: Stage::Settled,
            adjusting: self.adjusting.take(),
        };
        self.session.spawn(hold.end_dropped(stage));
    }
}
