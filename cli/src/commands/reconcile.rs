//! `weirgate reconcile`.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use weirgate::{EpochMillis, LimitName, MilliTokens, PageToken};
use weirgate_reconciler::{Config, Deadline, DueItem, Preview, Reshaped, Summary, Work};

use crate::amounts;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::instant::{self, DAY};
use crate::text::one_line;

/// Does the reconciler's work, or shows what is due.
///
/// It returns what expired leases hold, merges idle shards and repairs damaged buckets, in all
/// namespaces of the table. It may run beside the function. It lists `DueIndex`, which no
/// policy for callers allows.
#[derive(Debug, Args)]
#[command(after_help = "Example: weirgate reconcile --dry-run --most 20")]
pub struct Reconcile {
    /// Shows what is due and what would be done, and writes nothing
    #[arg(long)]
    dry_run: bool,
    /// Due items to show, those that are due longest
    #[arg(long, value_name = "NUMBER", default_value = "100", requires = "dry_run",
          value_parser = amounts::within::<1, 1_000, i32>)]
    most: i32,
    /// Time after which a run stops; the next one continues
    #[arg(long = "for", value_name = "SPAN", default_value = "5m", conflicts_with = "dry_run",
          value_parser = instant::span_within::<1, DAY>)]
    time: Duration,
}

/// What is due, as JSON has it.
#[derive(Debug, Serialize)]
struct Due {
    items: Vec<Row>,
    /// `null`, as in a list that cannot be continued: what is due longest stays first until it is done.
    next: Option<PageToken>,
    /// Whether more are due than these.
    has_more: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    key: String,
    #[serde(flatten)]
    bucket: Option<Bucket>,
    due_at_ms: EpochMillis,
    leases: usize,
    tokens: BTreeMap<LimitName, MilliTokens>,
    finished_splits: usize,
    repaired_shards: usize,
    merged_shards: usize,
    /// Why it would be postponed by an hour.
    postponed: Option<String>,
}

#[derive(Debug, Serialize)]
struct Bucket {
    namespace: String,
    entity: String,
    resource: String,
    shard: u32,
}

impl Reconcile {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let table = context.stored().await?;
        let now = table.skew().now();
        if self.dry_run {
            let preview = weirgate_reconciler::preview(&table, now, self.most).await;
            let due = Due::from(preview.map_err(|error| Failure::from(&error))?);
            context.output().print(&due, |due| text(due, context))?;
            let is_unreadable = |row: &Row| row.postponed.is_some();
            return Ok(match due.items.iter().any(is_unreadable) {
                true => Outcome::Incomplete,
                false => Outcome::Done,
            });
        }
        let config = Config::read(|variable| {
            (variable == Config::TABLE_NAME).then(|| table.name().to_owned())
        })
        .map_err(|error| Failure::Refused(error.to_string()))?;
        let deadline = Deadline::after(self.time);
        let summary =
            weirgate_reconciler::reconcile(&table, &config, &|| table.skew().now(), deadline).await;
        let summary = summary.map_err(|error| Failure::from(&error))?;
        context.output().print(&summary, summary_text)?;
        let left = summary.left_over + summary.partitions_unfinished;
        Ok(match left + summary.undecodable {
            0 => Outcome::Done,
            _ => Outcome::Incomplete,
        })
    }
}

impl From<Preview> for Due {
    fn from(Preview { due, has_more }: Preview) -> Self {
        Self { items: due.into_iter().map(Row::from).collect(), next: None, has_more }
    }
}

impl From<DueItem> for Row {
    fn from(DueItem { key, shard, due_at, work }: DueItem) -> Self {
        let bucket = shard.map(|key| Bucket {
            namespace: key.namespace.to_string(),
            entity: key.entity.to_string(),
            resource: key.resource.to_string(),
            shard: key.shard,
        });
        let (work, postponed) = match work {
            Ok(work) => (work, None),
            Err(reason) => (Work::default(), Some(reason)),
        };
        let Reshaped { finished, repaired, merged } = work.reshaped;
        Self {
            key: key.pk,
            bucket,
            due_at_ms: due_at,
            leases: work.released.leases,
            tokens: work.released.tokens,
            finished_splits: finished,
            repaired_shards: repaired,
            merged_shards: merged,
            postponed,
        }
    }
}

impl Row {
    /// What a run would do.
    fn work(&self) -> String {
        let some = |number: usize, text: &str| {
            (number > 0).then(|| text.replace("{}", &number.to_string()))
        };
        if let Some(reason) = &self.postponed {
            return format!("postpone by an hour: {reason}");
        }
        let tokens: Vec<_> =
            self.tokens.iter().map(|(limit, tokens)| format!("{limit} {tokens}")).collect();
        let work: Vec<_> = [
            some(self.leases, "end {} expired leases")
                .map(|text| format!("{text} ({})", tokens.join(", "))),
            some(self.finished_splits, "finish {} splits"),
            some(self.repaired_shards, "repair {} shards"),
            some(self.merged_shards, "merge {} shards away"),
        ]
        .into_iter()
        .flatten()
        .collect();
        match work.is_empty() {
            true => "sample the activity".to_owned(),
            false => work.join(", "),
        }
    }
}

fn text(due: &Due, context: &Context) -> String {
    let columns = ["namespace", "entity", "resource", "#shard", "due since", "would"];
    let row = |row: &Row| {
        let [namespace, entity, resource, shard] = match &row.bucket {
            Some(bucket) => [
                bucket.namespace.clone(),
                bucket.entity.clone(),
                bucket.resource.clone(),
                bucket.shard.to_string(),
            ],
            None => [row.key.clone(), String::new(), String::new(), String::new()],
        };
        vec![namespace, entity, resource, shard, instant::text(row.due_at_ms), row.work()]
    };
    let number = due.items.len();
    let count = match due.has_more {
        true => format!("more than {number} due; --most shows up to 1000"),
        false => format!("{number} due"),
    };
    match due.items.is_empty() {
        true => count,
        false => {
            format!("{}\n{count}", context.output().table(&columns, due.items.iter().map(row)))
        }
    }
}

fn summary_text(summary: &Summary) -> String {
    let Summary {
        buckets_seen,
        leases_restored,
        tokens_restored,
        shards_merged,
        shards_repaired,
        lost_races,
        left_over,
        undecodable,
        postponed,
        partitions_unfinished,
        errors,
        ..
    } = summary;
    let tokens: Vec<_> =
        tokens_restored.iter().map(|(limit, tokens)| format!("{limit} {tokens}")).collect();
    let mut text = format!(
        "{buckets_seen} were due: {leases_restored} expired leases ended, {shards_merged} shards merged away, {shards_repaired} repaired"
    );
    if !tokens.is_empty() {
        text += &format!("\nreturned: {}", tokens.join(", "));
    }
    if lost_races + left_over + undecodable + postponed + partitions_unfinished > 0 {
        text += &format!(
            "\nleft: {lost_races} lost races, {left_over} failed or out of time, {undecodable} not readable, {postponed} postponed by an hour, {partitions_unfinished} partitions of the index not read to their end"
        );
    }
    for error in errors {
        text += &format!("\n{}", one_line(&error.to_string()));
    }
    text
}
