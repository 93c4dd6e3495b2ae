//! Grants restored from tokens.

use super::limiter::RateLimiter;
use crate::decide::{Grant, restore};
use crate::values::Error;

impl RateLimiter {
    /// Restores a grant from a [token](Grant::into_token), of this process or another. Sends
    /// nothing.
    ///
    /// A restored grant settles as the original would, except that dropping it changes nothing: the
    /// token stays usable until the grant is released or rolled back. After an adjustment or more
    /// tokens, only a new token has the new amounts.
    ///
    /// Under a lease a token ends once: the second time, the lease is gone, and the buckets without one do
    /// not change either. Without a lease
    /// nothing in the table remembers the grant, so settling one token twice counts twice.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter, token: String) -> Result<(), weirgate::Error> {
    /// let mut grant = limiter.restore_grant(&token)?;
    /// let _ = grant.adjust("tpm", 1_213).await?;
    /// let token = grant.into_token(); // replaces the old one
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for text that is no token, for numbers or names out of range, for a token of
    /// more than 100 buckets or 1,024 parts, and for a token of another table or namespace.
    pub fn restore_grant(&self, token: &str) -> Result<Grant, Error> {
        restore(token, &self.buckets)
    }
}
