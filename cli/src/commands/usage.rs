//! `weirgate usage`.

mod chart;
mod csv;
mod html;

use std::collections::BTreeSet;

use clap::{Args, ValueEnum};
use serde::Serialize;
use weirgate::{
    EntityId, EpochMillis, Granularity, LimitName, MilliTokens, Page, Resource, TopUser,
    Usage as Amounts, UsageReport, UsageRow, UsageScope, UsageTotal,
};

use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::instant;

/// Reports usage, exact to the token.
#[derive(Debug, Args)]
#[group(id = "scope", required = true, multiple = true, args = ["entity", "resource"])]
#[command(
    after_help = "Examples:\n  weirgate usage --entity user-1 --resource gpt-4 --by day --from 30d\n  \
                  weirgate usage --resource gpt-4 --from 2026-11-01 --top tpm\n  \
                  weirgate usage --entity user-1 --by hour --html > usage.html"
)]
pub struct Usage {
    /// Usage of an entity
    #[arg(long, value_name = "ID")]
    entity: Option<String>,
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
    /// Prints the sum of the range
    #[arg(long, conflicts_with_all = ["top", "csv", "chart", "html"])]
    total: bool,
    /// Prints the largest users of a limit, or of acquires
    #[arg(long, value_name = "LIMIT", num_args = 0..=1, default_missing_value = "acquires", conflicts_with_all = ["csv", "chart", "html"])]
    top: Option<String>,
    /// Number of largest users
    #[arg(long, value_name = "COUNT", default_value_t = 10, requires = "top")]
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
        let scope = match (entity, resource) {
            (Some(entity), Some(resource)) => UsageScope::Bucket(entity, resource),
            (Some(entity), None) => UsageScope::Entity(entity),
            (None, Some(resource)) => UsageScope::Resource(resource),
            (None, None) => unreachable!("one of them is required"),
        };
        let limiter = context.limiter().await?;
        let report = limiter.usage_report(scope, self.by.granularity(), self.from..self.to)?;
        if self.total {
            return total(context, report.total().await?);
        }
        if let Some(by) = &self.top {
            let users = match by.as_str() {
                "acquires" => report.top_by_acquires(self.count).await?,
                limit => report.top(&LimitName::new(limit)?, self.count).await?,
            };
            return top(context, &users);
        }
        let rows = all(&report).await?;
        self.print(context, rows)
    }

    fn print(&self, context: &Context, rows: Vec<UsageRow>) -> Result<Outcome, Failure> {
        let output = context.output();
        if self.csv {
            output.print_raw(csv::of(&rows).as_bytes())?;
            return Ok(Outcome::Done);
        }
        if self.html {
            let page = html::of(&rows, self.by.granularity());
            output.print_raw(page.as_bytes())?;
            return Ok(Outcome::Done);
        }
        let page = Page {
            items: rows,
            next: None,
        };
        output.print(&page, |Page { items, .. }| match self.chart {
            _ if items.is_empty() => String::new(),
            true => chart::of(items, self.by.granularity()),
            false => table(context, items),
        })?;
        if page.items.is_empty() {
            output.note("none in this range");
        }
        if page.items.iter().any(|row| !row.is_final()) {
            output.note("* not final: an interval in progress, or usage that may still be counted");
        }
        Ok(Outcome::Done)
    }
}

/// Reads all rows of a report.
async fn all(report: &UsageReport<'_>) -> Result<Vec<UsageRow>, Failure> {
    let (mut rows, mut next) = (vec![], None);
    loop {
        let page = report.page(next.as_ref()).await?;
        rows.extend(page.items);
        next = page.next;
        if next.is_none() {
            return Ok(rows);
        }
    }
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
        amount.unwrap_or(MilliTokens::ZERO).to_string()
    };
    let mut cells: Vec<_> = limits.iter().map(amount).collect();
    cells.push(usage.acquires.to_string());
    cells
}

/// Returns the names of the columns of [`cells`].
fn columns(limits: &BTreeSet<&LimitName>) -> Vec<String> {
    let names = limits.iter().map(|name| format!("#{name}"));
    names.chain(["#acquires".to_owned()]).collect()
}

fn table(context: &Context, rows: &[UsageRow]) -> String {
    let limits = limits(rows.iter().map(|row| &row.usage));
    let mut names = vec![
        "entity".to_owned(),
        "resource".to_owned(),
        "from".to_owned(),
    ];
    names.extend(columns(&limits));
    let line = |row: &UsageRow| {
        let mark = if row.is_final() { "" } else { " *" };
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

fn total(context: &Context, total: UsageTotal) -> Result<Outcome, Failure> {
    let output = context.output();
    output.print(&total, |total| {
        let limits = limits([&total.usage]);
        let names = columns(&limits);
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let table = output.table(&names, [cells(&total.usage, &limits)]);
        format!(
            "{table}\ncomplete until {}",
            instant::text(total.complete_until)
        )
    })?;
    Ok(Outcome::Done)
}

fn top(context: &Context, users: &[TopUser]) -> Result<Outcome, Failure> {
    let output = context.output();
    output.print(&Top { users }, |Top { users }| {
        let limits = limits(users.iter().map(|user| &user.usage));
        let mut names = vec!["entity".to_owned(), "resource".to_owned()];
        names.extend(columns(&limits));
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
    if users.is_empty() {
        output.note("none in this range");
    }
    Ok(Outcome::Done)
}

#[derive(Serialize)]
struct Top<'a> {
    users: &'a [TopUser],
}
