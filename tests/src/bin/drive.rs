//! Drives a deployed stack with the real client: `drive ENDPOINT TABLE SECONDS`. Exits non-zero
//! unless the table counts what was consumed to the token. `make e2e` runs it.
//!
//! - callers of a hot entity and of quiet ones take an estimate, and adjust it to what they used
//! - eight callers compete for four slots
//!
//! Each half of the callers has a limiter of its own, as two processes have.

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use weirgate::{
    Clock, ConnectOptions, Decision, EntityId, EpochMillis, Granularity, Limit, LimitName,
    MilliTokens, RateLimiter, Resource, Settlement, SystemClock, Usage, UsageScope,
};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const ESTIMATE: i64 = 500;
/// Enough for the aggregator to count what is in the stream.
const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match &arguments[..] {
        [endpoint, table, seconds] => run(endpoint, table, seconds).await,
        _ => Err("usage: drive ENDPOINT TABLE SECONDS".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("drive: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(endpoint: &str, table: &str, seconds: &str) -> Outcome<()> {
    let since = SystemClock.now();
    let fleet = Arc::new(Fleet {
        limiters: [
            limiter(endpoint, table).await?,
            limiter(endpoint, table).await?,
        ],
        consumed: Mutex::default(),
        chat: Arc::new([
            Limit::per_second("rpm", 100)?.with_burst(200)?,
            Limit::per_minute("tpm", 6_000_000)?,
        ]),
        browsers: Arc::new([Limit::concurrent("slots", 4)?]),
        until: Instant::now() + Duration::from_secs(seconds.parse()?),
    });
    let mut callers = JoinSet::new();
    let quiet = (1..=4).map(|tenant| (format!("tenant-{tenant}"), Duration::from_millis(150)));
    let hot = (0..16).map(|_| ("openai".to_owned(), Duration::from_millis(5)));
    for (caller, (entity, work)) in hot.chain(quiet).enumerate() {
        callers.spawn(Arc::clone(&fleet).chat(caller % 2, entity, work));
    }
    for caller in 0..8 {
        callers.spawn(Arc::clone(&fleet).browse(caller % 2));
    }
    for ended in callers.join_all().await {
        ended?;
    }
    fleet.until_counted(since).await
}

async fn limiter(endpoint: &str, table: &str) -> Outcome<RateLimiter> {
    let connection = ConnectOptions {
        local_endpoint: Some(endpoint.to_owned()),
        ..ConnectOptions::default()
    };
    let builder = RateLimiter::builder(table).connection(connection);
    Ok(builder.owner("drive").build().await?)
}

/// Entity and resource.
type Bucket = (String, &'static str);

struct Fleet {
    limiters: [RateLimiter; 2],
    /// Own record of the callers, which the table is compared with.
    consumed: Mutex<BTreeMap<Bucket, Usage>>,
    chat: Arc<[Limit]>,
    browsers: Arc<[Limit]>,
    until: Instant,
}

impl Fleet {
    fn consumed(&self) -> BTreeMap<Bucket, Usage> {
        let consumed = self.consumed.lock();
        consumed.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts a granted acquire and its final amounts.
    fn count(&self, bucket: Bucket, used: &[(&str, i64)]) -> Outcome<()> {
        let mut usage = Usage {
            acquires: 1,
            ..Usage::default()
        };
        for (limit, tokens) in used {
            let amount = usage.tokens.entry(LimitName::new(*limit)?).or_default();
            *amount += MilliTokens::from_tokens(*tokens);
        }
        let consumed = self.consumed.lock();
        let mut consumed = consumed.unwrap_or_else(PoisonError::into_inner);
        consumed.entry(bucket).or_default().add(&usage);
        Ok(())
    }

    /// Takes an estimate, works, and adjusts it to what was used.
    async fn chat(self: Arc<Self>, at: usize, entity: String, work: Duration) -> Outcome<()> {
        while Instant::now() < self.until {
            let acquire = self.limiters[at].acquire(&entity, "gpt-4");
            let acquire = acquire.shared_limits(&self.chat);
            let acquire = acquire.take("rpm", 1).take("tpm", ESTIMATE);
            let wait = Duration::from_millis(500);
            let Decision::Granted(mut grant) = acquire.wait_up_to(wait).send().await? else {
                continue;
            };
            tokio::time::sleep(work).await;
            let used = fastrand::i64(200..900);
            // Without a lease nothing can have ended.
            if grant.adjust("tpm", used).await? != Settlement::Applied {
                return Err("an adjustment was not applied".into());
            }
            self.count((entity.clone(), "gpt-4"), &[("rpm", 1), ("tpm", used)])?;
        }
        Ok(())
    }

    /// Holds a slot for a while.
    async fn browse(self: Arc<Self>, at: usize) -> Outcome<()> {
        while Instant::now() < self.until {
            let acquire = self.limiters[at].acquire("fleet", "browsers");
            let acquire = acquire.shared_limits(&self.browsers).take("slots", 1);
            let wait = Duration::from_secs(1);
            let Decision::Granted(grant) = acquire.wait_up_to(wait).send().await? else {
                continue;
            };
            self.count(("fleet".to_owned(), "browsers"), &[("slots", 1)])?;
            tokio::time::sleep(Duration::from_millis(400)).await;
            let _ = grant.release().await?;
        }
        Ok(())
    }

    /// Waits until hours and days count exactly what was consumed.
    async fn until_counted(&self, since: EpochMillis) -> Outcome<()> {
        let deadline = Instant::now() + PATIENCE;
        for ((entity, resource), consumed) in self.consumed() {
            for granularity in [Granularity::Hourly, Granularity::Daily] {
                loop {
                    let (id, of) = (EntityId::new(&*entity)?, Resource::new(resource)?);
                    let scope = UsageScope::Bucket(id, of);
                    let range = since..SystemClock.now();
                    let report =
                        self.limiters[0]
                            .admin()
                            .usage_report(scope, granularity, range)?;
                    let counted = report.total().await?.usage;
                    if counted == consumed {
                        break;
                    }
                    if Instant::now() >= deadline {
                        return Err(format!(
                            "{entity} {resource}: consumed {consumed:?}, the table counts {counted:?}"
                        )
                        .into());
                    }
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            }
            println!("{entity} {resource}: {consumed:?}");
        }
        Ok(())
    }
}
