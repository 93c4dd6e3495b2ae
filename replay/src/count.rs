//! An event to what was added to the snapshots, or would be.

use std::collections::{BTreeMap, HashMap};

use futures_util::StreamExt;
use weirgate_aggregator::execute::{Added, Why, add};
use weirgate_aggregator::parse::{self, Batch, Record};
use weirgate_aggregator::{Snapshots, plan};
use weirgate_shared::write::{Count, Piece};
use weirgate_shared::{Counted, EpochMillis, ItemKey, MilliTokens};
use weirgate_store::{ErrorKind, Table};

use crate::object::{TableArn, event, tables};
use crate::report::{Amounts, Done};

/// How to count.
#[derive(Debug, Clone)]
pub struct Options {
    /// The aggregator's settings.
    pub snapshots: Snapshots,
    /// The table that the records come from, if it is another one than is counted for.
    pub from_table: Option<String>,
    /// Whether what cannot be counted once is counted each time.
    pub without_v: bool,
    /// Whether nothing is written.
    pub dry_run: bool,
    /// Snapshots written to at the same time.
    pub concurrency: usize,
}

/// A replay under way.
#[derive(Debug)]
pub struct Replay<'t> {
    table: &'t Table,
    options: Options,
    now: EpochMillis,
    /// Where the records of the objects so far come from.
    from: Option<TableArn>,
    /// How far the snapshots would have counted by now, in a run that writes nothing.
    supposed: HashMap<(ItemKey, u32), Counted>,
}

/// The counts of one snapshot, in the order of the writes.
type Group<'c> = (ItemKey, Vec<(Count<'c>, usize)>);

impl<'t> Replay<'t> {
    /// Counts in `table`, whose snapshots have expired by `now` or not.
    #[must_use]
    pub fn new(table: &'t Table, options: Options, now: EpochMillis) -> Self {
        Self { table, options, now, from: None, supposed: HashMap::new() }
    }

    /// Counts the records of one object.
    pub async fn object(&mut self, name: &str, text: &str) -> Done {
        let unreadable = |why| Done::unreadable(name.to_owned(), why);
        let event = match event(text) {
            Ok(event) => event,
            Err(why) => return unreadable(why),
        };
        let mut batch = match parse::records(&event) {
            Ok(batch) => batch,
            Err(error) => return unreadable(error.to_string()),
        };
        if let Err(why) = self.belongs(&event) {
            return unreadable(why);
        }
        let mut done = Done::new(name.to_owned(), batch.sequence_numbers.len());
        for record in &batch.undecodable {
            let why = &record.why;
            done.left(
                0,
                format!("record {} cannot be read: {why}. Keep the object; no replay can mend it", record.index),
            );
        }
        let records = self.countable(&mut batch, &mut done);
        let usage = plan::usage(records);
        let groups = self.groups(plan::counts(&usage, &self.options.snapshots), &mut done);
        if self.options.dry_run {
            self.suppose(groups, &mut done).await;
        } else {
            self.count(groups, &mut done).await;
        }
        done
    }

    /// Whether all records come from the table they are to be counted for, which is one and the same in all objects.
    fn belongs(&mut self, event: &str) -> Result<(), String> {
        let own = self.table.name();
        let expected = self.options.from_table.as_deref().unwrap_or(own);
        let mut first = self.from.clone();
        for from in tables(event)? {
            let Some(from) = from else {
                return Err("a record does not say of which table it is (eventSourceARN)".to_owned());
            };
            if from.name() != expected {
                return Err(format!(
                    "its records are of table {0:?}, not of {expected:?}. If {own:?} was restored from it, say \
                     --from-table {0}",
                    from.name()
                ));
            }
            let region = self.table.region().filter(|_| self.options.from_table.is_none());
            if let Some(region) = region.filter(|region| *region != from.region()) {
                return Err(format!(
                    "its records are of {from}, and {own:?} is the table of that name in {region}: set AWS_REGION={} to \
                     count them there",
                    from.region()
                ));
            }
            match &first {
                Some(first) if *first != from => {
                    return Err(format!(
                        "its records are of {from}, those before them of {first}: that is another table of the same \
                         name. Count the objects of each in a run of its own"
                    ));
                }
                _ => first = Some(from),
            }
        }
        // An object that is left says nothing of those behind it.
        self.from = first;
        Ok(())
    }

    /// The records that can be counted once, or at all.
    fn countable(&self, batch: &mut Batch<'_>, done: &mut Done) -> Vec<Record> {
        let mut records = std::mem::take(&mut batch.records);
        if !self.options.without_v {
            let is_used =
                |record: &Record| record.events != 0 || record.used.iter().any(|used| *used != MilliTokens::ZERO);
            let without = records.iter().filter(|record| record.span.is_none() && is_used(record)).count();
            if without > 0 {
                let why = "of items that do not count their writes (`v`): nobody knows whether that was counted. \
                           --without-v counts it, each time it is said";
                done.left(without, why.to_owned());
            }
            records.retain(|record| record.span.is_some());
        }
        records
    }

