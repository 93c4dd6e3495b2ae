//! Tokens on their way from the machine to the request that waits for them.

use std::sync::Arc;

use weirgate_shared::EpochMillis;

use super::part::{Ending, HoldPart};
use super::waiter::Granted;
use crate::session::Session;
use crate::values::{Error, Limits, Settlement};

/// What one write took for one waiter. Dropping it rolls the take back, so the tokens of a dropped
/// request return.
#[derive(Debug)]
pub(crate) struct Taken {
    session: Arc<Session>,
    /// `None` once it was claimed or rolled back.
    part: Option<HoldPart>,
    limits: Limits,
    /// Time of the take's plan.
    pub(crate) taken_at: EpochMillis,
    /// Acquires that the take counted: a rollback subtracts them.
    pub(crate) acquires: i64,
}

impl Taken {
    pub(super) fn new(session: Arc<Session>, granted: Granted) -> Self {
        let Granted {
            part,
            limits,
            taken_at,
            acquires,
        } = granted;
        Self {
            session,
            part: Some(part),
            limits,
            taken_at,
            acquires,
        }
    }

    /// Returns the part for a hold, which is then responsible for it.
    pub(crate) fn claim(mut self) -> HoldPart {
        self.part.take().expect("the part is taken once")
    }

    /// Returns the expiry of the part's lease.
    pub(crate) fn expires_at(&self) -> Option<EpochMillis> {
        self.part
            .as_ref()
            .and_then(|part| part.lease.as_ref().map(|(_, expires)| *expires))
    }

    /// Ends the part.
    pub(crate) async fn end(mut self, ending: Ending) -> Result<Settlement, Error> {
        let Some(mut part) = self.part.take() else {
            return Ok(Settlement::Applied);
        };
        if ending == Ending::Release && part.lease.is_none() {
            return Ok(Settlement::Applied);
        }
        part.end(&self.session, &self.limits, ending, -self.acquires)
            .await
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Some(mut part) = self.part.take() else {
            return;
        };
        let (session, limits) = (Arc::clone(&self.session), self.limits.clone());
        let acquires = -self.acquires;
        self.session.spawn(async move {
            let ended = part
                .end(&session, &limits, Ending::RollBack, acquires)
                .await;
            if let Err(error) = ended {
                tracing::warn!(%error, "tokens of a dropped request could not be returned");
            }
        });
    }
}
