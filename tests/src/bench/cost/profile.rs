//! Seven profiles of use.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use weirgate::{Decision, Grant, Limit, RateLimiter};

use super::stack::{Consumed, Stack};
use crate::scaling::facts::BATCH_RECORDS;

/// How a limit is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// 50 processes with one caller each, 500 acquires/s on one bucket.
    Alone,
    /// 32 callers of one process on one bucket, each calls again as soon as it is answered.
    Shared,
    /// One process, 1,000 acquires/s on one bucket with prefetched tokens.
    Prefetched,
    /// A million users at one acquire a minute; 20 of them.
    Users,
    /// An estimate, and two seconds later what was really used.
    Estimates,
    /// A slot under a lease, for two seconds.
    Slots,
    /// Requests to a daily limit that is used up.
    Exhausted,
}

/// All of them.
pub const PROFILES: [Profile; 7] = [
    Profile::Alone,
    Profile::Shared,
    Profile::Prefetched,
    Profile::Users,
    Profile::Estimates,
    Profile::Slots,
    Profile::Exhausted,
];

const PROCESSES: u32 = 50;
const SECOND: Duration = Duration::from_secs(1);

impl Profile {
    /// Its name in ids.
    pub const fn id(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Shared => "shared",
            Self::Prefetched => "prefetched",
            Self::Users => "users",
            Self::Estimates => "estimates",
            Self::Slots => "slots",
            Self::Exhausted => "exhausted",
        }
    }

    /// Records of a call of the aggregator, where a part of the load was run.
    pub const fn records_of_a_call(self) -> Option<u64> {
        match self {
            // 17,000 acquires/s fill every batch.
            Self::Users => Some(BATCH_RECORDS),
            _ => None,
        }
    }

    /// Runs it.
    pub async fn run(self) -> Consumed {
        let stack = Stack::new().await;
        match self {
            Self::Alone => every_process(&stack, 60, SECOND / 10, take).await,
            Self::Shared => shared(&stack).await,
            Self::Prefetched => prefetched(&stack).await,
            Self::Users => users(&stack).await,
            Self::Estimates => every_process(&stack, 120, 3 * SECOND, estimate).await,
            Self::Slots => every_process(&stack, 120, 3 * SECOND, slot).await,
            Self::Exhausted => exhausted(&stack).await,
        }
    }
}

/// A process of its own, as each function instance is.
#[derive(Debug, Clone)]
struct Process {
    limiter: RateLimiter,
    limits: Arc<[Limit]>,
}

impl Process {
    async fn new(stack: &Stack, limits: &[Limit]) -> Self {
        Self { limiter: stack.process().await, limits: limits.into() }
    }

    async fn take(&self, entity: &str, resource: &str) -> Grant {
        let acquire = self.limiter.acquire(entity, resource);
        let acquire = acquire.shared_limits(&self.limits);
        granted(acquire.take("rpm", 1).take("tpm", 1_500).send().await)
    }
}

impl Process {
    async fn is_granted(&self, tokens: i64) -> bool {
        let acquire = self.limiter.acquire("openai", "gpt-4");
        let acquire = acquire.shared_limits(&self.limits).take("rpm", tokens);
        acquire.send().await.expect("a decision").is_granted()
    }
}

fn granted(decision: Result<Decision, weirgate::Error>) -> Grant {
    match decision {
        Ok(Decision::Granted(grant)) => grant,
        refused => panic!("not granted: {refused:?}"),
    }
}

/// Limits that nothing here uses up, for tokens and for slots.
fn far() -> [Limit; 2] {
    ["rpm", "tpm"].map(|name| Limit::per_minute(name, 1_000_000_000).expect("a limit"))
}

async fn take(process: Process) {
    drop(process.take("openai", "gpt-4").await);
}

async fn estimate(process: Process) {
    let mut grant = process.take("openai", "gpt-4").await;
    sleep(2 * SECOND).await;
    let _ = grant.adjust("tpm", 1_213).await.expect("an adjustment");
}

