//! Routing and cached decisions, without a table: every request that is sent fails.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::advance;
use weirgate_shared::{Asks, BucketKey, Effect, EpochMillis, LimitName, MilliTokens, Shard};
use weirgate_store::{ConnectOptions, Consistency, Table, connect, connect_with};

use super::super::cached_denial::cached_denial;
use super::super::state::BucketState;
use super::{Router, acquire_from_table, *};
use crate::api::RateLimiter;
use crate::session::{AgeClock, FakeClock, Session, after, deadline};
use crate::values::SLOT_DENIAL_TTL;
use crate::values::{BucketRequest, Error, Limits, Outcome};

const NOW: EpochMillis = EpochMillis(1_000_000);
/// Capacity of both limits.
const CAPACITY: i64 = 80;
const TIMEOUT: Duration = Duration::from_millis(600);
/// The shortest time step.
const MOMENT: Duration = Duration::from_millis(1);

async fn session_of(table: Table) -> Arc<Session> {
    RateLimiter::builder("limits")
        .table(table)
        .build()
        .await
        .unwrap()
        .session
}

/// Every request it sends fails, for lack of credentials.
async fn session() -> Arc<Session> {
    let connection = ConnectOptions {
        clock: Arc::new(FakeClock::at(NOW)),
        ..ConnectOptions::default()
    };
    session_of(Table::new(connect_with(connection, |_| None), "limits")).await
}

fn limits() -> Limits {
    let rate = Limit::custom("rpd", CAPACITY, 1, 86_400_000).unwrap();
    Limits::new(
        [rate, Limit::concurrent("slots", CAPACITY).unwrap()].into(),
        None,
    )
}

/// The router of a request that begins now.
fn new_router<'a>(
    session: &'a Arc<Session>,
    bucket: &'a Arc<BucketState>,
    request: &'a BucketRequest,
) -> Router<'a> {
    let now = Instant::now();
    Router::new(session, bucket, request, now, after(now, TIMEOUT))
}

/// A request with these amounts, in millitokens.
fn request(needs: &[(&str, i64)]) -> BucketRequest {
    let needs = needs
        .iter()
        .map(|(name, need)| (LimitName::new(*name).unwrap(), MilliTokens(*need)));
    BucketRequest {
        asks: Asks::of(Effect::Enforce, needs),
        limits: limits(),
        lease: None,
        timeout: TIMEOUT,
        acquires: 1,
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
        let mut shard = Shard {
            shard_count: bucket.summary().max_shards_seen(),
            ..full
        };
        for (state, left) in shard.limits.values_mut().zip([rate, slots]) {
            state.available = MilliTokens(left);
        }
        bucket.shard(index).record_view(shard);
    }
}

fn index(queue: Option<Arc<ShardQueue>>) -> Option<u32> {
    queue.map(|queue| queue.index())
}

