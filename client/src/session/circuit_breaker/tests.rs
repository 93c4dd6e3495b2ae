use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use tokio::time::advance;
use weirgate_shared::EpochMillis;
use weirgate_store::CorrectedClock;

use super::*;
use crate::session::FakeClock;

const BUCKETS: u8 = 5;
const THRESHOLD: u32 = 4;

#[derive(Debug, Clone, Copy)]
enum Event {
    /// A throttled write of a shard of a bucket.
    Throttled {
        bucket: u8,
        shard: u8,
    },
    /// An accepted write.
    Accepted,
    /// A read with a response.
    Read,
    /// A throttled index, or a transaction in which one of the items is throttled.
    OtherThrottle,
    Pass {
        ms: u64,
    },
}

fn event(buckets: u8) -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => (0..buckets, 0_u8..4).prop_map(|(bucket, shard)| Event::Throttled { bucket, shard }),
        1 => Just(Event::Accepted),
        1 => Just(Event::Read),
        1 => Just(Event::OtherThrottle),
        2 => (0_u64..6_000).prop_map(|ms| Event::Pass { ms }),
    ]
}

fn events(buckets: u8) -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec(event(buckets), 0..60)
}

fn failed(kind: ErrorKind) -> StoreError {
    StoreError {
        kind,
        request: String::new(),
        table: String::new(),
        reason: String::new(),
        source: None,
    }
}

/// Runs a test on a clock that only its events move.
fn run<T>(test: impl AsyncFnOnce(CircuitBreaker) -> T) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let wall = FakeClock::at(EpochMillis(1_795_197_600_000));
        let settings = CircuitBreakerConfig {
            failure_threshold: THRESHOLD,
            ..CircuitBreakerConfig::default()
        };
        let ages = AgeClock::new(CorrectedClock::of(Arc::new(wall)));
        test(CircuitBreaker::new(settings, ages)).await
    })
}

/// Returns whether the breaker opened.
async fn happens(breaker: &CircuitBreaker, event: Event) -> bool {
    let key_range = failed(ErrorKind::Throttled { key_range: true });
    match event {
        Event::Throttled { bucket, shard } => {
            let pk = format!("default/BUCKET#e-{bucket}#gpt-4#{shard}");
            breaker.record(Sent::Write(&pk), Some(&key_range))
        }
        Event::Accepted => breaker.record(Sent::Write("default/BUCKET#e-0#gpt-4#0"), None),
        Event::Read => breaker.record(Sent::Read, None),
        Event::OtherThrottle => {
            let index = failed(ErrorKind::IndexThrottled);
            let of_index = breaker.record(Sent::Write("default/BUCKET#e-0#gpt-4#0"), Some(&index));
            breaker.record(Sent::Transaction, Some(&key_range)) || of_index
        }
        Event::Pass { ms } => {
            advance(Duration::from_millis(ms)).await;
            false
        }
    }
}

proptest! {
    #[test]
    fn no_two_hot_buckets_open_it(events in events(2)) {
        run(async |breaker| {
            for event in &events {
                assert!(!happens(&breaker, *event).await, "{events:?}");
                assert!(breaker.is_closed() && !breaker.is_saturated(), "{events:?}");
            }
        });
    }

    /// Reads, throttled indexes and transactions show nothing.
    #[test]
    fn throttles_of_most_writes_and_of_three_buckets_are_failures(events in events(BUCKETS)) {
        run(async |breaker| {
            let (mut writes, mut in_a_row, mut now) = (vec![], 0, 0);
            for event in &events {
                match *event {
                    Event::Throttled { bucket, .. } => {
                        in_a_row += 1;
                        writes.push((now, bucket, true));
                    }
                    Event::Accepted => {
                        in_a_row = 0;
                        writes.push((now, 0, false));
                    }
                    Event::Pass { ms } => now += ms,
                    Event::Read | Event::OtherThrottle => {}
                }
                writes.retain(|(at, ..)| now - at < 10_000);
                // What was accepted before anything was throttled is not remembered.
                let first = writes.iter().position(|(.., is_throttled)| *is_throttled);
                let known = first.map_or(&[][..], |first| &writes[first..]);
                let throttled = known.iter().filter(|(.., is_throttled)| *is_throttled);
                let buckets: BTreeSet<_> = throttled.clone().map(|(_, bucket, _)| bucket).collect();
                let all: BTreeSet<_> = known.iter().map(|(_, bucket, _)| bucket).collect();
                let is_saturated = buckets.len() >= 3
                    && buckets.len() * 2 >= all.len()
                    && throttled.count() * 2 >= known.len();
                let opened = happens(&breaker, *event).await;
                let is_open = !breaker.is_closed();
                prop_assert_eq!(breaker.is_saturated(), is_saturated || is_open, "{:?}", event);
                let is_failure = matches!(event, Event::Throttled { .. }) && is_saturated;
                prop_assert_eq!(opened, is_failure && in_a_row >= THRESHOLD, "{:?}", event);
                if opened {
                    break;
                }
            }
            Ok(())
        })?;
    }

    /// What comes after its pause is one hot bucket: two probes, and everything passes again.
    #[test]
    fn one_hot_bucket_does_not_keep_it_open(bucket in 0..BUCKETS, shards in [0_u8..4, 0..4]) {
        run(async |breaker| {
            for throttled in 0..BUCKETS {
                happens(&breaker, Event::Throttled { bucket: throttled, shard: 0 }).await;
            }
            assert!(breaker.is_saturated() && breaker.admit().is_err());
            for shard in shards {
                advance(Duration::from_secs(4)).await;
                let probe = breaker.admit().expect("a probe passes");
                happens(&breaker, Event::Read).await;
                assert!(breaker.admit().is_err(), "a read shows nothing about writes");
                happens(&breaker, Event::Throttled { bucket, shard }).await;
                drop(probe);
            }
            assert!(breaker.is_closed() && !breaker.is_saturated());
        });
    }
}

