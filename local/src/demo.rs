//! Limits and traffic for a first look.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use weirgate::{
    Acquire, Config, ConfigLevel, Decision, EntityId, Error, Grant, Limit, RateLimiter, Resource,
};

const CHAT: &str = "chat";
/// Requests and tokens that each tenant may make on [`CHAT`].
const PER_SECOND: i64 = 5;
const TOKENS_PER_MINUTE: i64 = 100_000;
/// Time between two requests of the tenant that stays within its limits.
const STEADY: Duration = Duration::from_millis(500);
/// Burst that the second tenant has, and the one that it makes after each pause.
const ALLOWED_BURST: i64 = 5;
const BURST: usize = 8;
const BURST_PAUSE: Duration = Duration::from_secs(5);

const JOBS: &str = "jobs";
const SLOTS: i64 = 3;
const WORKERS: usize = 4;
/// Of so many jobs one crashes: only its lease returns the slot.
const JOBS_PER_CRASH: u64 = 10;
const LEASE: Duration = Duration::from_secs(10);
/// Longest wait of a job for its slot.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time until a tenant goes on after an error, or a worker after a denial.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// The traffic of three tenants, until it is dropped: one stays within its limits, one is denied now
/// and then, and one holds slots under leases.
#[derive(Debug)]
pub struct Demo {
    tenants: [Arc<Tenant>; 3],
    errors: mpsc::Receiver<Error>,
    /// Ends the traffic when it is dropped.
    _traffic: JoinSet<()>,
}

/// A tenant, with what it was granted and denied so far.
#[derive(Debug)]
pub struct Tenant {
    name: &'static str,
    traffic: String,
    granted: AtomicU64,
    denied: AtomicU64,
    errors: mpsc::Sender<Error>,
}

impl Demo {
    /// Sets the limits of the demo in the limiter's namespace, and starts the traffic.
    ///
    /// # Errors
    /// If the limits cannot be set.
    pub async fn start(limiter: RateLimiter) -> Result<Self, Error> {
        let rate = |tokens| Limit::per_second("requests", tokens);
        let chat = vec![rate(PER_SECOND)?, Limit::per_minute("tokens", TOKENS_PER_MINUTE)?];
        let burst = vec![rate(1)?.with_burst(ALLOWED_BURST)?];
        let slots = vec![Limit::concurrent("slots", SLOTS)?];
        let (globex, on_chat) = (EntityId::new("globex")?, Resource::new(CHAT)?);
        for (level, limits) in [
            (ConfigLevel::Resource(on_chat.clone()), chat),
            (ConfigLevel::EntityResource(globex, on_chat), burst),
            (ConfigLevel::Resource(Resource::new(JOBS)?), slots),
        ] {
            limiter.admin().set_config(&level, &Config::of(limits)).await?;
        }
        // One of them is enough to say what is wrong.
        let (sender, errors) = mpsc::channel(1);
        let tenant = |name, traffic| {
            Arc::new(Tenant {
                name,
                traffic,
                granted: AtomicU64::new(0),
                denied: AtomicU64::new(0),
                errors: sender.clone(),
            })
        };
        let a_second = 1_000 / STEADY.as_millis();
        let tenants = [
            tenant(
                "acme",
                format!("sends {a_second} requests a second on {CHAT}, and may send {PER_SECOND}"),
            ),
            tenant(
                "globex",
                format!(
                    "sends {BURST} requests at once on {CHAT}, and may send {ALLOWED_BURST}: \
                     the others are denied"
                ),
            ),
            tenant(
                "initech",
                format!(
                    "has {WORKERS} workers on {JOBS}, and {SLOTS} slots: one waits; after a \
                     crash the lease returns the slot"
                ),
            ),
        ];
        let mut traffic = JoinSet::new();
        let [acme, globex, initech] = tenants.clone();
        traffic.spawn(steady(limiter.clone(), acme));
        traffic.spawn(bursts(limiter.clone(), globex));
        for _ in 0..WORKERS {
            traffic.spawn(jobs(limiter.clone(), Arc::clone(&initech)));
        }
        Ok(Self { tenants, errors, _traffic: traffic })
    }

    /// Returns the tenants.
    #[must_use]
    pub const fn tenants(&self) -> &[Arc<Tenant>] {
        &self.tenants
    }

    /// Returns an error of the traffic since the last call, if there was one.
    pub fn error(&mut self) -> Option<Error> {
        self.errors.try_recv().ok()
    }
}

/// As `acme 12 granted`, with the denials if there are some.
impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        write!(f, "{} {} granted", self.name, count(&self.granted))?;
        match count(&self.denied) {
            0 => Ok(()),
            denied => write!(f, ", {denied} denied"),
        }
    }
}

impl Tenant {
    /// Returns its name.
    #[must_use]
    pub const fn name(&self) -> &str {
        self.name
    }

    /// Returns what it does, as a sentence without its subject.
    #[must_use]
    pub fn traffic(&self) -> &str {
        &self.traffic
    }

    /// Sends a request, and counts its decision. Returns the grant, if there is one.
    async fn send(&self, request: Acquire<'_>) -> Option<Grant> {
        let error = match request.send().await {
            Ok(Decision::Granted(grant)) => {
                self.granted.fetch_add(1, Ordering::Relaxed);
                return Some(grant);
            }
            Ok(_) => {
                self.denied.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            Err(error) => error,
        };
        self.failed(error).await;
        None
    }

    async fn failed(&self, error: Error) {
        // Another one is not yet read.
        let _ = self.errors.try_send(error);
        sleep(REFUSED_PAUSE).await;
    }
}

/// Makes one request after the other, with an estimate of its tokens that it corrects.
async fn steady(limiter: RateLimiter, tenant: Arc<Tenant>) {
    loop {
        let request = limiter.acquire(tenant.name, CHAT);
        let request = request.take("requests", 1).take("tokens", 1_000);
        if let Some(mut grant) = tenant.send(request).await
            && let Err(error) = grant.adjust("tokens", 700).await
        {
            tenant.failed(error).await;
        }
        sleep(STEADY).await;
    }
}

/// Makes many requests at once after each pause.
async fn bursts(limiter: RateLimiter, tenant: Arc<Tenant>) {
    loop {
        let request = || limiter.acquire(tenant.name, CHAT).take("requests", 1);
        join_all((0..BURST).map(|_| tenant.send(request()))).await;
        sleep(BURST_PAUSE).await;
    }
}

/// Runs one job after the other, of 2 to 4 s, each with a slot under a lease.
async fn jobs(limiter: RateLimiter, tenant: Arc<Tenant>) {
    loop {
        let request = limiter.acquire(tenant.name, JOBS).take("slots", 1);
        let request = request.lease(LEASE).wait_up_to(PATIENCE);
        let Some(grant) = tenant.send(request).await else {
            // A stop answers at once.
            sleep(REFUSED_PAUSE).await;
            continue;
        };
        let job = tenant.granted.load(Ordering::Relaxed);
        sleep(Duration::from_secs(2 + job % 3)).await;
        if job.is_multiple_of(JOBS_PER_CRASH) {
            // A token settles nothing by itself, so this is what a crash leaves behind.
            let _ = grant.into_token();
        } else if let Err(error) = grant.release().await {
            tenant.failed(error).await;
        }
    }
}
