//! Resets, drains and tops up buckets.

use std::collections::BTreeMap;

use weirgate_shared::{AuditChange, EditChange, LimitName, MilliTokens};

use super::operation::{Operating, OperationOutcome, Options, Read, operation_options};
use crate::api::admin::Admin;
use crate::bucket::{AmountChange, BalancePlan, balances};
use crate::session::CacheKey;
use crate::values::{Error, parse_amount};

impl Admin {
    /// Changes the balances of rates of one bucket, in all its shards: one write each, after one that
    /// records the plan. Callers may go on; each shard is changed once.
    ///
    /// Usage stays as it was counted. Tokens that callers hold, or have prefetched, stay theirs. A
    /// caller elsewhere that was denied may rely on that for up to
    /// [`Builder::denial_cache_ttl`](crate::Builder::denial_cache_ttl), at most 30 s by default.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), weirgate::Error> {
    /// let report = limiter
    ///     .admin()
    ///     .edit_balances("customer-1", "gpt-4")
    ///     .top_up("tpm", 50_000)
    ///     .idempotency_key("ticket-4711")
    ///     .send()
    ///     .await?;
    /// println!("{:?}: {:?}, then {:?}", report.outcome, report.before, report.after);
    /// # Ok(())
    /// # }
    /// ```
    pub fn edit_balances(&self, entity: &str, resource: &str) -> BalanceEdit<'_> {
        BalanceEdit {
            admin: self,
            entity: entity.to_owned(),
            resource: resource.to_owned(),
            changes: vec![],
            options: Options::default(),
        }
    }
}

/// A change of a bucket's balances. Nothing happens until [`send`](Self::send).
#[derive(Debug, Clone)]
#[must_use = "a change does nothing until it is sent"]
pub struct BalanceEdit<'a> {
    admin: &'a Admin,
    entity: String,
    resource: String,
    changes: Vec<(Option<String>, Change)>,
    options: Options,
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Fill,
    Set(i64),
    Add(i64),
}

/// What a [`BalanceEdit`] found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BalanceReport {
    /// What became of the change.
    pub outcome: OperationOutcome,
    /// Number of shards of the bucket; 0 if it has no item, and so is full.
    pub shards: usize,
    /// Balances of the changed limits before, negative for a debt.
    #[cfg_attr(feature = "serde", serde(rename = "before_tokens"))]
    pub before: BTreeMap<LimitName, MilliTokens>,
    /// Balances after, if nothing was taken in between.
    #[cfg_attr(feature = "serde", serde(rename = "after_tokens"))]
    pub after: BTreeMap<LimitName, MilliTokens>,
}

impl BalanceEdit<'_> {
    /// Sets a limit to its capacity.
    pub fn reset(self, limit: &str) -> Self {
        self.with(Some(limit), Change::Fill)
    }

    /// Sets every rate to its capacity.
    pub fn reset_all(self) -> Self {
        self.with(None, Change::Fill)
    }

    /// Sets a limit to an amount of 0 to its capacity. A debt ends.
    pub fn set(self, limit: &str, tokens: i64) -> Self {
        self.with(Some(limit), Change::Set(tokens))
    }

    /// Sets a limit to 0. It refills as before.
    pub fn drain(self, limit: &str) -> Self {
        self.set(limit, 0)
    }

    /// Sets every rate to 0.
    pub fn drain_all(self) -> Self {
        self.with(None, Change::Set(0))
    }

    /// Adds an amount to a limit, at most to its capacity. Every refill cuts a balance at the
    /// capacity, so for more, configure a greater capacity.
    pub fn top_up(self, limit: &str, tokens: i64) -> Self {
        self.with(Some(limit), Change::Add(tokens))
    }

    operation_options!();

    fn with(mut self, limit: Option<&str>, change: Change) -> Self {
        self.changes.push((limit.map(str::to_owned), change));
        self
    }

    /// Makes the change.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a limit that the bucket lacks or that has slots, for an amount above
    /// the capacity, for a bucket without an item that is to be lowered, and for a key that was used
    /// for another change; nothing is changed then. [`Error::Contended`] or [`Error::Store`] if it is
    /// incomplete, or the outcome is not known: a second call with the same key finishes it.
    pub async fn send(self) -> Result<BalanceReport, Error> {
        self.admin
            .session
            .at_home(async {
                let session = &self.admin.session;
                let changes = self.changes()?;
                let bucket = self.admin.buckets.bucket(
                    self.entity.as_str().try_into()?,
                    self.resource.as_str().try_into()?,
                );
                let mut operating =
                    Operating::new(session, self.what(), CacheKey::Nothing, &self.options)?;
                loop {
                    let (Read { known, mark, .. }, shards) = operating.read_bucket(&bucket).await?;
                    if let Some(outcome) = known {
                        let found = balances(&shards, &changes, session.now());
                        return Ok(BalanceReport {
                            outcome,
                            shards: shards.len(),
                            before: found.clone(),
                            after: found,
                        });
                    }
                    if shards.is_empty() {
                        self.require_full()?;
                    }
                    let BalancePlan {
                        steps,
                        before,
                        after,
                    } = BalancePlan::of(&shards, &changes, session.now())?;
                    let event = AuditChange::Balances {
                        entity: bucket.key.entity.clone(),
                        resource: bucket.key.resource.clone(),
                        before: before.clone(),
                        after: after.clone(),
                    };
                    let change =
                        (!shards.is_empty()).then_some((EditChange::Balances(steps), event));
                    if let Some(outcome) = operating
                        .write_bucket(&bucket, &shards, change, mark)
                        .await?
                    {
                        return Ok(BalanceReport {
                            outcome,
                            shards: shards.len(),
                            before,
                            after,
                        });
                    }
                }
            })
            .await
    }

    fn changes(&self) -> Result<Vec<(Option<LimitName>, AmountChange)>, Error> {
        if self.changes.is_empty() {
            return Err(Error::Invalid(
                "nothing to change: reset, set, drain or top up a limit".to_owned(),
            ));
        }
        let change = |(limit, change): &(Option<String>, Change)| {
            let name = limit.as_deref().map(LimitName::new).transpose()?;
            let text = limit.as_deref().unwrap_or("every rate");
            let change = match change {
                Change::Fill => AmountChange::Fill,
                Change::Set(tokens) => AmountChange::Set(parse_amount(text, *tokens)?),
                Change::Add(tokens) => AmountChange::Add(parse_amount(text, *tokens)?),
            };
            Ok((name, change))
        };
        self.changes.iter().map(change).collect()
    }

    /// Returns the description of the change.
    fn what(&self) -> String {
        let change = |(limit, change): &(Option<String>, Change)| {
            let limit = limit.as_deref().unwrap_or("every rate");
            match change {
                Change::Fill => format!("reset {limit}"),
                Change::Set(tokens) => format!("set {limit} to {tokens}"),
                Change::Add(tokens) => format!("add {tokens} to {limit}"),
            }
        };
        let changes: Vec<_> = self.changes.iter().map(change).collect();
        let (entity, resource) = (&self.entity, &self.resource);
        format!("{} of {entity} on {resource}", changes.join(", "))
    }

    /// Requires that the change leaves a bucket without an item, which is full, as it is.
    fn require_full(&self) -> Result<(), Error> {
        let is_full = |(_, change): &(Option<String>, Change)| matches!(change, Change::Fill);
        if self.changes.iter().all(is_full) {
            return Ok(());
        }
        let (entity, resource) = (&self.entity, &self.resource);
        Err(Error::Invalid(format!(
            "bucket of {entity} on {resource} has no item, so it is full and its limits are not known: acquire from it first, or stop it"
        )))
    }
}
