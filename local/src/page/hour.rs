//! The last hour of a bucket, minute by minute.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use weirgate::{EpochMillis, LimitName, UsageRow};

use super::history::{History, MINUTE_MS, MINUTES, Minutes};

const HOUR_MS: i64 = 60 * MINUTE_MS;

/// The last hour of a bucket: 60 minutes (UTC), of which the last one is in progress.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Hour {
    /// When it was read, epoch ms.
    at: i64,
    limits: BTreeMap<LimitName, Curve>,
}

/// A limit in each minute, in millitokens: of a rate what was used, as for a whole minute; of slots
/// the most that were held.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Curve {
    /// What reads of the page found; `None` for a minute in which it did not read the bucket.
    minutes: Vec<Option<i64>>,
    /// For the other minutes, what is left of the usage of their hour, evenly.
    means: Vec<Option<i64>>,
}

/// What the usage of the two hours (UTC) that the last one is in leaves for a minute that the page
/// did not read, in millitokens: by limit, and by the first instant of the hour.
#[derive(Debug, Clone, Default)]
pub(crate) struct Means(BTreeMap<LimitName, BTreeMap<i64, Option<i64>>>);

impl Means {
    /// Returns the means by a report of the usage up to `at`, and by what the page has read.
    pub(crate) fn of(history: Option<&History>, usage: &[UsageRow], at: EpochMillis) -> Self {
        let minutes = history.map(History::minutes);
        let of_pages = minutes.into_iter().flat_map(Minutes::limits);
        let of_usage = usage.iter().flat_map(|row| row.usage.tokens.keys());
        let names: BTreeSet<_> = of_pages.chain(of_usage).collect();
        let this = hour_of(at.0 / MINUTE_MS);
        let means = names.into_iter().map(|name| {
            let mean = |hour| (hour, mean(minutes, usage, name, (hour, at)));
            (name.clone(), [this - HOUR_MS, this].map(mean).into())
        });
        Self(means.collect())
    }

    fn mean(&self, name: &LimitName, minute: i64) -> Option<i64> {
        *self.0.get(name)?.get(&hour_of(minute))?
    }
}

/// Returns what is left of the usage of an hour, for each minute of the time that is left of it.
fn mean(
    minutes: Option<&Minutes>,
    usage: &[UsageRow],
    name: &LimitName,
    (hour, at): (i64, EpochMillis),
) -> Option<i64> {
    let row = usage.iter().find(|row| row.start.0 == hour);
    let used = row.and_then(|row| row.usage.tokens.get(name));
    let used = used.map_or(0, |used| used.0);
    let inside = numbers(at).filter(|minute| hour_of(*minute) == hour);
    let read = inside.map(|minute| minutes.map_or((0, 0), |minutes| minutes.used(name, minute)));
    let (covered_ms, read) =
        read.fold((0, 0), |sum, (covered_ms, used)| (sum.0 + covered_ms, sum.1 + i128::from(used)));
    let left_ms = (at.0 - hour).min(HOUR_MS) - covered_ms;
    per_minute((used - read).max(0), left_ms)
}

impl Hour {
    /// Returns the hour before `at`, by what the page has read, and by the means for what it has
    /// not.
    pub(crate) fn of(history: Option<&History>, means: &Means, at: EpochMillis) -> Self {
        let minutes = history.map(History::minutes);
        let names = minutes.into_iter().flat_map(Minutes::limits);
        let names: BTreeSet<_> = names.chain(means.0.keys()).collect();
        let limits = names.into_iter().map(|name| {
            let is_held = minutes.is_some_and(|minutes| minutes.is_held(name));
            let known = |minute| {
                let minutes = minutes?;
                if is_held {
                    return minutes.held(name, minute);
                }
                let (covered_ms, used) = minutes.used(name, minute);
                per_minute(used.into(), covered_ms)
            };
            let known: Vec<_> = numbers(at).map(known).collect();
            let unread = numbers(at).zip(&known).map(|(minute, known)| {
                let is_unread = known.is_none() && !is_held;
                is_unread.then(|| means.mean(name, minute)).flatten()
            });
            let curve = Curve { means: unread.collect(), minutes: known };
            (name.clone(), curve)
        });
        Self { limits: limits.collect(), at: at.0 }
    }
}

