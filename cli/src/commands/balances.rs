//! `weirgate reset`, `drain` and `top-up`.

use std::fmt;

use clap::Args;
use weirgate::{BalanceEdit, BalanceReport, EntityId, LimitName, MilliTokens, Resource};

use super::confirm::Destroy;
use super::report::{ChangeArgs, KeyArgs, outcome_text};
use crate::amounts::{self, Amount};
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// A bucket.
#[derive(Debug, Clone, Args)]
pub struct BucketArgs {
    /// The entity
    #[arg(value_parser = amounts::entity)]
    pub entity: EntityId,
    /// The resource
    #[arg(value_parser = amounts::resource)]
    pub resource: Resource,
}

/// A balance to be set.
#[derive(Debug, Clone)]
enum Balance {
    Capacity(LimitName),
    Amount(Amount),
}

fn balance(text: &str) -> Result<Balance, String> {
    match text.contains('=') {
        true => amounts::amount(text).map(Balance::Amount),
        false => {
            amounts::limit_name(text).map(Balance::Capacity).map_err(|error| error.to_string())
        }
    }
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capacity(limit) => limit.fmt(f),
            Self::Amount(Amount { limit, tokens }) => write!(f, "{limit}={tokens}"),
        }
    }
}

/// Sets balances to the capacity, or to an amount.
///
/// Without limits, all rates are set to the capacity, and no quota.
#[derive(Debug, Args)]
#[command(after_help = "Example: weirgate reset user-1 gpt-4 rpm tpm=5000")]
pub struct Reset {
    #[command(flatten)]
    bucket: BucketArgs,
    /// Limits to set to the capacity (rpm), or to an amount (tpm=5000)
    #[arg(value_name = "NAME[=TOKENS]", value_parser = balance)]
    limits: Vec<Balance>,
    #[command(flatten)]
    destroy: Destroy,
    #[command(flatten)]
    key: KeyArgs,
}

/// Sets balances to 0.
///
/// They refill as before. Without limits, the balances of all rates are set, and no quota.
#[derive(Debug, Args)]
#[command(after_help = "Example: weirgate drain user-1 gpt-4 tpm")]
pub struct Drain {
    #[command(flatten)]
    bucket: BucketArgs,
    /// Limits
    #[arg(value_name = "NAME", value_parser = amounts::limit_name)]
    limits: Vec<LimitName>,
    #[command(flatten)]
    destroy: Destroy,
    #[command(flatten)]
    key: KeyArgs,
}

/// Adds tokens to balances.
///
/// A rate gets at most its capacity; what a quota gets lasts until its window ends.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: weirgate top-up user-1 gpt-4 tpm=50000 --idempotency-key ticket-4711"
)]
pub struct TopUp {
    #[command(flatten)]
    bucket: BucketArgs,
    /// Amounts to add
    #[arg(required = true, value_name = "NAME=TOKENS", value_parser = amounts::amount)]
    amounts: Vec<Amount>,
    #[command(flatten)]
    change: ChangeArgs,
}

impl BucketArgs {
    /// Returns the bucket as a question has it.
    fn of(&self, context: &Context) -> String {
        let Self { entity, resource } = self;
        let namespace = &context.options().namespace;
        format!("of {entity} on {resource} in namespace {namespace}")
    }
}

/// Returns the limits as a question has them.
fn named(limits: &[impl ToString]) -> String {
    let names: Vec<_> = limits.iter().map(ToString::to_string).collect();
    match &names[..] {
        [] => "all rates".to_owned(),
        names => names.join(", "),
    }
}

impl Reset {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let limits = named(&self.limits);
        let deed = format!("reset the balances of {limits} {}", self.bucket.of(context));
        self.destroy.confirm(&deed, "yes")?;
        let limiter = context.limiter().await?;
        let BucketArgs { entity, resource } = &self.bucket;
        let mut edit = limiter.admin().edit_balances(entity.as_str(), resource.as_str());
        if self.limits.is_empty() {
            edit = edit.reset_all();
        }
        for limit in &self.limits {
            edit = match limit {
                Balance::Capacity(limit) => edit.reset(limit.as_str()),
                Balance::Amount(Amount { limit, tokens }) => edit.set(limit.as_str(), *tokens),
            };
        }
        send(context, edit, self.destroy.dry_run, self.key).await
    }
}

impl Drain {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let limits = named(&self.limits);
        let deed = format!("drain {limits} {}", self.bucket.of(context));
        self.destroy.confirm(&deed, "yes")?;
        let limiter = context.limiter().await?;
        let BucketArgs { entity, resource } = &self.bucket;
        let mut edit = limiter.admin().edit_balances(entity.as_str(), resource.as_str());
        if self.limits.is_empty() {
            edit = edit.drain_all();
        }
        for limit in &self.limits {
            edit = edit.drain(limit.as_str());
        }
        send(context, edit, self.destroy.dry_run, self.key).await
    }
}

impl TopUp {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let limiter = context.limiter().await?;
        let BucketArgs { entity, resource } = &self.bucket;
        let mut edit = limiter.admin().edit_balances(entity.as_str(), resource.as_str());
        for Amount { limit, tokens } in &self.amounts {
            edit = edit.top_up(limit.as_str(), *tokens);
        }
        let ChangeArgs { dry_run, key } = self.change;
        send(context, edit, dry_run, key).await
    }
}

async fn send(
    context: &Context,
    mut edit: BalanceEdit<'_>,
    dry_run: bool,
    key: KeyArgs,
) -> Result<Outcome, Failure> {
    if dry_run {
        edit = edit.dry_run();
    }
    if let Some(key) = key.idempotency_key {
        edit = edit.idempotency_key(key);
    }
    let report = edit.send().await?;
    let output = context.output();
    output.print(&report, |report| {
        let BalanceReport { outcome, shards, before, after } = report;
        let row = |(limit, before): (_, &MilliTokens)| {
            let after = after.get(limit).copied().unwrap_or_default();
            let amounts = [*before, after].map(|amount| amount.whole_tokens().to_string());
            [vec![ToString::to_string(limit)], amounts.to_vec()].concat()
        };
        let table = match before.is_empty() {
            true => String::new(),
            false => output.table(&["limit", "#before", "#after"], before.iter().map(row)) + "\n",
        };
        let shards = match shards {
            0 => "no shard: the bucket has no item yet, so it is full".to_owned(),
            1 => "1 shard".to_owned(),
            shards => format!("{shards} shards"),
        };
        format!("{table}{} ({shards})", outcome_text(outcome))
    })?;
    Ok(Outcome::Done)
}
