//! Waits of a router, and what it replies at its deadline.

use super::*;

#[tokio::test(start_paused = true)]
async fn pauses_are_counted_and_end_at_the_deadline() {
    let (session, bucket, request) = (session().await, bucket_of(1), request(&[("rpd", 1)]));
    let enqueued_at = Instant::now();
    let mut router = new_router(&session, &bucket, &request);
    router.pause().await;
    router.pause().await;
    assert_eq!(router.failures, 2);
    advance(TIMEOUT - enqueued_at.elapsed() - MOMENT).await;
    assert!(router.check_deadline().is_ok());
    advance(MOMENT).await;
    assert_eq!(enqueued_at.elapsed(), TIMEOUT);
    assert!(matches!(
        router.check_deadline(),
        Err(Error::Timeout {
            after: TIMEOUT,
            last: None,
            ..
        })
    ));
    advance(MOMENT).await;
    assert!(router.check_deadline().is_err());
}

/// No request of the session is answered while there is the listener, which accepts no connections.
async fn hanging_session() -> (Arc<Session>, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let clock = Arc::new(FakeClock::at(NOW));
    let connection = ConnectOptions {
        local_endpoint: Some(endpoint),
        clock,
        ..ConnectOptions::default()
    };
    let table = Table::new(connect(connection).await, "limits");
    (session_of(table).await, listener)
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
        assert!(cached_denial(&session, &bucket, &second).is_some());
        let early = tokio::time::timeout(10 * MOMENT, ask(&second)).await;
        assert!(early.is_err(), "{early:?}");
    };
    let (_, ()) = tokio::join!(ask(&first), waits);
    assert_eq!(session.env.counters.read().local_denied, 0);
}

/// Otherwise an operator would search for a hanging network where there was none.
#[tokio::test(start_paused = true)]
async fn a_request_that_hangs_is_named() {
    let ((session, _listener), bucket) = (hanging_session().await, bucket_of(1));
    let request = request(&[("rpd", 1)]);
    let reply = new_router(&session, &bucket, &request)
        .ask(&bucket.queues.queue(0), &request)
        .await;
    let Err(Error::Timeout {
        after: TIMEOUT,
        last: Some(last),
        ..
    }) = reply
    else {
        panic!("{reply:?}")
    };
    assert!(
        last.to_string()
            .contains("BatchGetItem of default/BUCKET#e-1#gpt-4#0"),
        "{last}"
    );
}
