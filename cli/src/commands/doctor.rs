//! `weirgate doctor`.

mod acceptance;
mod agent;
mod alarms;
mod aws;
mod finding;
mod functions;
mod permissions;
mod plans;
mod server;
mod sessions;
mod table;

use clap::Args;
use serde::Serialize;
use weirgate::RateLimiter;
use weirgate_store::{StoreError, StoreUrl, Table};

use crate::context::{Context, Place};
use crate::failure::{Failure, Outcome};
use crate::text::Text;
use finding::{Finding, State};

/// Checks the table and its functions, and says what to do.
///
/// Table, indexes, stream, functions, schedule, alarms, clock, and what the credentials allow;
/// each problem with its remedy. It changes nothing.
///
/// Of a store: version, eviction, memory, persistence, replicas, functions, clocks, and what the
/// user may do.
///
/// With --acceptance it tries the table by requests instead: every request that Weirgate sends,
/// processes on one key, a hot key, a killed process, usage. It tells what that costs, asks first,
/// and deletes what it wrote. Each figure stands beside that of a local backend.
///
/// It needs `dynamodb:DescribeTable`. What else the credentials do not allow is named and left
/// out; the managed policy ReadOnlyAccess of AWS allows all of it. --acceptance needs the stack's
/// AdminPolicy and PurgePolicy, without which it writes nothing.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  weirgate doctor --table limits\n  weirgate doctor --store redis://host:6379/0\n  weirgate doctor --table limits --acceptance --dry-run\n\n\
                        Exit codes: 0 nothing is wrong, 1 something is."
)]
pub struct Doctor {
    /// Name of the stack, if no function reads the table's stream
    #[arg(long, value_parser = stack_name)]
    stack: Option<String>,
    /// Compares what vendors told the agent at this URL of their limits, http://127.0.0.1:2774
    #[arg(long, value_name = "URL", value_parser = url, conflicts_with = "acceptance")]
    agent: Option<String>,
    #[command(flatten)]
    acceptance: acceptance::Acceptance,
}

#[derive(Debug, Serialize)]
struct Diagnosis {
    findings: Vec<Finding>,
}

impl Doctor {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        if self.acceptance.acceptance {
            context.needs_dynamodb(
                "doctor --acceptance",
                "it tries what DynamoDB does; run doctor without it",
            )?;
            return self.acceptance.run(context, self.stack).await;
        }
        let mut findings = match context.place()? {
            Place::Table(_) => self.of_table(context).await?,
            Place::Store(url) => self.of_store(context, url).await?,
        };
        if let Some(url) = &self.agent {
            findings.extend(agent::findings(url).await);
        }

        let diagnosis = Diagnosis { findings };
        context.output().print(&diagnosis, text)?;
        let is_wrong = |finding: &Finding| finding.state == State::Problem;
        Ok(match diagnosis.findings.iter().any(is_wrong) {
            true => Outcome::Incomplete,
            false => Outcome::Done,
        })
    }

    async fn of_table(&self, context: &Context) -> Result<Vec<Finding>, Failure> {
        let table = context.stored().await?;
        let facts = table.describe().await.map_err(|error| Failure::from(&error))?;
        let mut findings = table::findings(&table, &facts).await;
        findings.push(table::clock(&table, "DynamoDB"));
        if context.is_local() {
            let text = "not checked: this endpoint is a table on this machine";
            findings.push(Finding::unknown("functions", text, ""));
        } else {
            // The endpoint is DynamoDB's; the others have their own.
            let elsewhere = weirgate::ConnectOptions { endpoint_url: None, ..context.connection() };
            let aws = aws::Aws::new(weirgate_store::sdk_config(&elsewhere).await);
            let (found, deployed) =
                functions::findings(&aws, table.name(), &facts, self.stack.clone()).await;
            findings.extend(found);
            let stack = deployed.map(|deployed| deployed.stack);
            findings.extend(alarms::findings(&aws, stack.as_deref()).await);
        }
        let limiter = context.limiter().await?;
        findings.push(plans::finding(&limiter).await);
        findings.push(sessions::finding(&limiter).await);
        findings.push(permissions::finding(&table, &context.options().namespace).await);
        Ok(findings)
    }

    async fn of_store(&self, context: &Context, url: &StoreUrl) -> Result<Vec<Finding>, Failure> {
        if self.stack.is_some() {
            let reason = "a store has no stack; leave --stack out";
            context.needs_dynamodb("doctor --stack", reason)?;
        }
        // One that evicts is described, and not refused.
        let options = url.clone().accepting_eviction().options();
        let failed = |error: StoreError| Failure::from(&error);
        let table = Table::on_redis(&options).map_err(failed)?;
        let facts = table.describe_server().await.map_err(failed)?;
        let mut findings = server::findings(url, &facts);
        findings.push(table::clock(&table, "the server"));
        let limiter = context.limiter_of(RateLimiter::builder("").table(table.clone()));
        findings.push(plans::finding(&limiter.build().await?).await);
        let allowed = permissions::finding(&table, &context.options().namespace).await;
        findings.push(server::permissions(&facts).unwrap_or(allowed));
        Ok(findings)
    }
}

/// CloudFormation's names; other characters would be part of the path of a request.
fn stack_name(text: &str) -> Result<String, String> {
    let is_allowed = |character: char| character.is_ascii_alphanumeric() || character == '-';
    match !text.is_empty() && text.chars().all(is_allowed) {
        true => Ok(text.to_owned()),
        false => Err("a stack's name has letters, digits and hyphens".to_owned()),
    }
}

/// An agent has no TLS, and a proxy may.
fn url(text: &str) -> Result<String, String> {
    let rest = ["http://", "https://"].map(|scheme| text.strip_prefix(scheme));
    match rest.into_iter().flatten().any(|rest| !rest.is_empty()) {
        true => Ok(text.to_owned()),
        false => Err("must be http://HOST:PORT, as http://127.0.0.1:2774".to_owned()),
    }
}

fn text(diagnosis: &Diagnosis) -> Text {
    let lines = diagnosis.findings.iter().map(Finding::text);
    let count = |state| diagnosis.findings.iter().filter(|finding| finding.state == state).count();
    let (problems, unknown) = (count(State::Problem), count(State::Unknown));
    let sum = match (problems, unknown) {
        (0, 0) => "nothing is wrong".to_owned(),
        (0, _) => format!("nothing is wrong; {unknown} not checked"),
        (_, 0) => format!("{problems} wrong"),
        _ => format!("{problems} wrong; {unknown} not checked"),
    };
    lines.fold(Text::default(), Text::append).and(sum)
}
