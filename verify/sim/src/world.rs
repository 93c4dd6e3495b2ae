//! State that a whole run shares: table, true time, random generators, and observations.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};
use tokio::time::Instant;
use weirgate::{Clock, EpochMillis, FakeClock, LimitsFile, LimitsFileContents};
use weirgate_testkit::{Dynamo, Partitions, Temporary};

use crate::clock::ProcessClock;
use crate::fault::{Counts, Dice, Event, Kind};
use crate::scenario::{Plan, Scenario, Source};
use crate::stored_shard::{describe, is_hostile};
use crate::stream_check::{Finals, Sender, StreamCheck, TTL};

/// World of a run. Clones share it.
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    scenario: Scenario,
    dynamo: Dynamo,
    partitions: Partitions,
    clock: FakeClock,
    /// Number of freezes, and their total time in ms.
    frozen: Mutex<(u64, i64)>,
    rng: Mutex<Rng>,
    aws_rng: Mutex<Rng>,
    operator_rng: Mutex<Rng>,
    counts: Mutex<Counts<Kind>>,
    events: Mutex<Counts<Event>>,
    /// Whether faults are over.
    are_faults_over: AtomicBool,
    /// Whether the last release, with its limits elsewhere, has replaced the first one.
    has_moved: AtomicBool,
    limits_file: Mutex<Option<Temporary>>,
    /// Bucket whose callers have stopped.
    closed: Mutex<Option<usize>>,
    /// A partition that refuses writes, and until when.
    throttled: Mutex<Option<(String, Instant)>>,
    /// When each request was first sent, by the hash of its body.
    sent: Mutex<HashMap<u64, EpochMillis>>,
    stream: Mutex<Vec<Value>>,
    stream_check: Mutex<StreamCheck>,
    seen: Mutex<Seen>,
    /// Usage that was read as final.
    finals: Mutex<Finals>,
    /// Requests that wrote.
    writes: AtomicU64,
    /// An instant, and the number of requests sent in it.
    requests_at: Mutex<(EpochMillis, u32)>,
    /// Whether events are printed.
    is_printed: bool,
}

