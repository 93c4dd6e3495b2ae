//! What reads of a bucket tell about its use: in the last minute, and in each minute of the last
//! hour.

use std::collections::{BTreeMap, VecDeque};

use weirgate::{EpochMillis, LimitKind, LimitName, MilliTotal, StoredBucket, Usage};

use crate::why::Used;

/// Time between the two reads of which the difference is a rate, at least.
const RATE_OVER_MS: i64 = 2_000;
/// Time over which a rate is, if the bucket is read twice in it.
pub(crate) const OVER_MS: i64 = 60_000;
/// Time after which a rate says nothing of now.
const STALE_MS: i64 = 120_000;
pub(crate) const MINUTE_MS: i64 = 60_000;
/// Minutes that are remembered, the one in progress included.
pub(crate) const MINUTES: usize = 60;

/// What reads of one bucket told.
#[derive(Debug)]
pub(crate) struct History {
    /// What was counted at some reads, the oldest first: one, and those after it of the last minute.
    samples: VecDeque<(EpochMillis, Usage)>,
    minutes: Minutes,
    is_split: bool,
}

impl History {
    pub(crate) fn new(at: EpochMillis, bucket: &StoredBucket) -> Self {
        let mut minutes = Minutes::new(at);
        minutes.hold(at, bucket);
        Self {
            samples: [(at, bucket.counted.clone())].into(),
            minutes,
            is_split: bucket.shards > 1,
        }
    }

    /// Compares a read with those before. Counts that fell, by a merge or an expiry, begin again.
    pub(crate) fn read(&mut self, at: EpochMillis, bucket: &StoredBucket) {
        self.minutes.hold(at, bucket);
        self.is_split |= bucket.shards > 1;
        let counted = &bucket.counted;
        let (last_at, last) = self.last();
        let elapsed = at.0 - last_at.0;
        let has_fallen = counted.acquires < last.acquires || elapsed < 0;
        if elapsed < RATE_OVER_MS && !has_fallen {
            return;
        }
        let Some(used) = Used::between(last, counted, elapsed) else {
            self.samples = [(at, counted.clone())].into();
            return;
        };
        let last_at = *last_at;
        self.minutes.add(last_at, at, &used.usage);
        self.samples.push_back((at, counted.clone()));
        while self.samples.len() > 2 && at.0 - self.samples[0].0.0 > OVER_MS {
            self.samples.pop_front();
        }
    }

    /// Returns what was used in the last minute, as far as two reads tell.
    pub(crate) fn used(&self) -> Option<Used> {
        let (first_at, first) = self.samples.front()?;
        let (last_at, last) = self.last();
        Used::between(first, last, last_at.0 - first_at.0)
    }

    /// Returns whether a read so long ago says nothing of now.
    pub(crate) fn is_stale(&self, now: EpochMillis) -> bool {
        now.0 - self.last().0.0 > STALE_MS
    }

    /// Returns whether no minute of the last hour is known.
    pub(crate) fn is_over(&self, now: EpochMillis) -> bool {
        now.0 / MINUTE_MS - self.minutes.last >= slots(MINUTES)
    }

    /// Returns whether the bucket is known to have been split.
    pub(crate) const fn is_split(&self) -> bool {
        self.is_split
    }

    pub(crate) const fn minutes(&self) -> &Minutes {
        &self.minutes
    }

    fn last(&self) -> &(EpochMillis, Usage) {
        let last = self.samples.back();
        last.unwrap_or_else(|| unreachable!("there is one from the first read on"))
    }
}

/// Use in the minutes (UTC) of the last hour. A minute has its place by its number.
#[derive(Debug)]
pub(crate) struct Minutes {
    /// Number of the last minute that is known, since 1970.
    last: i64,
    /// Time of each minute between two reads that were compared, in ms.
    covered_ms: [i64; MINUTES],
    /// Net tokens used in that time, in millitokens.
    used: BTreeMap<LimitName, Box<[i64; MINUTES]>>,
    /// The most slots that a read of the minute found held, in millitokens.
    held: BTreeMap<LimitName, Box<[Option<i64>; MINUTES]>>,
}

