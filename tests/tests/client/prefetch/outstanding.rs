//! The gauge of outstanding tokens: it follows every fetch, spend, return and forfeit, and agrees
//! with what the table counts.

use proptest::prelude::*;
use weirgate::{Decision, Error, Grant, Limit, Prefetch, RateLimiter, Settlement};
use weirgate_testkit::Fault;
use weirgate_tests::fleet;
use weirgate_tests::fleet::{Fleet, ask, config, millis, pass, runtime, secs, tpm};
use weirgate_tests::recorder::Recorded;

const GAUGE: &str = "weirgate_prefetch_outstanding_millitokens";
const FORFEITED: &str = "weirgate_prefetch_forfeited_millitokens_total{}";
const LIMITS: [&str; 2] = ["rpm", "tpm"];

/// A limit that is at its edge at times, and one that never is.
fn limits() -> [Limit; 2] {
    [Limit::custom("rpm", 400, 50, 1_000).unwrap(), tpm(600_000)]
}

async fn limiter(fleet: &Fleet, by_resource: bool) -> RateLimiter {
    let builder = fleet.builder().await.timeout(secs(2));
    builder
        .prefetch("gpt-4", Prefetch::default().max_outstanding_percent(20))
        .metrics_by_resource(by_resource)
        .build()
        .await
        .unwrap()
}

/// The gauge of all limits, in millitokens, which are whole.
fn gauge(recorded: &Recorded, by_resource: bool) -> i64 {
    let series = if by_resource {
        LIMITS.map(|limit| format!("{GAUGE}{{resource=gpt-4,limit={limit}}}"))
    } else {
        [format!("{GAUGE}{{}}"), "none".to_owned()]
    };
    let sum: f64 = series.iter().map(|name| recorded.gauge(name)).sum();
    sum.to_string().parse().unwrap()
}

fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap()
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// How many tokens of each limit, how often.
    Take([i64; 2], u32),
    Rollback(usize),
    Adjust(usize, i64),
    Pass(u64),
    Shutdown,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (prop_oneof![Just(1_i64), 1..12_i64], 1..400_i64, 1..40_u32)
            .prop_map(|(rpm, tpm, times)| Step::Take([rpm, tpm], times)),
        2 => any::<usize>().prop_map(Step::Rollback),
        2 => (any::<usize>(), 0..20_i64).prop_map(|(which, tokens)| Step::Adjust(which, tokens)),
        4 => prop_oneof![0..300_u64, 0..5_000_u64].prop_map(Step::Pass),
        1 => Just(Step::Shutdown),
    ]
}

fn fault() -> impl Strategy<Value = Option<Fault>> {
    let fault = prop::sample::select(vec![
        Fault::LoseRequest,
        Fault::LoseAnswer,
        Fault::Throttle { key_range: true },
        Fault::Conflict,
        Fault::ServerErrorApplied,
    ]);
    prop_oneof![3 => Just(None), 1 => fault.prop_map(Some)]
}

struct World<'a> {
    fleet: &'a Fleet,
    limiter: RateLimiter,
    grants: Vec<Grant>,
    /// Millitokens in the hands of callers, or spent by them; the most it can be.
    used: i64,
}

