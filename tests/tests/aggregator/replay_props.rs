//! I3 with a failure bucket: usage is exact whatever is discarded and replayed, in any order, cut,
//! twice, beside later batches, and while writes fail.

use crate::fixtures::aggregator::usage::assert_exact;
use crate::fixtures::aggregator::uses::{a_use, written};
use crate::fixtures::aggregator::{bucket, deliver, deliver_until_done};
use crate::fixtures::discarded::{run, wrapped};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::FileFailurePersistence;
use weirgate_aggregator::replay::Options;
use weirgate_testkit::{Dynamo, Fault};

/// What happens to a batch of the stream.
#[derive(Debug, Clone)]
struct Fate {
    size: usize,
    /// It lies in the failure bucket; else the aggregator handles it.
    discarded: bool,
    /// The aggregator handled its first half before it was discarded.
    half: bool,
}

/// A run of the command in the middle of it all, on some of the objects there are by then, which
/// may fail.
#[derive(Debug, Clone)]
struct Early {
    after: Index,
    objects: Vec<Index>,
    faults: Vec<Option<Fault>>,
}

fn fault() -> impl Strategy<Value = Option<Fault>> {
    let faults = vec![
        Fault::LoseRequest,
        Fault::LoseAnswer,
        Fault::Repeat,
        Fault::Throttle { key_range: true },
        Fault::ServerErrorApplied,
        Fault::Forbidden,
    ];
    prop_oneof![1 => Just(None), 1 => prop::sample::select(faults).prop_map(Some)]
}

fn fate() -> impl Strategy<Value = Fate> {
    (1..6usize, any::<bool>(), any::<bool>()).prop_map(|(size, discarded, half)| Fate {
        size,
        discarded,
        half,
    })
}

fn early() -> impl Strategy<Value = Early> {
    (
        any::<Index>(),
        vec(any::<Index>(), 1..4),
        vec(fault(), 0..20),
    )
        .prop_map(|(after, objects, faults)| Early {
            after,
            objects,
            faults,
        })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn i3_usage_is_exact_whatever_was_discarded_and_replayed(
        uses in vec(a_use(3, 30), 1..25),
        fates in vec(fate(), 1..12),
        earlies in vec(early(), 0..4),
        (beside, seed) in (any::<bool>(), any::<u64>()),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let dynamo = Dynamo::new().await;
            let shards = [("a", 0), ("a", 1), ("b", 0)].map(|(entity, shard)| bucket(entity, shard));
            let records = written(&dynamo, &shards, &uses).await;
            let table = dynamo.table().await;
            let (mut rest, mut objects, mut number) = (&records[..], vec![], 0);
            for fate in fates.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (batch, left) = rest.split_at(fate.size.min(rest.len()));
                if fate.discarded {
                    if fate.half {
                        deliver(&table, &batch[..batch.len() / 2]).await;
                    }
                    objects.push(wrapped(batch));
                } else {
                    deliver_until_done(&table, batch).await;
                }
                rest = left;
                for early in earlies.iter().filter(|early| early.after.index(fates.len()) == number) {
                    if !objects.is_empty() {
                        let some: Vec<_> = early.objects.iter().map(|at| at.get(&objects).as_str()).collect();
                        dynamo.fail_next(early.faults.clone());
                        run(&dynamo, &some.join("\n"), Options::default()).await;
                        // Faults that no write has met must not outlive the run.
                        dynamo.forget_faults();
                    }
                }
                number += 1;
            }
            fastrand::Rng::with_seed(seed).shuffle(&mut objects);
            // All of it in one run, or each object in a run of its own and in any order, or both at
            // the same time.
            let whole = objects.join("\n");
            if beside && !objects.is_empty() {
                let (one, other) = tokio::join!(run(&dynamo, &whole, Options::default()), run(&dynamo, &whole, Options::default()));
                prop_assert!(one.sum.is_complete() && other.sum.is_complete(), "{}{}", one.out, other.out);
            } else {
                for object in &objects {
                    let run = run(&dynamo, object, Options::default()).await;
                    prop_assert!(run.sum.is_complete(), "{}", run.out);
                }
            }
            assert_exact(&dynamo, &records);
            if !objects.is_empty() {
                let items = dynamo.items();
                let again = run(&dynamo, &whole, Options::default()).await;
                prop_assert!(again.sum.is_complete() && again.sum.copied == 0, "{}", again.out);
                prop_assert!(dynamo.items() == items, "a replay of what is there changes nothing");
            }
            Ok(())
        })?;
    }
}
