//! Purges a namespace.

use std::collections::{BTreeMap, VecDeque};
use std::slice;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use weirgate_shared::write::{Action, purge_config};
use weirgate_shared::{
    AuditChange, AuditKey, AuditSubject, BUCKET_SK, BucketKey, ConfigLevel, ItemKey, PURGE, Switch,
    attr, switches_key,
};
use weirgate_store::{Item, WriteOutcome};

use super::Admin;
use super::erase::LiveLeases;
use super::erase::remains::{Remains, live_leases};
use crate::api::page::{PageToken, within};
use crate::config::{self, ConfigEdit, stored, unreadable};
use crate::session::CacheKey;
use crate::values::Error;

/// Number of items that one call reads at most.
const PAGE: i32 = 1000;
/// Maximum number of deletions in one transaction, which has room for 4 MB of items: ten of 400 KB.
const DELETIONS: usize = 10;
/// Transactions under way at once.
const CONCURRENCY: usize = 8;
/// Writes of others to a bucket that a page plans again for, 3.
const RACES: u32 = 3;
/// The list that page tokens of a purge are of.
const LIST: &str = "purge";

/// The deletion of a page of a namespace's items. Nothing happens until [`send`](Self::send).
#[derive(Debug, Clone)]
#[must_use = "a purge does nothing until it is sent"]
pub struct Purge<'a> {
    admin: &'a Admin,
    namespace: String,
    leases: LiveLeases,
    is_dry_run: bool,
    after: Option<PageToken>,
}

/// What one page of a [`Purge`] deleted, or would delete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PurgeReport {
    /// Number of items of the table that were read, of any namespace.
    pub scanned: usize,
    /// Number of shards deleted, including those that were merged away.
    pub shards: usize,
    /// Number of configurations deleted, including versions of deleted ones.
    pub configs: usize,
    /// Number of usage snapshots deleted.
    pub snapshots: usize,
    /// Number of audit events deleted.
    pub audit_events: usize,
    /// Number of all other items deleted: entities, shared denials, idempotency keys, the version of
    /// the schema.
    pub others: usize,
    /// Number of shards that are left because they hold leases that have not expired.
    pub leased: usize,
    /// Token of the next page; `None` after the last one.
    pub next: Option<PageToken>,
}

/// Kind of an item, by its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Shard,
    Config,
    Snapshot,
    AuditEvent,
    Other,
}

impl Admin {
    /// Deletes everything that the table has of the limiter's namespace: limits, entities, buckets,
    /// usage, audit events, also items that cannot be read. `namespace` must be the limiter's, as a
    /// confirmation. What remains is the switch that keeps the namespace stopped, the version of the
    /// system's limits, and an audit event of each purge, which says when it began and by which
    /// principal; and for two days, without content, the key of each shard, so that nothing late brings
    /// one back.
    ///
    /// No index lists all items of a namespace, so a purge reads the whole table, of all namespaces,
    /// 1,000 items a call. A call that failed or was dropped is repeated from the last page token,
    /// or from the beginning.
    ///
    /// The system level must be [stopped](Self::stop) for at least
    /// [`Builder::config_ttl`](crate::Builder::config_ttl), without exempt levels: callers would
    /// create buckets again. Purge again some minutes later, and in Redis when no records wait: until
    /// then the aggregator may write snapshots from records that were on their way.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut after = None;
    /// loop {
    ///     let page = limiter.admin().purge_namespace("staging").after(after).send().await?;
    ///     println!("{} items read, {} shards deleted", page.scanned, page.shards);
    ///     after = page.next;
    ///     if after.is_none() {
    ///         break;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn purge_namespace(&self, namespace: &str) -> Purge<'_> {
        Purge {
            admin: self,
            namespace: namespace.to_owned(),
            leases: LiveLeases::Refuse,
            is_dry_run: false,
            after: None,
        }
    }
}

