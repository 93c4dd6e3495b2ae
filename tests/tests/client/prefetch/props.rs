//! Several clients take ahead of one bucket at its edge, and everything that can go wrong, at
//! random: what is spent is never more than the table says was taken, and that never more than
//! there was.

use proptest::prelude::*;
use weirgate::{Decision, EpochMillis, Error, Grant, Limit, Prefetch, RateLimiter, Settlement};
use weirgate_shared::{ShardIndex, refill_between};
use weirgate_testkit::Fault;
use weirgate_tests::fleet;
use weirgate_tests::fleet::{Fleet, ask, config, millis, pass, runtime, secs};

const PERCENT: i64 = 20;
const CAPACITY: i64 = 300;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Which client, how many tokens, how often.
    Take(usize, i64, u32),
    Rollback(usize),
    Adjust(usize, i64),
    /// Drops the client, and begins another.
    Crash(usize),
    Shutdown(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..3_usize, prop_oneof![Just(1_i64), 1..12_i64], 1..25_u32)
            .prop_map(|(who, tokens, times)| Step::Take(who, tokens, times)),
        2 => any::<usize>().prop_map(Step::Rollback),
        2 => (any::<usize>(), 0..20_i64).prop_map(|(which, tokens)| Step::Adjust(which, tokens)),
        1 => (0..3_usize).prop_map(Step::Crash),
        1 => (0..3_usize).prop_map(Step::Shutdown),
        4 => prop_oneof![0..300_u64, 0..5_000_u64].prop_map(Step::Pass),
    ]
}

fn fault() -> impl Strategy<Value = Option<Fault>> {
    let fault = prop::sample::select(vec![
        Fault::LoseRequest,
        Fault::LoseAnswer,
        Fault::Repeat,
        Fault::Throttle { key_range: true },
        Fault::Throttle { key_range: false },
        Fault::Conflict,
        Fault::ServerError,
        Fault::ServerErrorApplied,
    ]);
    prop_oneof![3 => Just(None), 1 => fault.prop_map(Some)]
}

struct World<'a> {
    fleet: &'a Fleet,
    clients: Vec<RateLimiter>,
    limits: [Limit; 1],
    grants: Vec<(usize, Grant)>,
    /// Acquires granted.
    granted: i64,
    /// Net consumption in millitokens is at least this, and at most `most` but for what is in
    /// doubt.
    least: i64,
    most: i64,
    /// What clients that crashed had in doubt.
    doubt: i64,
    crashes: i64,
    /// When how much was spent; nothing is taken off for what came back later.
    spent: Vec<(EpochMillis, i64)>,
}

impl World<'_> {
    async fn client(fleet: &Fleet) -> RateLimiter {
        let share = u32::try_from(PERCENT).unwrap();
        let builder = fleet.builder().await.timeout(secs(2));
        builder
            .prefetch("gpt-4", Prefetch::default().max_outstanding_percent(share))
            .build()
            .await
            .unwrap()
    }

    fn doubt_of(client: &RateLimiter) -> i64 {
        let stats = client.stats();
        i64::try_from(stats.unconfirmed_millitokens + stats.prefetch_forfeited_millitokens).unwrap()
    }

    fn change(&mut self, more: i64, answer: &Result<Settlement, Error>) {
        match answer {
            Ok(Settlement::Applied) => {
                self.least += more;
                self.most += more;
            }
            Err(error) if error.is_unknown() => {
                self.least += more.min(0);
                self.most += more.max(0);
            }
            _ => {}
        }
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Pass(span) => pass(millis(span)).await,
            Step::Take(who, tokens, times) => {
                for _ in 0..times {
                    let request = ask(&self.clients[who], &self.limits, &[("rpm", tokens)]);
                    if let Ok(Decision::Granted(grant)) = request.send().await {
                        self.granted += 1;
                        self.least += tokens * 1000;
                        self.most += tokens * 1000;
                        self.spent.push((self.fleet.now(), tokens * 1000));
                        self.grants.push((who, grant));
                    }
                }
            }
            Step::Crash(who) => {
                self.doubt += Self::doubt_of(&self.clients[who]);
                self.grants.retain(|(of, _)| *of != who);
                self.crashes += 1;
                self.clients[who] = Self::client(self.fleet).await;
            }
            Step::Shutdown(who) => {
                let _ = self.clients[who].shutdown().await;
                self.doubt += Self::doubt_of(&self.clients[who]);
                self.grants.retain(|(of, _)| *of != who);
                self.clients[who] = Self::client(self.fleet).await;
            }
            Step::Rollback(which) if !self.grants.is_empty() => {
                let (_, grant) = self.grants.swap_remove(which % self.grants.len());
                let held = grant.amount("rpm").0;
                let answer = grant.roll_back().await;
                self.change(-held, &answer);
            }
            Step::Adjust(which, tokens) if !self.grants.is_empty() => {
                let which = which % self.grants.len();
                let grant = &mut self.grants[which].1;
                let more = tokens * 1000 - grant.amount("rpm").0;
                let answer = grant.adjust("rpm", tokens).await;
                if more > 0 && !matches!(answer, Err(ref error) if !error.is_unknown()) {
                    // An adjustment is admitted also where there is nothing left.
                    self.spent.clear();
                }
                self.change(more, &answer);
            }
            Step::Rollback(_) | Step::Adjust(..) => {}
        }
    }
}

