//! What is read of one bucket, when it is asked for.
//!
//! Each answer is kept for some seconds, so that several viewers cost as much as one.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use weirgate::{
    Clock, EpochMillis, Error, Granularity, RateLimiter, SystemClock, UsageRow, UsageScope, Window,
};

use super::history::History;
use super::hour::{Hour, Means};
use super::row::Key;
use crate::why::Reasons;

/// Requests that wait for their answer, at most.
pub(crate) const MAX_ASKS: usize = 16;
/// Buckets whose answers are kept, at most.
const KEPT: usize = 64;
/// Time for which reasons are kept.
const REASONS_FOR: Duration = Duration::from_secs(5);
/// Time for which the usage of the two hours of the last one is kept. The page itself reads what is
/// used meanwhile.
const USAGE_FOR: Duration = Duration::from_secs(60);
/// What that usage costs, in halves of a read unit, and that of a bucket with several shards: all
/// that it may have had are read.
const USAGE_COSTS: u64 = 4;
const OF_SPLIT_COSTS: u64 = 132;

/// What can be asked about a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// All that decides about it, as `weirgate why --json` prints it.
    Reasons,
    /// Its last hour.
    Hour,
}

/// A request for JSON about a bucket.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) what: What,
    pub(crate) bucket: Key,
    pub(crate) answer: oneshot::Sender<Result<Bytes, Error>>,
}

/// Where requests go.
pub(crate) type Asks = mpsc::Sender<Ask>;

/// Answers that are kept.
#[derive(Debug, Default)]
pub(crate) struct Details {
    reasons: BTreeMap<Key, (Instant, Bytes)>,
    means: BTreeMap<Key, (Instant, Means)>,
}

impl Details {
    /// Returns all that decides about a bucket, and what that cost in halves of a read unit.
    pub(crate) async fn reasons(
        &mut self,
        limiter: &RateLimiter,
        bucket: &Key,
        history: Option<&History>,
    ) -> (Result<Bytes, Error>, u64) {
        if let Some(kept) = kept(&mut self.reasons, bucket, REASONS_FOR) {
            return (Ok(kept), 0);
        }
        let history = history.filter(|history| !history.is_stale(SystemClock.now()));
        let used = history.and_then(History::used);
        let (entity, resource) = bucket.clone();
        match Reasons::read(limiter, entity, resource, None, used).await {
            Ok(reasons) => {
                let json = Bytes::from(serde_json::to_vec(&reasons).unwrap_or_default());
                keep(&mut self.reasons, bucket, json.clone());
                (Ok(json), reasons.halves)
            }
            Err(error) => (Err(error), 2),
        }
    }

    /// Returns the last hour of a bucket, and what that cost in halves of a read unit.
    pub(crate) async fn hour(
        &mut self,
        limiter: &RateLimiter,
        bucket: &Key,
        history: Option<&History>,
    ) -> (Result<Bytes, Error>, u64) {
        let at = SystemClock.now();
        let (means, halves) = match kept(&mut self.means, bucket, USAGE_FOR) {
            Some(kept) => (kept, 0),
            None => {
                let usage = match usage(limiter, bucket, at).await {
                    Ok(usage) => usage,
                    Err(error) => return (Err(error), 2),
                };
                let means = usage.map(|usage| Means::of(history, &usage, at));
                let means = means.unwrap_or_default();
                keep(&mut self.means, bucket, means.clone());
                let is_split = history.is_some_and(History::is_split);
                let costs = if is_split { OF_SPLIT_COSTS } else { USAGE_COSTS };
                (means, costs)
            }
        };
        let json = serde_json::to_vec(&Hour::of(history, &means, at)).unwrap_or_default();
        (Ok(json.into()), halves)
    }
}

/// Reads the usage of a bucket in the hour (UTC) in progress and in the one before; `None` if an
/// item of it cannot be read.
async fn usage(
    limiter: &RateLimiter,
    (entity, resource): &Key,
    at: EpochMillis,
) -> Result<Option<Vec<UsageRow>>, Error> {
    let hour = Window::Hourly.start(at);
    let start = Window::Hourly.start(EpochMillis(hour.0 - 1));
    let scope = UsageScope::Bucket(entity.clone(), resource.clone());
    let range = start..at.max(EpochMillis(hour.0 + 1));
    let admin = limiter.admin();
    let report = admin.usage_report(scope, Granularity::Hourly, range)?;
    let page = report.page(None).await?;
    Ok(page.unreadable.is_empty().then_some(page.items))
}

fn kept<T: Clone>(
    all: &mut BTreeMap<Key, (Instant, T)>,
    bucket: &Key,
    time: Duration,
) -> Option<T> {
    all.retain(|_, (at, _)| at.elapsed() < time);
    all.get(bucket).map(|(_, kept)| kept.clone())
}

/// Keeps an answer, in place of the oldest one if there are many.
fn keep<T>(all: &mut BTreeMap<Key, (Instant, T)>, bucket: &Key, answer: T) {
    if all.len() >= KEPT {
        let oldest = all.iter().min_by_key(|(_, (at, _))| *at);
        let oldest = oldest.map(|(key, _)| key.clone());
        oldest.and_then(|oldest| all.remove(&oldest));
    }
    all.insert(bucket.clone(), (Instant::now(), answer));
}