impl Purge<'_> {
    /// Sets what happens to shards with leases that have not expired. By default they are left, and
    /// counted in [`PurgeReport::leased`].
    pub const fn leases(mut self, leases: LiveLeases) -> Self {
        self.leases = leases;
        self
    }

    /// Counts, and deletes nothing. The namespace need not be stopped.
    pub const fn dry_run(mut self) -> Self {
        self.is_dry_run = true;
        self
    }

    /// Continues after a page; from the beginning with `None`.
    pub fn after(mut self, page: impl Into<Option<PageToken>>) -> Self {
        self.after = page.into();
        self
    }

    /// Reads the next items of the table, and deletes those of the namespace.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the name is not the limiter's namespace, the namespace is not stopped,
    /// or the page token is of another list; [`Error::Contended`] or [`Error::Store`] if the page is
    /// incomplete: send it again.
    pub async fn send(self) -> Result<PurgeReport, Error> {
        self.admin
            .session
            .at_home(async {
                self.check().await?;
                let session = &self.admin.session;
                let position = within(self.after.as_ref(), LIST)?;
                let mut configs = 0;
                if self.after.is_none() {
                    let system = [config::key(&session.namespace, &ConfigLevel::System).item_key()];
                    let known = stored(&system[0], &session.read(&system).await?);
                    configs = usize::from(!known.is_ok_and(|known| known.value.is_none()));
                    if !self.is_dry_run {
                        let purge = purge_config(&session.namespace, session.now());
                        self.write(|edit| vec![edit.record(AuditChange::Purged), purge]).await?;
                    }
                }
                let prefix = format!("{}/", session.namespace);
                let page = session.scan(&prefix, PAGE, position).await?;
                let mut report = PurgeReport {
                    scanned: page.scanned,
                    configs,
                    next: page.next.map(|next| PageToken::new(LIST.to_owned(), next)),
                    ..PurgeReport::default()
                };
                let (mut keys, mut buckets) = (vec![], BTreeMap::<_, Vec<_>>::new());
                for item in &page.items {
                    let Some(key) = item.key().filter(|key| !self.is_kept(key, item)) else {
                        continue;
                    };
                    if self.keeps_leases_of(item) {
                        report.leased += 1;
                        continue;
                    }
                    let kind = Kind::of(&key);
                    match Remains::of(item) {
                        Ok((shard, _)) if kind == Kind::Shard && shard.is_erased => continue,
                        Ok((shard, half)) if kind == Kind::Shard => {
                            let bucket = shard.key.with_shard(0).item_key().pk;
                            let all = [shard].into_iter().chain(half);
                            buckets.entry(bucket).or_default().extend(all);
                        }
                        // Nothing can make a shard again that cannot be read.
                        _ => keys.push(key),
                    }
                    *report.count_of(kind) += 1;
                }
                if !self.is_dry_run {
                    self.delete(&keys).await?;
                    let buckets: Vec<_> = buckets.into_values().map(|all| self.bury(all)).collect();
                    let buckets = stream::iter(buckets).buffer_unordered(CONCURRENCY);
                    buckets.try_collect::<()>().await?;
                }
                Ok(report)
            })
            .await
    }

    /// Leaves the tombstones of a bucket's shards in this page.
    async fn bury(&self, shards: Vec<Remains>) -> Result<(), Error> {
        let (session, mut races) = (&self.admin.session, 0);
        let v = Remains::tombstone_v(&shards, session.now());
        let mut left: VecDeque<_> = Remains::in_order(shards).into();
        while let Some(shard) = left.pop_front() {
            let (now, is_half) = (session.now(), shard.seen.is_none());
            let v = Remains::tombstone_v(slice::from_ref(&shard), now).max(v);
            let outcome = session.update_idempotent(&shard.erase(v, now)).await?;
            // A half that has an item by now is purged with it.
            let WriteOutcome::ConditionFailed(Some(item)) = outcome else {
                continue;
            };
            if is_half {
                continue;
            }
            races += 1;
            let written = Remains::of(&item);
            let is_meant = races < RACES && !self.keeps_leases_of(&item);
            let Some((shard, half)) = written.ok().filter(|_| is_meant) else {
                return Err(Error::Contended {
                    what: format!("bucket {}", item.pk()),
                    after: session.settings.timeout,
                });
            };
            // The half first.
            left.push_front(shard);
            half.into_iter().for_each(|half| left.push_front(half));
        }
        Ok(())
    }

    fn keeps_leases_of(&self, item: &Item) -> bool {
        let now = self.admin.session.now();
        self.leases == LiveLeases::Refuse && live_leases(item, now) > 0
    }

    async fn check(&self) -> Result<(), Error> {
        let own = &self.admin.session.namespace;
        if self.namespace != own.as_str() {
            return Err(Error::Invalid(format!(
                "namespace {:?} is to be purged by a limiter of namespace {:?}: build a limiter of \
                 the namespace that you want to purge",
                self.namespace,
                own.as_str()
            )));
        }
        if self.is_dry_run {
            return Ok(());
        }
        let switches = self.admin.stored_switches().await?;
        if let Some((_, error)) = switches.unreadable.first() {
            return Err(unreadable(&switches_key(own), error.clone()));
        }
        if switches.stop_all() {
            return Ok(());
        }
        let levels = switches.levels;
        let mut exempt = levels.iter().filter(|(_, switch)| **switch == Switch::Exempt);
        Err(Error::Invalid(match exempt.next() {
            Some((level, _)) if levels.get(&ConfigLevel::System) == Some(&Switch::Stopped) => {
                format!(
                    "{level} of namespace {own:?} is exempt from the stop, and would be used again: \
                     start it, wait as long as callers cache their limits (1m by default), and purge \
                     again",
                    own = own.as_str()
                )
            }
            _ => format!(
                "namespace {:?} is not stopped: stop its system level, wait as long as callers \
                 cache their limits (1m by default), and purge again",
                own.as_str()
            ),
        }))
    }

    /// Returns whether an item stays: the switches, the version of the system's limits, and events of
    /// purges.
    fn is_kept(&self, key: &ItemKey, item: &Item) -> bool {
        let namespace = &self.admin.session.namespace;
        let is_purge = || {
            let action = item.attributes().find(|(name, _)| *name == attr::ACTION);
            action.is_some_and(|(_, action)| action == weirgate_shared::Attr::S(PURGE))
        };
        *key == switches_key(namespace)
            || *key == config::key(namespace, &ConfigLevel::System).item_key()
            || key.pk == AuditKey::partition(namespace, &AuditSubject::System) && is_purge()
    }

    async fn delete(&self, keys: &[ItemKey]) -> Result<(), Error> {
        let transactions = keys.chunks(DELETIONS).map(|keys| {
            let delete = |key: &ItemKey| Action::Delete(key.clone(), vec![]);
            self.write(move |_| keys.iter().map(delete).collect())
        });
        let transactions: Vec<_> = transactions.collect();
        stream::iter(transactions).buffer_unordered(CONCURRENCY).try_collect().await
    }

    /// Writes all actions or none. They have no conditions.
    async fn write(
        &self,
        actions: impl FnOnce(&ConfigEdit<'_>) -> Vec<Action>,
    ) -> Result<(), Error> {
        let session = &self.admin.session;
        let what = format!("namespace {}, to be purged", session.namespace);
        let mut edit = ConfigEdit::new(session, what, CacheKey::AllLimits);
        let actions = actions(&edit);
        while !edit.write(&actions).await? {}
        Ok(())
    }
}

