//! I3 under random deliveries: batches cut, doubled, discarded and replayed, while writes fail in
//! every way there is.

use crate::fixtures::aggregator::usage::assert_exact;
use crate::fixtures::aggregator::uses::{a_use, written};
use crate::fixtures::aggregator::{bucket, deliver, deliver_until_done};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::FileFailurePersistence;
use weirgate_testkit::{Dynamo, Fault};

/// One invocation: some of the stream, in order, which may fail and is not tried again.
#[derive(Debug, Clone)]
struct Batch {
    from: Index,
    size: usize,
    doubled: bool,
    faults: Vec<Option<Fault>>,
}

fn fault() -> impl Strategy<Value = Option<Fault>> {
    prop_oneof![
        4 => Just(None),
        6 => prop::sample::select(vec![
            Fault::LoseRequest,
            Fault::LoseAnswer,
            Fault::Repeat,
            Fault::Throttle { key_range: true },
            Fault::Conflict,
            Fault::ServerError,
            Fault::ServerErrorApplied,
            Fault::Forbidden,
        ])
        .prop_map(Some),
    ]
}

fn batch() -> impl Strategy<Value = Batch> {
    (
        any::<Index>(),
        1..15usize,
        any::<bool>(),
        prop_oneof![Just(vec![]), vec(fault(), 0..30)],
    )
        .prop_map(|(from, size, doubled, faults)| Batch {
            from,
            size,
            doubled,
            faults,
        })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn i3_usage_is_exact_however_the_stream_is_delivered(
        uses in vec(a_use(4, 30), 1..25),
        batches in vec(batch(), 0..12),
        size in 1..40usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
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
            }
            // Faults that no write has met yet must not outlive their batch.
            dynamo.forget_faults();
            for part in records.chunks(size) {
                deliver_until_done(&table, part).await;
            }
            assert_exact(&dynamo, &records);
        });
    }
}
