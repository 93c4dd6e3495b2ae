//! The reads, one page of a list after the other: for all viewers together, and only while there
//! are any.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use weirgate::{
    Clock, ConfigFilter, ConfigLevel, EntityId, EpochMillis, Error, Granularity, Page, PageToken,
    PlanName, RateLimiter, StoredBucket, SystemClock, UsageReport, UsageScope, Window,
};

use super::board::{Board, Cost, Names, Progress, Switched, Switches, ViewId};
use super::budget::Budget;
use super::details::{Ask, Details, What};
use super::history::History;
use super::levels::{Levels, OfEntities};
use super::row::{Key, Row};
use super::subject::Subject;
use super::usage::Sum;

/// How many buckets of a subject are shown.
pub(crate) const MAX_BUCKETS: usize = 10_000;
/// How many buckets' use is remembered for an hour.
const MAX_HISTORIES: usize = 2 * MAX_BUCKETS;
/// How many names of each kind are offered.
const MAX_NAMES: usize = 200;
/// Time between two reads of all buckets, from begin to begin, at least.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
const USAGE_EVERY: Duration = Duration::from_secs(60);
const NAMES_EVERY: Duration = Duration::from_secs(60);
const SWITCHES_EVERY: Duration = Duration::from_secs(10);
const LEVELS_EVERY: Duration = Duration::from_secs(60);
/// So many times as long as levels take to read, they are not read again: a tenth of the reads.
const LEVELS_REST: u32 = 9;
/// How far requests for one bucket may be ahead of the allowed units. They do not wait for a page of
/// a list to be paid.
const AHEAD: Duration = Duration::from_secs(5);
/// Time after a read that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Reads for the viewers of a board.
#[derive(Debug)]
pub(crate) struct Poller {
    limiter: RateLimiter,
    board: Arc<Board>,
    budget: Budget,
    allowed: u32,
    watched: BTreeMap<ViewId, Watched>,
    names_at: Option<Instant>,
    switches_at: Option<Instant>,
    /// The levels of resources, and that of the system.
    general: Levels,
    /// Of each bucket that was read in the last hour.
    histories: BTreeMap<Key, History>,
    asks: mpsc::Receiver<Ask>,
    details: Details,
}

/// How far the reads of a subject are.
#[derive(Debug)]
struct Watched {
    /// When the next page is read.
    due: Instant,
    phase: Phase,
    /// How many buckets the last read of all found.
    buckets: usize,
    /// When usage and levels are read next.
    usage_due: Instant,
    levels_due: Instant,
    of_entities: OfEntities,
    levels: Levels,
    progress: Progress,
}

#[derive(Debug)]
enum Phase {
    Buckets {
        started: Instant,
        after: Option<PageToken>,
        seen: BTreeSet<Key>,
    },
    Levels {
        started: Instant,
        /// What is still to be read, the next one last.
        lists: Vec<ConfigFilter>,
        after: Option<PageToken>,
        found: OfEntities,
    },
    Usage {
        started: Instant,
        day_start: EpochMillis,
        at: EpochMillis,
        after: Option<PageToken>,
        sum: Sum,
    },
}

impl Phase {
    const fn buckets(started: Instant) -> Self {
        Self::Buckets { started, after: None, seen: BTreeSet::new() }
    }
}

impl Poller {
    pub(crate) fn new(
        limiter: RateLimiter,
        board: Arc<Board>,
        allowed: u32,
        asks: mpsc::Receiver<Ask>,
    ) -> Self {
        Self {
            limiter,
            board,
            budget: Budget::new(allowed, Instant::now()),
            allowed,
            watched: BTreeMap::new(),
            names_at: None,
            switches_at: None,
            general: Levels::default(),
            histories: BTreeMap::new(),
            asks,
            details: Details::default(),
        }
    }