impl World<'_> {
    fn change(&mut self, more: i64, answer: &Result<Settlement, Error>) {
        match answer {
            Ok(Settlement::Applied) => self.used += more,
            Err(error) if error.is_unknown() => self.used += more.max(0),
            _ => {}
        }
    }

    async fn step(&mut self, step: Step, is_calm: bool, by_resource: bool) {
        match step {
            Step::Pass(span) => pass(millis(span)).await,
            Step::Take([rpm, tpm], times) => {
                for _ in 0..times {
                    let takes = [("rpm", rpm), ("tpm", tpm)];
                    let request = ask(&self.limiter, &limits(), &takes);
                    if let Ok(Decision::Granted(grant)) = request.send().await {
                        self.used += (rpm + tpm) * 1000;
                        self.grants.push(grant);
                    }
                }
            }
            Step::Rollback(which) if !self.grants.is_empty() => {
                let grant = self.grants.swap_remove(which % self.grants.len());
                let held = LIMITS.map(|limit| grant.amount(limit).0).iter().sum::<i64>();
                let answer = grant.roll_back().await;
                self.change(-held, &answer);
            }
            Step::Adjust(which, tokens) if !self.grants.is_empty() => {
                let which = which % self.grants.len();
                let more = tokens * 1000 - self.grants[which].amount("rpm").0;
                let answer = self.grants[which].adjust("rpm", tokens).await;
                self.change(more, &answer);
            }
            Step::Rollback(_) | Step::Adjust(..) => {}
            Step::Shutdown if is_calm => {
                self.limiter.shutdown().await.unwrap();
                let left = self.limiter.stats().prefetch_outstanding_millitokens;
                assert_eq!(left, 0, "all is returned");
                self.grants.clear();
                self.limiter = limiter(self.fleet, by_resource).await;
            }
            Step::Shutdown => {}
        }
    }

    /// What the table says was taken, less what callers have, and what was given up.
    async fn unaccounted(&self) -> i64 {
        if self.fleet.dynamo.item(fleet::PK, "#STATE").is_null() {
            return 0;
        }
        let bucket = self.fleet.bucket().await;
        let consumed: i64 =
            LIMITS.iter().map(|limit| bucket.limits[*limit].consumed.bounded().0).sum();
        let stats = self.limiter.stats();
        consumed - self.used - number(stats.prefetch_forfeited_millitokens)
    }

    /// Checks the outstanding tokens against the table. Nothing but time ends a write in flight of
    /// a slow table.
    async fn check(&self, is_calm: bool, is_slow: bool) {
        let outstanding = || number(self.limiter.stats().prefetch_outstanding_millitokens);
        if is_calm && !is_slow {
            // A write of the background ends as soon as its task runs.
            for _ in 0..10_000 {
                if self.unaccounted().await == outstanding() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            assert_eq!(
                outstanding(),
                self.unaccounted().await,
                "outstanding = fetched - spent - returned - forfeited"
            );
        }
        // What is in flight is outstanding, and may not have reached the table.
        let doubt = number(self.limiter.stats().unconfirmed_millitokens);
        let known = self.unaccounted().await - doubt;
        assert!(outstanding() >= known, "{} outstanding, {known} are", outstanding());
    }
}

proptest! {
    #![proptest_config(config(96))]

    #[test]
    fn outstanding_tokens_are_those_fetched_less_spent_returned_and_forfeited(
        steps in prop::collection::vec(step(), 1..30),
        faults in prop_oneof![2 => Just(vec![]), 1 => prop::collection::vec(fault(), 1..60)],
        is_slow in any::<bool>(),
        by_resource in any::<bool>(),
    ) {
        let recorded = Recorded::default();
        metrics::with_local_recorder(&recorded, || {
            let runtime = runtime();
            runtime.block_on(async {
                let latency = if is_slow { millis(4) } else { millis(0) };
                let fleet = Fleet::slow(latency).await;
                let limiter = limiter(&fleet, by_resource).await;
                let mut world = World { fleet: &fleet, limiter, grants: vec![], used: 0 };
                let is_calm = faults.is_empty();
                let mut faults = faults.clone().into_iter();
                fleet.dynamo.fail_when(move |_| faults.next().flatten());
                for step in &steps {
                    world.step(*step, is_calm, by_resource).await;
                    let stats = world.limiter.stats();
                    let outstanding = number(stats.prefetch_outstanding_millitokens);
                    let by_limit = world.limiter.prefetched();
                    assert_eq!(by_limit.values().map(|amount| amount.0).sum::<i64>(), outstanding);
                    assert_eq!(gauge(&recorded, by_resource), outstanding);
                    world.check(is_calm, is_slow).await;
                }
                // A limiter that is dropped forfeits what it has.
                let stats = world.limiter.stats();
                let lost = stats.prefetch_outstanding_millitokens;
                let before = recorded.number(FORFEITED);
                drop(world);
                pass(secs(10)).await;
                if is_calm && !is_slow {
                    assert_eq!(recorded.number(FORFEITED) - before, lost);
                }
                assert_eq!(gauge(&recorded, by_resource), 0, "nothing is outstanding without a limiter");
            });
        });
    }
}
