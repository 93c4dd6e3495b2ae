//! Requests and settlements that are dropped at any moment: what they took is back, or counts once.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;
use weirgate_tests::stored::set_entity;

use proptest::prelude::*;
use proptest::sample::select;
use tokio::sync::Notify;
use weirgate::{
    Class, Decision, Error, Every, Grant, Grants, Limit, LimitMode, MilliTokens, OnUnavailable,
    Prefetch, RateLimiter,
};
use weirgate_shared::{BucketKey, EpochMillis, MAX_PERIOD_MS, Shard};
use weirgate_testkit::Fault;
use weirgate_tests::fleet::shards::split;
use weirgate_tests::fleet::{Fleet, ask, config, granted, millis, pass, runtime, secs, slots};
use weirgate_tests::sharded;
use weirgate_tests::stored::{child, configure, of_resource};

const LATENCY: Duration = millis(5);
/// What background tasks need at most: repeated writes, and the age of prefetched tokens.
const BACKGROUND: Duration = secs(20);
const LASTS: Duration = secs(600);
const ENTITIES: [&str; 3] = ["e-1", "e-2", "p-1"];
const CAPACITY: i64 = 800;
/// What other processes have taken of each limit before.
const OTHERS: i64 = 50;
/// About how long a queued request waits.
const QUEUED_MS: u64 = 10_000;

/// A rate that refills a millitoken in half a minute, or what the mode needs in its place, a soft one, and slots.
fn limits(mode: Mode) -> Vec<Limit> {
    let rate = |name| Limit::custom(name, CAPACITY, 1, MAX_PERIOD_MS).unwrap();
    let first = match mode {
        Mode::Queued | Mode::QueuedNow => Limit::custom("tpm", CAPACITY, 1, 1_000).unwrap(),
        Mode::Quota => Limit::quota("tpm", CAPACITY, Every::month()).unwrap(),
        Mode::Class | Mode::ClassShared => {
            rate("tpm").with_classes([Class::new("batch", 40).unwrap()]).unwrap()
        }
        _ => rate("tpm"),
    };
    vec![first, rate("soft").in_mode(LimitMode::Soft), slots(400)]
}

/// How a request takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Rate,
    Slots,
    Leased,
    Configured,
    Cascading,
    Together,
    /// One of the buckets denies.
    TogetherDenied,
    /// From parts of several shards.
    Spread,
    SpreadLeased,
    Prefetching,
    /// The tokens return while it waits.
    Waiting,
    /// The tokens are there when ten seconds have passed.
    Queued,
    /// The grant starts then.
    QueuedNow,
    Quota,
    /// From the class's own pool.
    Class,
    /// From the shared pool, because the class's own pool has fewer.
    ClassShared,
    UpTo,
    /// The parent has less than the child.
    UpToCascading,
    Soft,
    IntoDebt,
    Bypass,
    Shadow,
    Local,
}

const MODES: [Mode; 23] = [
    Mode::Rate,
    Mode::Slots,
    Mode::Leased,
    Mode::Configured,
    Mode::Cascading,
    Mode::Together,
    Mode::TogetherDenied,
    Mode::Spread,
    Mode::SpreadLeased,
    Mode::Prefetching,
    Mode::Waiting,
    Mode::Queued,
    Mode::QueuedNow,
    Mode::Quota,
    Mode::Class,
    Mode::ClassShared,
    Mode::UpTo,
    Mode::UpToCascading,
    Mode::Soft,
    Mode::IntoDebt,
    Mode::Bypass,
    Mode::Shadow,
    Mode::Local,
];

impl Mode {
    fn is_cascading(self) -> bool {
        matches!(self, Self::Cascading | Self::UpToCascading)
    }

    fn is_queued(self) -> bool {
        matches!(self, Self::Queued | Self::QueuedNow)
    }
}

/// When a future is dropped.
#[derive(Debug, Clone, Copy)]
enum Cut {
    /// After so many polls.
    Polls(u32),
    /// After this time.
    Ms(u64),
    /// Once this write is applied, before its answer is seen.
    Write(u32),
}

