//! This project's client.

use std::sync::Arc;
use std::time::Duration;

use weirgate::{Config, ConfigLevel, Decision, Entity, Grant, Limit, Prefetch, RateLimiter};
use weirgate_store::{CapacityMeter, RedisOptions, Table};

use super::super::harness::{Call, Measured, call_for};
use super::super::harness::{connected, far_limits};
use super::super::scenario::{BUCKETS, Calls, Rival, Scenario};
use crate::number::count;

/// One limiter, and what its callers do.
#[derive(Debug, Clone)]
pub struct Caller {
    limiter: RateLimiter,
    meter: CapacityMeter,
    scenario: &'static str,
    resource: &'static str,
    calls: Calls,
    far: Arc<[Limit]>,
    near: Arc<[Limit]>,
}

impl Caller {
    /// Returns callers with a limiter of their own, whose buckets are there.
    pub async fn new(endpoint: &str, scenario: &Scenario, rival: Rival) -> Self {
        let (_, table) = connected(endpoint).await;
        Self::on(table, scenario, rival).await
    }

    /// Returns callers with a limiter of their own on a redis-server.
    pub async fn on_redis(url: &str, scenario: &Scenario) -> Self {
        let table = Table::on_redis(&RedisOptions::new(url)).expect("the URL is one");
        Self::on(table, scenario, Rival::OnRedis).await
    }

    async fn on(table: Table, scenario: &Scenario, rival: Rival) -> Self {
        let meter = CapacityMeter::default();
        let builder = RateLimiter::builder("weirgate").table(table.with_meter(meter.clone()));
        let built = builder.prefetch("ahead", Prefetch::default()).build().await;
        let caller = Self {
            limiter: built.expect("the settings are good"),
            meter,
            scenario: scenario.name,
            resource: match rival {
                Rival::Prefetched => "ahead",
                _ => "far",
            },
            calls: scenario.calls,
            far: far_limits(),
            near: Arc::new([Limit::per_day("rpm", 1).expect("a limit")]),
        };
        match scenario.calls {
            Calls::Cascade => caller.configure().await.expect("the table takes it"),
            Calls::Denied => assert!(caller.ask_near().await.is_granted(), "the first is denied"),
            _ => {}
        }
        caller
    }

    pub(super) async fn round(&self, callers: usize, lasts: Duration) -> Measured {
        let _ = self.meter.take();
        let times = call_for(self, callers, lasts).await;
        let consumed = self.meter.take();
        Measured {
            units: consumed.total / times.calls(),
            requests: count(consumed.requests) / times.calls(),
            ..times.measured()
        }
    }

    /// Stores limits, and a child with a parent.
    async fn configure(&self) -> Result<(), Box<dyn std::error::Error>> {
        let limits = Config::of(self.far.to_vec());
        self.limiter
            .admin()
            .set_config(&ConfigLevel::Resource("stored".try_into()?), &limits)
            .await?;
        let child = Entity::new("child".try_into()?).child_of("parent".try_into()?, true);
        self.limiter.admin().set_entity(&child).await?;
        Ok(())
    }

    async fn take(&self, entity: &str) -> Grant {
        let acquire = self.limiter.acquire(entity, self.resource);
        let acquire = acquire.shared_limits(&self.far);
        match acquire.take("rpm", 1).take("tpm", 500).send().await {
            Ok(Decision::Granted(grant)) => grant,
            refused => panic!("not granted: {refused:?}"),
        }
    }

    async fn ask_near(&self) -> Decision {
        let acquire = self.limiter.acquire(self.scenario, "near");
        let acquire = acquire.shared_limits(&self.near).take("rpm", 1);
        acquire.send().await.expect("a decision")
    }
}

impl Call for Caller {
    async fn call(&self) {
        match self.calls {
            Calls::OneBucket => drop(self.take(self.scenario).await),
            Calls::ManyBuckets => {
                let entity = format!("many-{}", fastrand::u8(..BUCKETS));
                drop(self.take(&entity).await);
            }
            Calls::Denied => {
                assert!(!self.ask_near().await.is_granted(), "more was granted than there is")
            }
            Calls::Adjusted => {
                let mut grant = self.take(self.scenario).await;
                let _ = grant.adjust("tpm", 300).await.expect("an adjustment");
            }
            Calls::Cascade => {
                let acquire = self.limiter.acquire("child", "stored");
                let decision = acquire.take("rpm", 1).take("tpm", 500).send().await;
                assert!(decision.expect("a decision").is_granted());
            }
        }
    }
}
