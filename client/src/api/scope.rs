//! Runs a piece of work with a grant: releases it on success, rolls it back on an error or a panic.

use std::fmt;
use std::panic::{AssertUnwindSafe, resume_unwind};

use futures_util::FutureExt;

use super::acquire::Acquire;
use crate::decide::{Decision, Grant};
use crate::values::{Denied, Disabled, Error, NeverFits};

/// Reason that a [scope](Acquire::scope) has no result.
#[derive(Debug)]
pub enum ScopeError<E> {
    /// Denied for now; the work was not begun.
    Denied(Denied),
    /// Never grantable; the work was not begun.
    NeverFits(NeverFits),
    /// Disabled by its configuration, or by a level that is stopped; the work was not begun.
    Disabled(Disabled),
    /// No decision could be made; the work was not begun.
    Limiter(Error),
    /// The work failed; its tokens were rolled back, or released if a call on the grant failed in it.
    Work(E),
}

impl<E: fmt::Display> fmt::Display for ScopeError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(denied) => denied.fmt(f),
            Self::NeverFits(never) => never.fmt(f),
            Self::Disabled(disabled) => disabled.fmt(f),
            Self::Limiter(error) => error.fmt(f),
            Self::Work(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for ScopeError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Denied(_) | Self::NeverFits(_) | Self::Disabled(_) => None,
            Self::Limiter(error) => Some(error),
            Self::Work(error) => Some(error),
        }
    }
}

impl Acquire<'_> {
    /// Takes the tokens, runs the work, and releases on success, or rolls back on an error or a
    /// panic. The panic then resumes. If a call on the grant failed in the work, or was dropped, it
    /// releases: such calls come after what they settle.
    ///
    /// Both are awaited, so a Lambda function that is frozen when its handler returns holds
    /// nothing.
    ///
    /// A failed release or rollback is logged and left to the lease's expiry; the result of the
    /// work stays.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter, limits: [weirgate::Limit; 1]) -> Result<(), Box<dyn std::error::Error>> {
    /// let answer = limiter
    ///     .acquire("openai", "gpt-4")
    ///     .limits(&limits)
    ///     .take("tpm", 1_500)
    ///     .scope(async |grant| {
    ///         let used = 1_213; // ... call the vendor ...
    ///         grant.adjust("tpm", used).await.map(|_| "answer")
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ScopeError`]: the reason that the work was not begun, or its own error.
    pub async fn scope<T, E>(
        self,
        work: impl AsyncFnOnce(&mut Grant) -> Result<T, E>,
    ) -> Result<T, ScopeError<E>> {
        let mut grant = match self.send().await {
            Ok(Decision::Granted(grant)) => grant,
            Ok(Decision::Denied(denied)) => return Err(ScopeError::Denied(denied)),
            Ok(Decision::NeverFits(never)) => return Err(ScopeError::NeverFits(never)),
            Ok(Decision::Disabled(disabled)) => return Err(ScopeError::Disabled(disabled)),
            Err(error) => return Err(ScopeError::Limiter(error)),
        };
        // The grant is settled and dropped in any state the work left it in.
        let done = AssertUnwindSafe(work(&mut grant)).catch_unwind().await;
        let settled = match &done {
            Ok(Ok(_)) => grant.release().await,
            // The work was done, and the vendor has counted it.
            _ if grant.is_in_doubt() => grant.release().await,
            Ok(Err(_)) | Err(_) => grant.roll_back().await,
        };
        if let Err(error) = settled {
            tracing::warn!(%error, "tokens of a scope could not be settled");
        }
        match done {
            Ok(result) => result.map_err(ScopeError::Work),
            Err(panic) => resume_unwind(panic),
        }
    }
}
