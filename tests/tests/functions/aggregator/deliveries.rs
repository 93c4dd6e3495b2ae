//! I3 under random deliveries: batches cut, doubled, delivered late, discarded and replayed in any
//! order and beside each other, while writes fail in every way there is.

use crate::fixtures::aggregator::usage::assert_exact;
use crate::fixtures::aggregator::{
    bucket, deliver, deliver_until_done, records, settle_in, take, take_in,
};
use crate::fixtures::discarded::{run, wrapped};
use crate::fixtures::fleet::{config, runtime};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;
use weirgate_shared::BucketKey;
use weirgate_testkit::{Dynamo, Fault};

type Faults = Vec<Option<Fault>>;

/// One write to one of some bucket shards, and how many hours after the former one.
#[derive(Debug, Clone)]
struct Use {
    shard: usize,
    tokens: i64,
    is_take: bool,
    hours: i64,
}

/// A use of one of so many shards, up to so many hours after the former one.
fn a_use(shards: usize, hours: i64) -> impl Strategy<Value = Use> {
    let hours = prop_oneof![3 => Just(0), 1 => 1..=hours];
    (0..shards, -3_000..9_000i64, prop::bool::weighted(0.8), hours).prop_map(
        |(shard, tokens, is_take, hours)| Use {
            shard,
            tokens: if is_take { tokens.abs() } else { tokens },
            is_take,
            hours,
        },
    )
}

/// The records of making the `shards` and of their `uses`.
async fn written(dynamo: &Dynamo, shards: &[BucketKey], uses: &[Use]) -> Vec<Value> {
    let table = dynamo.table().await;
    let mut hours = 0;
    for shard in shards {
        take(&table, shard, 1).await;
    }
    for used in uses {
        hours += used.hours;
        let shard = &shards[used.shard];
        if used.is_take {
            take_in(&table, shard, used.tokens, hours).await;
        } else {
            settle_in(&table, shard, used.tokens, hours).await;
        }
    }
    records(dynamo)
}

/// An invocation with some of the stream, in order, which may fail and is not tried again.
#[derive(Debug, Clone)]
struct Batch {
    from: Index,
    size: usize,
    doubled: bool,
    faults: Faults,
}

/// What happens to the next batch of the stream.
#[derive(Debug, Clone)]
struct Fate {
    size: usize,
    /// It lies in the failure bucket; else the aggregator handles it.
    discarded: bool,
    /// The aggregator handled its first half before it was discarded.
    half: bool,
}

/// A replay of some of the objects that there are after so many batches. It may fail.
#[derive(Debug, Clone)]
struct Early {
    after: Index,
    objects: Vec<Index>,
    faults: Faults,
}

fn faults() -> impl Strategy<Value = Faults> {
    let fault = prop::sample::select(vec![
        Fault::LoseRequest,
        Fault::LoseAnswer,
        Fault::Repeat,
        Fault::Throttle { key_range: true },
        Fault::Conflict,
        Fault::ServerError,
        Fault::ServerErrorApplied,
        Fault::Forbidden,
    ]);
    vec(prop::option::weighted(0.6, fault), 0..30)
}

fn batch() -> impl Strategy<Value = Batch> {
    (any::<Index>(), 1..15usize, any::<bool>(), faults())
        .prop_map(|(from, size, doubled, faults)| Batch { from, size, doubled, faults })
}

fn fate() -> impl Strategy<Value = Fate> {
    (1..6usize, any::<bool>(), any::<bool>()).prop_map(|(size, discarded, half)| Fate {
        size,
        discarded,
        half,
    })
}

fn early() -> impl Strategy<Value = Early> {
    (any::<Index>(), vec(any::<Index>(), 1..4), faults())
        .prop_map(|(after, objects, faults)| Early { after, objects, faults })
}

proptest! {
    #![proptest_config(config(48))]

    #[test]
    fn i3_usage_is_exact_whatever_is_delivered_discarded_and_replayed(
        uses in vec(a_use(4, 30), 1..25),
        batches in vec(batch(), 0..8),
        fates in vec(fate(), 1..12),
        earlies in vec(early(), 0..4),
        (beside, seed) in (any::<bool>(), any::<u64>()),
    ) {
        runtime().block_on(async {
            let dynamo = Dynamo::new().await;
            let shards = [("a", 0), ("a", 1), ("b", 0), ("c", 0)].map(|(entity, shard)| bucket(entity, shard));
            let records = written(&dynamo, &shards, &uses).await;
            let table = dynamo.table().await;
            for batch in &batches {
                let from = batch.from.index(records.len());
                let part = &records[from..records.len().min(from + batch.size)];
                dynamo.fail_next(batch.faults.clone());
                deliver(&table, part).await;
                if batch.doubled {
                    deliver(&table, part).await;
                }
                // Faults that no write has met must not outlive their batch.
                dynamo.forget_faults();
            }
            let (mut rest, mut objects) = (&records[..], vec![]);
            for (number, fate) in fates.iter().cycle().enumerate() {
                if rest.is_empty() {
                    break;
                }
                let (batch, left) = rest.split_at(fate.size.min(rest.len()));
                if !fate.discarded {
                    deliver_until_done(&table, batch).await;
                } else {
                    if fate.half {
                        deliver(&table, &batch[..batch.len() / 2]).await;
                    }
                    objects.push(wrapped(batch));
                }
                rest = left;
                let is_now = |early: &&Early| early.after.index(fates.len()) == number;
                for early in earlies.iter().filter(is_now).filter(|_| !objects.is_empty()) {
                    let some: Vec<_> = early.objects.iter().map(|at| at.get(&objects).as_str()).collect();
                    dynamo.fail_next(early.faults.clone());
                    run(&dynamo, &some.join("\n")).await;
                    dynamo.forget_faults();
                }
            }
            if objects.is_empty() {
                assert_exact(&dynamo, &records);
                return Ok(());
            }
            fastrand::Rng::with_seed(seed).shuffle(&mut objects);
            // All of it in two runs at the same time, or each object in a run of its own.
            let whole = objects.join("\n");
            if beside {
                let (one, other) = tokio::join!(run(&dynamo, &whole), run(&dynamo, &whole));
                prop_assert!(one.sum.is_complete() && other.sum.is_complete(), "{}{}", one.out, other.out);
            } else {
                for object in &objects {
                    let run = run(&dynamo, object).await;
                    prop_assert!(run.sum.is_complete(), "{}", run.out);
                }
            }
            assert_exact(&dynamo, &records);
            let items = dynamo.items();
            let again = run(&dynamo, &whole).await;
            prop_assert!(again.sum.is_complete() && again.sum.copied == 0, "{}", again.out);
            prop_assert!(dynamo.items() == items, "a replay of what is there changes nothing");
            Ok(())
        })?;
    }
}
