//! `weirgate peek`.

use clap::Args;
use weirgate::{ClassName, ConfigStatus, Limit, LimitKind, LimitStatus, RateLimiter};
use weirgate_shared::{rate_text, rounded_span};

use super::balances::BucketArgs;
use crate::amounts::{self, Amount};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use weirgate_local::why::{Reasons, options, resets};

/// Shows the balances of a bucket, and takes nothing.
#[derive(Debug, Args)]
#[command(after_help = "Example: weirgate peek user-1 gpt-4 tpm=500")]
pub struct Peek {
    #[command(flatten)]
    bucket: BucketArgs,
    /// Amounts that would be taken, for the time to wait: tpm=500
    #[arg(value_name = "NAME=TOKENS", value_parser = amounts::amount)]
    needs: Vec<Amount>,
    /// Limits instead of the configured ones: rpm=500/minute
    #[arg(long = "limit", value_name = "LIMIT", value_parser = amounts::limit)]
    limits: Vec<Limit>,
    /// Class of the caller, of limits with classes, unless the entity's configuration has one
    #[arg(long, value_name = "NAME", value_parser = |text: &str| ClassName::new(text))]
    class: Option<ClassName>,
}

impl Peek {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let limiter = context.limiter().await?;
        let BucketArgs { entity, resource } = &self.bucket;
        let mut peek = limiter.peek(entity.as_str(), resource.as_str());
        if !self.limits.is_empty() {
            peek = peek.limits(&self.limits);
        }
        for need in &self.needs {
            peek = peek.need(need.limit.as_str(), need.tokens);
        }
        if let Some(class) = &self.class {
            peek = peek.class(class.as_str());
        }
        let balances = peek.send().await?;
        let remark = match balances.status {
            ConfigStatus::Disabled => self.why_disabled(&limiter).await?,
            ConfigStatus::Unlimited => "unlimited by its configuration".to_owned(),
            ConfigStatus::Enforced => String::new(),
        };
        let output = context.output();
        output.print(&balances, |balances| {
            let table = match balances.limits.is_empty() {
                true => String::new(),
                false => table(output, &balances.limits) + "\n",
            };
            table + &remark
        })?;
        Ok(Outcome::Done)
    }
}

impl Peek {
    /// Returns what disables the bucket: a stop, or its configuration.
    async fn why_disabled(&self, limiter: &RateLimiter) -> Result<String, Failure> {
        let BucketArgs { entity, resource } = self.bucket.clone();
        let reasons = Reasons::read(limiter, entity, resource, None, None).await?;
        Ok(match reasons.stopped_at {
            Some(level) => {
                let options = options(&level);
                format!("{level} is stopped: weirgate start {options} ends that")
            }
            None => "disabled by its configuration".to_owned(),
        })
    }
}

/// Returns limits as a table, with their entities if there are several.
pub fn table(output: &Output, limits: &[LimitStatus]) -> String {
    let first = limits.first().map(|status| &status.entity);
    if limits.iter().all(|status| Some(&status.entity) == first) {
        return output.table(&COLUMNS, limits.iter().map(row));
    }
    let rows = limits.iter().map(|status| {
        let entity = vec![status.entity.to_string()];
        [entity, row(status)].concat()
    });
    output.table(&[&["entity"][..], &COLUMNS].concat(), rows)
}

/// Columns of limits.
pub const COLUMNS: [&str; 6] = ["limit", "#available", "#capacity", "refill", "mode", "wait"];

/// Returns a limit as a row of [`COLUMNS`].
pub fn row(status: &LimitStatus) -> Vec<String> {
    let refill = match status.kind() {
        LimitKind::Rate => rate_text(status.refill_amount, status.refill_period),
        LimitKind::Slots => "slots".to_owned(),
        LimitKind::Quota => resets(status).unwrap_or_default(),
    };
    let wait = match (status.retry_after, status.paused_for) {
        (None, _) => "no end".to_owned(),
        (Some(wait), Some(paused)) if wait <= paused => {
            format!("paused, {}", rounded_span(paused))
        }
        (Some(wait), _) if wait.is_zero() => "-".to_owned(),
        (Some(wait), _) => rounded_span(wait),
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
