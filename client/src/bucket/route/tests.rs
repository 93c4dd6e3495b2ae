//! Routing and cached decisions, without a table: every request that is sent fails.

mod explorer;

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::advance;
use weirgate_shared::{Asks, BucketKey, EpochMillis, LimitName, MilliTokens, Shard};
use weirgate_store::{ConnectOptions, CorrectedClock, ErrorKind, Table, connect};

use super::*;
use crate::api::RateLimiter;
use crate::queue::Taken;
use crate::session::{AgeClock, FakeClock, Session, after, deadline};
use crate::values::{Error, Limits, Outcome, SLOT_DENIAL_TTL};

const NOW: EpochMillis = EpochMillis(1_000_000);
/// Capacity of both limits.
const CAPACITY: i64 = 80;
const TIMEOUT: Duration = Duration::from_millis(600);
/// The shortest time step.
const MOMENT: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn env() -> Env {
    let clock = CorrectedClock::of(Arc::new(FakeClock::at(NOW)));
    Env::new("limits".to_owned(), clock, TIMEOUT, 30 * SECOND)
}

fn limits() -> Limits {
    let rate = Limit::custom("rpd", CAPACITY, 1, 86_400_000).unwrap();
    Limits::new([rate, Limit::concurrent("slots", CAPACITY).unwrap()].into(), None)
}

/// The router of a request that begins now.
fn router<'a>(bucket: &'a BucketState, request: &'a BucketRequest) -> Router<'a, Taken> {
    let now = Instant::now();
    Router::new(bucket, request, now, after(now, TIMEOUT))
}

/// A request with these amounts, in millitokens.
fn request(needs: &[(&str, i64)]) -> BucketRequest {
    let needs =
        needs.iter().map(|(name, need)| (LimitName::new(*name).unwrap(), MilliTokens(*need)));
    BucketRequest {
        asks: Asks::of(Effect::Enforce, needs),
        timeout: TIMEOUT,
        ..BucketRequest::of(limits())
    }
}

/// A bucket of `count` shards.
fn bucket_of(count: u32) -> Arc<BucketState> {
    let bucket = Arc::new(BucketState::new(
        BucketKey::parse("default/BUCKET#e-1#gpt-4#0").unwrap(),
        None,
        AgeClock::default(),
    ));
    bucket.summary().set_max_shards_seen(count);
    bucket
}

/// Records views of these shards with these balances of both limits, in millitokens.
fn see(bucket: &BucketState, left: &[(u32, i64, i64)]) {
    for &(index, rate, slots) in left {
        let full = Shard::full(bucket.key.with_shard(index), &limits(), NOW);
        let mut shard = Shard { shard_count: bucket.summary().max_shards_seen(), ..full };
        for (state, left) in shard.limits.values_mut().zip([rate, slots]) {
            state.available = MilliTokens(left);
        }
        bucket.shard(index).record_view(shard);
    }
}

/// Returns the shard that a router asks next; `None` if it looks at all together.
fn asked(next: Next<Taken>) -> Option<u32> {
    match next {
        Next::Ask(queue) => Some(queue.index()),
        Next::Choose => panic!("any shard"),
        _ => None,
    }
}

/// One shard can have its share and no more. A bucket of one shard is not decided over all shards
/// for that.
#[test]
fn only_a_request_above_the_largest_share_needs_several_shards() {
    let is_above = |count, needs: &[_]| {
        let (bucket, request) = (bucket_of(count), request(needs));
        request.exceeds_one_shard(bucket.summary().max_shards_seen())
    };
    for count in [2, 4, 8] {
        let share = CAPACITY * 1000 / i64::from(count);
        assert_eq!(
            [share - 1, share, share + 1].map(|need| is_above(count, &[("rpd", need)])),
            [false, false, true]
        );
        assert!(is_above(count, &[("slots", share + 1)]));
    }
    assert!(!is_above(1, &[("rpd", CAPACITY * 1000 + 1)]));
}

