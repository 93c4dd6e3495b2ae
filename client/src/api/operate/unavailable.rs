//! What all limiters of a namespace decide while DynamoDB is unavailable.

use weirgate_shared::write::write_switches;
use weirgate_shared::{AuditChange, Switches, switches_key};

use crate::RateLimiter;
use crate::config::{ConfigEdit, stored_switches, unreadable_switches};
use crate::session::CacheKey;
use crate::values::{Error, OnUnavailable, check_on_unavailable};

impl RateLimiter {
    /// Stores what all limiters of the namespace decide while DynamoDB is unavailable, in place of
    /// [their own setting](crate::Builder::on_unavailable) and of a request's; `None` leaves it to
    /// them. Returns the stored decision before.
    ///
    /// A limiter knows it within [`Builder::config_ttl`](crate::Builder::config_ttl), or a second if
    /// that is shorter. It keeps what it knew last while the table cannot be read, so store it
    /// before an outage, or while only some requests fail. A process that has not reached the table
    /// yet uses its own setting.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), weirgate::Error> {
    /// use weirgate::OnUnavailable;
    /// limiter.store_on_unavailable(Some(OnUnavailable::Local { percent: 5 })).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a percentage outside 1 to 100; [`Error::Contended`] if other processes
    /// kept changing switches; [`Error::Store`] if the outcome is not known: a second call is safe.
    pub async fn store_on_unavailable(
        &self,
        policy: Option<OnUnavailable>,
    ) -> Result<Option<OnUnavailable>, Error> {
        policy.map_or(Ok(()), check_on_unavailable)?;
        let session = &*self.session;
        let key = switches_key(&session.namespace);
        let what = "what is decided while DynamoDB is unavailable".to_owned();
        let mut edit = ConfigEdit::new(session, what, CacheKey::Switches);
        loop {
            let (items, mark) = edit.read(std::slice::from_ref(&key)).await?;
            let item = items.iter().find(|item| item.key().as_ref() == Some(&key));
            let seen = stored_switches(&key, item)?;
            let before = seen.on_unavailable;
            if before == policy && seen.unreadable_policy().is_none() {
                return Ok(before);
            }
            let mut next = Switches {
                version: seen.version.saturating_add(1),
                ..seen.clone()
            };
            next.set_policy(policy);
            let event = AuditChange::OnUnavailable {
                before,
                after: policy,
            };
            let write = write_switches(&session.namespace, &seen, &next);
            let actions: Vec<_> = [write, edit.record(event)]
                .into_iter()
                .chain(mark)
                .collect();
            if edit.write(&actions).await? {
                return Ok(before);
            }
        }
    }

    /// Returns the [stored decision](Self::store_on_unavailable), read from the table.
    ///
    /// # Errors
    /// [`Error::Store`], or [`Error::UnreadableItem`] if the item was changed by other means.
    pub async fn stored_on_unavailable(&self) -> Result<Option<OnUnavailable>, Error> {
        let switches = self.stored_switches().await?;
        match switches.unreadable_policy() {
            Some(error) => Err(unreadable_switches(&self.session.namespace, error)),
            None => Ok(switches.on_unavailable),
        }
    }
}
