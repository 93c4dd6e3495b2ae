//! Limiters in memory: the crate governor, which decides for one process.

use std::num::NonZeroU32;
use std::sync::Arc;

use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::super::harness::Call;
use super::super::scenario::{BUCKETS, Calls, Scenario};

/// The two limits of a bucket, or of all buckets. A call takes 1 of both: the amount does not
/// change what is done, and a limit holds a billion.
#[derive(Debug, Clone)]
pub struct Caller(Limits);

#[derive(Debug, Clone)]
enum Limits {
    OneBucket(Arc<[DefaultDirectRateLimiter; 2]>),
    ManyBuckets(Arc<[DefaultKeyedRateLimiter<String>; 2]>),
    UsedUp(Arc<DefaultDirectRateLimiter>),
}

const FAR: NonZeroU32 = NonZeroU32::new(1_000_000_000).expect("it is not zero");

impl Caller {
    /// Returns callers of new limiters.
    pub fn new(scenario: &Scenario) -> Self {
        let far = Quota::per_second(FAR);
        Self(match scenario.calls {
            Calls::OneBucket => {
                Limits::OneBucket(Arc::new([(); 2].map(|()| RateLimiter::direct(far))))
            }
            Calls::ManyBuckets => {
                Limits::ManyBuckets(Arc::new([(); 2].map(|()| RateLimiter::keyed(far))))
            }
            Calls::Denied => {
                let limit = RateLimiter::direct(Quota::per_hour(NonZeroU32::MIN));
                assert!(limit.check().is_ok(), "the first is denied");
                Limits::UsedUp(Arc::new(limit))
            }
            Calls::Adjusted | Calls::Cascade => {
                panic!("governor gives nothing back, and takes from one limit at a time")
            }
        })
    }
}

impl Call for Caller {
    async fn call(&self) {
        match &self.0 {
            Limits::OneBucket(limits) => assert!(limits.iter().all(|limit| limit.check().is_ok())),
            Limits::ManyBuckets(limits) => {
                let entity = format!("many-{}", fastrand::u8(..BUCKETS));
                let is_granted = limits.iter().all(|limit| limit.check_key(&entity).is_ok());
                assert!(is_granted);
            }
            Limits::UsedUp(limit) => {
                assert!(limit.check().is_err(), "more was granted than there is");
            }
        }
    }
}
