//! What all of a run share: the table, the true time, the dice, and what was seen.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};
use tokio::time::Instant;
use weirgate::{Clock, EpochMillis, FakeClock};
use weirgate_tests::{Dynamo, Partitions};

use crate::clock::ProcessClock;
use crate::fault::{Counts, Event, Kind};
use crate::hostile::is_hostile;
use crate::image::{self, Consumed, Images, Sender};
use crate::scenario::Scenario;

/// The world of a run. Clones share it.
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    scenario: Scenario,
    dynamo: Dynamo,
    partitions: Partitions,
    clock: FakeClock,
    /// How often all processes stood still, and for how long in all.
    frozen: Mutex<(u64, i64)>,
    rng: Mutex<Rng>,
    aws_rng: Mutex<Rng>,
    counts: Mutex<Counts<Kind>>,
    events: Mutex<Counts<Event>>,
    /// Nothing goes wrong any more.
    is_calm: AtomicBool,
    /// A partition that takes no writes, and until when.
    spent: Mutex<Option<(String, Instant)>>,
    stream: Mutex<Vec<Value>>,
    images: Mutex<Images>,
    seen: Mutex<Seen>,
    /// Requests that wrote.
    writes: AtomicU64,
    /// An instant, and how many requests were sent in it.
    rush: Mutex<(EpochMillis, u32)>,
    /// Prints what happens as it does.
    is_loud: bool,
}

/// What happened, and what of it should not have.
#[derive(Default)]
struct Seen {
    hash: DefaultHasher,
    violations: Vec<String>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World of seed {}", self.0.scenario.seed)
    }
}

impl World {
    /// A fresh table, and a time that begins now.
    pub async fn new(scenario: Scenario, is_loud: bool) -> Self {
        let clock = FakeClock::at(scenario.start);
        let dynamo = Dynamo::new().await.with_clock(clock.clone());
        let images = Images::of(&scenario);
        let rng = Rng::with_seed(scenario.seed ^ 0x5EED);
        let aws_rng = Rng::with_seed(scenario.seed ^ 0xA35_5EED);
        let partitions = Partitions::over(dynamo.clone(), scenario.table.clone(), scenario.seed);
        let inner = Inner {
            scenario,
            dynamo,
            partitions,
            clock,
            frozen: Mutex::default(),
            rng: Mutex::new(rng),
            aws_rng: Mutex::new(aws_rng),
            counts: Mutex::default(),
            events: Mutex::default(),
            is_calm: AtomicBool::new(false),
            spent: Mutex::default(),
            stream: Mutex::default(),
            images: Mutex::new(images),
            seen: Mutex::default(),
            writes: AtomicU64::new(0),
            rush: Mutex::default(),
            is_loud,
        };
        Self(Arc::new(inner))
    }

    /// What the seed says.
    #[must_use]
    pub fn scenario(&self) -> &Scenario {
        &self.0.scenario
    }

    /// The database.
    #[must_use]
    pub fn dynamo(&self) -> &Dynamo {
        &self.0.dynamo
    }

    /// The database behind its partitions.
    #[must_use]
    pub fn partitions(&self) -> &Partitions {
        &self.0.partitions
    }

    /// A process's clock, which is right.
    #[must_use]
    pub fn clock(&self) -> ProcessClock {
        ProcessClock::of(&self.0.clock)
    }

    /// All processes stand still for a second to a day.
    pub fn freeze(&self) {
        const LONGEST_SECONDS: f64 = 86_400.0;
        let span = Duration::from_secs(1).mul_f64(LONGEST_SECONDS.powf(self.aws_rng().f64()));
        self.freeze_for(span);
    }

    /// All processes stand still for so long: wall clocks and the table's go on, while monotonic
    /// clocks, timers and connections do not.
    pub fn freeze_for(&self, span: Duration) {
        let mut frozen = lock(&self.0.frozen);
        frozen.0 += 1;
        frozen.1 += i64::try_from(span.as_millis()).unwrap_or_default();
        self.0.clock.skew(frozen.1);
        drop(frozen);
        self.note(|| format!("frozen for {span:?}"));
    }

    /// How often all processes have stood still. A connection that was made before the last time is
    /// dead.
    #[must_use]
    pub fn freezes(&self) -> u64 {
        lock(&self.0.frozen).0
    }

    /// The true time, which is the table's.
    #[must_use]
    pub fn now(&self) -> EpochMillis {
        self.0.clock.now()
    }