impl Cut {
    /// Runs a future until the cut. Returns `None` if it was dropped. The write with the number
    /// that comes with a fault meets it.
    async fn apply<F: Future>(
        self,
        fleet: &Fleet,
        trouble: Option<(u32, Fault)>,
        future: F,
    ) -> Option<F::Output> {
        let (seen, mut writes) = (Arc::new(Notify::new()), 0);
        let cut = Arc::clone(&seen);
        fleet.dynamo.fail_when(move |_| {
            writes += 1;
            if matches!(self, Self::Write(write) if write == writes) {
                seen.notify_one();
            }
            let (at, fault) = trouble?;
            (at == writes).then_some(fault)
        });
        let cut = async {
            match self {
                Self::Polls(_) => std::future::pending().await,
                Self::Ms(ms) => pass(millis(ms)).await,
                Self::Write(_) => cut.notified().await,
            }
        };
        let mut future = Box::pin(future);
        let mut polls = 0;
        let counted = poll_fn(|context| {
            if matches!(self, Self::Polls(most) if most == polls) {
                return Poll::Ready(None);
            }
            polls += 1;
            future.as_mut().poll(context).map(Some)
        });
        tokio::select! {
            biased;
            () = cut => None,
            done = counted => done,
        }
    }
}

fn cut() -> impl Strategy<Value = Cut> {
    prop_oneof![
        (0..6_u32).prop_map(Cut::Polls),
        (0..40_u64).prop_map(Cut::Ms),
        (1..4_u32).prop_map(Cut::Write)
    ]
}

/// A mode, and a cut of its request: of a queued one mostly until after its start.
fn request() -> impl Strategy<Value = (Mode, Cut)> {
    select(&MODES[..]).prop_flat_map(|mode| {
        let near_start = QUEUED_MS - 200..QUEUED_MS + 200;
        let queued = prop_oneof![0..12_000_u64, near_start].prop_map(Cut::Ms);
        let cut = match mode.is_queued() {
            true => prop_oneof![1 => cut(), 2 => queued].boxed(),
            false => cut().boxed(),
        };
        (Just(mode), cut)
    })
}

/// No fault, or one of the first writes meets one.
fn trouble() -> impl Strategy<Value = Option<(u32, Fault)>> {
    let faults = vec![Fault::LoseRequest, Fault::LoseAnswer, Fault::Conflict];
    prop::option::weighted(0.7, (1..4_u32, select(faults)))
}

/// What a request was granted.
enum Held {
    One(Box<Grant>),
    All(Grants),
    Nothing,
}

impl Held {
    fn of(decision: Result<Decision, Error>) -> Self {
        let granted = decision.ok().and_then(Decision::granted);
        granted.map_or(Self::Nothing, |grant| Self::One(Box::new(grant)))
    }

    fn grants(&self) -> &[Grant] {
        match self {
            Self::One(grant) => std::slice::from_ref(&**grant),
            Self::All(grants) => grants,
            Self::Nothing => &[],
        }
    }

    /// What of each limit stays consumed when this is dropped.
    fn amount(&self, limit: &str) -> i64 {
        let grants = self.grants().iter();
        grants.map(|grant| grant.amount(limit).0).sum()
    }
}

/// What the table has of all buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ledger {
    at: EpochMillis,
    /// Balances of `tpm`, `soft` and slots, of all pools.
    available: [i64; 3],
    /// Balance of `tpm` in each bucket.
    tpm: [i64; 3],
    /// What is consumed of the rates.
    consumed: [i64; 2],
    acquires: i128,
    leases: usize,
}

struct World {
    fleet: Fleet,
    limiter: RateLimiter,
    mode: Mode,
    /// All slots, which return while the request waits.
    all: Mutex<Option<Grant>>,
}

