//! Pauses a bucket, and resumes it.

use std::time::Duration;

use weirgate_shared::{AuditChange, EditChange, EpochMillis, exact_span};

use super::operation::{Operating, OperationOutcome, Options, Read, operation_options};
use crate::api::admin::Admin;
use crate::session::CacheKey;
use crate::values::Error;

/// The longest pause of an operator, 24 h: what lasts longer is a [stop](Admin::stop).
const LONGEST: Duration = Duration::from_secs(86_400);

impl Admin {
    /// Pauses a bucket for some time, up to 24 h: as [`Grant::vendor_said`](crate::Grant::vendor_said),
    /// manually. A pause that is in force is replaced, also by a shorter one. It takes effect with the next
    /// request of each process, which costs nothing more.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), weirgate::Error> {
    /// use std::time::Duration;
    /// limiter.admin().pause("openai", "gpt-4", Duration::from_secs(30)).send().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn pause(&self, entity: &str, resource: &str, lasts: Duration) -> PauseEdit<'_> {
        PauseEdit::new(self, entity, resource, Some(lasts))
    }

    /// Ends the pause of a bucket. A process that has denied requests by it notices within a tenth of what
    /// was left, at least 1 s and at most 30 s, and what waits for its end waits on.
    pub fn resume(&self, entity: &str, resource: &str) -> PauseEdit<'_> {
        PauseEdit::new(self, entity, resource, None)
    }
}

/// A pause of a bucket, or its end. Nothing happens until [`send`](Self::send).
#[derive(Debug, Clone)]
#[must_use = "a change does nothing until it is sent"]
pub struct PauseEdit<'a> {
    admin: &'a Admin,
    entity: String,
    resource: String,
    lasts: Option<Duration>,
    options: Options,
}

/// What a [`PauseEdit`] found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PauseReport {
    /// What became of the change.
    pub outcome: OperationOutcome,
    /// Number of shards of the bucket; 0 if it has no item: then there is nothing to pause.
    pub shards: usize,
    /// End of the pause that was in force; `None` if none was.
    #[cfg_attr(feature = "serde", serde(rename = "before_ms"))]
    pub before: Option<EpochMillis>,
    /// End of the pause; `None` if there is none now.
    #[cfg_attr(feature = "serde", serde(rename = "after_ms"))]
    pub after: Option<EpochMillis>,
}

impl<'a> PauseEdit<'a> {
    fn new(admin: &'a Admin, entity: &str, resource: &str, lasts: Option<Duration>) -> Self {
        Self {
            admin,
            entity: entity.to_owned(),
            resource: resource.to_owned(),
            lasts,
            options: Options::default(),
        }
    }

    operation_options!();

    /// Makes the change.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a pause of less than 1 ms or more than 24 h, for a bucket without an item
    /// that is to be paused, and for a key that was used for another change; nothing is changed then.
    /// [`Error::Contended`] or [`Error::Store`] if it is incomplete, or the outcome is not known: a
    /// second call with the same key within a day finishes it.
    pub async fn send(self) -> Result<PauseReport, Error> {
        self.admin.session.at_home(self.make()).await
    }

    async fn make(&self) -> Result<PauseReport, Error> {
        let session = &self.admin.session;
        let (entity, resource) = (self.entity.as_str(), self.resource.as_str());
        let bucket = (self.admin.buckets).bucket(entity.try_into()?, resource.try_into()?);
        if let Some(lasts) = self.lasts
            && !(Duration::from_millis(1)..=LONGEST).contains(&lasts)
        {
            return Err(Error::Invalid(format!(
                "pause must be 1ms to 24h, got {}: stop a level that is to rest for longer",
                exact_span(lasts)
            )));
        }
        let what = match self.lasts {
            Some(lasts) => format!("pause {entity} on {resource} for {}", exact_span(lasts)),
            None => format!("resume {entity} on {resource}"),
        };
        let mut operating = Operating::new(session, what, CacheKey::Nothing, &self.options)?;
        loop {
            let (Read { known, mark, .. }, shards) = operating.read_bucket(&bucket).await?;
            let now = session.now();
            let before = (shards.iter()).filter_map(|shard| shard.paused_until(now)).max();
            let report =
                |outcome, after| PauseReport { outcome, shards: shards.len(), before, after };
            if let Some(outcome) = known {
                return Ok(report(outcome, before));
            }
            if shards.is_empty() && self.lasts.is_some() {
                return Err(Error::Invalid(format!(
                    "bucket of {entity} on {resource} has no item, so there is nothing to pause: acquire from it first, or stop it"
                )));
            }
            let after = self.lasts.map(|lasts| now.plus(lasts.into()));
            let event = AuditChange::Pause {
                entity: bucket.key.entity.clone(),
                resource: bucket.key.resource.clone(),
                before,
                after,
            };
            let is_due = after.is_some() || before.is_some();
            let change = is_due.then_some((EditChange::Pause(after), event));
            let written = operating.write_bucket(&bucket, &shards, change, mark).await?;
            if let Some(outcome) = written {
                return Ok(report(outcome, after));
            }
        }
    }
}
