//! `weirgate stop`, `exempt`, `start` and `switches`.

use clap::Args;
use serde::Serialize;
use weirgate::{ConfigLevel, Page, Switch, SwitchEdit, SwitchReport};

use super::confirm::Destroy;
use super::report::{ChangeArgs, KeyArgs, outcome_text};
use super::unreadable;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::level::{LevelArgs, level_usage};

/// Stops every acquire of a level.
///
/// Each acquire is answered as disabled, within a minute everywhere.
#[derive(Debug, Args)]
#[command(override_usage = level_usage!("stop", ""), after_help = "Example: weirgate stop --resource gpt-4")]
pub struct Stop {
    #[command(flatten)]
    level: LevelArgs,
    #[command(flatten)]
    destroy: Destroy,
    #[command(flatten)]
    key: KeyArgs,
}

/// Lets a level go on although a wider one is stopped.
#[derive(Debug, Args)]
#[command(override_usage = level_usage!("exempt", ""), after_help = "Example: weirgate exempt --entity customer-1")]
pub struct Exempt {
    #[command(flatten)]
    level: LevelArgs,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Ends a stop or an exemption.
#[derive(Debug, Args)]
#[command(override_usage = level_usage!("start", ""), after_help = "Example: weirgate start --resource gpt-4")]
pub struct Start {
    #[command(flatten)]
    level: LevelArgs,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Lists the levels that are stopped or exempt.
#[derive(Debug, Args)]
#[command(after_help = "Example: weirgate switches")]
pub struct Switches {}

impl Stop {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let level = self.level.level();
        let namespace = &context.options().namespace;
        let deed = format!("deny every acquire of {level} in namespace {namespace}");
        self.destroy.confirm(&deed, "yes")?;
        let (limiter, dry_run) = (context.limiter().await?, self.destroy.dry_run);
        let edit = limiter.admin().stop(&level);
        send(context, &level, edit, dry_run, self.key).await
    }
}

impl Exempt {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let (limiter, level) = (context.limiter().await?, self.level.level());
        let (edit, change) = (limiter.admin().exempt(&level), self.change);
        send(context, &level, edit, change.dry_run, change.key).await
    }
}

impl Start {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let (limiter, level) = (context.limiter().await?, self.level.level());
        let (edit, change) = (limiter.admin().start(&level), self.change);
        send(context, &level, edit, change.dry_run, change.key).await
    }
}

async fn send(
    context: &Context,
    level: &ConfigLevel,
    mut edit: SwitchEdit<'_>,
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
    context.output().print(&report, |report| {
        let SwitchReport { outcome, before, after } = report;
        let word = |switch: &Option<Switch>| switch.map_or("no switch", Switch::as_str);
        format!("{level}: {} -> {} ({})", word(before), word(after), outcome_text(outcome))
    })?;
    Ok(Outcome::Done)
}

#[derive(Serialize)]
struct Entry {
    level: ConfigLevel,
    switch: Switch,
}

impl Switches {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let switches = context.limiter().await?.admin().switches().await?;
        let entry = |(level, switch)| Entry { level, switch };
        let list = Page {
            items: switches.items.into_iter().map(entry).collect(),
            unreadable: switches.unreadable,
            next: None,
        };
        let output = context.output();
        output.print(&list, |list: &Page<Entry>| {
            let row = |Entry { level, switch }: &Entry| {
                vec![level.to_string(), switch.as_str().to_owned()]
            };
            let items = match list.items.is_empty() {
                true => String::new(),
                false => output.table(&["level", "switch"], list.items.iter().map(row)) + "\n",
            };
            items + &unreadable::table(output, &list.unreadable)
        })?;
        if list.items.is_empty() && list.unreadable.is_empty() {
            output.note("none: nothing is stopped or exempt");
        }
        Ok(unreadable::outcome(&list.unreadable))
    }
}