impl World {
    async fn new(mode: Mode) -> Self {
        let fleet = Fleet::slow(LATENCY).await;
        let other = fleet.limiter().await;
        if mode == Mode::Configured || mode.is_cascading() {
            configure(&other, &of_resource("gpt-4"), limits(mode)).await;
        }
        if mode.is_cascading() {
            set_entity(&other, &child("e-1", "p-1")).await;
        }
        if matches!(mode, Mode::Spread | Mode::SpreadLeased) {
            split(&other, &limits(mode), 4).await;
        }
        for entity in ENTITIES {
            let taken = other.acquire(entity, "gpt-4").limits(&limits(mode));
            let taken = taken.take("tpm", OTHERS).take("soft", OTHERS).send();
            assert!(taken.await.unwrap().is_granted());
        }
        if mode == Mode::UpToCascading {
            let taken = other.acquire("p-1", "gpt-4").take("tpm", 500).send();
            assert!(taken.await.unwrap().is_granted());
        }
        let all = match mode {
            Mode::Waiting => Some(granted(&other, &limits(mode), &[("slots", 400)]).await),
            _ => None,
        };
        let limiter = fleet
            .limiter_with(|builder| match mode {
                Mode::Prefetching => builder.prefetch("gpt-4", Prefetch::default()),
                Mode::Local => {
                    builder.timeout(millis(25)).on_unavailable(OnUnavailable::Local { percent: 50 })
                }
                _ => builder,
            })
            .await;
        Self { fleet, limiter, mode, all: Mutex::new(all) }
    }

