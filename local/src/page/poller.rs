//! The reads, one page of a list after the other: for all viewers together, and only while there
//! are any.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weirgate::{
    Clock, ConfigFilter, ConfigLevel, Error, Granularity, Page, PageToken, RateLimiter,
    StoredBucket, SystemClock, UsageReport, UsageScope, Window,
};

use super::board::{Board, Cost, Names, Progress};
use super::budget::Budget;
use super::row::{Key, Rates, Row};
use super::subject::Subject;
use super::usage::Sum;

/// How many buckets of a subject are shown.
pub(crate) const MAX_BUCKETS: usize = 2000;
/// How many names of each kind are offered.
const MAX_NAMES: usize = 200;
/// Time between two reads of all buckets, from begin to begin, at least.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
const USAGE_EVERY: Duration = Duration::from_secs(60);
const NAMES_EVERY: Duration = Duration::from_secs(60);
/// Time after a read that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Reads for the viewers of a board.
#[derive(Debug)]
pub(crate) struct Poller {
    limiter: RateLimiter,
    board: Arc<Board>,
    budget: Budget,
    allowed: u32,
    watched: BTreeMap<Subject, Watched>,
    names_at: Option<Instant>,
}

/// How far the reads of a subject are.
#[derive(Debug)]
struct Watched {
    /// When the next page is read.
    due: Instant,
    phase: Phase,
    rates: BTreeMap<Key, Rates>,
    /// When usage is read next.
    usage_due: Instant,
    progress: Progress,
}

#[derive(Debug)]
enum Phase {
    Buckets {
        started: Instant,
        after: Option<PageToken>,
        seen: BTreeSet<Key>,
    },
    Usage {
        started: Instant,
        day_start: weirgate::EpochMillis,
        at: weirgate::EpochMillis,
        after: Option<PageToken>,
        sum: Sum,
    },
}

impl Phase {
    const fn buckets(started: Instant) -> Self {
        Self::Buckets {
            started,
            after: None,
            seen: BTreeSet::new(),
        }
    }
}

impl Poller {
    pub(crate) fn new(limiter: RateLimiter, board: Arc<Board>, allowed: u32) -> Self {
        Self {
            limiter,
            board,
            budget: Budget::new(allowed, Instant::now()),
            allowed,
            watched: BTreeMap::new(),
            names_at: None,
        }
    }