/// What happened, and the violations.
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
    /// Creates a world with an empty table, at the scenario's start.
    pub async fn new(scenario: Scenario, is_printed: bool) -> Self {
        let clock = FakeClock::at(scenario.start);
        let dynamo = Dynamo::new().await.with_clock(clock.clone());
        let stream_check = StreamCheck::of(&scenario);
        let rng = Rng::with_seed(scenario.seed ^ 0x5EED);
        let aws_rng = Rng::with_seed(scenario.seed ^ 0xA35_5EED);
        let operator_rng = Rng::with_seed(scenario.seed ^ 0x0B5_5EED);
        let partitions = Partitions::over(dynamo.clone(), scenario.table.clone(), scenario.seed);
        let inner = Inner {
            scenario,
            dynamo,
            partitions,
            clock,
            frozen: Mutex::default(),
            rng: Mutex::new(rng),
            aws_rng: Mutex::new(aws_rng),
            operator_rng: Mutex::new(operator_rng),
            counts: Mutex::default(),
            events: Mutex::default(),
            are_faults_over: AtomicBool::new(false),
            has_moved: AtomicBool::new(false),
            limits_file: Mutex::default(),
            closed: Mutex::default(),
            throttled: Mutex::default(),
            sent: Mutex::default(),
            stream: Mutex::default(),
            stream_check: Mutex::new(stream_check),
            seen: Mutex::default(),
            finals: Mutex::default(),
            writes: AtomicU64::new(0),
            requests_at: Mutex::default(),
            is_printed,
        };
        Self(Arc::new(inner))
    }

    /// Returns the seed's scenario.
    pub fn scenario(&self) -> &Scenario {
        &self.0.scenario
    }

    /// Returns the database.
    pub fn dynamo(&self) -> &Dynamo {
        &self.0.dynamo
    }

    /// Returns the database behind its partitions.
    pub fn partitions(&self) -> &Partitions {
        &self.0.partitions
    }

    /// Returns a process's clock that shows the true time.
    pub fn clock(&self) -> ProcessClock {
        ProcessClock::of(&self.0.clock)
    }

    /// Freezes all processes for a second to a day.
    pub fn freeze(&self) {
        const LONGEST_SECONDS: f64 = 86_400.0;
        let span = Duration::from_secs(1).mul_f64(LONGEST_SECONDS.powf(self.aws_rng().f64()));
        self.freeze_for(span);
    }

    /// Freezes all processes for `span`: wall clocks and the table's clock continue; monotonic
    /// clocks, timers and connections do not.
    pub fn freeze_for(&self, span: Duration) {
        let mut frozen = lock(&self.0.frozen);
        frozen.0 += 1;
        frozen.1 += i64::try_from(span.as_millis()).unwrap_or_default();
        self.0.clock.skew(frozen.1);
        drop(frozen);
        self.note(|| format!("frozen for {span:?}"));
    }

    /// Returns the number of freezes. A connection from before the last freeze is broken.
    pub fn freezes(&self) -> u64 {
        lock(&self.0.frozen).0
    }

    /// Returns the true time, which is the table's.
    pub fn now(&self) -> EpochMillis {
        self.0.clock.now()
    }

    /// Returns the generator for AWS's own faults. It is separate, so that the other draws stay the
    /// same.
    pub fn aws_rng(&self) -> MutexGuard<'_, Rng> {
        lock(&self.0.aws_rng)
    }

    /// Returns the generator for operators. It is separate, so that the other draws stay the same.
    pub fn operator_rng(&self) -> MutexGuard<'_, Rng> {
        lock(&self.0.operator_rng)
    }

    /// Returns the random generator.
    pub fn rng(&self) -> MutexGuard<'_, Rng> {
        lock(&self.0.rng)
    }

    /// Returns whether this kind of fault happens now, and counts it.
    pub fn strikes(&self, kind: Kind) -> bool {
        let strikes = self.threatens(kind);
        if strikes {
            self.count(kind);
        }
        strikes
    }

    /// Returns whether this kind of fault is due now; the code that causes it must count it.
    pub fn threatens(&self, kind: Kind) -> bool {
        let rate = self.0.scenario.rate(kind);
        let dice = match kind.dice() {
            Dice::Run => &self.0.rng,
            Dice::Aws => &self.0.aws_rng,
            Dice::Operator => &self.0.operator_rng,
        };
        // Draws in any case, so that a run is the same up to the point where it calms down.
        lock(dice).u32(..1000) < rate && !self.are_faults_over()
    }

    /// Counts a fault.
    pub fn count(&self, kind: Kind) {
        lock(&self.0.counts).add(kind);
    }

    /// Returns the faults so far.
    pub fn counts(&self) -> Counts<Kind> {
        lock(&self.0.counts).clone()
    }

    /// Counts an event.
    pub fn happened(&self, event: Event) {
        lock(&self.0.events).add(event);
    }

    /// Returns the events so far.
    pub fn events(&self) -> Counts<Event> {
        lock(&self.0.events).clone()
    }

    /// Ends all faults.
    pub fn end_faults(&self) {
        self.0.are_faults_over.store(true, Ordering::Relaxed);
        self.0.partitions.lift();
        self.note(|| "calm".to_owned());
    }

    /// Returns whether faults are over.
    pub fn are_faults_over(&self) -> bool {
        self.0.are_faults_over.load(Ordering::Relaxed)
    }

    /// Lets processes that start from now on be of the last release.
    pub fn move_limits(&self) {
        self.0.has_moved.store(true, Ordering::Relaxed);
        self.count(Kind::LimitsMoved);
    }

    /// Returns whether processes that start now are of the last release.
    pub fn has_moved(&self) -> bool {
        self.0.has_moved.load(Ordering::Relaxed)
    }

    /// Returns where the release in force has its limits.
    pub fn source(&self) -> Source {
        self.0.scenario.sources[usize::from(self.has_moved())]
    }

    /// Writes the file of the release in force, if its limits are in one.
    pub fn write_limits_file(&self, contents: LimitsFileContents) {
        let file = (self.source() == Source::File)
            .then(|| Temporary::file("limits.yaml", &contents.to_string()));
        *lock(&self.0.limits_file) = file;
    }

    /// Opens the limits file of the release in force, if it has one.
    pub fn limits_file(&self) -> Option<LimitsFile> {
        let file = lock(&self.0.limits_file);
        let opened = file.as_ref().map(|file| LimitsFile::open(&**file));
        opened.map(|file| file.expect("a file that was written whole"))
    }

    /// Lets callers stop their calls of a bucket.
    pub fn close(&self, bucket: usize) {
        *lock(&self.0.closed) = Some(bucket);
        self.note(|| format!("bucket {bucket} closed"));
    }

    /// Returns whether callers make no calls of a bucket any more.
    pub fn is_closed(&self, bucket: usize) -> bool {
        *lock(&self.0.closed) == Some(bucket)
    }

    /// Returns the entity that is erased, if one is.
    pub(crate) fn erased(&self) -> Option<&Plan> {
        let closed = *lock(&self.0.closed);
        closed.map(|bucket| &self.0.scenario.buckets[bucket])
    }

    /// Returns whether the partition refuses writes now. Sometimes starts such a time.
    pub fn is_throttled(&self, pk: &str) -> bool {
        let begins = self.strikes(Kind::Throttled);
        let lasts = Duration::from_millis(self.rng().u64(100..3000));
        let mut throttled = lock(&self.0.throttled);
        if begins {
            *throttled = Some((pk.to_owned(), Instant::now() + lasts));
        }
        !self.are_faults_over()
            && throttled
                .as_ref()
                .is_some_and(|(known, until)| known == pk && Instant::now() < *until)
    }

    /// Waits.
    pub async fn pass(&self, span: Duration) {
        tokio::time::sleep(span).await;
    }

    /// Notes what happens. `all` is too long to print, so it changes only the hash.
    pub fn note_with(&self, all: &impl Hash, line: impl FnOnce() -> String) {
        let line = format!("{:>8} {}", self.now().0 - self.0.scenario.start.0, line());
        let mut seen = lock(&self.0.seen);
        (&line, all).hash(&mut seen.hash);
        if self.0.is_printed {
            println!("{line}");
        }
    }

    /// Notes what happens.
    pub fn note(&self, line: impl FnOnce() -> String) {
        self.note_with(&(), line);
    }

    /// Records a violation of an invariant.
    pub fn violated(&self, what: impl fmt::Display) {
        let what = what.to_string();
        self.note(|| format!("VIOLATED {what}"));
        lock(&self.0.seen).violations.push(what);
    }

    /// Returns the violations.
    pub fn violations(&self) -> Vec<String> {
        lock(&self.0.seen).violations.clone()
    }

    /// Returns a number that two runs share if the same happened in both.
    pub fn hash(&self) -> u64 {
        lock(&self.0.seen).hash.finish()
    }

    /// Returns the number of requests that wrote, or tried to.
    pub fn writes(&self) -> u64 {
        self.0.writes.load(Ordering::Relaxed)
    }

    /// Counts a sent request. Returns whether it exceeds the 500 that a millisecond may have. Time
    /// must go on then, or a run that repeats itself would never end.
    pub(crate) fn is_flooded(&self) -> bool {
        const MOST: u32 = 500;
        let mut requests_at = lock(&self.0.requests_at);
        if requests_at.0 != self.now() {
            *requests_at = (self.now(), 0);
        }
        requests_at.1 += 1;
        let (is_flooded, is_first) = (requests_at.1 > MOST, requests_at.1 == MOST + 1);
        drop(requests_at);
        if is_first {
            self.violated(format!("I7: {MOST} requests were made within a millisecond"));
        }
        is_flooded
    }

    /// Returns when a request was first sent: the SDK sends it again after a failure.
    pub(crate) fn first_sent(&self, body: &Value) -> EpochMillis {
        let mut hash = DefaultHasher::new();
        body.hash(&mut hash);
        *lock(&self.0.sent).entry(hash.finish()).or_insert_with(|| self.now())
    }

    pub(crate) fn wrote(&self) {
        self.0.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the last write's records from the stream, and checks them.
    pub(crate) fn check_stream(&self, sender: &Sender<'_>) {
        let now = self.now();
        let mut stream_check = self.stream_check();
        for mut record in self.0.dynamo.stream() {
            // The database stamps records with the machine's time; DynamoDB uses its own, in whole
            // seconds.
            record["dynamodb"]["ApproximateCreationDateTime"] = now.0.div_euclid(1000).into();
            if sender.name == TTL {
                record["userIdentity"] =
                    json!({"type": "Service", "principalId": "dynamodb.amazonaws.com"});
            }
            let pk = record["dynamodb"]["Keys"]["PK"]["S"].as_str().unwrap_or_default();
            if is_hostile(pk) {
                self.note(|| format!("  {} {pk}", record["eventName"]));
            } else {
                self.note(|| describe(&record));
                stream_check.record(&record, now, sender);
            }
            lock(&self.0.stream).push(record);
        }
        for event in stream_check.take_events() {
            self.happened(event);
        }
        for violation in stream_check.take_violations() {
            self.violated(violation);
        }
    }

    /// Returns the usage that was read as final.
    pub(crate) fn finals(&self) -> MutexGuard<'_, Finals> {
        lock(&self.0.finals)
    }

    /// Returns the state of the stream's check.
    pub(crate) fn stream_check(&self) -> MutexGuard<'_, StreamCheck> {
        lock(&self.0.stream_check)
    }

    /// Returns the number of records in the stream so far.
    pub fn streamed(&self) -> usize {
        lock(&self.0.stream).len()
    }

    /// Returns records of the stream.
    pub fn records(&self, range: std::ops::Range<usize>) -> Vec<Value> {
        lock(&self.0.stream)[range].to_vec()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
