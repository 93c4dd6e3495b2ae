//! Usage on Redis: which writes are in the stream, and that its copies are exact whatever becomes of its readers.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use weirgate::{
    Clock, EpochMillis, FakeClock, Granularity, Limit, LimitName, MilliTotal, RateLimiter,
    SystemClock, Usage, UsageScope, UsageState, Window,
};
use weirgate_shared::write::{
    Action, AttributeUpdate, Condition, INTERIM, Path, Update, Value, mark_functions,
};
use weirgate_shared::{Hour, ItemKey, Millis, attr};
use weirgate_store::{RedisOptions, ReturnValues, StreamRecord, Table, Unread, random_id};
use weirgate_testkit::RedisServer;
use weirgate_worker::{Options, Work, Worker};

use super::{shown, table};

/// Longest time until something happens.
pub const BOUND: Duration = Duration::from_secs(30);
const RECORDS: &str = "weirgate:{weirgate}:records";
/// What is known of all records.
const FACTS: &str = "weirgate:{weirgate}:records:gone";
const HOUR: Millis = Millis(3_600_000);

fn bucket() -> ItemKey {
    ItemKey { pk: "ns/BUCKET#e-1#gpt-4#0".to_owned(), sk: "#STATE".to_owned() }
}

fn set(values: &[(&'static str, i64)]) -> Update {
    let change = |(name, value): &(&'static str, i64)| {
        AttributeUpdate::Set(Path::of(*name), Value::Int(*value))
    };
    Update { key: bucket(), conditions: vec![], changes: values.iter().map(change).collect() }
}

async fn write(table: &Table, update: &Update) {
    let written = table.update(update, ReturnValues::None).await;
    written.expect("it is applied");
}

/// The records since the last call, which are finished.
async fn new_records(table: &Table) -> Vec<StreamRecord> {
    let stream = table.records().expect("it is on Redis");
    let read = stream.read(Unread::New, 100).await.expect("it is there");
    let ids: Vec<_> = read.iter().map(|record| record.id.clone()).collect();
    if !ids.is_empty() {
        let dropped = stream.finish(&ids).await.expect("it is there");
        assert_eq!(dropped, 0);
    }
    read
}

/// The hours before and after, of records.
fn hours(records: &[StreamRecord]) -> Vec<[Option<String>; 2]> {
    let hour = |item: &Option<_>| item.as_ref().and_then(|item| shown(item, attr::HOUR));
    let both = |record: &StreamRecord| [hour(&record.old), hour(&record.new)];
    records.iter().map(both).collect()
}

#[tokio::test]
async fn the_stream_has_the_writes_that_usage_is_copied_from_and_no_others() {
    let server = RedisServer::start();
    let table = table(&server);
    let n = |number: i64| Some(format!("N(\"{number}\")"));
    let v = 440_000 * INTERIM;
    let begins = [(attr::HOUR, 7), (attr::BIRTH, v), (attr::REFILLED_AT, 1), (attr::WRITE_SEQ, v)];
    // There is no stream before a reader made it.
    write(&table, &set(&begins)).await;
    let deleted = [Action::Delete(bucket(), vec![])];
    let outcome = table.transact(&deleted, &random_id()).await;
    outcome.expect("it is deleted");
    let stream = table.records().expect("it is on Redis");
    for _ in 0..2 {
        stream.open().await.expect("it is there");
    }
    assert_eq!(new_records(&table).await, []);

    write(&table, &set(&begins)).await;
    assert_eq!(hours(&new_records(&table).await), [[None, n(7)]]);
    let mut other = set(&begins);
    other.key.sk = "#SHORT".to_owned();
    write(&table, &other).await;
    let lease = Path::of(attr::LEASES);
    let mut leased = set(&[(attr::WRITE_SEQ, v + 1)]);
    let nothing = Value::Map(BTreeMap::new());
    leased.changes.push(AttributeUpdate::Set(lease, nothing));
    write(&table, &leased).await;
    assert_eq!(new_records(&table).await, [], "neither begins, ends nor rolls");
    // A write whose condition fails is none.
    let mut failed = set(&[(attr::HOUR, 8)]);
    failed.conditions = vec![Condition::Absent(Path::of(attr::HOUR))];
    write(&table, &failed).await;
    write(&table, &set(&[(attr::HOUR, 8), (attr::WRITE_SEQ, v + 2)])).await;
    let rolled = new_records(&table).await;
    assert_eq!(hours(&rolled), [[n(7), n(8)]]);
    let old = rolled[0].old.as_ref().expect("an old image");
    assert_eq!(shown(old, attr::WRITE_SEQ), n(v + 1));
    assert_eq!(shown(old, attr::LEASES), None);
    for (v, records) in [(v + INTERIM - 1, 0), (v + INTERIM, 1), (v + INTERIM + 1, 0)] {
        write(&table, &set(&[(attr::WRITE_SEQ, v)])).await;
        assert_eq!(new_records(&table).await.len(), records, "at {v}");
    }
    // Merged away, and erased after that.
    let mut merged = set(&[]);
    let gone = AttributeUpdate::Remove(Path::of(attr::REFILLED_AT));
    merged.changes.push(gone);
    write(&table, &merged).await;
    assert_eq!(new_records(&table).await.len(), 1);
    write(&table, &set(&[(attr::BIRTH, v * 2)])).await;
    assert_eq!(new_records(&table).await.len(), 1);
    // Expired.
    write(&table, &set(&[(attr::TTL, 1)])).await;
    assert_eq!(hours(&new_records(&table).await), [[n(8), None]]);
    write(&table, &set(&begins)).await;
    let outcome = table.transact(&deleted, &random_id()).await;
    outcome.expect("it is deleted");
    assert_eq!(hours(&new_records(&table).await), [[None, n(7)], [n(7), None]]);
}

#[tokio::test]
async fn one_process_has_the_lock_and_the_next_one_gets_what_was_not_finished() {
    let server = RedisServer::start();
    let (one, other) = (table(&server), table(&server));
    let (first, second) = (one.records().unwrap(), other.records().unwrap());
    let long = Duration::from_secs(30);
    first.open().await.expect("it is there");
    assert!(first.lock(long).await.expect("it is there"));
    assert!(!second.lock(long).await.expect("it is there"));
    assert!(first.lock(long).await.expect("it is there"), "it is kept");
    second.unlock().await.expect("it is not the lock of this one");
    assert!(!second.lock(long).await.expect("it is there"));
    for hour in [7, 8, 9] {
        write(&one, &set(&[(attr::HOUR, hour)])).await;
    }
    let read = first.read(Unread::New, 2).await.expect("it is there");
    let dropped = first.finish(&[read[0].id.clone()]).await;
    assert_eq!(dropped.expect("it is there"), 0);
    first.unlock().await.expect("it is there");
    assert!(second.lock(long).await.expect("it is there"));
    let again = second.read(Unread::Again, 9).await;
    assert_eq!(again.expect("it is there"), read[1..]);
    let new = second.read(Unread::New, 9).await.expect("it is there");
    assert_eq!(new.len(), 1);
}

/// Whatever was written, read and finished before, records that a full stream drops are told once. Those that were
/// read and wait count too, as they may be handled or not.
#[tokio::test]
async fn a_full_stream_tells_how_many_records_it_has_dropped() {
    let server = RedisServer::start();
    let (table, mut rng) = (table(&server), fastrand::Rng::with_seed(43));
    let stream = table.records().expect("it is on Redis");
    stream.open().await.expect("it is there");
    let mut redis = redis::Client::open(server.url()).expect("a URL");
    let (mut hour, mut told, mut unread, mut dropped) = (0, 0, 0, 0);
    let mut read = BTreeSet::new();
    for _ in 0..60 {
        for _ in 0..rng.u8(1..5) {
            hour += 1;
            write(&table, &set(&[(attr::HOUR, hour)])).await;
        }
        let new = stream.read(Unread::New, rng.usize(1..4)).await;
        read.extend(new.expect("it is there").into_iter().map(|record| record.id));
        if rng.bool() {
            let ids = |redis: &mut redis::Client| {
                let range = redis::cmd("XRANGE").arg(RECORDS).arg("-").arg("+").clone();
                let all: Vec<(String, Vec<String>)> = range.query(redis).expect("it is there");
                all.into_iter().map(|(id, _)| id).collect::<BTreeSet<_>>()
            };
            let before = ids(&mut redis);
            let trim = redis::cmd("XTRIM").arg(RECORDS).arg("MAXLEN").arg(rng.u8(0..5)).clone();
            trim.exec(&mut redis).expect("it is there");
            let gone: Vec<_> = before.difference(&ids(&mut redis)).cloned().collect();
            dropped += u64::try_from(gone.len()).expect("few");
            let never_read = gone.iter().filter(|id| !read.contains(*id)).count();
            unread += u64::try_from(never_read).expect("few");
        }
        if rng.bool() {
            continue;
        }
        let batch: Vec<_> = read.iter().take(rng.usize(1..6)).cloned().collect();
        told += stream.finish(&batch).await.expect("it is there");
        assert_eq!(stream.finish(&batch).await.expect("it is there"), 0, "told once");
        for id in batch {
            read.remove(&id);
        }
        assert!((unread..=dropped).contains(&told), "{told} of {unread} to {dropped}");
    }
    assert!(unread > 5 && told > 5);
    // Of a stream that was deleted nothing remains; what was read of it is finished.
    let delete = redis::cmd("DEL").arg(RECORDS).clone();
    delete.exec(&mut redis).expect("it is there");
    let waiting: Vec<_> = read.into_iter().chain(["1-1".to_owned()]).collect();
    assert_eq!(stream.finish(&waiting).await.expect("it is finished"), 0);
    stream.open().await.expect("it is there");
    write(&table, &set(&[(attr::HOUR, 0)])).await;
    assert_eq!(new_records(&table).await.len(), 1);
}

/// Of records that were read and not finished, nothing is left but their ids.
#[tokio::test]
async fn records_that_were_read_and_then_dropped_are_told_too() {
    let server = RedisServer::start();
    let table = table(&server);
    let stream = table.records().expect("it is on Redis");
    stream.open().await.expect("it is there");
    let mut hour = 0;
    let mut writes = async |count| {
        for _ in 0..count {
            hour += 1;
            write(&table, &set(&[(attr::HOUR, hour)])).await;
        }
    };
    writes(5).await;
    let read = stream.read(Unread::New, 9).await.expect("it is there");
    assert_eq!(read.len(), 5);
    writes(2).await;
    let trim = ["XTRIM", "weirgate:{weirgate}:records", "MAXLEN", "0"];
    super::command(&server, &trim).await.expect("it is there");
    writes(1).await;
    let (mut told, mut handled) = (0, 0);
    for unread in [Unread::Again, Unread::New] {
        let read = stream.read(unread, 9).await.expect("it is there");
        handled += read.len();
        let ids: Vec<_> = read.into_iter().map(|record| record.id).collect();
        told += stream.finish(&ids).await.expect("it is there");
    }
    assert_eq!((told, handled), (7, 1));
    let again = stream.read(Unread::Again, 9).await;
    assert_eq!(again.expect("it is there"), []);
}

/// While no agent reads it, the stream does not grow without a bound.
#[tokio::test]
async fn a_stream_that_is_not_read_keeps_the_last_million_records() {
    let server = RedisServer::start();
    let table = table(&server);
    let stream = table.records().expect("it is on Redis");
    stream.open().await.expect("it is there");
    let fill = "for i = 1, 11000 do redis.call('XADD', KEYS[1], '*', 'f', '') end";
    let records = "weirgate:{weirgate}:records";
    let length = async || {
        let length = super::command(&server, &["XLEN", records]).await;
        redis::from_redis_value::<u32>(length.expect("it is there")).expect("a number")
    };
    for _ in 0..91 {
        let filled = super::command(&server, &["EVAL", fill, "1", records]).await;
        filled.expect("it is filled");
    }
    assert_eq!(length().await, 1_001_000);
    write(&table, &set(&[(attr::HOUR, 7)])).await;
    let kept = length().await;
    assert!((1_000_000..1_000_200).contains(&kept), "{kept}");
}

/// The guide's page has the numbers.
#[tokio::test]
async fn a_record_takes_the_memory_that_the_guide_names() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/redis.md");
    let page = std::fs::read_to_string(page).expect("the guide is there");
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    const HOURS: i64 = 60;
    for (count, words) in [(2, " KB with two limits"), (20, " KB with 20")] {
        let world = World::new().await;
        let limits = (0..count).map(|number| {
            let name = ["rpm", "tpm"].get(number).map(|name| (*name).to_owned());
            let name = name.unwrap_or_else(|| format!("limit-{number}"));
            Limit::per_minute(&name, 100_000).expect("a limit")
        });
        let limits: Vec<_> = limits.collect();
        for hour in 1..=HOURS {
            world.clock.skew(hour * HOUR.0);
            let mut acquire = world.limiter.acquire("user-1234567", "gpt-4");
            for limit in &limits {
                acquire = acquire.take(limit.name().as_str(), 1_000);
            }
            let decision = acquire.limits(&limits).send().await;
            assert!(decision.expect("it is decided").is_granted());
        }
        let usage = ["MEMORY", "USAGE", "weirgate:{weirgate}:records", "SAMPLES", "0"];
        let usage = super::command(&world.server, &usage).await;
        let bytes: i64 = redis::from_redis_value(usage.expect("it is there")).expect("a number");
        let each = bytes / world.records().await;
        let (before, _) = page.split_once(words).expect("the page has it");
        let named = before.rsplit(' ').next().map(|number| number.replace('.', ""));
        let named: i64 = named.and_then(|tenths| tenths.parse().ok()).expect("a number");
        let (least, most) = (named * 90, named * 110);
        assert!((least..=most).contains(&each), "{count} limits: {each} bytes");
    }
}

/// A table on Redis by a clock that goes on with the time of the runtime.
pub struct World {
    pub server: RedisServer,
    pub clock: FakeClock,
    pub table: Table,
    limiter: RateLimiter,
    /// Expected usage by entity and hour.
    pub ledger: BTreeMap<(&'static str, Hour), Usage>,
}

fn limits() -> [Limit; 2] {
    let rate = Limit::per_day("rpd", 1_000).expect("a limit");
    [rate, Limit::concurrent("slots", 9).expect("a limit")]
}

impl World {
    /// Begins half an hour before the end of an hour, 20 days ago: by the server's time all that expires has.
    pub async fn new() -> Self {
        let ago = SystemClock.now().plus(Millis(-20 * 24 * HOUR.0));
        let day = Window::Daily.start(ago);
        Self::at(day.plus(Millis(18 * HOUR.0 + HOUR.0 / 2))).await
    }

    async fn at(begin: EpochMillis) -> Self {
        let server = RedisServer::start();
        let clock = FakeClock::at(begin);
        let options = RedisOptions {
            clock: std::sync::Arc::new(clock.clone()),
            use_server_time: false,
            ..RedisOptions::new(server.url())
        };
        let table = Table::on_redis(&options).expect("the URL is one");
        let stream = table.records().expect("it is on Redis");
        stream.open().await.expect("it is there");
        write(&table, &mark_functions()).await;
        let built = RateLimiter::builder("weirgate").table(table.clone()).build();
        Self {
            limiter: built.await.expect("the server fits"),
            server,
            clock,
            table,
            ledger: BTreeMap::new(),
        }
    }

    /// Lets time pass, for the runtime as well.
    pub async fn pass(&self, by: Duration) {
        tokio::time::pause();
        tokio::time::advance(by).await;
        tokio::time::resume();
    }

    fn expect(&mut self, entity: &'static str, rpd: i64, slots: i64, acquires: i128) {
        let usage = self.ledger.entry((entity, Hour::of(self.clock.now())));
        let usage = usage.or_default();
        for (name, amount) in [("rpd", rpd), ("slots", slots)] {
            let total = usage.tokens.entry(LimitName::new(name).expect("a name"));
            total.or_default().0 += i128::from(amount) * 1_000;
        }
        usage.acquires += acquires;
    }

    pub async fn take(&mut self, entity: &'static str, amount: i64) -> weirgate::Grant {
        let limits = limits();
        let acquire = self.limiter.acquire(entity, "gpt-4").limits(&limits);
        let decision = acquire.take("rpd", amount).send().await;
        let grant = decision.expect("it is decided").granted().expect("it fits");
        self.expect(entity, amount, 0, 1);
        grant
    }

    fn worker(&self, options: Options, until: impl Fn(&Work) + 'static) -> Worker {
        let worker = Worker::new(self.table.clone(), options, move |report| {
            if let Work::Failed { function, reason } = &report.work {
                panic!("{function}: {reason}");
            }
            until(&report.work);
        });
        worker.expect("it is on Redis")
    }

    /// Runs the functions until the stream has nothing more.
    pub async fn work(&self) {
        let is_empty = async { while self.records().await > 0 {} };
        let worker = self.worker(quick(), |_| {});
        let done = tokio::time::timeout(BOUND, worker.run(is_empty)).await;
        done.expect("the stream ends");
    }

    /// Number of records that are not finished.
    pub async fn records(&self) -> i64 {
        let length = super::command(&self.server, &["XLEN", "weirgate:{weirgate}:records"]).await;
        redis::from_redis_value(length.expect("it is there")).expect("a number")
    }

    /// Checks each hour and day.
    pub async fn check(&self) {
        let mut days: BTreeMap<(&str, EpochMillis), Usage> = BTreeMap::new();
        for ((entity, hour), usage) in &self.ledger {
            let at = hour.start();
            let day = days.entry((entity, Window::Daily.start(at))).or_default();
            for (name, total) in &usage.tokens {
                *day.tokens.entry(name.clone()).or_default() += *total;
            }
            day.acquires += usage.acquires;
            self.check_window(entity, Window::Hourly, at, usage).await;
        }
        for ((entity, day), usage) in &days {
            self.check_window(entity, Window::Daily, *day, usage).await;
        }
    }

    async fn check_window(&self, entity: &str, window: Window, at: EpochMillis, expected: &Usage) {
        let found = self.limiter.usage(entity, "gpt-4", window, at).await;
        let mut found = found.expect("it is read").usage;
        let mut expected = expected.clone();
        for usage in [&mut found, &mut expected] {
            usage.tokens.retain(|_, total| *total != MilliTotal(0));
        }
        assert_eq!(found, expected, "{entity} {window:?} {at:?}");
    }
}

/// The states of the hour and the day of an instant.
async fn states(world: &World, at: EpochMillis) -> [UsageState; 2] {
    let read = async |window| {
        let read = world.limiter.usage("e-1", "gpt-4", window, at).await;
        read.expect("it is read").state
    };
    [read(Window::Hourly).await, read(Window::Daily).await]
}

/// Used in an hour and in the next one, days ago; returns the first hour.
async fn used_days_ago(world: &mut World) -> EpochMillis {
    let at = world.clock.now();
    for hours in [1, 72] {
        drop(world.take("e-1", 5).await);
        world.clock.skew(hours * HOUR.0);
    }
    at
}

#[tokio::test]
async fn i3_windows_are_final_once_the_functions_have_copied_them_and_not_before() {
    // No hour ends while it runs.
    let hour = Window::Hourly.start(SystemClock.now());
    let mut world = World::at(hour.plus(Millis(HOUR.0 / 2))).await;
    let command = async |server: &RedisServer, words: &[&str]| {
        let done = super::command(server, words).await;
        done.expect("it is there");
    };
    // As if the stream had been there before the day began.
    command(&world.server, &["HSET", FACTS, "since", "0"]).await;
    let at = used_days_ago(&mut world).await;
    assert_eq!(states(&world, at).await, [UsageState::Interim; 2]);
    world.work().await;
    assert_eq!(states(&world, at).await, [UsageState::Final; 2]);
    world.check().await;
    // Of a stream that was full, or is gone, nothing is known.
    drop(world.take("e-1", 5).await);
    for damage in [&["XTRIM", RECORDS, "MAXLEN", "0"][..], &["DEL", RECORDS]] {
        command(&world.server, damage).await;
        assert_eq!(states(&world, at).await, [UsageState::Interim; 2]);
    }
}

/// The stream is made after all windows, by the server's time: what was used before is not in it.
#[tokio::test]
async fn i3_windows_of_before_the_stream_are_never_final() {
    let mut world = World::new().await;
    let at = used_days_ago(&mut world).await;
    world.work().await;
    world.check().await;
    assert_eq!(states(&world, at).await, [UsageState::Interim; 2]);
}

/// Whatever day the stream has all records from, and whatever day the report begins with.
#[tokio::test]
async fn i3_an_hour_of_a_report_is_as_final_as_it_is_alone() {
    const DAY: Millis = Millis(24 * HOUR.0);
    let mut world = World::new().await;
    let day = Window::Daily.start(world.clock.now());
    drop(world.take("e-1", 5).await);
    world.work().await;
    world.clock.skew(3 * DAY.0);
    // The record of this take, with the first copy of the hour, waits.
    drop(world.take("e-1", 1).await);
    let scope = UsageScope::Bucket("e-1".try_into().unwrap(), "gpt-4".try_into().unwrap());
    let (admin, end) = (world.limiter.admin(), day.plus(DAY));
    for is_copied in [false, true] {
        if is_copied {
            world.work().await;
        }
        for (since, first) in (-1..=1).flat_map(|since| (-2..=0).map(move |first| (since, first))) {
            let since = day.plus(Millis(since * DAY.0)).0.to_string();
            let set = super::command(&world.server, &["HSET", FACTS, "since", &since]).await;
            set.expect("it is there");
            let mut at = day.plus(Millis(first * DAY.0));
            let report = admin.usage_report(scope.clone(), Granularity::Hourly, at..end);
            let page = report.expect("a range").page(None).await;
            let rows = page.expect("it is read").items;
            while at < end {
                let alone = world.limiter.usage("e-1", "gpt-4", Window::Hourly, at);
                let alone = alone.await.expect("it is read");
                let row = rows.iter().find(|row| row.start == at);
                // One that is final without usage is left out.
                let (usage, state) = row.map_or((Usage::default(), UsageState::Final), |row| {
                    (row.usage.clone(), row.state)
                });
                assert_eq!(
                    (usage, state),
                    (alone.usage, alone.state),
                    "{at:?} since {since}, {first}, {is_copied}"
                );
                at = at.plus(Millis(6 * HOUR.0));
            }
        }
    }
    world.check().await;
}

/// After a stream was full, it has all records from then on.
#[tokio::test]
async fn i3_a_full_stream_has_all_records_from_its_next_finish_on() {
    let server = RedisServer::start();
    let table = table(&server);
    let stream = table.records().expect("it is on Redis");
    stream.open().await.expect("it is there");
    let command = async |words: &[&str]| {
        let done = super::command(&server, words).await;
        done.expect("it is there");
    };
    const LATER: EpochMillis = EpochMillis(i64::MAX / 2);
    let delivered = async || table.delivered(LATER).await.expect("it is there").unwrap();
    command(&["HSET", FACTS, "since", "5"]).await;
    write(&table, &set(&[(attr::HOUR, 1)])).await;
    let waits = delivered().await;
    assert!(waits.start == EpochMillis(5) && waits.end < LATER.plus(Millis(-HOUR.0)));
    new_records(&table).await;
    let all = EpochMillis(5)..LATER.plus(Millis(-HOUR.0));
    assert_eq!(delivered().await, all);
    for hour in [2, 3] {
        write(&table, &set(&[(attr::HOUR, hour)])).await;
        command(&["XTRIM", RECORDS, "MAXLEN", "1"]).await;
    }
    assert!(delivered().await.is_empty());
    let read = stream.read(Unread::New, 9).await.expect("it is there");
    let ids: Vec<_> = read.into_iter().map(|record| record.id).collect();
    assert_eq!(stream.finish(&ids).await.expect("it is there"), 1);
    let since = delivered().await;
    assert!(since.start > EpochMillis(5) && since.end == all.end);
    // Another reader, and one of a release that did not note it.
    stream.open().await.expect("it is there");
    assert_eq!(delivered().await, since);
    command(&["HDEL", FACTS, "since"]).await;
    assert!(delivered().await.is_empty());
    stream.open().await.expect("it is there");
    assert!(delivered().await.start >= since.start);
}

pub fn quick() -> Options {
    Options { window: Duration::from_millis(5), ..Options::default() }
}

/// Ends after the runtime went on so often.
async fn turns(count: u32) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn i3_usage_is_exact_over_ends_of_hours_and_days_and_after_buckets_expired() {
    let mut world = World::new().await;
    let mut grant = world.take("e-1", 3).await;
    let _ = grant.adjust("rpd", 5).await.expect("it is settled");
    world.expect("e-1", 2, 0, 0);
    drop(world.take("e-2", 5).await);
    let limits = limits();
    let acquire = world.limiter.acquire("e-1", "gpt-4").limits(&limits);
    let leased = acquire.take("slots", 2).lease(Duration::from_secs(60));
    let leased = leased.send().await.expect("it is decided").granted();
    let _ = leased.expect("it fits").release().await.expect("it is there");
    world.expect("e-1", 0, 2, 1);
    world.check().await;
    world.work().await;
    world.check().await;

    world.pass(Duration::from_secs(3_600)).await;
    let _ = grant.adjust("rpd", 4).await.expect("it is settled");
    world.expect("e-1", -1, 0, 0);
    drop(world.take("e-1", 7).await);
    // A process that crashes holds tokens until the reconciler returns them.
    let acquire = world.limiter.acquire("e-1", "gpt-4").limits(&limits);
    let crashed = acquire.take("rpd", 11).take("slots", 1);
    let crashed = crashed.lease(Duration::from_secs(60)).send().await;
    std::mem::forget(crashed.expect("it is decided").granted().expect("it fits"));
    world.expect("e-1", 11, 1, 1);
    world.pass(Duration::from_secs(120)).await;
    let restored = Rc::new(RefCell::new(0));
    let counted = Rc::clone(&restored);
    let worker = world.worker(quick(), move |work| {
        if let Work::Reconciled(summary) = work {
            *counted.borrow_mut() += summary.leases_restored;
        }
    });
    let is_restored = async {
        while *restored.borrow() == 0 {
            tokio::task::yield_now().await;
        }
    };
    let done = tokio::time::timeout(BOUND, worker.run(is_restored)).await;
    done.expect("it is returned");
    assert_eq!(*restored.borrow(), 1);
    world.expect("e-1", -11, 0, 0);
    world.work().await;
    world.check().await;

    world.pass(Duration::from_secs(6 * 3_600)).await;
    drop(world.take("e-1", 13).await);
    drop(world.take("e-2", 17).await);
    world.work().await;
    world.check().await;
    // The last use of each bucket is in the stream when it expires.
    let by_server = table(&world.server);
    let limit_memory = async |bytes: &str| {
        let client = redis::Client::open(world.server.url()).expect("the URL is one");
        let connection = client.get_multiplexed_async_connection().await;
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("maxmemory").arg(bytes);
        let done = set.exec_async(&mut connection.expect("it is there")).await;
        done.expect("it is set");
    };
    // Also on a server that is full, which needs it.
    limit_memory("1").await;
    let mut expired = 0;
    let all_expired = async {
        loop {
            match by_server.remove_expired(1).await.expect("it is there") {
                0 => return,
                some => expired += some,
            }
        }
    };
    let done = tokio::time::timeout(BOUND, all_expired).await;
    done.expect("it ends");
    assert!(expired >= 2, "{expired}");
    limit_memory("0").await;
    let scanned = by_server.scan("default/BUCKET#", 9, None).await;
    assert_eq!(scanned.expect("it is there").items, []);
    world.work().await;
    world.check().await;
}

#[tokio::test]
async fn i3_a_reader_that_is_killed_anywhere_loses_nothing_and_counts_nothing_twice() {
    let mut world = World::new().await;
    for killed_after in 0..40 {
        let entity = ["e-1", "e-2", "e-3"][killed_after % 3];
        drop(world.take(entity, 1 + i64::try_from(killed_after).unwrap()).await);
        // Each begins an hour of a bucket, so usage depends on the copy of the last one.
        world.pass(Duration::from_secs(3_600)).await;
        let worker = world.worker(quick(), |_| {});
        let turns = turns(u32::try_from(killed_after).unwrap());
        worker.run(turns).await;
    }
    // One that gives the lock back no more.
    let lock = Duration::from_millis(200);
    drop(world.take("e-1", 1).await);
    let short = Options { lock, ..quick() };
    let dead = world.worker(short, |_| {});
    tokio::select! {
        () = dead.run(std::future::pending()) => unreachable!("it does not end"),
        () = turns(9) => {}
    }
    world.work().await;
    assert_eq!(world.records().await, 0);
    world.check().await;
}