    /// Reads for as long as there are viewers, and waits for the next one otherwise.
    pub(crate) async fn run(mut self) {
        let mut visits = self.board.visits();
        loop {
            visits.borrow_and_update();
            self.tell_cost();
            if self.board.viewers() == 0 {
                self.watched.clear();
                if visits.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let next = self.turn().await;
            let next = next.min(Instant::now() + Duration::from_secs(1));
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                changed = visits.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Reads one page of each subject that is due. Returns when the next one is.
    async fn turn(&mut self) -> Instant {
        let now = Instant::now();
        if self.names_at.is_none_or(|at| at <= now) {
            // Without names a viewer still types its own, and sees the reason of its failure there.
            let _ = self.read_names().await;
            self.names_at = Some(Instant::now() + NAMES_EVERY);
        }
        let subjects: BTreeSet<_> = self.board.subjects().into_iter().collect();
        self.watched.retain(|subject, _| subjects.contains(subject));
        for subject in subjects {
            let now = Instant::now();
            let watched = self.watched.remove(&subject);
            let mut watched = watched.unwrap_or_else(|| Watched::new(now));
            if watched.due <= now {
                let read = self.read(&subject, &mut watched).await;
                watched.progress.problem = read.err().map(|error| error.to_string());
                if watched.progress.problem.is_some() {
                    self.pay(2).await;
                    watched.due = Instant::now() + AFTER_FAILURE;
                    watched.phase = Phase::buckets(watched.due);
                }
                self.board.set_progress(&subject, watched.progress.clone());
                self.tell_cost();
            }
            self.watched.insert(subject, watched);
        }
        let due = self.watched.values().map(|watched| watched.due).min();
        due.unwrap_or(now + SWEEP_EVERY)
    }

    /// Reads one page of what viewers see of a subject.
    async fn read(&mut self, subject: &Subject, watched: &mut Watched) -> Result<(), Error> {
        match std::mem::replace(&mut watched.phase, Phase::buckets(Instant::now())) {
            Phase::Buckets {
                started,
                after,
                mut seen,
            } => {
                let page = match subject {
                    Subject::Resource(resource) => {
                        self.limiter
                            .admin()
                            .resource_buckets(resource, after.as_ref())
                            .await
                    }
                    Subject::Entity(entity) => {
                        self.limiter
                            .admin()
                            .entity_buckets(entity, after.as_ref())
                            .await
                    }
                };
                let page = page?;
                let shards: u64 = page
                    .items
                    .iter()
                    .map(|bucket| u64::from(bucket.shards))
                    .sum();
                let unreadable = u64::try_from(page.unreadable.len()).unwrap_or(u64::MAX);
                let next = page.next.clone();
                seen.extend(watched.show(&self.board, subject, page));
                self.pay(1 + 2 * (shards + unreadable)).await;
                watched.progress.is_cut = next.is_some() && seen.len() >= MAX_BUCKETS;
                if let Some(next) = next.filter(|_| !watched.progress.is_cut) {
                    watched.phase = Phase::Buckets {
                        started,
                        after: Some(next),
                        seen,
                    };
                    return Ok(());
                }
                watched.swept(&self.board, subject, started, &seen);
                Ok(())
            }
            Phase::Usage {
                started,
                day_start,
                at,
                after,
                mut sum,
            } => {
                let report = self.report(subject, day_start..at)?;
                let Page {
                    items,
                    unreadable,
                    next,
                } = report.page(after.as_ref()).await?;
                let before = sum.users();
                unreadable.into_iter().for_each(|item| sum.lacks(item));
                items.iter().for_each(|row| sum.add(row));
                let read = u64::try_from(sum.users() - before).unwrap_or(u64::MAX);
                let is_last = next.is_none() || sum.users() >= MAX_BUCKETS;
                // Buckets without usage were read as well.
                let idle = watched.rates.len().saturating_sub(sum.users());
                let idle = u64::try_from(idle).unwrap_or(u64::MAX);
                self.pay(1 + 2 * read + if is_last { 2 * idle } else { 0 })
                    .await;
                self.board.set_day(subject, sum.day(day_start, at));
                if is_last {
                    let now = Instant::now();
                    // At most a third of the reads.
                    let rest = USAGE_EVERY.max(now.saturating_duration_since(started) * 2);
                    watched.usage_due = now + rest;
                } else {
                    watched.phase = Phase::Usage {
                        started,
                        day_start,
                        at,
                        after: next,
                        sum,
                    };
                }
                Ok(())
            }
        }
    }

    fn report(
        &self,
        subject: &Subject,
        range: std::ops::Range<weirgate::EpochMillis>,
    ) -> Result<UsageReport<'_>, Error> {
        let scope = match subject.clone() {
            Subject::Resource(resource) => UsageScope::Resource(resource),
            Subject::Entity(entity) => UsageScope::Entity(entity),
        };
        self.limiter
            .admin()
            .usage_report(scope, Granularity::Hourly, range)
    }

    /// Reads the names that have limits of their own, or were set.
    async fn read_names(&mut self) -> Result<(), Error> {
        let mut names = Names::default();
        let mut after = None;
        loop {
            let page = self
                .limiter
                .admin()
                .configs(&ConfigFilter::Resources, after.as_ref());
            let page = page.await?;
            self.pay(1 + 2 * u64::try_from(page.items.len()).unwrap_or(u64::MAX))
                .await;
            let found = page.items.into_iter().filter_map(|(level, _)| match level {
                ConfigLevel::Resource(resource) => Some(resource.to_string()),
                _ => None,
            });
            names.resources.extend(found);
            let unreadable = page.unreadable.into_iter();
            let unreadable = unreadable.filter_map(|item| item.resource);
            names
                .resources
                .extend(unreadable.map(|resource| resource.to_string()));
            after = page.next;
            if after.is_none() || names.resources.len() >= MAX_NAMES {
                break;
            }
        }
        self.board.set_names(names.clone());
        loop {
            let page = self.limiter.admin().entities(after.as_ref()).await?;
            self.pay(1).await;
            names
                .entities
                .extend(page.items.iter().map(ToString::to_string));
            after = page.next;
            if after.is_none() || names.entities.len() >= MAX_NAMES {
                break;
            }
        }
        self.board.set_names(names);
        Ok(())
    }

    /// Counts half units, and waits until they are paid.
    async fn pay(&mut self, halves: u64) {
        let paid_at = self.budget.spend(halves, Instant::now());
        self.tell_cost();
        tokio::time::sleep_until(paid_at).await;
    }

    fn tell_cost(&mut self) {
        let halves = self.budget.halves_per_second(Instant::now());
        let units = |halves: u64| f64::from(u32::try_from(halves).unwrap_or(u32::MAX)) / 2.0;
        self.board.set_cost(Cost {
            units_per_second: units(halves),
            allowed: self.allowed,
            units: units(self.budget.halves()),
            viewers: self.board.viewers(),
        });
    }
}

impl Watched {
    fn new(now: Instant) -> Self {
        Self {
            due: now,
            phase: Phase::buckets(now),
            rates: BTreeMap::new(),
            usage_due: now,
            progress: Progress::default(),
        }
    }

    /// Shows the buckets that were just read, and those that cannot be. Returns them.
    fn show(&mut self, board: &Board, subject: &Subject, page: Page<StoredBucket>) -> Vec<Key> {
        let (now, at) = (Instant::now(), SystemClock.now());
        let rows = page.items.into_iter().map(|bucket| {
            let key = (bucket.entity.clone(), bucket.resource.clone());
            let first = || Rates::new(now, bucket.counted.clone());
            let rates = self.rates.entry(key).or_insert_with(first);
            rates.read(now, &bucket.counted);
            rates.row(bucket, at)
        });
        let unreadable = page.unreadable.into_iter();
        let unreadable = unreadable.filter_map(|item| Row::unreadable(item, at));
        let rows: Vec<_> = rows.chain(unreadable).collect();
        let keys = rows.iter().map(Row::key).collect();
        board.set_rows(subject, rows);
        keys
    }

    /// Ends a read of all buckets, and says what comes next.
    fn swept(&mut self, board: &Board, subject: &Subject, started: Instant, seen: &BTreeSet<Key>) {
        let now = Instant::now();
        self.rates.retain(|key, _| seen.contains(key));
        board.keep_rows(subject, |key| seen.contains(key));
        let took = now.saturating_duration_since(started);
        self.progress.sweep_ms = u64::try_from(took.as_millis()).ok();
        if self.usage_due <= now {
            let at = SystemClock.now();
            let day_start = Window::Daily.start(at);
            self.phase = Phase::Usage {
                started: now,
                day_start,
                at: at.max(weirgate::EpochMillis(day_start.0 + 1)),
                after: None,
                sum: Sum::default(),
            };
            self.due = now;
        } else {
            self.due = now.max(started + SWEEP_EVERY);
            self.phase = Phase::buckets(self.due);
        }
    }
}