    /// The counts of snapshots that are still there, by snapshot.
    fn groups<'c>(&self, counts: Vec<(Count<'c>, usize)>, done: &mut Done) -> Vec<Group<'c>> {
        let mut groups: BTreeMap<ItemKey, Vec<(Count<'c>, usize)>> = BTreeMap::new();
        for (count, record) in counts {
            let key = count.key.item_key();
            if count.ttl_seconds.saturating_mul(1000) > self.now.0 {
                groups.entry(key).or_default().push((count, record));
            } else {
                let days = self.options.snapshots.ttl_days;
                let ItemKey { pk, sk } = key;
                let why = format!(
                    "for {pk} {sk}, which ended {days} days ago or earlier: it may be gone, and with it what \
                    it had counted"
                );
                done.left(count.pieces.len(), why);
            }
        }
        groups.into_iter().collect()
    }

    async fn count(&self, groups: Vec<Group<'_>>, done: &mut Done) {
        let made = groups.into_iter().map(|group| add_all(self.table, group));
        let mut made = futures_util::stream::iter(made).buffer_unordered(self.options.concurrency);
        while let Some((key, made)) = made.next().await {
            for (added, count, record) in made {
                match added {
                    Ok(mut added) => drop(tally(&count, &mut added.before, added.is_in_doubt, &key, done)),
                    Err(why) => done.left(count.pieces.len(), failure(&count, &key, record, &why)),
                }
            }
        }
    }

    async fn suppose(&mut self, groups: Vec<Group<'_>>, done: &mut Done) {
        for (key, counts) in groups {
            let snapshot = match self.table.read(std::slice::from_ref(&key)).await {
                Ok(items) => items.into_iter().next(),
                Err(error) => {
                    done.left(0, format!("{} {} cannot be read: {error}", key.pk, key.sk));
                    continue;
                }
            };
            let mut amounts = Amounts::default();
            for (count, record) in counts {
                let known = self.supposed.remove(&(key.clone(), count.shard)).map(Ok);
                let counted =
                    || snapshot.as_ref().map_or_else(|| Ok(Counted::default()), |item| item.counted(count.shard));
                match known.unwrap_or_else(counted) {
                    Ok(mut counted) => {
                        amounts.add(count.limits, &tally(&count, &mut counted, false, &key, done));
                        counted.bound();
                        self.supposed.insert((key.clone(), count.shard), counted);
                    }
                    Err(error) => {
                        let why = failure(&count, &key, record, &Why::Snapshot { key: key.clone(), error });
                        done.left(count.pieces.len(), why);
                    }
                }
            }
            done.would_add(&key, &amounts);
        }
    }
}

/// The counts of one snapshot, one after the other, each with what became of it.
type Made<'c> = (ItemKey, Vec<(Result<Added, Why>, Count<'c>, usize)>);

async fn add_all<'c>(table: &Table, (key, counts): Group<'c>) -> Made<'c> {
    let mut made = vec![];
    for (count, record) in counts {
        made.push((add(table, &count).await, count, record));
    }
    (key, made)
}

/// Takes the pieces of a count off what `counted` has not counted, and says which of them those are. If this is in doubt,
/// what was counted may have been so by a write of this run, whose answer was lost.
fn tally<'c>(
    count: &Count<'c>,
    counted: &mut Counted,
    is_in_doubt: bool,
    key: &ItemKey,
    done: &mut Done,
) -> Vec<&'c Piece> {
    let forgotten = counted.forgotten();
    let (mut added, mut unknown) = (vec![], 0);
    let tally = done.windows.entry(count.key.window).or_default();
    for piece in count.pieces {
        let span = piece.span;
        if span.is_none_or(|(after, through)| counted.take(after, through)) {
            added.push(piece);
        } else if span.zip(forgotten).is_some_and(|((_, through), forgotten)| through <= forgotten) {
            unknown += 1;
        } else if is_in_doubt {
            tally.now_or_before += 1;
        } else {
            tally.before += 1;
        }
    }
    tally.counted += added.len();
    if unknown > 0 {
        let ItemKey { pk, sk } = key;
        let why = "which has given up its oldest missing ranges: nobody knows whether that was counted";
        done.left(unknown, format!("for {pk} {sk}, {why}"));
    }
    added
}

fn failure(count: &Count<'_>, key: &ItemKey, record: usize, why: &Why) -> String {
    let may_be_applied = matches!(why, Why::Store(error) if error.kind == ErrorKind::Unknown);
    match why {
        Why::Snapshot { .. } => format!("from record {record} on: {why}; mend its attribute and run this again"),
        Why::Store(error) if error.kind == ErrorKind::Invalid => {
            format!("for {} {}: {why}; put the item right and run this again", key.pk, key.sk)
        }
        _ if may_be_applied && !count.is_exact() => {
            format!("for {} {}: {why}; perhaps counted, and a second run counts it again", key.pk, key.sk)
        }
        _ => format!("for {} {}: {why}; run this again", key.pk, key.sk),
    }
}