    /// The dice for what AWS does: those of others fall as they did without.
    pub fn aws_rng(&self) -> MutexGuard<'_, Rng> {
        lock(&self.0.aws_rng)
    }

    /// The dice.
    pub fn rng(&self) -> MutexGuard<'_, Rng> {
        lock(&self.0.rng)
    }

    /// Whether this kind of trouble happens now; it is counted if it does.
    #[must_use]
    pub fn strikes(&self, kind: Kind) -> bool {
        let strikes = self.threatens(kind);
        if strikes {
            self.count(kind);
        }
        strikes
    }

    /// Whether this kind of trouble is due now; whoever makes it happen counts it.
    #[must_use]
    pub fn threatens(&self, kind: Kind) -> bool {
        let rate = self.0.scenario.rate(kind);
        let dice = if matches!(kind, Kind::Frozen | Kind::HostileWrite) {
            &self.0.aws_rng
        } else {
            &self.0.rng
        };
        // The dice are thrown in any case, so that a run goes the same way up to where it calms
        // down.
        lock(dice).u32(..1000) < rate && !self.is_calm()
    }

    /// Counts what happened.
    pub fn count(&self, kind: Kind) {
        lock(&self.0.counts).add(kind);
    }

    /// What went wrong so far.
    #[must_use]
    pub fn counts(&self) -> Counts<Kind> {
        lock(&self.0.counts).clone()
    }

    /// Counts an event.
    pub fn happened(&self, event: Event) {
        lock(&self.0.events).add(event);
    }

    /// What happened so far.
    #[must_use]
    pub fn events(&self) -> Counts<Event> {
        lock(&self.0.events).clone()
    }

    /// From now on nothing goes wrong.
    pub fn calm_down(&self) {
        self.0.is_calm.store(true, Ordering::Relaxed);
        self.0.partitions.lift();
        self.note(|| "calm".to_owned());
    }

    /// Whether nothing goes wrong any more.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.0.is_calm.load(Ordering::Relaxed)
    }

    /// Whether the partition takes no writes now. At times one begins to, for a while.
    #[must_use]
    pub fn is_spent(&self, pk: &str) -> bool {
        let begins = self.strikes(Kind::Throttled);
        let lasts = Duration::from_millis(self.rng().u64(100..3000));
        let mut spent = lock(&self.0.spent);
        if begins {
            *spent = Some((pk.to_owned(), Instant::now() + lasts));
        }
        !self.is_calm()
            && spent
                .as_ref()
                .is_some_and(|(known, until)| known == pk && Instant::now() < *until)
    }

    /// Waits.
    pub async fn pass(&self, span: Duration) {
        tokio::time::sleep(span).await;
    }

    /// Notes what happens. What is too long to be read, `all` of it, makes a difference to the hash
    /// only.
    pub fn note_with(&self, all: &impl Hash, line: impl FnOnce() -> String) {
        let line = format!("{:>8} {}", self.now().0 - self.0.scenario.start.0, line());
        let mut seen = lock(&self.0.seen);
        (&line, all).hash(&mut seen.hash);
        if self.0.is_loud {
            println!("{line}");
        }
    }

    /// Notes what happens.
    pub fn note(&self, line: impl FnOnce() -> String) {
        self.note_with(&(), line);
    }

    /// An invariant does not hold.
    pub fn violated(&self, what: impl fmt::Display) {
        let what = what.to_string();
        self.note(|| format!("VIOLATED {what}"));
        lock(&self.0.seen).violations.push(what);
    }

    /// What does not hold.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        lock(&self.0.seen).violations.clone()
    }

    /// A number that two runs share if the same happened in both.
    #[must_use]
    pub fn hash(&self) -> u64 {
        lock(&self.0.seen).hash.finish()
    }

    /// Requests that wrote, or tried to.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.0.writes.load(Ordering::Relaxed)
    }

    /// A request is sent; whether it is one of more than anybody has to send in a millisecond. Time
    /// must go on then, or a run that repeats itself would never end.
    pub(crate) fn is_rushed(&self) -> bool {
        const MOST: u32 = 500;
        let mut rush = lock(&self.0.rush);
        if rush.0 != self.now() {
            *rush = (self.now(), 0);
        }
        rush.1 += 1;
        let (is_rushed, is_first) = (rush.1 > MOST, rush.1 == MOST + 1);
        drop(rush);
        if is_first {
            self.violated(format!(
                "I7: {MOST} requests were made within a millisecond"
            ));
        }
        is_rushed
    }

    pub(crate) fn wrote(&self) {
        self.0.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes what the last write put into the stream, and looks at it.
    pub(crate) fn look(&self, sender: &Sender<'_>) {
        let now = self.now();
        let mut images = lock(&self.0.images);
        for mut record in self.0.dynamo.stream() {
            // The database stamps records with the machine's time; DynamoDB does with its own, in
            // whole seconds.
            record["dynamodb"]["ApproximateCreationDateTime"] = now.0.div_euclid(1000).into();
            if sender.name == image::TTL {
                record["userIdentity"] =
                    json!({"type": "Service", "principalId": "dynamodb.amazonaws.com"});
            }
            let pk = record["dynamodb"]["Keys"]["PK"]["S"]
                .as_str()
                .unwrap_or_default();
            if is_hostile(pk) {
                self.note(|| format!("  {} {pk}", record["eventName"]));
            } else {
                self.note(|| image::told(&record));
                images.record(&record, now, sender);
            }
            lock(&self.0.stream).push(record);
        }
        for event in images.take_events() {
            self.happened(event);
        }
        for violation in images.take_violations() {
            self.violated(violation);
        }
    }

    /// What was consumed by all writes so far.
    #[must_use]
    pub fn consumed(&self) -> Consumed {
        lock(&self.0.images).consumed().clone()
    }

    /// What writes in doubt consumed before others wrote, so that nobody could tell and it may have
    /// been taken again.
    #[must_use]
    pub fn doubted(&self) -> BTreeMap<(String, String), i64> {
        lock(&self.0.images).doubted().clone()
    }

    /// When each lease that is no more was removed: from the first shard, and from the last one.
    #[must_use]
    pub fn gone(&self) -> BTreeMap<String, (i64, i64)> {
        lock(&self.0.images).gone().clone()
    }

    /// How many records the stream has had.
    #[must_use]
    pub fn streamed(&self) -> usize {
        lock(&self.0.stream).len()
    }

    /// What each lease that is no more held when it was removed, by entity and limit.
    #[must_use]
    pub fn held(&self) -> BTreeMap<String, BTreeMap<(String, String), i64>> {
        lock(&self.0.images).held().clone()
    }

    /// Records of the stream.
    #[must_use]
    pub fn records(&self, range: std::ops::Range<usize>) -> Vec<Value> {
        lock(&self.0.stream)[range].to_vec()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