#[test]
fn a_saturated_table_is_probed_until_a_write_is_accepted() {
    run(async |breaker| {
        for bucket in 0..BUCKETS {
            happens(&breaker, Event::Throttled { bucket, shard: 0 }).await;
        }
        for (probe, pause) in [1, 2, 4, 8, 16, 30, 30].into_iter().enumerate() {
            let open = breaker.admit().expect_err("its pause is not over");
            let Error::Unavailable { retry_after, .. } = open else { panic!("{open}") };
            assert_eq!(retry_after, Duration::from_secs(pause));
            advance(Duration::from_secs(pause)).await;
            let _probe = breaker.admit().expect("one probe");
            let bucket = u8::try_from(probe % 2).unwrap();
            assert!(happens(&breaker, Event::Throttled { bucket, shard: 0 }).await);
        }
        advance(Duration::from_secs(30)).await;
        let _probe = breaker.admit().expect("one probe");
        happens(&breaker, Event::Accepted).await;
        assert!(breaker.is_closed() && !breaker.is_saturated());
    });
}

/// A full server is read and not written.
#[test]
fn refused_writes_are_failures_in_a_row_until_one_is_accepted_whatever_is_read() {
    let pk = "default/BUCKET#e-0#gpt-4#0";
    for (kind, reads_count) in [(ErrorKind::Unavailable, false), (ErrorKind::Unreachable, true)] {
        run(async |breaker| {
            let refused = failed(kind);
            let fails = |sent| breaker.record(sent, Some(&refused));
            let mut opened = false;
            for _ in 0..THRESHOLD {
                happens(&breaker, Event::Read).await;
                opened |= fails(Sent::Write(pk)) || fails(Sent::Transaction);
            }
            assert_eq!(opened, !reads_count, "{kind:?}");
            while !opened {
                opened = fails(Sent::Write(pk));
            }
            for pause in [1, 2, 4] {
                advance(Duration::from_secs(pause)).await;
                let probe = breaker.admit().expect("a probe passes");
                happens(&breaker, Event::Read).await;
                assert_eq!(breaker.is_closed(), reads_count, "{kind:?}");
                if reads_count {
                    return;
                }
                assert!(fails(Sent::Write(pk)), "its pause is longer");
                drop(probe);
            }
            advance(Duration::from_secs(8)).await;
            let _probe = breaker.admit().expect("a probe passes");
            happens(&breaker, Event::Accepted).await;
            assert!(breaker.is_closed());
        });
    }
}

/// A hanging probe has a recorded outcome long before it ends.
#[test]
fn a_probe_that_ends_late_lets_no_request_through_beside_the_next_one() {
    run(async |breaker| {
        let unanswered = failed(ErrorKind::Unconfirmed);
        let fails = || breaker.record(Sent::Read, Some(&unanswered));
        while !fails() {}
        advance(Duration::from_secs(1)).await;
        let late = breaker.admit().expect("a probe passes");
        assert!(fails(), "it hangs");
        advance(Duration::from_secs(2)).await;
        let next = breaker.admit().expect("the next probe passes");
        drop(late);
        assert!(breaker.admit().is_err(), "one probe is under way");
        drop(next);
        let _probe = breaker.admit().expect("the last one ended without an outcome");
    });
}