    fn request(&self) -> Pin<Box<dyn Future<Output = Held> + '_>> {
        let one = |takes: &[(&str, i64)]| ask(&self.limiter, &limits(self.mode), takes);
        let of = |entity: &str, amount| {
            let request = self.limiter.acquire(entity, "gpt-4").limits(&limits(self.mode));
            request.take("tpm", amount)
        };
        let request = match self.mode {
            Mode::Rate | Mode::Local => one(&[("tpm", 200), ("soft", 10)]),
            Mode::Slots => one(&[("slots", 3)]),
            Mode::Leased => one(&[("tpm", 200), ("slots", 3)]).lease(LASTS),
            Mode::Configured | Mode::Cascading => {
                self.limiter.acquire("e-1", "gpt-4").take("tpm", 200)
            }
            Mode::Together | Mode::TogetherDenied => {
                let second = if self.mode == Mode::Together { 200 } else { 790 };
                let both = [of("e-1", 100), of("e-2", second)];
                let both = self.limiter.acquire_all(both);
                return Box::pin(async move {
                    let granted = both.send().await.ok().and_then(Decision::granted);
                    granted.map_or(Held::Nothing, Held::All)
                });
            }
            Mode::Spread => one(&[("tpm", 500)]),
            Mode::SpreadLeased => one(&[("tpm", 500), ("slots", 300)]).lease(LASTS),
            Mode::Prefetching => one(&[("tpm", 10)]),
            Mode::Waiting => {
                let all = self.all.lock().unwrap().take();
                tokio::spawn(async move {
                    pass(millis(10)).await;
                    drop(all);
                });
                one(&[("slots", 5)]).wait_up_to(secs(1))
            }
            Mode::Queued => one(&[("tpm", 760)]).queue_up_to(secs(30)),
            Mode::QueuedNow => {
                let request = one(&[("tpm", 760)]).queue_up_to(secs(30)).send_now();
                return Box::pin(async move { Held::of(request.await) });
            }
            Mode::Quota => one(&[("tpm", 200), ("soft", 10)]),
            Mode::Class => one(&[("tpm", 200)]).class("batch"),
            Mode::ClassShared => one(&[("tpm", 400)]).class("batch"),
            Mode::UpTo => self
                .limiter
                .acquire("e-1", "gpt-4")
                .limits(&limits(self.mode))
                .take_up_to("tpm", 100, 400),
            Mode::UpToCascading => {
                let request = self.limiter.acquire("e-1", "gpt-4");
                request.take_up_to("tpm", 100, 400)
            }
            Mode::Soft => one(&[("soft", 1_000)]),
            Mode::IntoDebt => one(&[("tpm", 1_000)]).into_debt(),
            Mode::Bypass => one(&[("tpm", 1_000)]).bypass(),
            Mode::Shadow => one(&[("tpm", 1_000), ("soft", 5)]).shadow(),
        };
        Box::pin(async move { Held::of(request.send().await) })
    }

    async fn shards(&self) -> Vec<Shard> {
        let table = self.fleet.dynamo.table().await;
        let mut all = vec![];
        for entity in ENTITIES {
            let key = BucketKey::parse(&format!("default/BUCKET#{entity}#gpt-4#0")).unwrap();
            all.extend(sharded::shards(&table, &key).await);
        }
        all
    }

    async fn ledger(&self) -> Ledger {
        let (shards, now) = (self.shards().await, self.fleet.now());
        let balance_in = |shard: &Shard, limit: &str| {
            let pools = shard.limits.keys().filter(|pool| pool.base() == limit);
            pools.map(|pool| shard.balance_at(pool, now).0).sum::<i64>()
        };
        let balance = |limit| shards.iter().map(|shard| balance_in(shard, limit)).sum();
        let consumed = |limit: &str| {
            let pools = shards.iter().flat_map(|shard| &shard.limits);
            let pools = pools.filter(|(pool, _)| pool.base() == limit);
            pools.map(|(_, state)| state.consumed.bounded().0).sum()
        };
        let in_bucket = |entity: &str| {
            let of_bucket = shards.iter().filter(|shard| shard.key.entity.as_str() == entity);
            of_bucket.map(|shard| balance_in(shard, "tpm")).sum()
        };
        Ledger {
            at: now,
            available: ["tpm", "soft", "slots"].map(balance),
            tpm: ENTITIES.map(in_bucket),
            consumed: ["tpm", "soft"].map(consumed),
            acquires: shards.iter().map(|shard| shard.acquires.total).sum(),
            leases: shards
                .iter()
                .map(|shard| shard.leases.as_ref().map_or(0, |leases| leases.len()))
                .sum(),
        }
    }

    /// Requires that `after` differs from `before` by what is still consumed, and holds no lease.
    fn check(&self, before: Ledger, after: Ledger, used: [i64; 2], acquires: i128, what: &str) {
        let debited = match self.mode {
            Mode::Bypass => [0, 0],
            _ => used,
        };
        for (at, debited) in [debited[0], debited[1], 0].into_iter().enumerate() {
            let refill = after.available[at] - before.available[at] + debited;
            // Nearly nothing, except that of the queued modes, checked below.
            assert!(
                (0..100).contains(&refill) || (self.mode.is_queued() && at == 0),
                "{what}: {before:?} {after:?}, used: {used:?}"
            );
        }
        // A millitoken a millisecond in each bucket, up to its capacity.
        let elapsed = after.at.0 - before.at.0;
        for at in (0..ENTITIES.len()).filter(|_| self.mode.is_queued()) {
            let debited = if at == 0 { debited[0] } else { 0 };
            let room = CAPACITY * 1_000 - before.tpm[at] + debited;
            let refill = after.tpm[at] - before.tpm[at] + debited;
            assert!(
                refill.abs_diff(elapsed.min(room)) <= 3,
                "{what}: {refill} refilled in {elapsed} ms, {before:?} {after:?}, used: {used:?}"
            );
        }
        let expected = Ledger {
            consumed: [before.consumed[0] + used[0], before.consumed[1] + used[1]],
            acquires: before.acquires + acquires,
            leases: 0,
            ..after
        };
        assert_eq!(after, expected, "{what}: before {before:?}");
    }
}