proptest! {
    #![proptest_config(config(128))]

    #[test]
    fn i1_i7_clients_that_take_ahead_at_the_edge_in_any_trouble(
        steps in prop::collection::vec(step(), 1..40),
        faults in prop_oneof![Just(vec![]), prop::collection::vec(fault(), 0..60)],
    ) {
        runtime().block_on(async {
            let fleet = Fleet::slow(millis(4)).await;
            let clients = vec![World::client(&fleet).await, World::client(&fleet).await, World::client(&fleet).await];
            let limits = [Limit::custom("rpm", CAPACITY, 20, 1_000).unwrap()];
            let mut world = World {
                fleet: &fleet, clients, limits, grants: vec![], granted: 0, least: 0, most: 0, doubt: 0, crashes: 0, spent: vec![],
            };
            let is_calm = faults.is_empty();
            let mut faults = faults.into_iter();
            fleet.dynamo.fail_when(move |_| faults.next().flatten());
            for step in steps {
                world.step(step).await;
                if fleet.dynamo.item(fleet::PK, "#STATE").is_null() {
                    prop_assert_eq!(world.granted, 0);
                    continue;
                }
                let rate = fleet.bucket().await.limits["rpm"];
                prop_assert!(rate.consumed.bounded().0 >= world.least, "I1: {} spent, {rate:?}", world.least);
                // In any interval: what the bucket had, what flowed in, and what was outstanding at
                // its beginning.
                let outstanding = (3 + world.crashes) * CAPACITY * 10 * PERCENT;
                for (at, (from, _)) in world.spent.iter().enumerate() {
                    let mut sum = 0;
                    for (to, amount) in &world.spent[at..] {
                        sum += amount;
                        let flowed = refill_between(&rate.rule, ShardIndex::UNSPLIT, *from, *to);
                        prop_assert!(sum <= CAPACITY * 1000 + flowed.0 + outstanding, "I1: {sum} from {from:?} to {to:?}");
                    }
                }
            }
            fleet.dynamo.fail_when(|_| None);
            // What is on its way arrives.
            pass(secs(5)).await;
            for client in &world.clients {
                prop_assert!(client.shutdown().await.is_ok());
                world.doubt += World::doubt_of(client);
            }
            if fleet.dynamo.item(fleet::PK, "#STATE").is_null() {
                return Ok(());
            }
            let bucket = fleet.bucket().await;
            let rate = bucket.limits["rpm"];
            let flowed = refill_between(&rate.rule, ShardIndex::UNSPLIT, fleet::START, fleet.now());
            prop_assert!(rate.available.0 + rate.consumed.bounded().0 <= CAPACITY * 1000 + flowed.0, "I1, at the table: {rate:?}");
            prop_assert!(rate.consumed.bounded().0 >= world.least, "I1: {} spent, {rate:?}", world.least);
            // What a client that crashes loses is bounded by what it may have outstanding.
            let lost = world.crashes * CAPACITY * 10 * PERCENT;
            prop_assert!(rate.consumed.bounded().0 <= world.most + world.doubt + lost, "I7: {} spent, {rate:?}", world.most);
            if is_calm && world.crashes == 0 {
                prop_assert_eq!((rate.consumed.bounded().0, bucket.acquires.total), (world.most, i128::from(world.granted)), "I3");
            }
            Ok(())
        })?;
    }
}
