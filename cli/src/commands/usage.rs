//! `weirgate usage`.

mod chart;
mod csv;
mod html;

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use serde::Serialize;
use weirgate::{
    EntityId, EpochMillis, Granularity, LimitName, MilliTotal, Page, PlanName, Resource, TopUser,
    Unreadable, Usage as Amounts, UsageReport, UsageRow, UsageScope, UsageState, UsageTotal,
};

use super::unreadable;
use crate::amounts;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::instant::{self, DAY};

/// Reports usage, exact to the token.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("of").required(true).multiple(true).args(["entity", "plan", "resource"])))]
#[command(
    after_help = "Examples:\n  weirgate usage --entity user-1 --resource gpt-4 --by day --from 30d\n  \
                  weirgate usage --resource gpt-4 --from 2026-11-01 --top tpm\n  \
                  weirgate usage --entity user-1 --by hour --html > usage.html"
)]
pub struct Usage {
    /// Usage of an entity
    #[arg(long, value_name = "ID")]
    entity: Option<String>,
    /// Usage of the entities that have a plan now
    #[arg(long, value_name = "NAME", conflicts_with = "entity")]
    plan: Option<String>,
    /// Usage on a resource
    #[arg(long, value_name = "NAME")]
    resource: Option<String>,
    /// Interval of a row
    #[arg(long, default_value = "day", value_name = "INTERVAL")]
    by: By,
    /// First instant: a date, an instant, or a span before now (7d)
    #[arg(long, default_value = "7d", value_name = "WHEN", value_parser = instant::instant)]
    from: EpochMillis,
    /// First instant after the range
    #[arg(long, default_value = "now", value_name = "WHEN", value_parser = instant::instant)]
    to: EpochMillis,
    /// How long the stack keeps usage: its parameter SnapshotTtlDays
    // Also for snapshots of releases that kept them for one day or two.
    #[arg(long, default_value = "90d", value_name = "SPAN", value_parser = instant::span_within::<DAY, { 36_500 * DAY }>)]
    kept: Duration,
    /// Prints the sum of the intervals (--by) that overlap the range, each as a whole
    #[arg(long, conflicts_with_all = ["top", "csv", "chart", "html"])]
    total: bool,
    /// Prints the largest users of a limit, or of acquires, in the intervals of --total
    #[arg(long, value_name = "LIMIT", num_args = 0..=1, default_missing_value = "acquires", conflicts_with_all = ["csv", "chart", "html"])]
    top: Option<String>,
    /// Number of largest users
    #[arg(long, value_name = "COUNT", default_value_t = 10, requires = "top", value_parser = amounts::within::<1, 10_000, usize>)]
    count: usize,
    /// Prints CSV
    #[arg(long, conflicts_with_all = ["json", "chart", "html"])]
    csv: bool,
    /// Draws a chart of each limit
    #[arg(long, conflicts_with_all = ["json", "html"])]
    chart: bool,
    /// Prints a page with charts and all rows, as one HTML file
    #[arg(long, conflicts_with = "json")]
    html: bool,
}

/// Columns beside those of limits.
const COLUMNS: [&str; 7] = ["entity", "resource", "from", "start", "end", "state", "acquires"];

/// Before the name of a limit that is that of a column, which no name of a limit can be with it.
const LIMIT: &str = "limit ";

#[derive(Debug, Clone, Copy, ValueEnum)]
enum By {
    Hour,
    Day,
    Month,
}

impl By {
    const fn granularity(self) -> Granularity {
        match self {
            Self::Hour => Granularity::Hourly,
            Self::Day => Granularity::Daily,
            Self::Month => Granularity::Monthly,
        }
    }
}