/// One shard can have its share and no more. A bucket of one shard is not decided over all shards
/// for that.
#[tokio::test]
async fn only_a_request_above_the_largest_share_needs_several_shards() {
    let session = session().await;
    let is_above = |count, needs: &[_]| {
        let (bucket, request) = (bucket_of(count), request(needs));
        new_router(&session, &bucket, &request).exceeds_one_shard()
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
    let (session, bucket) = (session().await, bucket_of(4));
    see(
        &bucket,
        &[(0, 5_000, 9_000), (1, 9_000, 9_000), (2, 7_000, 3_000)],
    );
    let better = |tried: &[u32], needs: &[_]| {
        let request = request(needs);
        let router = new_router(&session, &bucket, &request);
        index(
            Router {
                tried: tried.to_vec(),
                ..router
            }
            .next_candidate(),
        )
    };
    assert_eq!(better(&[], &[("rpd", 2_000)]), Some(1));
    assert_eq!(
        better(&[1], &[("rpd", 2_000)]),
        Some(2),
        "not one that had too little"
    );
    assert_eq!(
        better(&[1], &[("rpd", 2_000), ("slots", 2_000)]),
        Some(0),
        "2 has least room where it is short"
    );
    assert_eq!(better(&[2], &[("rpd", 9_000)]), Some(1), "just enough");
    assert_eq!(better(&[2], &[("rpd", 9_001)]), None);
    assert_eq!(better(&[1, 2], &[("rpd", 2_000)]), Some(0));
    assert_eq!(
        better(&[1, 2, 3], &[("rpd", 2_000)]),
        None,
        "after three all are read"
    );
}

#[tokio::test(start_paused = true)]
async fn a_known_shard_replaces_a_missing_one() {
    let (session, bucket, request) = (session().await, bucket_of(4), request(&[("rpd", 1)]));
    let router = new_router(&session, &bucket, &request);
    let after = |missing| index(router.replacement_for(&bucket.queues.queue(missing)));
    assert!(
        after(3).is_some(),
        "the first may exist, although no view shows it"
    );
    assert_eq!(after(0), None, "perhaps nothing is left");
    see(&bucket, &[(2, 0, 0)]);
    assert_eq!(after(0), Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_denial_is_cached_for_its_time_and_one_for_slots_for_less() {
    let (session, bucket) = (session().await, bucket_of(1));
    see(&bucket, &[(0, 1_000, 1_000)]);
    let [enough, rate, slots] =
        [("rpd", 1_000), ("rpd", 2_000), ("slots", 1_001)].map(|need| request(&[need]));
    let denies = |request| cached_denial(&session, &bucket, request).is_some();
    let memory = session.settings.denial_cache_ttl;
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
    let (session, bucket, request) = (session().await, bucket_of(2), request(&[("rpd", 1_000)]));
    let denies = || cached_denial(&session, &bucket, &request).is_some();
    see(&bucket, &[(0, 0, 0), (1, 0, 0)]);
    assert!(!denies(), "no denial by all shards");
    bucket.record_denial();
    assert!(denies());
    bucket.shard(1).clear_view();
    assert!(!denies(), "not by those that are known");
    advance(session.settings.denial_cache_ttl).await;
    see(&bucket, &[(0, 0, 0), (1, 0, 0)]);
    assert!(!denies(), "it was denied too long ago");
}

#[tokio::test(start_paused = true)]
async fn a_cached_denial_of_several_shards_is_returned_at_once() {
    let (session, bucket, request) = (session().await, bucket_of(2), request(&[("rpd", 1_000)]));
    see(&bucket, &[(0, 0, 0), (1, 0, 0)]);
    bucket.record_denial();
    let reply = acquire_from_table(
        &session,
        &bucket,
        &request,
        Instant::now(),
        deadline(TIMEOUT),
    )
    .await
    .unwrap();
    assert!(matches!(reply, Outcome::Denied(_)));
    assert_eq!(session.env.counters.read().local_denied, 1);
}

/// A denial must not rest on a view from before the request; a later view need not be read again.
#[tokio::test(start_paused = true)]
async fn all_shards_are_read_unless_that_was_done_since_the_request() {
    let (session, bucket, request) = (session().await, bucket_of(2), request(&[("rpd", 1_001)]));
    see(&bucket, &[(0, 0, 0), (1, 1_000, 0)]);
    let mut router = new_router(&session, &bucket, &request);
    assert!(matches!(
        router.decide_over_all_shards().await,
        Ok(Outcome::Denied(_))
    ));
    assert!(bucket.denied().is_some());
    see(&bucket, &[(1, 1_001, 0)]);
    let Ok(Outcome::Elsewhere(NextStep::Try(queue))) = router.decide_over_all_shards().await else {
        panic!("the second shard has enough")
    };
    assert_eq!(queue.index(), 1);
    assert_eq!(session.env.counters.read().reads, 0);
    advance(MOMENT).await;
    let mut later = new_router(&session, &bucket, &request);
    assert!(later.decide_over_all_shards().await.is_err());
    assert_eq!(session.env.counters.read().reads, 1);
}

/// One read of all shards serves every request, except one that has since found the views wrong.
#[tokio::test(start_paused = true)]
async fn a_read_of_all_shards_serves_all_requests_until_the_views_are_wrong() {
    let (session, bucket, request) = (session().await, bucket_of(2), request(&[("rpd", 1_000)]));
    let enqueued_at = Instant::now();
    *bucket.refreshed_at.lock().await =
        Some((bucket.summary().ages.of(enqueued_at), Consistency::Strong));
    see(&bucket, &[(0, 0, 0), (1, 1_000, 0)]);
    let mut router = new_router(&session, &bucket, &request);
    router.must_refresh = true;
    let Ok(Outcome::Elsewhere(NextStep::Try(queue))) = router.decide_over_all_shards().await else {
        panic!("the second shard has enough")
    };
    assert_eq!((queue.index(), session.env.counters.read().reads), (1, 0));
    router.must_refresh = true;
    router.pause().await;
    assert!(router.decide_over_all_shards().await.is_err());
    assert_eq!(session.env.counters.read().reads, 1);
}

mod deadlines;