    /// Reads for as long as there are viewers, and waits for the next one otherwise. Answers what is
    /// asked about single buckets.
    pub(crate) async fn run(mut self) {
        let mut visits = self.board.visits();
        loop {
            visits.borrow_and_update();
            self.tell_cost();
            let mut next = Instant::now() + Duration::from_secs(1);
            if self.board.viewers() > 0 {
                next = next.min(self.turn().await);
            }
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                changed = visits.changed() => if changed.is_err() { return },
                Some(ask) = self.asks.recv(), if self.may_answer() => self.answer(ask).await,
            }
        }
    }

    /// Answers what is asked about a bucket.
    async fn answer(&mut self, ask: Ask) {
        let Ask { what, bucket, answer } = ask;
        if answer.is_closed() {
            return;
        }
        let history = self.histories.get(&bucket);
        let read = match what {
            What::Reasons => self.details.reasons(&self.limiter, &bucket, history).await,
            What::Hour => self.details.hour(&self.limiter, &bucket, history).await,
        };
        let (json, halves) = read;
        self.budget.spend(halves, Instant::now());
        self.tell_cost();
        let _ = answer.send(json);
    }

    fn may_answer(&self) -> bool {
        self.budget.paid_at() <= Instant::now() + AHEAD
    }

    /// Reads one page of each subject that is due. Returns when the next one is.
    async fn turn(&mut self) -> Instant {
        let now = Instant::now();
        if self.names_at.is_none_or(|at| at <= now) {
            // Without names a viewer still types its own, and sees the reason of its failure there.
            let _ = self.read_names().await;
            self.names_at = Some(Instant::now() + NAMES_EVERY);
            let now = SystemClock.now();
            self.histories.retain(|_, history| !history.is_over(now));
        }
        if self.switches_at.is_none_or(|at| at <= now) {
            // Those that were read last are shown on.
            let _ = self.read_switches().await;
            self.switches_at = Some(Instant::now() + SWITCHES_EVERY);
        }
        let views = self.board.views();
        self.watched.retain(|view, _| views.contains(view));
        for view in views {
            let now = Instant::now();
            let watched = self.watched.remove(&view);
            let mut watched = watched.unwrap_or_else(|| Watched::new(now, &self.general));
            if watched.due <= now {
                let at = SystemClock.now();
                let read = self.read(&view, &mut watched).await;
                watched.progress.problem = read.err().map(|error| error.to_string());
                if watched.progress.problem.is_some() {
                    self.pay(2).await;
                    watched.due = Instant::now() + AFTER_FAILURE;
                    watched.phase = Phase::buckets(watched.due);
                } else {
                    watched.progress.read_at_ms = Some(at.0);
                }
                self.board.set_progress(&view, watched.progress.clone());
                self.tell_cost();
            }
            self.watched.insert(view, watched);
        }
        let due = self.watched.values().map(|watched| watched.due).min();
        due.unwrap_or(now + SWEEP_EVERY)
    }

    /// Reads one page of what viewers see of a subject.
    async fn read(&mut self, view: &ViewId, watched: &mut Watched) -> Result<(), Error> {
        let subject = &view.subject;
        match std::mem::replace(&mut watched.phase, Phase::buckets(Instant::now())) {
            Phase::Buckets { started, after, mut seen } => {
                let page = match subject {
                    Subject::Resource(resource) => {
                        self.limiter.admin().resource_buckets(resource, after.as_ref()).await
                    }
                    Subject::Starting(resource, start) => {
                        let admin = self.limiter.admin();
                        let (start, after) = (start.as_str(), after.as_ref());
                        admin.resource_buckets_starting_with(resource, start, after).await
                    }
                    Subject::Entity(entity) => {
                        self.limiter.admin().entity_buckets(entity, after.as_ref()).await
                    }
                };
                let page = page?;
                let shards: u64 = page.items.iter().map(|bucket| u64::from(bucket.shards)).sum();
                let unreadable = u64::try_from(page.unreadable.len()).unwrap_or(u64::MAX);
                let next = page.next.clone();
                let plans = self.plans(&watched.levels, &page.items).await?;
                let rows = self.rows(&watched.levels, plans.as_ref(), page);
                seen.extend(rows.iter().map(Row::key));
                self.board.set_rows(view, rows);
                self.pay(1 + 2 * (shards + unreadable)).await;
                let is_cut = next.is_some() && seen.len() >= MAX_BUCKETS;
                if let Some(next) = next.filter(|_| !is_cut) {
                    watched.phase = Phase::Buckets { started, after: Some(next), seen };
                    return Ok(());
                }
                watched.progress.is_cut = is_cut;
                watched.swept(&self.board, view, started, &seen);
                Ok(())
            }
            Phase::Levels { started, mut lists, after, mut found } => {
                let mut has_room = true;
                let mut next = None;
                if let Some(list) = lists.last() {
                    let page = self.limiter.admin().configs(list, after.as_ref()).await?;
                    let count = page.items.len() + page.unreadable.len();
                    let is_complete = page.unreadable.is_empty();
                    has_room = found.add(page.items) && is_complete;
                    next = page.next;
                    if next.is_none() {
                        lists.pop();
                    }
                    self.pay(1 + 2 * u64::try_from(count).unwrap_or(u64::MAX)).await;
                }
                if has_room && !lists.is_empty() {
                    watched.phase = Phase::Levels { started, lists, after: next, found };
                    return Ok(());
                }
                if lists.is_empty() && has_room {
                    found.complete();
                }
                watched.levels = self.general.with_entities(&found);
                watched.of_entities = found;
                let now = Instant::now();
                let rest = now.saturating_duration_since(started) * LEVELS_REST;
                watched.levels_due = now + LEVELS_EVERY.max(rest);
                Ok(())
            }
            Phase::Usage { started, day_start, at, after, mut sum } => {
                let report = self.report(subject, day_start..at)?;
                let Page { items, unreadable, next } = report.page(after.as_ref()).await?;
                let before = sum.users();
                unreadable.into_iter().for_each(|item| sum.lacks(item));
                items.iter().for_each(|row| sum.add(row));
                let read = u64::try_from(sum.users() - before).unwrap_or(u64::MAX);
                let is_last = next.is_none() || sum.users() >= MAX_BUCKETS;
                // Buckets without usage were read as well.
                let idle = watched.buckets.saturating_sub(sum.users());
                let idle = u64::try_from(idle).unwrap_or(u64::MAX);
                self.pay(1 + 2 * read + if is_last { 2 * idle } else { 0 }).await;
                self.board.set_day(view, sum.day(day_start, at));
                if is_last {
                    let now = Instant::now();
                    // At most a third of the reads.
                    let rest = USAGE_EVERY.max(now.saturating_duration_since(started) * 2);
                    watched.usage_due = now + rest;
                } else {
                    watched.phase = Phase::Usage { started, day_start, at, after: next, sum };
                }
                Ok(())
            }
        }
    }

    fn report(
        &self,
        subject: &Subject,
        range: std::ops::Range<EpochMillis>,
    ) -> Result<UsageReport<'_>, Error> {
        let scope = match subject.clone() {
            Subject::Resource(resource) | Subject::Starting(resource, _) => {
                UsageScope::Resource(resource)
            }
            Subject::Entity(entity) => UsageScope::Entity(entity),
        };
        self.limiter.admin().usage_report(scope, Granularity::Hourly, range)
    }

    /// Returns the rows of buckets that were just read, and of those that cannot be.
    fn rows(
        &mut self,
        levels: &Levels,
        plans: Option<&HashMap<EntityId, PlanName>>,
        page: Page<StoredBucket>,
    ) -> Vec<Row> {
        let (at, unknown) = (SystemClock.now(), Levels::default());
        let rows = page.items.into_iter().map(|bucket| {
            let key = (bucket.entity.clone(), bucket.resource.clone());
            let used = if let Some(history) = self.histories.get_mut(&key) {
                history.read(at, &bucket);
                history.used()
            } else {
                if self.histories.len() < MAX_HISTORIES {
                    self.histories.insert(key, History::new(at, &bucket));
                }
                None
            };
            let plan = plans.and_then(|plans| plans.get(&bucket.entity));
            let levels = (if plans.is_some() { levels } else { &unknown }, plan);
            Row::of(bucket, used.as_ref(), levels, at)
        });
        let rows: Vec<_> = rows.collect();
        let unreadable = page.unreadable.into_iter();
        let unreadable = unreadable.filter_map(|item| Row::unreadable(item, at));
        rows.into_iter().chain(unreadable).collect()
    }

    /// Returns the plans of the entities of buckets, as far as they matter; `None` if an entity cannot be
    /// read.
    async fn plans(
        &mut self,
        levels: &Levels,
        buckets: &[StoredBucket],
    ) -> Result<Option<HashMap<EntityId, PlanName>>, Error> {
        if !levels.have_plans() {
            return Ok(Some(HashMap::new()));
        }
        let ids: BTreeSet<_> = buckets.iter().map(|bucket| bucket.entity.clone()).collect();
        let ids: Vec<_> = ids.into_iter().collect();
        let entities = match self.limiter.admin().read_entities(&ids).await {
            Err(Error::UnreadableItem { .. }) => return Ok(None),
            entities => entities?,
        };
        self.pay(2 * u64::try_from(ids.len()).unwrap_or(u64::MAX)).await;
        let entities = entities.into_iter().flatten();
        let plans = entities.filter_map(|entity| Some((entity.id, entity.plan?)));
        Ok(Some(plans.collect()))
    }

    /// Reads the levels that are stopped or exempt: one item.
    async fn read_switches(&mut self) -> Result<(), Error> {
        let read = self.limiter.admin().switches().await;
        self.pay(2).await;
        let read = read?;
        let switched = |(level, switch)| Switched { level, switch };
        self.board.set_switches(Switches {
            switches: read.items.into_iter().map(switched).collect(),
            unreadable: read.unreadable.into_iter().map(|item| item.error).collect(),
        });
        Ok(())
    }

    /// Reads the names that have limits of their own, or were set, and the levels of plans, of resources
    /// and the system.
    async fn read_names(&mut self) -> Result<(), Error> {
        let mut names = Names::default();
        let mut after = None;
        let (mut configs, mut is_whole) = (vec![], true);
        let system = self.limiter.admin().config(&ConfigLevel::System).await;
        self.pay(2).await;
        match system {
            Ok(system) => configs.extend(system.map(|config| (ConfigLevel::System, config))),
            Err(_) => is_whole = false,
        }
        loop {
            let page = self.limiter.admin().configs(&ConfigFilter::Resources, after.as_ref());
            let page = page.await?;
            self.pay(1 + 2 * u64::try_from(page.items.len()).unwrap_or(u64::MAX)).await;
            let found = page.items.iter().filter_map(|(level, _)| match level {
                ConfigLevel::Resource(resource) => Some(resource.to_string()),
                _ => None,
            });
            names.resources.extend(found);
            configs.extend(page.items);
            is_whole &= page.unreadable.is_empty();
            let unreadable = page.unreadable.into_iter();
            let unreadable = unreadable.filter_map(|item| item.resource);
            names.resources.extend(unreadable.map(|resource| resource.to_string()));
            after = page.next;
            if after.is_none() || names.resources.len() >= MAX_NAMES {
                break;
            }
        }
        is_whole &= after.is_none();
        after = None;
        loop {
            let plans = self.limiter.admin();
            let page = plans.configs(&ConfigFilter::Plans, after.as_ref()).await?;
            self.pay(1 + 2 * u64::try_from(page.items.len()).unwrap_or(u64::MAX)).await;
            configs.extend(page.items);
            is_whole &= page.unreadable.is_empty();
            after = page.next;
            if after.is_none() || configs.len() >= MAX_NAMES {
                break;
            }
        }
        self.general = Levels::general(configs, is_whole && after.is_none());
        for watched in self.watched.values_mut() {
            watched.levels = self.general.with_entities(&watched.of_entities);
        }
        self.board.set_names(names.clone());
        after = None;
        loop {
            let page = self.limiter.admin().entities(after.as_ref()).await?;
            self.pay(1).await;
            names.entities.extend(page.items.iter().map(ToString::to_string));
            after = page.next;
            if after.is_none() || names.entities.len() >= MAX_NAMES {
                break;
            }
        }
        self.board.set_names(names);
        Ok(())
    }

    /// Counts half units, and waits until they are paid. Meanwhile it answers what is asked about
    /// single buckets.
    async fn pay(&mut self, halves: u64) {
        self.budget.spend(halves, Instant::now());
        self.tell_cost();
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(self.budget.paid_at()) => return,
                Some(ask) = self.asks.recv(), if self.may_answer() => self.answer(ask).await,
            }
        }
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
    fn new(now: Instant, general: &Levels) -> Self {
        Self {
            due: now,
            phase: Phase::buckets(now),
            buckets: 0,
            usage_due: now,
            levels_due: now,
            of_entities: OfEntities::default(),
            levels: general.clone(),
            progress: Progress::default(),
        }
    }

    /// Ends a read of all buckets, and says what comes next.
    fn swept(&mut self, board: &Board, view: &ViewId, started: Instant, seen: &BTreeSet<Key>) {
        let now = Instant::now();
        self.buckets = seen.len();
        board.keep_rows(view, |key| seen.contains(key));
        let took = now.saturating_duration_since(started);
        self.progress.sweep_ms = u64::try_from(took.as_millis()).ok();
        self.due = now;
        if self.levels_due <= now {
            self.phase = Phase::Levels {
                started: now,
                lists: lists(&view.subject),
                after: None,
                found: OfEntities::default(),
            };
        } else if self.usage_due <= now && !matches!(view.subject, Subject::Starting(..)) {
            let at = SystemClock.now();
            let day_start = Window::Daily.start(at);
            self.phase = Phase::Usage {
                started: now,
                day_start,
                at: at.max(EpochMillis(day_start.0 + 1)),
                after: None,
                sum: Sum::default(),
            };
        } else {
            self.due = now.max(started + SWEEP_EVERY);
            self.phase = Phase::buckets(self.due);
        }
    }
}

