//! How a hold ends: by a release, a rollback, or because it is dropped.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Hold, Stage};
use crate::queue::Ending;
use crate::values::{Error, Limits, Settlement};

impl Hold {
    /// Ends the hold: its slots return, its rate tokens stay consumed. Without a lease it writes
    /// nothing.
    pub(crate) async fn release(mut self) -> Result<Settlement, Error> {
        self.stage = Stage::Claimed;
        let done = if self.has_lease() {
            self.end(Ending::Release).await
        } else {
            Ok(Settlement::Applied)
        };
        // Set after the await, so a hold dropped before the response is still released.
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
    pub(crate) fn roll_back(mut self) -> impl Future<Output = Result<Settlement, Error>> {
        // The task is responsible now, so a hold that is dropped with it is not rolled back twice.
        self.stage = Stage::Claimed;
        let (session, (send, done)) = (Arc::clone(&self.session), oneshot::channel());
        session.spawn(async move {
            let ended = self.end(Ending::RollBack).await;
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
    async fn end(&mut self, ending: Ending) -> Result<Settlement, Error> {
        let _ = self.end_adjusting().await;
        let mut ended = vec![];
        let pooled = std::mem::take(&mut self.pooled_acquires);
        if let Some(pool) = self.bucket.pool.as_ref().filter(|_| pooled != 0) {
            pool.add_unreported(-pooled);
        }
        for at in 0..self.parts.len() {
            // The first write subtracts the acquires.
            let acquires = -std::mem::take(&mut self.counted_acquires);
            ended.push(self.end_part(at, ending, acquires).await);
        }
        Settlement::all(ended)
    }

    async fn end_part(
        &mut self,
        at: usize,
        ending: Ending,
        acquires: i64,
    ) -> Result<Settlement, Error> {
        if self.return_to_pool(at, self.parts[at].amounts.clone()) {
            return Ok(Settlement::Applied);
        }
        self.parts[at]
            .end(&self.session, &self.limits, ending, acquires)
            .await
    }

    /// Ends a hold that was dropped at this stage.
    async fn end_dropped(mut self, stage: Stage) {
        if stage == Stage::Unclaimed {
            if let Err(error) = self.end(Ending::RollBack).await {
                tracing::warn!(%error, "tokens of a dropped request could not be returned");
            }
        } else if let Err(error) = self.end(Ending::Release).await {
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
        let (session, nothing) = (Arc::clone(&self.session), Limits::default());
        let mut settled = Self::new(&session, &self.bucket, vec![], nothing, self.taken_at);
        settled.stage = Stage::Settled;
        let hold = std::mem::replace(self, settled);
        session.spawn(hold.end_dropped(stage));
    }
}