#[tokio::test(start_paused = true)]
async fn the_shard_with_most_room_follows_a_short_one() {
    let (env, bucket) = (env(), bucket_of(4));
    see(&bucket, &[(0, 5_000, 9_000), (1, 9_000, 9_000), (2, 7_000, 3_000)]);
    let better = |tried: &[u32], needs: &[_]| {
        let request = request(needs);
        let mut router = router(&bucket, &request);
        router.tried = tried.to_vec();
        asked(router.next_candidate(&env))
    };
    assert_eq!(better(&[], &[("rpd", 2_000)]), Some(1));
    assert_eq!(better(&[1], &[("rpd", 2_000)]), Some(2), "not one that had too little");
    assert_eq!(
        better(&[1], &[("rpd", 2_000), ("slots", 2_000)]),
        Some(0),
        "2 has least room where it is short"
    );
    assert_eq!(better(&[2], &[("rpd", 9_000)]), Some(1), "just enough");
    assert_eq!(better(&[2], &[("rpd", 9_001)]), None);
    assert_eq!(better(&[1, 2], &[("rpd", 2_000)]), Some(0));
    assert_eq!(better(&[1, 2, 3], &[("rpd", 2_000)]), None, "after three all are read");
}

#[tokio::test(start_paused = true)]
async fn a_known_shard_replaces_a_missing_one() {
    let (bucket, request) = (bucket_of(4), request(&[("rpd", 1)]));
    let router = router(&bucket, &request);
    let after = |missing| router.replacement_for(&bucket.queue(missing));
    assert!(matches!(after(3), Next::Choose), "the first may exist, although no view shows it");
    assert_eq!(asked(after(0)), None, "perhaps nothing is left");
    see(&bucket, &[(2, 0, 0)]);
    assert_eq!(asked(after(0)), Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_denial_is_cached_for_its_time_and_one_for_slots_for_less() {
    let (env, bucket) = (env(), bucket_of(1));
    see(&bucket, &[(0, 1_000, 1_000)]);
    let [enough, rate, slots] =
        [("rpd", 1_000), ("rpd", 2_000), ("slots", 1_001)].map(|need| request(&[need]));
    let denies = |request| cached_denial(&env, &bucket, request).is_some();
    let memory = env.denial_cache_ttl;
    assert_eq!([&enough, &rate, &slots].map(denies), [false, true, true]);
    advance(SLOT_DENIAL_TTL - MOMENT).await;
    assert_eq!([&enough, &rate, &slots].map(denies), [false, true, true]);
    advance(MOMENT).await;
    assert_eq!([&enough, &rate, &slots].map(denies), [false, true, false]);
    advance(memory - SLOT_DENIAL_TTL - MOMENT).await;
    assert_eq!([&enough, &rate, &slots].map(denies), [false, true, false]);
    advance(MOMENT).await;
    assert_eq!([&enough, &rate, &slots].map(denies), [false, false, false]);
}

/// Other shards may have what one lacks.
#[tokio::test(start_paused = true)]
async fn only_a_denial_by_all_shards_is_cached() {
    let (env, bucket, request) = (env(), bucket_of(2), request(&[("rpd", 1_000)]));
    let denies = || cached_denial(&env, &bucket, &request).is_some();
    see(&bucket, &[(0, 0, 0), (1, 0, 0)]);
    assert!(!denies(), "no denial by all shards");
    bucket.record_denial();
    assert!(denies());
    bucket.shard(1).clear_view();
    assert!(!denies(), "not by those that are known");
    advance(env.denial_cache_ttl).await;
    see(&bucket, &[(0, 0, 0), (1, 0, 0)]);
    assert!(!denies(), "it was denied too long ago");
}

#[tokio::test(start_paused = true)]
async fn a_cached_denial_of_several_shards_is_returned_at_once() {
    let (env, bucket, request) = (env(), bucket_of(2), request(&[("rpd", 1_000)]));
    see(&bucket, &[(0, 0, 0), (1, 0, 0)]);
    bucket.record_denial();
    let command = router(&bucket, &request).poll(&env);
    assert!(matches!(command, Command::Done(Ok(Outcome::Denied(_)))));
    assert_eq!(env.counters.read().local_denied, 1);
}

/// Returns the command after the first shard that is asked was short.
fn after_a_short_one(env: &Env, router: &mut Router<'_, Taken>) -> Command<Taken> {
    let Command::Ask(queue) = router.poll(env) else { panic!("a shard is tried first") };
    router.replied(env, &queue, Ok(Outcome::Elsewhere(Reason::Insufficient)));
    router.poll(env)
}

/// A denial must not rest on a view from before the request; a later view need not be read again.
#[tokio::test(start_paused = true)]
async fn all_shards_are_read_unless_that_was_done_since_the_request() {
    let (env, bucket, request) = (env(), bucket_of(2), request(&[("rpd", 1_001)]));
    see(&bucket, &[(0, 0, 0), (1, 1_000, 0)]);
    let mut first = router(&bucket, &request);
    let command = after_a_short_one(&env, &mut first);
    assert!(matches!(command, Command::Done(Ok(Outcome::Denied(_)))));
    assert!(bucket.denied().is_some());
    advance(30 * SECOND).await;
    let mut later = router(&bucket, &request);
    let command = after_a_short_one(&env, &mut later);
    assert!(matches!(command, Command::ReadAll(Some(_), Consistency::Eventual)), "{command:?}");
    see(&bucket, &[(0, 0, 0), (1, 1_001, 0)]);
    later.all_read(&env, Ok(()));
    let Command::Ask(queue) = later.poll(&env) else { panic!("the second shard has enough") };
    assert_eq!(queue.index(), 1);
}

/// Others may have returned slots since a view.
#[tokio::test(start_paused = true)]
async fn old_views_do_not_deny_slots_while_shards_are_too_hot_to_be_read() {
    let (env, bucket, request) = (env(), bucket_of(2), request(&[("slots", 1_000)]));
    see(&bucket, &[(0, 0, 0), (1, 0, 0)]);
    advance(10 * SECOND).await;
    let mut router = router(&bucket, &request);
    let command = after_a_short_one(&env, &mut router);
    assert!(matches!(command, Command::ReadAll(Some(_), Consistency::Strong)), "{command:?}");
    let error = StoreError {
        kind: ErrorKind::Throttled { key_range: true },
        ..env.unconfirmed("BatchGetItem", "throttled".to_owned())
    };
    router.all_read(&env, Err(error.into()));
    assert!(matches!(router.poll(&env), Command::Wait(_)));
    let command = router.poll(&env);
    assert!(matches!(command, Command::ReadAll(None, Consistency::Strong)), "{command:?}");
}

/// Whether a shard is in debt, only its reply shows.
#[tokio::test(start_paused = true)]
async fn an_amount_of_0_is_given_by_a_shard_that_grants_it() {
    let (env, bucket, request) = (env(), bucket_of(2), request(&[("rpd", 0), ("slots", 0)]));
    see(&bucket, &[(0, -1, 0), (1, 0, -1)]);
    let mut router = router(&bucket, &request);
    let Command::AskForParts(parts) = after_a_short_one(&env, &mut router) else {
        panic!("each shard is in debt of one limit")
    };
    let short = parts.iter().map(|_| Ok(Outcome::Elsewhere(Reason::Insufficient)));
    router.parts_replied(&env, short.collect());
    let command = router.poll(&env);
    assert!(!matches!(command, Command::Done(Ok(Outcome::Granted(_)))));
}

/// One read may see the shards at different times.
#[tokio::test(start_paused = true)]
async fn incomplete_shards_are_read_again_and_then_those_there_are_decide() {
    let (env, bucket, request) = (env(), bucket_of(2), request(&[("rpd", 1_001)]));
    let mut router = router(&bucket, &request);
    let first = after_a_short_one(&env, &mut router);
    assert!(matches!(first, Command::ReadAll(Some(_), _)), "{first:?}");
    see(&bucket, &[(0, 1_000, 0)]);
    router.all_read(&env, Ok(()));
    let second = router.poll(&env);
    assert!(matches!(second, Command::ReadAll(None, Consistency::Strong)), "{second:?}");
    router.all_read(&env, Ok(()));
    let third = router.poll(&env);
    assert!(matches!(third, Command::Done(Ok(Outcome::Denied(_)))));
}

#[tokio::test(start_paused = true)]
async fn pauses_are_counted_and_end_at_the_deadline() {
    let (env, bucket, request) = (env(), bucket_of(1), request(&[("rpd", 1)]));
    let (end, mut router) = (Instant::now() + TIMEOUT, router(&bucket, &request));
    let throttled = || {
        let error = env.unconfirmed("UpdateItem", "throttled".to_owned());
        Ok(Outcome::Elsewhere(Reason::Throttled(Arc::new(error))))
    };
    let mut pauses = 0;
    let outcome = loop {
        match router.poll(&env) {
            Command::Ask(queue) => drop(router.replied(&env, &queue, throttled())),
            Command::Wait(until) => {
                assert!(until <= end);
                pauses += 1;
                tokio::time::sleep_until(until).await;
            }
            command => break command,
        }
    };
    assert_eq!((router.failures, Instant::now()), (pauses, end));
    let Command::Done(Err(Error::Timeout { after, last, .. })) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(after, TIMEOUT);
    assert!(last.is_some(), "it names what failed last");
}

/// No request of the session is answered while there is the listener, which accepts no connections.
async fn hanging_session() -> (Arc<Session>, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let clock = Arc::new(FakeClock::at(NOW));
    let connection =
        ConnectOptions { local_endpoint: Some(endpoint), clock, ..ConnectOptions::default() };
    let table = Table::new(connect(connection).await, "limits");
    let limiter = RateLimiter::builder("limits").table(table).build().await;
    (limiter.unwrap().session, listener)
}

/// With one shard, a waiter that came first may be served by tokens that are still to come.
#[tokio::test(start_paused = true)]
async fn a_cached_denial_of_one_shard_waits_for_its_turn() {
    let ((session, _listener), bucket) = (hanging_session().await, bucket_of(1));
    let (first, second) = (request(&[("rpd", 1)]), request(&[("rpd", 1_000)]));
    let (now, end) = (Instant::now(), deadline(TIMEOUT));
    let ask = |request| acquire_from_table(&session, &bucket, request, now, end);
    let waits = async {
        // The read of the first is under way.
        tokio::time::sleep(MOMENT).await;
        see(&bucket, &[(0, 0, 0)]);
        assert!(cached_denial(&session.env, &bucket, &second).is_some());
        let early = tokio::time::timeout(10 * MOMENT, ask(&second)).await;
        assert!(early.is_err(), "{early:?}");
    };
    let (_, ()) = tokio::join!(ask(&first), waits);
    assert_eq!(session.env.counters.read().local_denied, 0);
}

/// Otherwise the limiter would take an outage for contention.
#[tokio::test(start_paused = true)]
async fn a_stamp_that_hangs_is_named() {
    let ((session, _listener), bucket) = (hanging_session().await, bucket_of(8));
    let (request, now) = (request(&[("rpd", CAPACITY * 1000)]), Instant::now());
    let reply = acquire_from_table(&session, &bucket, &request, now, deadline(TIMEOUT)).await;
    let Err(Error::Timeout { last: Some(last), .. }) = reply else { panic!("{reply:?}") };
    assert!(last.to_string().contains("denial stamp"), "{last}");
}

/// Otherwise an operator would search for a hanging network where there was none.
#[tokio::test(start_paused = true)]
async fn a_request_that_hangs_is_named() {
    let ((session, _listener), bucket) = (hanging_session().await, bucket_of(1));
    let (request, now) = (request(&[("rpd", 1)]), Instant::now());
    let reply = acquire_from_table(&session, &bucket, &request, now, deadline(TIMEOUT)).await;
    let Err(Error::Timeout { after: TIMEOUT, last: Some(last), .. }) = reply else {
        panic!("{reply:?}")
    };
    assert!(last.to_string().contains("BatchGetItem of default/BUCKET#e-1#gpt-4#0"), "{last}");
}