impl PurgeReport {
    /// Returns the sum with the page after this one.
    #[must_use]
    pub fn plus(self, page: Self) -> Self {
        Self {
            scanned: self.scanned + page.scanned,
            shards: self.shards + page.shards,
            configs: self.configs + page.configs,
            snapshots: self.snapshots + page.snapshots,
            audit_events: self.audit_events + page.audit_events,
            others: self.others + page.others,
            leased: self.leased + page.leased,
            next: page.next,
        }
    }

    /// Returns the number of items deleted, of all kinds.
    #[must_use]
    pub const fn deleted(&self) -> usize {
        self.shards + self.configs + self.snapshots + self.audit_events + self.others
    }

    fn count_of(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::Shard => &mut self.shards,
            Kind::Config => &mut self.configs,
            Kind::Snapshot => &mut self.snapshots,
            Kind::AuditEvent => &mut self.audit_events,
            Kind::Other => &mut self.others,
        }
    }
}

impl Kind {
    fn of(key: &ItemKey) -> Self {
        if AuditKey::parse(key).is_some() {
            Self::AuditEvent
        } else if key.sk == BUCKET_SK && BucketKey::parse(&key.pk).is_some() {
            Self::Shard
        } else if key.sk.starts_with("#CONFIG") {
            Self::Config
        } else if key.sk.starts_with("#USAGE#") {
            Self::Snapshot
        } else {
            Self::Other
        }
    }
}