/// Returns the numbers of the minutes, since 1970.
fn numbers(at: EpochMillis) -> impl Iterator<Item = i64> {
    let count = i64::try_from(MINUTES).unwrap_or(i64::MAX);
    let last = at.0 / MINUTE_MS;
    last - count + 1..=last
}

/// Returns the first instant of the hour that a minute is in.
const fn hour_of(minute: i64) -> i64 {
    minute.div_euclid(60) * HOUR_MS
}

fn per_minute(used: i128, ms: i64) -> Option<i64> {
    if ms <= 0 {
        return None;
    }
    i64::try_from(used.saturating_mul(MINUTE_MS.into()) / i128::from(ms)).ok()
}

#[cfg(test)]
mod tests {
    use weirgate::{EntityId, MilliTotal, Resource, StoredBucket, Usage, UsageState};

    use super::*;

    /// 20 minutes after the full hour.
    const NOW: EpochMillis = EpochMillis(1_795_219_200_000 + 20 * MINUTE_MS);

    fn row(hour: i64, milli: i128) -> UsageRow {
        let start = NOW.0 - 20 * MINUTE_MS + hour * HOUR_MS;
        UsageRow {
            entity: EntityId::new("user-1").unwrap(),
            resource: Resource::new("gpt-4").unwrap(),
            start: EpochMillis(start),
            end: EpochMillis(start + HOUR_MS),
            usage: counted(milli),
            state: UsageState::Interim,
            complete_until: NOW,
        }
    }

    fn counted(milli: i128) -> Usage {
        Usage { acquires: milli, tokens: [("rpm".try_into().unwrap(), MilliTotal(milli))].into() }
    }

    fn bucket(milli: i128) -> StoredBucket {
        StoredBucket {
            entity: EntityId::new("user-1").unwrap(),
            resource: Resource::new("gpt-4").unwrap(),
            shards: 1,
            leases: 0,
            limits: vec![],
            counted: counted(milli),
        }
    }

    fn curve(history: Option<&History>, usage: Option<&[UsageRow]>) -> Curve {
        let means = usage.map(|usage| Means::of(history, usage, NOW));
        let hour = Hour::of(history, &means.unwrap_or_default(), NOW);
        hour.limits.into_values().next().unwrap()
    }

    #[test]
    fn a_minute_that_was_not_read_has_what_is_left_of_its_hour() {
        // 36 tokens in the hour before; 38 in this hour, 1 in each of its last two minutes.
        let mut history = History::new(EpochMillis(NOW.0 - 2 * MINUTE_MS), &bucket(0));
        history.read(EpochMillis(NOW.0 - MINUTE_MS), &bucket(1_000));
        history.read(NOW, &bucket(2_000));
        let usage = [row(-1, 36_000), row(0, 38_000)];
        let Curve { minutes, means } = curve(Some(&history), Some(&usage));
        let in_progress = None;
        assert_eq!(minutes[56..], [None, Some(1_000), Some(1_000), in_progress]);
        assert!(minutes[..57].iter().all(Option::is_none));
        assert_eq!(means[..39], [Some(600); 39]);
        assert_eq!(means[39..57], [Some(2_000); 18]);
        assert_eq!(means[57..59], [None; 2]);
    }

    #[test]
    fn without_usage_what_was_not_read_is_unknown_and_without_reads_all_is_even() {
        let mut history = History::new(EpochMillis(NOW.0 - MINUTE_MS), &bucket(0));
        history.read(NOW, &bucket(1_000));
        let Curve { minutes, means } = curve(Some(&history), None);
        assert_eq!(minutes.iter().flatten().count(), 1);
        assert_eq!(means, [None; MINUTES]);
        let Curve { minutes, means } = curve(None, Some(&[row(0, 20_000)]));
        assert_eq!(minutes, [None; MINUTES]);
        assert_eq!(means[..39], [Some(0); 39], "there is no row of an hour without usage");
        assert_eq!(means[39..], [Some(1_000); 21]);
    }
}
