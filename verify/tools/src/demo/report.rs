//! The report: the table's state beside the driver's record.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;
use weirgate::{EpochMillis, MilliTokens, RateLimiter, Table, Window};
use weirgate_shared::{BucketKey, EntityId, Namespace, Resource};

use super::connection::now;
use super::drive::{Driven, HELD, HELD_SLOTS};
use super::ledger::{Bucket, Consumed};
use super::stack::Stack;

/// How long the functions get: the reconciler's schedule comes once a minute, and a table that says
/// nothing for this long will not say more.
const PATIENCE: Duration = Duration::from_secs(120);

/// What was driven, and what the table says of it.
#[derive(Debug)]
pub struct Report {
    consumed: BTreeMap<Bucket, Consumed>,
    counted: BTreeMap<(Bucket, Window), Consumed>,
    /// Slots of the killed holder that are back in the bucket.
    pub slots_restored: MilliTokens,
    /// Stream records that the aggregator has read.
    pub records: u64,
    /// Acquires that were granted, and write units of everything the callers did.
    pub granted: u64,
    /// See `granted`.
    pub write_units: f64,
    denied: u64,
    writes: u64,
    settlements: u64,
}

impl Report {
    pub(super) async fn read(
        stack: &Stack,
        table: &Table,
        driven: Driven,
        started: EpochMillis,
    ) -> Result<Self, String> {
        let sum = |field: fn(&weirgate::Stats) -> u64| driven.stats.iter().map(field).sum();
        let mut report = Self {
            consumed: driven.consumed,
            counted: BTreeMap::new(),
            slots_restored: MilliTokens::ZERO,
            records: 0,
            granted: sum(|stats| stats.granted),
            denied: sum(|stats| stats.denied),
            writes: sum(|stats| stats.writes),
            write_units: driven.units.total,
            settlements: driven.settlements,
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            report.counted = counted(table, &report.consumed, started)
                .await
                .map_err(|error| error.to_string())?;
            report.slots_restored = slots_back(table).await?;
            // A function's lines are in the log when its invocation has ended.
            let logged = stack.logged()?;
            report.records = total(&logged, "records");
            if report.is_good() || Instant::now() >= deadline {
                return Ok(report);
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Whether every window counts exactly what was consumed.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        let agrees = |(bucket, consumed): (&Bucket, &Consumed)| {
            Window::ALL
                .into_iter()
                .all(|window| self.counted.get(&(bucket.clone(), window)) == Some(consumed))
        };
        !self.consumed.is_empty() && self.consumed.iter().all(agrees)
    }

    /// Returns whether usage is exact, the aggregator has read the stream, and the killed holder's
    /// slots are free. No other request uses their bucket, so only the reconciler can have released
    /// them.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.is_exact()
            && self.slots_restored == MilliTokens::from_tokens(HELD_SLOTS)
            && self.records > 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "usage, read back from the table   {:>14} {:>14} {:>14}",
            "consumed", "hourly", "daily"
        )?;
        let none = Consumed::default();
        for (bucket, consumed) in &self.consumed {
            let window = |window| self.counted.get(&(bucket.clone(), window)).unwrap_or(&none);
            let (hourly, daily) = (window(Window::Hourly), window(Window::Daily));
            let mut row = |name: &str, is: String, hour: String, day: String| {
                let verdict = if is == hour && is == day {
                    ""
                } else {
                    "  DIFFERS"
                };
                let label = format!("{} {} {name}", bucket.0, bucket.1);
                writeln!(f, "  {label:<31} {is:>14} {hour:>14} {day:>14}{verdict}")
            };
            for (limit, tokens) in &consumed.tokens {
                let read = |from: &Consumed| {
                    from.tokens
                        .get(limit)
                        .copied()
                        .unwrap_or_default()
                        .to_string()
                };
                row(limit, tokens.to_string(), read(hourly), read(daily))?;
            }
            row(
                "acquires",
                consumed.events.to_string(),
                hourly.events.to_string(),
                daily.events.to_string(),
            )?;
        }
        writeln!(f)?;
        let Self {
            granted,
            denied,
            writes,
            write_units,
            settlements,
            records,
            ..
        } = self;
        let each =
            |units: f64| units / f64::from(u32::try_from(*granted).unwrap_or(u32::MAX)).max(1.0);
        let takes = f64::from(u32::try_from(writes - settlements).unwrap_or(u32::MAX));
        writeln!(f, "acquires granted   {granted:>10}   denied {denied}")?;
        writeln!(
            f,
            "writes             {writes:>10}   {takes} to take, {:.2} per acquire; the others to adjust and release",
            each(takes)
        )?;
        writeln!(
            f,
            "write units        {write_units:>10}   {:.2} per acquire, table and indexes, all writes",
            each(*write_units)
        )?;
        writeln!(
            f,
            "stream records     {records:>10}   read by the aggregator"
        )?;
        let slots = self.slots_restored.to_string();
        writeln!(
            f,
            "slots given back   {slots:>10}   of {HELD_SLOTS} that a killed holder had, by the reconciler"
        )?;
        let verdict = if self.is_exact() {
            "usage is exact"
        } else {
            "USAGE DIFFERS from what was consumed"
        };
        write!(f, "{verdict}")
    }
}

/// What readers see was used in all windows since `started`.
async fn counted(
    table: &Table,
    consumed: &BTreeMap<Bucket, Consumed>,
    started: EpochMillis,
) -> Result<BTreeMap<(Bucket, Window), Consumed>, weirgate::Error> {
    let limiter = RateLimiter::builder(table.name())
        .table(table.clone())
        .build()
        .await?;
    let mut sums = BTreeMap::new();
    for bucket in consumed.keys() {
        for window in Window::ALL {
            let sum: &mut Consumed = sums.entry((bucket.clone(), window)).or_default();
            let mut start = window.start(started);
            while start <= now() {
                let used = limiter
                    .usage(&bucket.0, &bucket.1, window, start)
                    .await?
                    .usage;
                sum.events += used.acquires;
                for (limit, amount) in used.tokens {
                    *sum.tokens.entry(limit.to_string()).or_default() += amount;
                }
                start = window.end(start);
            }
        }
    }
    Ok(sums)
}

/// How many of the killed holder's slots are free.
async fn slots_back(table: &Table) -> Result<MilliTokens, String> {
    let key = BucketKey {
        namespace: namespace()?,
        entity: EntityId::new(HELD.0).map_err(|error| error.to_string())?,
        resource: Resource::new(HELD.1).map_err(|error| error.to_string())?,
        shard: 0,
    };
    let items = table
        .read(&[key.item_key()])
        .await
        .map_err(|error| error.to_string())?;
    let Some(item) = items.first() else {
        return Err("the holder's bucket is not there".to_owned());
    };
    let bucket = item.bucket().map_err(|error| error.to_string())?;
    Ok(bucket.limits.values().map(|state| state.available).sum())
}

fn namespace() -> Result<Namespace, String> {
    Namespace::new("default").map_err(|error| error.to_string())
}

/// The sum of one field over all lines the functions logged.
fn total(logged: &[Value], field: &str) -> u64 {
    let read = |line: &Value| {
        line.get(field)
            .or_else(|| line.get("fields")?.get(field))?
            .as_u64()
    };
    logged.iter().filter_map(read).sum()
}