/// Drops a request, and its grant if it has one by then; the limiter may end after that.
async fn drop_request(mode: Mode, trouble: Option<(u32, Fault)>, cut: Cut, ends: bool) {
    let what = format!("{mode:?} {trouble:?} {cut:?} {ends}");
    let world = World::new(mode).await;
    let mut before = world.ledger().await;
    if mode == Mode::Waiting {
        before.available[2] += 400_000;
    }
    let held = cut.apply(&world.fleet, trouble, world.request()).await;
    let granted = held.as_ref().map_or(0, |held| held.grants().len());
    let amount = |limit| held.as_ref().map_or(0, |held| held.amount(limit));
    let mut used = match (mode, &held) {
        // The parent has given as much.
        (mode, Some(_)) if mode.is_cascading() => [2 * amount("tpm"), 0],
        (Mode::Local, Some(Held::One(grant))) if grant.degraded().is_some() => [0, 0],
        _ => [amount("tpm"), amount("soft")],
    };
    let mut acquires = match (mode, granted) {
        (_, 0) | (Mode::IntoDebt, _) => 0,
        (Mode::Local, _) if used == [0, 0] => 0,
        (mode, _) if mode.is_cascading() => 2,
        (_, granted) => i128::try_from(granted).unwrap(),
    };
    if let (Mode::QueuedNow, Cut::Ms(ms)) = (mode, cut) {
        // Between the grant and the start, or after it.
        pass(millis(ms)).await;
    }
    drop(held);
    let ended = if ends { world.limiter.shutdown().await } else { Ok(()) };
    assert!(ended.is_ok() || trouble.is_some(), "{what}: {ended:?}");
    // An end waits no longer than the timeout, in which a repeated write may fail; and what the request waited for comes
    // with time.
    if !ends || trouble.is_some() || mode == Mode::Waiting {
        pass(BACKGROUND).await;
    }
    if matches!(trouble, Some((_, Fault::LoseRequest))) && used == [0, 0] {
        // A return without a lease is not repeated: what it does not return is in doubt.
        let doubt = world.limiter.stats().unconfirmed_millitokens;
        let after = world.ledger().await;
        let lost = i64::try_from(doubt).unwrap();
        let gone = [0, 1].map(|at| after.consumed[at] - before.consumed[at]);
        let sum: i64 = gone.iter().sum();
        assert!(sum == 0 || sum == lost, "{what}: {gone:?} of {lost}");
        if sum > 0 {
            (used, acquires) = (gone, after.acquires - before.acquires);
        }
    }
    world.check(before, world.ledger().await, used, acquires, &what);
}

/// What is dropped of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settling {
    Adjust(i64),
    Renew,
    Release,
    ReleaseWith(i64),
    RollBack,
    TakeMore,
    GiveBack,
    Refund,
}

/// What the caller does with the grant after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Drop,
    Release,
    RollBack,
    Adjust,
}

/// All that may settle at once: a grant of [`Mode::QueuedNow`] may not before its start.
const GRANTS: [Mode; 12] = [
    Mode::Rate,
    Mode::Leased,
    Mode::Cascading,
    Mode::Spread,
    Mode::SpreadLeased,
    Mode::Prefetching,
    Mode::Queued,
    Mode::Quota,
    Mode::Class,
    Mode::ClassShared,
    Mode::UpToCascading,
    Mode::Bypass,
];
const NEXT: [Next; 4] = [Next::Drop, Next::Release, Next::RollBack, Next::Adjust];
const SETTLINGS: [Settling; 12] = [
    // Both above and below what was taken.
    Settling::Adjust(1_100),
    // Within the debt that a class may have.
    Settling::Adjust(600),
    Settling::Adjust(3),
    Settling::Adjust(0),
    Settling::Renew,
    Settling::Release,
    Settling::ReleaseWith(600),
    Settling::ReleaseWith(3),
    Settling::RollBack,
    Settling::TakeMore,
    Settling::GiveBack,
    Settling::Refund,
];

impl Settling {
    /// Settles, until the cut; the grant, if it is there still.
    async fn cut(self, world: &World, cut: Cut, mut grant: Grant) -> Option<Grant> {
        let fleet = &world.fleet;
        match self {
            Self::Adjust(to) => drop(cut.apply(fleet, None, grant.adjust("tpm", to)).await),
            Self::Renew => drop(cut.apply(fleet, None, grant.renew(LASTS)).await),
            Self::TakeMore => drop(cut.apply(fleet, None, grant.take_more("tpm", 20)).await),
            Self::GiveBack => drop(cut.apply(fleet, None, grant.give_back("tpm", 5)).await),
            Self::Refund => {
                let refund = world.limiter.refund("e-1", "gpt-4").limits(&limits(world.mode));
                drop(cut.apply(fleet, None, refund.give_back("tpm", 30).send()).await);
            }
            Self::Release => {
                let _ = cut.apply(fleet, None, grant.release()).await;
                return None;
            }
            Self::ReleaseWith(to) => {
                let used = [("tpm", MilliTokens(to * 1_000))];
                let released = grant.release_with(&used, &[]);
                let _ = cut.apply(fleet, None, released).await;
                return None;
            }
            Self::RollBack => {
                let _ = cut.apply(fleet, None, grant.roll_back()).await;
                return None;
            }
        }
        Some(grant)
    }
}

