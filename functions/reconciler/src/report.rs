//! The summary of a run: its response, and the invocation's metrics.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::ser::{Error as _, SerializeMap, Serializer};
use serde_json::value::RawValue;
use weirgate_runtime::{MetricsLine, SHOWN, shorten};
use weirgate_shared::{EpochMillis, LimitName, MilliTokens};
use weirgate_store::{ErrorKind, StoreError};

use crate::leases::Done;

/// Maximum number of different errors in the summary. Each failed shard has a log line of its own,
/// within the budget.
const ERRORS: usize = 5;
/// Maximum number of limits in the summary, because tenants choose their names.
const LIMITS: usize = 64;

/// The effects of a run. Every due entry seen is in one of the counts, or needed no work.
#[derive(Debug, Default, Serialize)]
pub struct Summary {
    /// Entries that the index listed as due.
    pub buckets_seen: u64,
    /// Expired leases that this run removed.
    pub leases_restored: u64,
    /// Tokens that this run returned, by limit, over all buckets; decimal, exact to the millitoken.
    /// Only the first 64 limits.
    #[serde(serialize_with = "exact_tokens")]
    pub tokens_restored: BTreeMap<LimitName, MilliTokens>,
    /// Shards that were merged away.
    pub shards_merged: u64,
    /// Shards created or removed to repair manual damage.
    pub shards_repaired: u64,
    /// Shards left due because other processes wrote to them first in each attempt.
    pub lost_races: u64,
    /// Shards left due because time ran out or DynamoDB failed.
    pub left_over: u64,
    /// Items in the index that cannot be read, or are no shards. The first ones have an ERROR line
    /// each.
    pub undecodable: u64,
    /// Items postponed by an hour, because they cannot be processed now.
    pub postponed: u64,
    /// Partitions of the index that were not read to their end, so more items may be due.
    pub partitions_unfinished: u64,
    /// Time for which the oldest entry had been due at the start, in ms; 0 if none was.
    pub oldest_due_age_ms: i64,
    /// Errors, the first few of each different text.
    pub errors: Vec<String>,
    /// Shards written.
    #[serde(skip)]
    written: u64,
    /// Partitions of the index that could be read, at least in part.
    #[serde(skip)]
    partitions_read: u64,
    /// The most significant error, for a run in which all work failed.
    #[serde(skip)]
    error: Option<StoreError>,
}

impl Summary {
    /// Counts a page whose oldest entry has been due since `oldest`.
    pub(crate) fn page(&mut self, oldest: Option<EpochMillis>, now: EpochMillis) {
        self.partitions_read = 1;
        let age = oldest.map_or(0, |oldest| now.since(oldest).0);
        self.oldest_due_age_ms = self.oldest_due_age_ms.max(age);
    }

    /// Adds entries whose turn it is.
    pub(crate) fn seen(&mut self, entries: usize) {
        self.buckets_seen += count(entries);
    }

    /// Subtracts one entry, which has not had its turn.
    pub(crate) fn unseen(&mut self) {
        self.buckets_seen -= 1;
    }

    /// Counts the outcome of one shard; `None` if there was no time for it.
    pub(crate) fn bucket(&mut self, done: Option<Result<Done, StoreError>>) {
        match done {
            Some(Ok(Done::Written(restored))) => {
                self.written += 1;
                self.leases_restored += count(restored.leases);
                self.restored(restored.tokens);
            }
            Some(Ok(Done::Nothing)) => {}
            Some(Ok(Done::LostRace | Done::Stuck)) => self.lost_race(),
            Some(Ok(Done::Undecodable)) => self.undecodable(),
            Some(Err(error)) => self.left(1, Some(error)),
            None => self.left(1, None),
        }
    }

    fn restored(&mut self, tokens: BTreeMap<LimitName, MilliTokens>) {
        for (limit, tokens) in tokens {
            if self.tokens_restored.len() < LIMITS || self.tokens_restored.contains_key(&limit) {
                *self.tokens_restored.entry(limit).or_default() += tokens;
            }
        }
    }

    /// Counts an item that cannot be read, or is no shard.
    pub(crate) fn undecodable(&mut self) {
        self.undecodable += 1;
    }

    /// Counts an item that was postponed, if it was still due.
    pub(crate) fn postponed(&mut self, is_moved: bool) {
        self.postponed += u64::from(is_moved);
    }

    /// Counts a shard that other processes wrote to first in each attempt.
    pub(crate) fn lost_race(&mut self) {
        self.lost_races += 1;
    }

