//! Takes, releases and runs of the reconciler in any order, with answers lost: every lease ends
//! once (I4).

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;
use weirgate_reconciler::{Config, Deadline, Summary, reconcile};
use weirgate_shared::write::{AttributeUpdate, Path};
use weirgate_shared::{EpochMillis, Millis};
use weirgate_store::{ReturnValues, Table, WriteOutcome};
use weirgate_testkit::leased::{NOW, assert_sound, end, full, id, key, limits, load, store, take};
use weirgate_testkit::{Dynamo, Fault};

const STEP: Duration = Duration::from_millis(10);

async fn run(table: &Table, now: EpochMillis) -> Summary {
    let config = Config {
        table_name: "weirgate".to_owned(),
        page: 100,
    };
    reconcile(
        table,
        &config,
        &|| now,
        Deadline::after(Duration::from_secs(50)),
    )
    .await
    .expect("DynamoDB works")
}

/// A write of the reconciler: the only kind that does not sign itself.
fn is_reconcilers(write: &Value) -> bool {
    !write["ExpressionAttributeNames"]
        .to_string()
        .contains("\"op\"")
}

#[derive(Debug, Clone)]
enum Step {
    Take { ttl: Millis, rate: i64, slots: i64 },
    Release { lease: usize },
    RollBack { lease: usize },
    Reconcile,
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let ttl = prop_oneof![3 => (1..60_i64).prop_map(Millis), 1 => Just(Millis(60_000))];
    let step = prop_oneof![
        4 => (ttl, 1..4_i64, 1..3_i64).prop_map(|(ttl, rate, slots)| Step::Take { ttl, rate, slots }),
        2 => (0..8_usize).prop_map(|lease| Step::Release { lease }),
        1 => (0..8_usize).prop_map(|lease| Step::RollBack { lease }),
        2 => Just(Step::Reconcile),
    ];
    proptest::collection::vec((0..20_u64, step), 1..24)
}

fn faults() -> impl Strategy<Value = Vec<Option<Fault>>> {
    let fault = prop_oneof![
        4 => Just(None),
        1 => Just(Some(Fault::LoseRequest)),
        2 => Just(Some(Fault::LoseAnswer)),
        1 => Just(Some(Fault::ServerErrorApplied)),
        1 => Just(Some(Fault::Conflict)),
        1 => Just(Some(Fault::Throttle { key_range: true })),
    ];
    proptest::collection::vec(fault, 0..12)
}

/// How leases began and ended, as their processes have recorded it.
#[derive(Debug, Default)]
struct Ends {
    taken: u64,
    settled: u64,
    reclaimed: u64,
    restored: u64,
}

/// The clock of all processes: [`NOW`] and on, with the runtime's time.
#[derive(Clone, Copy)]
struct Clock(Instant);

impl Clock {
    fn now(self) -> EpochMillis {
        NOW.plus(self.0.elapsed().into())
    }
}

/// One caller or run of the plan. `leases` are the amounts of each take, by its place in the plan.
async fn act(
    table: &Table,
    clock: Clock,
    alone: &Mutex<()>,
    at: usize,
    step: &Step,
    leases: &[(i64, i64)],
) -> Ends {
    let (bucket, mut ends) = (full("e-1", &limits()), Ends::default());
    let lease = |at: usize| id(&format!("l{at}"));
    match *step {
        Step::Take { ttl, rate, slots } => {
            let mut seen = load(table, &bucket.key).await.unwrap();
            for _ in 0..3 {
                let now = clock.now();
                let update = take(&bucket, &lease(at), now.plus(ttl), rate, slots, &seen, now);
                match table.update(&update, ReturnValues::None).await.unwrap() {
                    WriteOutcome::Applied(_) => {
                        let is_lease = |path: &Path| path.0.len() == 2 && path.0[0] == "h";
                        let gone = |change: &&AttributeUpdate| matches!(change, AttributeUpdate::Remove(path) if is_lease(path));
                        ends.reclaimed +=
                            u64::try_from(update.changes.iter().filter(gone).count()).unwrap();
                        ends.taken += 1;
                        break;
                    }
                    WriteOutcome::ConditionFailed(item) => {
                        seen = item.unwrap().bucket().unwrap();
                    }
                }
            }
        }
        Step::Release { lease: of } | Step::RollBack { lease: of } => {
            let Some(&(rate, slots)) = leases.get(of) else {
                return ends;
            };
            let rate = matches!(step, Step::RollBack { .. }).then_some(rate);
            let done = table
                .update(&end(&bucket, &lease(of), rate, slots), ReturnValues::None)
                .await
                .unwrap();
            ends.settled += u64::from(matches!(done, WriteOutcome::Applied(_)));
        }
        Step::Reconcile => {
            let _alone = alone.lock().await;
            ends.restored += run(table, clock.now()).await.leases_restored;
        }
    }
    ends
}

async fn play(plan: Vec<(u64, Step)>, faults: Vec<Option<Fault>>) {
    // The pauses between tries are part of the plan.
    fastrand::seed(7);
    let dynamo = Dynamo::new().await;
    let table = dynamo.clone().with_latency(STEP).table().await;
    store(&table, &full("e-1", &limits())).await;
    let mut faults = faults.into_iter();
    dynamo.fail_when(move |write| {
        if is_reconcilers(write) {
            faults.next().flatten()
        } else {
            None
        }
    });
    let leases: Vec<_> = plan
        .iter()
        .map(|(_, step)| {
            if let Step::Take { rate, slots, .. } = step {
                (*rate, *slots)
            } else {
                (0, 0)
            }
        })
        .collect();
    // One run at a time, as deployed: after a lost answer, two could take the same write for
    // theirs.
    let alone = Arc::new(Mutex::new(()));
    let clock = Clock(Instant::now());
    let mut acts = tokio::task::JoinSet::new();
    for (at, (start, step)) in plan.into_iter().enumerate() {
        let (table, alone, leases) = (table.clone(), alone.clone(), leases.clone());
        acts.spawn(async move {
            tokio::time::sleep(STEP * u32::try_from(start).unwrap() / 2).await;
            act(&table, clock, &alone, at, &step, &leases).await
        });
    }
    let mut ends = Ends::default();
    while let Some(one) = acts.join_next().await {
        let one = one.unwrap();
        ends.taken += one.taken;
        ends.settled += one.settled;
        ends.reclaimed += one.reclaimed;
        ends.restored += one.restored;
        assert_sound(&load(&table, &key("e-1")).await.unwrap());
    }
    dynamo.fail_when(|_| None);
    let now = clock.now();
    ends.restored += run(&table, now).await.leases_restored;
    let after = load(&table, &key("e-1")).await.unwrap();
    assert_sound(&after);
    let alive = after.leases.as_ref().unwrap();
    assert!(
        alive.values().all(|lease| lease.expires_at > now),
        "{after:?}"
    );
    assert!(after.due_at.is_none_or(|due| due > now), "{after:?}");
    let ended = ends.settled + ends.reclaimed + ends.restored + u64::try_from(alive.len()).unwrap();
    assert_eq!(
        ends.taken, ended,
        "every lease ended once, or is alive: {ends:?}"
    );
    let _ = dynamo.take_operations();
    run(&table, now).await;
    assert_eq!(
        dynamo.take_operations().get("UpdateItem"),
        None,
        "a second run changes nothing"
    );
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default() })]
    #[test]
    fn i4_every_lease_ends_once_however_takes_releases_and_runs_interleave(plan in steps(), faults in faults()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(play(plan, faults));
    }
}
