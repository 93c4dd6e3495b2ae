//! Plans and makes the copies of usage for an object's event, as the aggregator does.

use std::collections::BTreeMap;

use futures_util::StreamExt;
use weirgate_shared::write::UsageCopy;
use weirgate_store::{ErrorKind, RetryPolicy, Table};

use super::object::{TableArn, event, tables};
use super::report::Done;
use crate::config::DEFAULT_TTL_DAYS;
use crate::execute::{Effect, FailureReason, run_copy};
use crate::{parse, plan};

/// The options of a replay.
#[derive(Debug, Clone)]
pub struct Options {
    /// Days that a snapshot is kept after its window.
    pub ttl_days: i64,
    /// Table that the records come from, if it is not the target table.
    pub from_table: Option<String>,
    /// Whether to write nothing.
    pub dry_run: bool,
    /// Maximum number of concurrent copies.
    pub concurrency: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { ttl_days: DEFAULT_TTL_DAYS, from_table: None, dry_run: false, concurrency: 32 }
    }
}

/// A replay in progress.
#[derive(Debug)]
pub struct Replay<'t> {
    table: &'t Table,
    options: Options,
    /// Table of the records so far.
    from: Option<TableArn>,
}

impl<'t> Replay<'t> {
    /// Begins a replay into `table`.
    #[must_use]
    pub const fn new(table: &'t Table, options: Options) -> Self {
        Self { table, options, from: None }
    }

    /// Makes the copies for the records of one object, and returns their outcome.
    pub async fn object(&mut self, name: &str, text: &str) -> Done {
        let mut done = Done::new(name.to_owned());
        if let Err(why) = self.replay(text, &mut done).await {
            done.left.push(why);
        }
        done
    }

    async fn replay(&mut self, text: &str, done: &mut Done) -> Result<(), String> {
        let event = event(text)?;
        let batch = parse::records(&event).map_err(|error| error.to_string())?;
        self.belongs(&event)?;
        done.records = batch.sequence_numbers.len();
        for record in &batch.undecodable {
            let (index, why) = (record.index, &record.why);
            done.left.push(format!(
                "record {index} cannot be read: {why}; keep the object for a version that reads it"
            ));
        }
        let shards = plan::shards(batch.records);
        // Of each object, because a replay may last longer than the margin of an expiry.
        let now = self.table.skew().now();
        let mut turns: BTreeMap<_, Vec<UsageCopy>> = BTreeMap::new();
        for (copy, _) in plan::copies(&shards, self.options.ttl_days) {
            if copy.is_expired(now) {
                let days = self.options.ttl_days;
                done.left.push(format!(
                    "{copy}: the window ended {days} days ago or earlier, so its snapshot may be deleted, and a copy would \
                     make one without the other shards; if SNAPSHOT_TTL_DAYS is larger, set --ttl-days to it"
                ));
            } else if self.options.dry_run {
                done.planned.push(copy.to_string());
            } else {
                let of = (copy.key.item_key().pk, copy.key.resource.clone());
                turns.entry((of, copy.shard)).or_default().push(copy);
            }
        }
        let results = turns.into_values().map(|copies| in_turn(self.table, copies));
        let mut results = futures_util::stream::iter(results).buffered(self.options.concurrency);
        while let Some(results) = results.next().await {
            for result in results {
                match result {
                    Ok(Effect::Copied | Effect::CopiedAfterGap) => done.copied += 1,
                    Ok(_) => done.superseded += 1,
                    Err(why) => done.left.push(why),
                }
            }
        }
        Ok(())
    }

    /// Checks that all records come from the expected table, the same one in all objects.
    fn belongs(&mut self, event: &str) -> Result<(), String> {
        let own = self.table.name();
        let expected = self.options.from_table.as_deref().unwrap_or(own);
        let mut first = self.from.clone();
        for from in tables(event)? {
            let Some(from) = from else {
                return Err(
                    "a record does not say of which table it is (eventSourceARN)".to_owned()
                );
            };
            if from.name() != expected {
                return Err(format!(
                    "its records are of table {0:?}, not of {expected:?}; if {own:?} was restored from it, set \
                     --from-table {0}",
                    from.name()
                ));
            }
            let region = self.table.region().filter(|_| self.options.from_table.is_none());
            if let Some(region) = region.filter(|region| *region != from.region()) {
                return Err(format!(
                    "its records are of {from}, and {own:?} is the table of that name in {region}; set AWS_REGION={} to \
                     replay them there",
                    from.region()
                ));
            }
            match &first {
                Some(first) if *first != from => {
                    return Err(format!(
                        "its records are of {from}, those before them of {first}, which is another table of the same \
                         name; replay the objects of each table in a run of its own"
                    ));
                }
                _ => first = Some(from),
            }
        }
        // Set only here, so a rejected object does not decide the table of later ones.
        self.from = first;
        Ok(())
    }
}

/// Copies one shard, image by image, because an earlier life must come before a later one, and an
/// hour before its day. So the first failed copy ends the sequence.
async fn in_turn(table: &Table, copies: Vec<UsageCopy>) -> Vec<Result<Effect, String>> {
    let mut results = vec![];
    for copy in copies {
        let waits = results.last().is_some_and(Result::is_err);
        results.push(match waits {
            true => Err(format!("{copy}: the copy before it was not made; run this again")),
            false => run_copy(table, &copy, RetryPolicy::AlsoUnconfirmed)
                .await
                .map_err(|why| failure(&copy, &why)),
        });
    }
    results
}

fn failure(copy: &UsageCopy, why: &FailureReason) -> String {
    let remedy = match why {
        FailureReason::Snapshot { .. } => "correct its attribute and run this again",
        FailureReason::Full { .. } => "nothing more can be copied to it",
        FailureReason::Store(error) if error.kind == ErrorKind::Invalid => {
            "correct the item and run this again"
        }
        _ => "run this again",
    };
    format!("{copy}: {why}; {remedy}")
}