/// Returns the lists of the levels of entities that buckets of a subject may come from.
fn lists(subject: &Subject) -> Vec<ConfigFilter> {
    match subject {
        Subject::Resource(resource) | Subject::Starting(resource, _) => {
            vec![ConfigFilter::Entities, ConfigFilter::Resource(resource.clone())]
        }
        Subject::Entity(entity) => vec![ConfigFilter::Entity(entity.clone())],
    }
}

#[cfg(test)]
mod tests {
    use weirgate::{ConnectOptions, Limit, Resource};

    use super::*;
    use crate::{LocalBackend, Options};

    /// Reloaded while a page of a list is being paid, as F5 does it.
    #[tokio::test]
    async fn a_view_that_is_made_again_is_read_from_its_start() {
        const BUCKETS: usize = 30;
        let backend = LocalBackend::start(Options::default()).await.unwrap();
        let connection = ConnectOptions {
            local_endpoint: Some(backend.endpoint_url().to_owned()),
            ..ConnectOptions::default()
        };
        let limiter = RateLimiter::builder("weirgate").connection(connection);
        let limiter = limiter.build().await.unwrap();
        let limits = [Limit::per_minute("rpm", 60).unwrap()];
        for number in 0..BUCKETS {
            let entity = format!("user-{number}");
            let acquire = limiter.acquire(&entity, "gpt-4").limits(&limits);
            let decision = acquire.take("rpm", 1).send().await;
            assert!(decision.unwrap().is_granted());
        }
        let board = Arc::new(Board::new());
        let (_asks, asked) = mpsc::channel(1);
        let poller = Poller::new(limiter, Arc::clone(&board), 40, asked).run();
        let subject = Subject::Resource(Resource::new("gpt-4").unwrap());
        let views = async {
            let news = || board.news(Some(&subject), 0).unwrap();
            let mut versions = board.versions();
            let mut viewer = board.enter(Some(subject.clone()));
            while news().rows.is_empty() {
                versions.changed().await.unwrap();
            }
            // In the middle of the first read of all, and after a whole one with usage.
            for has_swept in [false, true] {
                drop(viewer);
                viewer = board.enter(Some(subject.clone()));
                while news().progress.is_none_or(|of| of.sweep_ms.is_none()) {
                    versions.changed().await.unwrap();
                }
                assert_eq!(news().rows.len(), BUCKETS, "{has_swept}");
                while news().day.is_none() {
                    versions.changed().await.unwrap();
                }
            }
            drop(viewer);
        };
        tokio::select! {
            () = poller => unreachable!("the board is there"),
            () = views => {}
        }
    }
}