impl Minutes {
    fn new(at: EpochMillis) -> Self {
        Self {
            last: at.0 / MINUTE_MS,
            covered_ms: [0; MINUTES],
            used: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    /// Forgets what is an hour before `minute`.
    fn reach(&mut self, minute: i64) {
        let from = (self.last + 1).max(minute - slots(MINUTES) + 1);
        for place in (from..=minute).map(place) {
            self.covered_ms[place] = 0;
            self.used.values_mut().for_each(|used| used[place] = 0);
            self.held.values_mut().for_each(|held| held[place] = None);
        }
        self.last = self.last.max(minute);
    }

    /// Spreads what was used from one read to another over the minutes between.
    fn add(&mut self, from: EpochMillis, to: EpochMillis, used: &Usage) {
        self.reach(to.0 / MINUTE_MS);
        let whole = i128::from(to.0 - from.0).max(1);
        let first = (from.0 / MINUTE_MS).max(self.last - slots(MINUTES) + 1);
        for minute in first..=self.last {
            let start = from.0.max(minute * MINUTE_MS);
            let end = to.0.min((minute + 1) * MINUTE_MS);
            self.covered_ms[place(minute)] += end - start;
            for (name, MilliTotal(amount)) in &used.tokens {
                if *amount == 0 {
                    continue;
                }
                // The differences of rounded sums add up to the amount.
                let until = |at: i64| amount * i128::from(at - from.0) / whole;
                let part = i64::try_from(until(end) - until(start)).unwrap_or(i64::MAX);
                let used = self.used.entry(name.clone());
                let used = used.or_insert_with(|| Box::new([0; MINUTES]));
                let sum = &mut used[place(minute)];
                *sum = sum.saturating_add(part);
            }
        }
    }

    /// Remembers the slots that are held.
    fn hold(&mut self, at: EpochMillis, bucket: &StoredBucket) {
        let minute = at.0 / MINUTE_MS;
        self.reach(minute);
        let slots = bucket.limits.iter();
        for status in slots.filter(|status| status.kind() == LimitKind::Slots) {
            let Ok(name) = LimitName::try_from(&*status.limit) else {
                continue;
            };
            let held = (status.capacity - status.available).0;
            let known = self.held.entry(name);
            let known = known.or_insert_with(|| Box::new([None; MINUTES]));
            let most = &mut known[place(minute)];
            *most = Some(most.map_or(held, |most| most.max(held)));
        }
    }

    /// Returns the limits of which something is known.
    pub(crate) fn limits(&self) -> impl Iterator<Item = &LimitName> {
        self.used.keys().chain(self.held.keys())
    }

    /// Returns the time of a minute in which the use is known, in ms, and the use, in millitokens.
    pub(crate) fn used(&self, name: &LimitName, minute: i64) -> (i64, i64) {
        if !self.knows(minute) {
            return (0, 0);
        }
        let used = self.used.get(name).map_or(0, |used| used[place(minute)]);
        (self.covered_ms[place(minute)], used)
    }

    /// Returns the most slots that were held in a minute, in millitokens; `None` if it was not read.
    pub(crate) fn held(&self, name: &LimitName, minute: i64) -> Option<i64> {
        let held = self.held.get(name).filter(|_| self.knows(minute))?;
        held[place(minute)]
    }

    /// Returns whether a limit is one of slots.
    pub(crate) fn is_held(&self, name: &LimitName) -> bool {
        self.held.contains_key(name)
    }

    fn knows(&self, minute: i64) -> bool {
        minute <= self.last && minute > self.last - slots(MINUTES)
    }
}

fn slots(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn place(minute: i64) -> usize {
    usize::try_from(minute.rem_euclid(slots(MINUTES))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weirgate::{EntityId, LimitMode, LimitStatus, MilliTokens, Resource};

    use super::*;

    /// A bucket that has counted so much, and holds so many slots.
    fn bucket(acquires: i128, milli: i128, held: i64) -> StoredBucket {
        let entity = EntityId::new("user-1").unwrap();
        let resource = Resource::new("gpt-4").unwrap();
        let slots = LimitStatus {
            entity: entity.clone(),
            resource: resource.clone(),
            limit: "slots".to_owned(),
            mode: LimitMode::Enforced,
            capacity: MilliTokens(8_000),
            refill_amount: MilliTokens::ZERO,
            refill_period: Duration::ZERO,
            available: MilliTokens(8_000 - held),
            requested: MilliTokens::ZERO,
            is_requested: false,
            retry_after: None,
            paused_for: None,
            window: None,
            window_end: None,
            resets_in: None,
        };
        StoredBucket {
            entity,
            resource,
            shards: 1,
            leases: 0,
            limits: vec![slots],
            counted: Usage {
                acquires,
                tokens: [("rpm".try_into().unwrap(), MilliTotal(milli))].into(),
            },
        }
    }

    fn second(count: i64) -> EpochMillis {
        EpochMillis(1_795_219_200_000 + count * 1_000)
    }

    fn used(history: &History) -> Option<(i128, i128, i64)> {
        let used = history.used()?;
        let tokens: i128 = used.usage.tokens.values().map(|amount| amount.0).sum();
        Some((used.usage.acquires, tokens, used.over_ms))
    }

    #[test]
    fn the_use_is_that_of_the_last_minute_and_unknown_after_counts_fell() {
        let mut history = History::new(second(0), &bucket(100, 5_000, 0));
        assert_eq!(used(&history), None, "one read");
        history.read(second(1), &bucket(150, 6_000, 0));
        assert_eq!(used(&history), None, "too soon");
        history.read(second(4), &bucket(300, 13_000, 0));
        assert_eq!(used(&history), Some((200, 8_000, 4_000)));
        for read in 1..=30 {
            let counted = bucket(300 + i128::from(read), 13_000 + 10 * i128::from(read), 0);
            history.read(second(4 + read * 10), &counted);
        }
        assert_eq!(used(&history), Some((6, 60, 60_000)));
        history.read(second(310), &bucket(7, 70, 0));
        assert_eq!(used(&history), None, "merged");
        // A list that takes long to read: its last two reads.
        history.read(second(610), &bucket(10, 100, 0));
        assert_eq!(used(&history), Some((3, 30, 300_000)));
        assert!(!history.is_stale(second(700)) && history.is_stale(second(731)));
    }

    #[test]
    fn minutes_have_what_was_used_in_them_and_are_unknown_where_nothing_was_read() {
        let rpm = LimitName::try_from("rpm").unwrap();
        let slots = LimitName::try_from("slots").unwrap();
        let first = second(0).0 / MINUTE_MS;
        let mut history = History::new(second(30), &bucket(0, 0, 2_000));
        history.read(second(90), &bucket(60, 6_001, 5_000));
        history.read(second(92), &bucket(60, 6_001, 1_000));
        let minutes = history.minutes();
        assert_eq!(minutes.used(&rpm, first), (30_000, 3_000));
        assert_eq!(minutes.used(&rpm, first + 1), (32_000, 3_001));
        assert_eq!(minutes.used(&rpm, first + 2), (0, 0), "not yet");
        let held = |minutes: &Minutes, minute| minutes.held(&slots, first + minute);
        assert_eq!(held(minutes, 0), Some(2_000));
        assert_eq!(held(minutes, 1), Some(5_000), "the most");
        assert_eq!(held(minutes, 2), None);
        assert!(minutes.is_held(&slots) && !minutes.is_held(&rpm));

        // Merged: what was used between the reads is not known.
        history.read(second(150), &bucket(1, 1, 0));
        assert_eq!(history.minutes().used(&rpm, first + 2), (0, 0));
        // Two hours later, nothing of before is left, and the use since is spread evenly.
        let later = first + 122;
        assert!(!history.is_over(second(61 * 60)) && history.is_over(second(62 * 60)));
        history.read(second(150 + 7_200), &bucket(121, 120_001, 0));
        let minutes = history.minutes();
        assert_eq!(minutes.used(&rpm, later - 60), (0, 0));
        assert_eq!(minutes.used(&rpm, later - 59), (60_000, 1_000));
        assert_eq!(minutes.used(&rpm, later), (30_000, 500));
        assert_eq!(held(minutes, 1), None);
        assert_eq!(minutes.limits().count(), 2);
    }
}
