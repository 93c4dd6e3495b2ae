//! Today's usage by hour, and the largest users.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use weirgate::{EpochMillis, Unreadable, Usage, UsageRow};

use super::row::Key;

/// How many of the largest users are shown.
const TOP: usize = 8;
const HOUR_MS: i64 = 3_600_000;

/// Usage of one measure: the acquires, or the tokens of a limit in millitokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Measure {
    /// Name of the limit; `None` for the acquires.
    limit: Option<String>,
    /// The amounts of the 24 hours of the day (UTC).
    hours: Vec<i128>,
    /// The largest users: entity, resource, amount.
    top: Vec<(String, String, i128)>,
}

/// Usage of a day (UTC).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Day {
    /// First instant of the day, epoch ms.
    pub(crate) start: i64,
    /// When it was read, epoch ms.
    pub(crate) at: i64,
    pub(crate) measures: Vec<Measure>,
    /// Number of items that cannot be read, and are missing in the amounts.
    pub(crate) unreadable: usize,
}

/// Adds up the rows of a report.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    hours: BTreeMap<i64, Usage>,
    users: BTreeMap<Key, Usage>,
    /// Keys of items that cannot be read.
    unreadable: BTreeSet<(String, String)>,
}

impl Sum {
    pub(crate) fn add(&mut self, row: &UsageRow) {
        let hour = self.hours.entry(row.start.0).or_default();
        hour.add(&row.usage);
        let key = (row.entity.clone(), row.resource.clone());
        self.users.entry(key).or_default().add(&row.usage);
    }

    /// Counts an item that cannot be read.
    pub(crate) fn lacks(&mut self, item: Unreadable) {
        self.unreadable.insert((item.pk, item.sk));
    }

    /// Returns how many buckets have usage.
    pub(crate) fn users(&self) -> usize {
        self.users.len()
    }

    pub(crate) fn day(&self, start: EpochMillis, at: EpochMillis) -> Day {
        let names = self.hours.values().flat_map(|usage| usage.tokens.keys());
        let names: BTreeSet<_> = names.collect();
        let measures = std::iter::once(None).chain(names.into_iter().map(Some));
        let measures = measures.map(|limit| {
            let amount = |usage: &Usage| match limit {
                Some(name) => usage.tokens.get(name).map_or(0, |amount| amount.0),
                None => usage.acquires,
            };
            let of_hour = |hour| self.hours.get(&(start.0 + hour * HOUR_MS)).map_or(0, amount);
            let mut users: Vec<_> = self.users.iter().collect();
            users.sort_by_key(|(_, usage)| std::cmp::Reverse(amount(usage)));
            let top = users.into_iter().filter(|(_, usage)| amount(usage) > 0);
            let top = top.take(TOP).map(|((entity, resource), usage)| {
                (entity.to_string(), resource.to_string(), amount(usage))
            });
            Measure {
                limit: limit.map(ToString::to_string),
                hours: (0..24).map(of_hour).collect(),
                top: top.collect(),
            }
        });
        Day {
            start: start.0,
            at: at.0,
            measures: measures.collect(),
            unreadable: self.unreadable.len(),
        }
    }
}
