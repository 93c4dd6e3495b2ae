//! `weirgate peek`.

use clap::Args;
use weirgate::{Balances, ConfigStatus, LimitKind, LimitStatus};
use weirgate_shared::rounded_span;

use crate::amounts::{self, Amount};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::instant;

/// Shows the balances of a bucket, and takes nothing.
#[derive(Debug, Args)]
#[command(after_help = "Example: weirgate peek user-1 gpt-4 tpm=500")]
pub struct Peek {
    /// The entity
    entity: String,
    /// The resource
    resource: String,
    /// Amounts that would be taken, for the time to wait: tpm=500
    #[arg(value_name = "NAME=TOKENS", value_parser = amounts::amount)]
    needs: Vec<Amount>,
}

impl Peek {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let limiter = context.limiter().await?;
        let mut peek = limiter.peek(&self.entity, &self.resource);
        for need in &self.needs {
            peek = peek.need(&need.limit, need.tokens);
        }
        let balances = peek.send().await?;
        let output = context.output();
        output.print(&balances, |balances| {
            let rows = balances.limits.iter().map(row);
            let table = match balances.limits.is_empty() {
                true => String::new(),
                false => output.table(&COLUMNS, rows) + "\n",
            };
            table + &remark(balances)
        })?;
        Ok(Outcome::Done)
    }
}

/// Columns of limits.
pub const COLUMNS: [&str; 6] = ["limit", "#available", "#capacity", "refill", "mode", "wait"];

/// Returns a limit as a row of [`COLUMNS`].
pub fn row(status: &LimitStatus) -> Vec<String> {
    let refill = match status.kind() {
        LimitKind::Rate => instant::rate_text(status.refill_amount, status.refill_period),
        LimitKind::Slots => "slots".to_owned(),
    };
    let wait = match status.retry_after {
        Some(wait) if wait.is_zero() => "-".to_owned(),
        Some(wait) => rounded_span(wait),
        None => "no end".to_owned(),
    };
    vec![
        status.limit.clone(),
        status.available.whole_tokens().to_string(),
        status.capacity.to_string(),
        refill,
        status.mode.as_str().to_owned(),
        wait,
    ]
}

fn remark(balances: &Balances) -> String {
    match balances.status {
        ConfigStatus::Disabled => "disabled by its configuration".to_owned(),
        ConfigStatus::Unlimited => "unlimited by its configuration".to_owned(),
        _ => String::new(),
    }
}