impl Usage {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let entity = self.entity.as_deref().map(EntityId::new).transpose()?;
        let resource = self.resource.as_deref().map(Resource::new).transpose()?;
        let plan = self.plan.as_deref().map(PlanName::new).transpose()?;
        let scope = match (entity, plan, resource) {
            (Some(entity), _, Some(resource)) => UsageScope::Bucket(entity, resource),
            (Some(entity), _, None) => UsageScope::Entity(entity),
            (None, Some(plan), resource) => UsageScope::Plan(plan, resource),
            (None, None, Some(resource)) => UsageScope::Resource(resource),
            (None, None, None) => unreachable!("one of them is required"),
        };
        instant::check_range(Some(self.from), Some(self.to))?;
        let limiter = context.limiter_with(|limiter| limiter.usage_retention(self.kept));
        let limiter = limiter.await?;
        let report = limiter.admin().usage_report(scope, self.by.granularity(), self.from..self.to);
        // The text is that of the crate, whose option has another name.
        let report = report.map_err(|error| match Failure::from(error) {
            Failure::Refused(text) => Failure::Refused(format!("{text} (--kept)")),
            failure => failure,
        })?;
        if self.total {
            return total(context, OfRange::new(&report, report.total().await?));
        }
        if let Some(by) = &self.top {
            let users = match by.as_str() {
                "acquires" => report.top_by_acquires(self.count).await?,
                limit => {
                    let limit = LimitName::new(limit.strip_prefix(LIMIT).unwrap_or(limit))?;
                    let users = report.top(&limit, self.count).await?;
                    check_used(&report, &limit, &users).await?;
                    users
                }
            };
            return top(context, OfRange::new(&report, users));
        }
        let page = all(&report).await?;
        self.print(context, &page)
    }

    fn print(&self, context: &Context, page: &Page<UsageRow>) -> Result<Outcome, Failure> {
        let (output, rows, by) = (context.output(), &page.items, self.by.granularity());
        if self.csv {
            output.print_text(csv::of(rows))?;
        } else if self.html {
            output.print_text(html::of(rows, by))?;
        } else {
            let used: Vec<_> = rows.iter().filter(|row| is_used(row)).collect();
            output.print(page, |_| match self.chart {
                _ if used.is_empty() => String::new(),
                true => chart::of(rows, by),
                false => table(context, &used),
            })?;
            if used.is_empty() && page.unreadable.is_empty() {
                output.note("none in this range");
            } else if used.len() < rows.len() && !self.chart {
                output.note("rows without usage are left out; --csv and --json have them");
            }
            if used.iter().any(|row| row.state == UsageState::Interim) {
                output.note(
                    "* not final: an interval in progress, or usage that may still be counted",
                );
            }
            if used.iter().any(|row| row.state == UsageState::Unknown) {
                output.note("? unknown: usage of this time is no longer kept");
            }
        }
        Ok(lacking(context, &page.unreadable))
    }
}

/// Returns whether a row has usage, or usage that is unknown.
fn is_used(row: &UsageRow) -> bool {
    let mut amounts = row.usage.tokens.values();
    let has_usage = row.usage.acquires != 0 || amounts.any(|amount| *amount != MilliTotal::ZERO);
    has_usage || row.state == UsageState::Unknown
}

/// Requires that the report has usage of a limit, unless it has none of any.
async fn check_used(
    report: &UsageReport<'_>,
    limit: &LimitName,
    users: &Page<TopUser>,
) -> Result<(), Failure> {
    let has = |user: &TopUser| user.usage.tokens.contains_key(limit);
    if users.items.iter().any(has) {
        return Ok(());
    }
    let total = report.total().await?;
    let known: Vec<_> = total.usage.tokens.keys().map(LimitName::as_str).collect();
    match known.is_empty() || total.usage.tokens.contains_key(limit) {
        true => Ok(()),
        false => Err(Failure::Refused(format!(
            "--top must be acquires or a limit with usage in this range ({}), got {limit}; name one \
             of these",
            known.join(", ")
        ))),
    }
}

/// Reads all rows of a report.
async fn all(report: &UsageReport<'_>) -> Result<Page<UsageRow>, Failure> {
    let mut all = report.page(None).await?;
    while let Some(next) = &all.next {
        let page = report.page(Some(next)).await?;
        all.items.extend(page.items);
        for item in page.unreadable {
            // A shard is read for each page of its bucket, and one of its faults is told.
            let is_same = |known: &Unreadable| (&known.pk, &known.sk) == (&item.pk, &item.sk);
            if !all.unreadable.iter().any(is_same) {
                all.unreadable.push(item);
            }
        }
        all.next = page.next;
    }
    Ok(all)
}

/// Tells which items a report lacks, apart from its rows, which may be read by a program.
fn lacking(context: &Context, items: &[Unreadable]) -> Outcome {
    let output = context.output();
    if !items.is_empty() {
        output.note(format!(
            "{}incomplete: these items cannot be read",
            unreadable::table(output, items)
        ));
    }
    unreadable::outcome(items)
}