async fn drop_settlement(mode: Mode, settling: Settling, next: Next, cut: Cut) {
    let what = format!("{mode:?} {settling:?} {cut:?}, then {next:?}");
    let world = World::new(mode).await;
    let before = world.ledger().await;
    let Held::One(grant) = world.request().await else {
        panic!("{what}: the tokens are there");
    };
    // Blocks that were fetched ahead return.
    let taken = grant.amount("tpm").0;
    let grant = settling.cut(&world, cut, *grant).await;
    let mut known = None;
    match (grant, next) {
        (None, _) => {}
        (Some(grant), Next::Drop) => drop(grant),
        (Some(grant), Next::Release) => drop(grant.release().await),
        (Some(grant), Next::RollBack) => {
            if grant.roll_back().await.is_ok() {
                known = Some(0);
            }
        }
        (Some(mut grant), Next::Adjust) => {
            if grant.adjust("tpm", 70).await.is_ok() {
                known = Some(70_000);
            }
        }
    }
    pass(BACKGROUND).await;
    let after = world.ledger().await;
    let each = if mode.is_cascading() { 2 } else { 1 };
    let used = after.consumed[0] - before.consumed[0];
    let refunded = [0, -30_000 * i64::from(settling == Settling::Refund)];
    let possible: Vec<_> = match (known, settling) {
        (Some(known), _) => vec![known],
        (None, Settling::Adjust(to) | Settling::ReleaseWith(to)) => vec![taken, to * 1_000],
        (None, Settling::RollBack) => vec![taken, 0],
        (None, Settling::TakeMore) => vec![taken, taken + 20_000],
        (None, Settling::GiveBack) => vec![taken, taken - 5_000],
        (None, _) => vec![taken],
    };
    // Of several shards, some may be adjusted.
    let is_between = known.is_none() && matches!(mode, Mode::Spread | Mode::SpreadLeased);
    let (least, most) = (possible.iter().min(), possible.iter().max());
    let is_part = is_between && least <= Some(&used) && Some(&used) <= most;
    let is_possible = |used: i64| {
        let refunds = refunded.iter();
        refunds
            .flat_map(|refund| possible.iter().map(move |used| each * used + refund))
            .any(|possible| possible == used)
    };
    // An end that has begun is made.
    let is_begun = !matches!(cut, Cut::Polls(0) | Cut::Ms(0));
    let ended_at = match settling {
        Settling::RollBack if is_begun => Some(0),
        Settling::ReleaseWith(to) if is_begun => Some(each * to * 1_000),
        _ => None,
    };
    assert!(
        (is_part || is_possible(used)) && ended_at.is_none_or(|end| end == used),
        "{what}: {used} used of {taken}"
    );
    let soft = after.consumed[1] - before.consumed[1];
    world.check(before, after, [used, soft], each.into(), &what);
}

proptest! {
    #![proptest_config(config(150))]

    #[test]
    fn i4_what_a_dropped_request_took_is_back(
        (mode, cut) in request(), trouble in trouble(), ends: bool,
    ) {
        runtime().block_on(drop_request(mode, trouble, cut, ends));
    }

    /// Whether it is made or not, the grant's next settlement knows.
    #[test]
    fn i7_a_dropped_settlement_leaves_nothing_in_doubt(
        mode in select(&GRANTS[..]), settling in select(&SETTLINGS[..]), next in select(&NEXT[..]), cut in cut(),
    ) {
        // What bypassed the limits has no tokens that a refund could return.
        prop_assume!(mode != Mode::Bypass || settling != Settling::Refund);
        runtime().block_on(drop_settlement(mode, settling, next, cut));
    }
}
