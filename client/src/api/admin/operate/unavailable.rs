//! What all limiters of a namespace decide while DynamoDB is unavailable.

use weirgate_shared::{AuditChange, Switches, switches_key};

use super::operation::{OperationOutcome, Options, operation_options};
use super::switches::change_switches;
use crate::api::admin::Admin;
use crate::config::unreadable;
use crate::values::{Error, OnUnavailable, check_on_unavailable};

impl Admin {
    /// Stores what all limiters of the namespace decide while DynamoDB is unavailable, in place of
    /// [their own setting](crate::Builder::on_unavailable) and of a request's; `None` leaves it to
    /// them.
    ///
    /// A limiter knows it within [`Builder::config_ttl`](crate::Builder::config_ttl), or a second if
    /// that is shorter. It keeps what it knew last while the table cannot be read, so store it
    /// before an outage, or while only some requests fail. A process that has not reached the table
    /// yet uses its own setting.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), weirgate::Error> {
    /// use weirgate::OnUnavailable;
    /// limiter.admin().store_on_unavailable(Some(OnUnavailable::Local { percent: 5 })).send().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn store_on_unavailable(&self, policy: Option<OnUnavailable>) -> PolicyEdit<'_> {
        PolicyEdit { admin: self, policy, options: Options::default() }
    }

    /// Returns the [stored decision](Self::store_on_unavailable), read from the table.
    ///
    /// # Errors
    /// [`Error::Store`], or [`Error::UnreadableItem`] if the item was changed by other means.
    pub async fn stored_on_unavailable(&self) -> Result<Option<OnUnavailable>, Error> {
        self.session
            .at_home(async {
                let switches = self.stored_switches().await?;
                match switches.unreadable_policy() {
                    Some(error) => {
                        let key = switches_key(&self.session.namespace);
                        Err(unreadable(&key, error.clone()))
                    }
                    None => Ok(switches.on_unavailable),
                }
            })
            .await
    }
}

/// A change of the stored decision. Nothing happens until [`send`](Self::send).
#[derive(Debug, Clone)]
#[must_use = "a change does nothing until it is sent"]
pub struct PolicyEdit<'a> {
    admin: &'a Admin,
    policy: Option<OnUnavailable>,
    options: Options,
}

/// What a [`PolicyEdit`] found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PolicyReport {
    /// What became of the change.
    pub outcome: OperationOutcome,
    /// Stored decision before; `None` if there was none.
    pub before: Option<OnUnavailable>,
    /// Stored decision after.
    pub after: Option<OnUnavailable>,
}

impl PolicyEdit<'_> {
    operation_options!();

    /// Makes the change.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a percentage outside 1 to 100, and for a key that was used for another
    /// change; [`Error::Contended`] if other processes kept changing switches; [`Error::Store`] if
    /// the outcome is not known: a second call is safe.
    pub async fn send(self) -> Result<PolicyReport, Error> {
        self.admin
            .session
            .at_home(async {
                let (session, policy) = (&*self.admin.session, self.policy);
                policy.map_or(Ok(()), check_on_unavailable)?;
                let what = match policy {
                    Some(policy) => format!("{policy} while the table is unavailable"),
                    None => "each limiter's own decision while the table is unavailable".to_owned(),
                };
                let change = |seen: &Switches| {
                    let before = seen.on_unavailable;
                    let mut next = seen.clone();
                    next.version = seen.version.saturating_add(1);
                    next.set_policy(policy);
                    let event = AuditChange::OnUnavailable { before, after: policy };
                    let is_changed = before != policy || seen.unreadable_policy().is_some();
                    Ok(is_changed.then_some((next, event)))
                };
                let changed = change_switches(session, what, &self.options, false, change).await?;
                let (outcome, [before, after]) =
                    (changed.0, changed.1.map(|seen| seen.on_unavailable));
                Ok(PolicyReport { outcome, before, after })
            })
            .await
    }
}