/// Returns the names of all limits.
fn limits<'a>(usages: impl IntoIterator<Item = &'a Amounts>) -> BTreeSet<&'a LimitName> {
    let names = usages.into_iter().map(|usage| usage.tokens.keys());
    names.flatten().collect()
}

/// Returns the amounts of these limits, and the number of acquires.
fn cells(usage: &Amounts, limits: &BTreeSet<&LimitName>) -> Vec<String> {
    let amount = |limit: &&LimitName| {
        let amount = usage.tokens.get(*limit).copied();
        amount.unwrap_or(MilliTotal::ZERO).to_string()
    };
    let mut cells: Vec<_> = limits.iter().map(amount).collect();
    cells.push(usage.acquires.to_string());
    cells
}

/// Returns the names of the columns of [`cells`], which differ from each other and from those before them.
fn columns(limits: &BTreeSet<&LimitName>) -> Vec<String> {
    let name = |limit: &&LimitName| match COLUMNS.contains(&limit.as_str()) {
        true => format!("{LIMIT}{limit}"),
        false => limit.to_string(),
    };
    let names = limits.iter().map(name);
    names.chain(["acquires".to_owned()]).collect()
}

/// Returns those names as columns of a table with numbers.
fn numbers(limits: &BTreeSet<&LimitName>) -> impl Iterator<Item = String> {
    columns(limits).into_iter().map(|name| format!("#{name}"))
}

fn table(context: &Context, rows: &[&UsageRow]) -> String {
    let limits = limits(rows.iter().map(|row| &row.usage));
    let mut names = vec!["entity".to_owned(), "resource".to_owned(), "from".to_owned()];
    names.extend(numbers(&limits));
    let line = |row: &&UsageRow| {
        let mark = match row.state {
            UsageState::Final => "",
            UsageState::Interim => " *",
            UsageState::Unknown => " ?",
        };
        let mut line = vec![
            row.entity.to_string(),
            row.resource.to_string(),
            format!("{}{mark}", instant::text(row.start)),
        ];
        line.extend(cells(&row.usage, &limits));
        line
    };
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    context.output().table(&names, rows.iter().map(line))
}

/// What has no row with its times: a sum.
#[derive(Serialize)]
struct OfRange<T> {
    #[serde(flatten)]
    of: T,
    start_ms: EpochMillis,
    end_ms: EpochMillis,
}

impl<T> OfRange<T> {
    fn new(report: &UsageReport<'_>, of: T) -> Self {
        let Range { start, end } = report.range();
        Self { of, start_ms: start, end_ms: end }
    }

    fn text(&self) -> String {
        let (start, end) = (instant::text(self.start_ms), instant::text(self.end_ms));
        format!("from {start} to {end}")
    }
}

fn total(context: &Context, total: OfRange<UsageTotal>) -> Result<Outcome, Failure> {
    let output = context.output();
    output.print(&total, |all| {
        let total = &all.of;
        let limits = limits([&total.usage]);
        let names: Vec<_> = numbers(&limits).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let table = output.table(&names, [cells(&total.usage, &limits)]);
        format!(
            "{table}\n{}, {}{}, complete until {}",
            all.text(),
            if total.unreadable.is_empty() { "" } else { "incomplete: " },
            total.state,
            instant::text(total.complete_until)
        )
    })?;
    Ok(lacking(context, &total.of.unreadable))
}

fn top(context: &Context, top: OfRange<Page<TopUser>>) -> Result<Outcome, Failure> {
    let output = context.output();
    output.print(&top, |top| {
        let users = &top.of.items;
        let limits = limits(users.iter().map(|user| &user.usage));
        let mut names = vec!["entity".to_owned(), "resource".to_owned()];
        names.extend(numbers(&limits));
        let line = |user: &TopUser| {
            let mut line = vec![user.entity.to_string(), user.resource.to_string()];
            line.extend(cells(&user.usage, &limits));
            line
        };
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        match users.is_empty() {
            true => String::new(),
            false => output.table(&names, users.iter().map(line)),
        }
    })?;
    match top.of.items.is_empty() && top.of.unreadable.is_empty() {
        true => output.note(format!("none {}", top.text())),
        false => output.note(top.text()),
    }
    Ok(lacking(context, &top.of.unreadable))
}