async fn slot(process: Process) {
    let slots = [Limit::concurrent("slots", 100).expect("a limit")];
    let acquire = process.limiter.acquire("openai", "slots").limits(&slots);
    let acquire = acquire.take("slots", 1).lease(30 * SECOND);
    let grant = granted(acquire.send().await);
    sleep(2 * SECOND).await;
    let _ = grant.release().await.expect("a release");
}

/// Processes that each begin a call every `pause`, one after the other, for so many seconds.
async fn every_process<F>(
    stack: &Stack,
    seconds: u32,
    pause: Duration,
    call: fn(Process) -> F,
) -> Consumed
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut processes = vec![];
    for _ in 0..PROCESSES {
        processes.push(Process::new(stack, &far()).await);
    }
    // Every process has met the bucket.
    for process in &processes {
        call(process.clone()).await;
    }
    stack.begin().await;
    let load = async {
        let (began, mut running) = (Instant::now(), JoinSet::new());
        for (place, process) in (0..).zip(processes) {
            running.spawn(async move {
                let (mut next, mut calls) = (began + pause * place / PROCESSES, 0_u64);
                while next < began + seconds * SECOND {
                    sleep_until(next).await;
                    call(process.clone()).await;
                    calls += 1;
                    next += pause;
                }
                calls
            });
        }
        running.join_all().await.into_iter().sum()
    };
    stack.consumed(load).await
}

async fn shared(stack: &Stack) -> Consumed {
    let process = Process::new(stack, &far()).await;
    take(process.clone()).await;
    stack.begin().await;
    let load = async {
        let (until, mut running) = (Instant::now() + 5 * SECOND, JoinSet::new());
        for _ in 0..32 {
            let process = process.clone();
            running.spawn(async move {
                let mut calls = 0_u64;
                while Instant::now() < until {
                    take(process.clone()).await;
                    calls += 1;
                }
                calls
            });
        }
        running.join_all().await.into_iter().sum()
    };
    stack.consumed(load).await
}

async fn prefetched(stack: &Stack) -> Consumed {
    let process = Process::new(stack, &far()).await;
    stack.begin().await;
    let load = async {
        let calls = 60_000;
        for _ in 0..calls {
            sleep(SECOND / 1_000).await;
            drop(process.take("openai", "ahead").await);
        }
        let returned = process.limiter.shutdown().await;
        returned.expect("everything goes back");
        calls
    };
    stack.consumed(load).await
}

/// Of the million, so many: each has a bucket of its own, which shares nothing with the others.
async fn users(stack: &Stack) -> Consumed {
    let process = Process::new(stack, &far()).await;
    let users: Vec<_> = (0..20).map(|user| format!("user-{user}")).collect();
    for user in &users {
        drop(process.take(user, "gpt-4").await);
    }
    stack.begin().await;
    let load = async {
        let minutes = 6 * 60;
        for _ in 0..minutes {
            sleep(60 * SECOND).await;
            for user in &users {
                drop(process.take(user, "gpt-4").await);
            }
        }
        minutes * 20
    };
    stack.consumed(load).await
}

/// A token is refilled every 86 seconds, so that some requests are granted.
async fn exhausted(stack: &Stack) -> Consumed {
    const LIMIT: i64 = 1_000;
    let daily = [Limit::per_day("rpm", LIMIT).expect("a limit")];
    let mut processes = vec![];
    for _ in 0..PROCESSES {
        processes.push(Process::new(stack, &daily).await);
    }
    assert!(processes[0].is_granted(LIMIT).await, "the bucket is full");
    stack.begin().await;
    let load = async {
        let began = Instant::now();
        let (mut asked, mut granted) = (0_u64, 0);
        for _ in 0..600 {
            for process in &processes {
                sleep(SECOND / PROCESSES).await;
                granted += i64::from(process.is_granted(1).await);
                asked += 1;
            }
        }
        let refilled = LIMIT * i64::try_from(began.elapsed().as_secs()).expect("short") / 86_400;
        assert!(
            granted <= refilled + 1,
            "{granted} of {asked} were granted, {refilled} came back in {:?}",
            began.elapsed()
        );
        asked
    };
    stack.consumed(load).await
}
