//! `weirgate pause` and `resume`.

use std::time::Duration;

use clap::Args;
use weirgate::{EpochMillis, PauseEdit, PauseReport};

use super::balances::BucketArgs;
use super::report::{ChangeArgs, outcome_text};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::instant::{self, DAY};

/// Grants nothing from a bucket for some time.
///
/// As a vendor's answer with Retry-After does; `stop` has no end. A pause that is in force is
/// replaced. What is taken can be settled.
#[derive(Debug, Args)]
#[command(after_help = "Example: weirgate pause openai gpt-4 30s")]
pub struct Pause {
    #[command(flatten)]
    bucket: BucketArgs,
    /// How long: 30s, 10m, 1h30m; at most 24h
    #[arg(value_name = "SPAN", value_parser = instant::span_within::<1, DAY>)]
    lasts: Duration,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Ends the pause of a bucket.
#[derive(Debug, Args)]
#[command(after_help = "Example: weirgate resume openai gpt-4")]
pub struct Resume {
    #[command(flatten)]
    bucket: BucketArgs,
    #[command(flatten)]
    change: ChangeArgs,
}

impl Pause {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let limiter = context.limiter().await?;
        let BucketArgs { entity, resource } = &self.bucket;
        let edit = limiter.admin().pause(entity.as_str(), resource.as_str(), self.lasts);
        send(context, &self.bucket, edit, self.change).await
    }
}

impl Resume {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let limiter = context.limiter().await?;
        let BucketArgs { entity, resource } = &self.bucket;
        let edit = limiter.admin().resume(entity.as_str(), resource.as_str());
        send(context, &self.bucket, edit, self.change).await
    }
}

async fn send(
    context: &Context,
    BucketArgs { entity, resource }: &BucketArgs,
    mut edit: PauseEdit<'_>,
    change: ChangeArgs,
) -> Result<Outcome, Failure> {
    if change.dry_run {
        edit = edit.dry_run();
    }
    if let Some(key) = change.key.idempotency_key {
        edit = edit.idempotency_key(key);
    }
    let report = edit.send().await?;
    context.output().print(&report, |report| {
        let PauseReport { outcome, before, after, .. } = report;
        let text = |until: &Option<EpochMillis>| match until {
            Some(until) => format!("paused until {}", instant::text(*until)),
            None => "not paused".to_owned(),
        };
        let (before, after) = (text(before), text(after));
        let outcome = outcome_text(outcome);
        format!("{entity} on {resource}: {before} -> {after} ({outcome})")
    })?;
    Ok(Outcome::Done)
}