    /// Counts shards that a transaction has merged away.
    pub(crate) fn merged(&mut self, shards: usize) {
        self.written += u64::from(shards > 0);
        self.shards_merged += count(shards);
    }

    /// Counts shards that a transaction has created or removed.
    pub(crate) fn repaired(&mut self, shards: usize) {
        self.written += u64::from(shards > 0);
        self.shards_repaired += count(shards);
    }

    /// Counts shards that were not processed, because of `error` or for lack of time.
    pub(crate) fn left(&mut self, buckets: usize, error: Option<StoreError>) {
        self.left_over += count(buckets);
        self.failed(error);
    }

    /// Counts a partition that was not read to its end, because of `error` or for lack of time.
    pub(crate) fn unfinished(&mut self, error: Option<StoreError>) {
        self.partitions_unfinished += 1;
        self.failed(error);
    }

    fn failed(&mut self, error: Option<StoreError>) {
        let Some(error) = error else { return };
        self.name(shorten(&error.to_string(), SHOWN).into_owned());
        self.keep(error);
    }

    fn name(&mut self, error: String) {
        if self.errors.len() < ERRORS && !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    fn keep(&mut self, error: StoreError) {
        if self.error.as_ref().is_none_or(|kept| !is_lasting(kept) && is_lasting(&error)) {
            self.error = Some(error);
        }
    }

    /// Returns the sum of both summaries.
    #[must_use]
    pub(crate) fn with(mut self, other: Self) -> Self {
        self.buckets_seen += other.buckets_seen;
        self.leases_restored += other.leases_restored;
        self.restored(other.tokens_restored);
        self.shards_merged += other.shards_merged;
        self.shards_repaired += other.shards_repaired;
        self.lost_races += other.lost_races;
        self.left_over += other.left_over;
        self.undecodable += other.undecodable;
        self.postponed += other.postponed;
        self.partitions_unfinished += other.partitions_unfinished;
        self.oldest_due_age_ms = self.oldest_due_age_ms.max(other.oldest_due_age_ms);
        other.errors.into_iter().for_each(|error| self.name(error));
        self.written += other.written;
        self.partitions_read += other.partitions_read;
        if let Some(error) = other.error {
            self.keep(error);
        }
        self
    }

    /// Returns the summary as the metrics of the invocation.
    #[must_use]
    pub fn metrics_line(&self) -> MetricsLine {
        // Serialization of a map of names to numbers, or of a list of strings, cannot fail.
        let tokens_restored = serde_json::to_string(&ExactTokens(&self.tokens_restored)).ok();
        let errors = serde_json::to_string(&self.errors).ok();
        // Unknown if the index could not be read: a 0 would end the alarm.
        let oldest = (self.partitions_read > 0).then_some(self.oldest_due_age_ms);
        MetricsLine::new("reconciled")
            .count("buckets_seen", self.buckets_seen)
            .count("leases_restored", self.leases_restored)
            .text("tokens_restored", tokens_restored)
            .count("shards_merged", self.shards_merged)
            .count("shards_repaired", self.shards_repaired)
            .count("lost_races", self.lost_races)
            .count("left_over", self.left_over)
            .count("undecodable", self.undecodable)
            .count("postponed", self.postponed)
            .count("partitions_unfinished", self.partitions_unfinished)
            .millis("oldest_due_age_ms", oldest)
            .text("errors", errors)
    }

    /// Returns the summary as the response, or an error if all work failed permanently: the
    /// invocation must then fail, so that an alarm fires.
    pub(crate) fn answer(mut self) -> Result<Self, StoreError> {
        let nothing_worked = self.partitions_read == 0
            || self.written == 0 && self.error.as_ref().is_some_and(is_lasting);
        match self.error.take() {
            Some(error) if nothing_worked => Err(error),
            _ => Ok(self),
        }
    }
}

/// Returns whether a repeated request would fail with the same error.
fn is_lasting(error: &StoreError) -> bool {
    matches!(error.kind, ErrorKind::AccessDenied | ErrorKind::TableNotFound)
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

struct ExactTokens<'a>(&'a BTreeMap<LimitName, MilliTokens>);

impl Serialize for ExactTokens<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        exact_tokens(self.0, serializer)
    }
}

/// Serializes amounts as decimal text, without floats.
fn exact_tokens<S: Serializer>(
    tokens: &BTreeMap<LimitName, MilliTokens>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(tokens.len()))?;
    for (limit, amount) in tokens {
        let number = RawValue::from_string(amount.to_string()).map_err(S::Error::custom)?;
        map.serialize_entry(limit.as_str(), &number)?;
    }
    map.end()
}
