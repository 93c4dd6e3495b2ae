//! A handler's access to the grant of its request.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::{Error, Grant, Settlement};

/// Access to the grant of a request, in the request's extensions. Clones share it.
///
/// Slots return when the last handle is dropped, and the response's body keeps one until it has
/// been sent. So a handler may keep a clone: to correct an estimate when a stream ends, or in a
/// task that continues after the response.
///
/// ```
/// use weirgate::tower::GrantHandle;
///
/// // In axum: async fn complete(Extension(grant): Extension<GrantHandle>) -> &'static str
/// async fn complete(grant: GrantHandle) -> &'static str {
///     // ... call the model, learn what it really took ...
///     if let Err(error) = grant.adjust("tpm", 1_213).await {
///         eprintln!("the call could not be adjusted: {error}"); // its answer is there
///     }
///     "an answer"
/// }
/// ```
#[derive(Debug, Clone)]
pub struct GrantHandle {
    /// `None` after a rollback, and for a request that passed without a decision.
    grant: Arc<Mutex<Option<Grant>>>,
}

impl GrantHandle {
    pub(crate) fn new(grant: Option<Grant>) -> Self {
        Self { grant: Arc::new(Mutex::new(grant)) }
    }

    /// Corrects an estimate: see [`Grant::adjust`]. Returns [`Settlement::LeaseGone`] if nothing is
    /// held any more.
    ///
    /// # Errors
    /// As [`Grant::adjust`].
    pub async fn adjust(&self, limit: &str, tokens: i64) -> Result<Settlement, Error> {
        match &mut *self.grant.lock().await {
            Some(grant) => grant.adjust(limit, tokens).await,
            None => Ok(Settlement::LeaseGone),
        }
    }

    /// Renews the lease: see [`Grant::renew`]. Returns [`Settlement::LeaseGone`] if nothing is held
    /// any more.
    ///
    /// # Errors
    /// As [`Grant::renew`].
    pub async fn renew(&self, lasts: Duration) -> Result<Settlement, Error> {
        match &mut *self.grant.lock().await {
            Some(grant) => grant.renew(lasts).await,
            None => Ok(Settlement::LeaseGone),
        }
    }

    /// Returns all tokens at once, for a request that turns out to cost nothing: see
    /// [`Grant::roll_back`]. Returns [`Settlement::LeaseGone`] if nothing is held any more.
    ///
    /// # Errors
    /// As [`Grant::roll_back`].
    pub async fn roll_back(&self) -> Result<Settlement, Error> {
        match self.grant.lock().await.take() {
            Some(grant) => grant.roll_back().await,
            None => Ok(Settlement::LeaseGone),
        }
    }
}
