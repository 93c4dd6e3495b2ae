//! `weirgate limits set` and `delete`.

use clap::Args;
use serde::Serialize;
use weirgate::{
    ClassName, Config, ConfigLevel, ConfigPatch, ConfigStatus, Error, RateLimiter, Versioned,
};
use weirgate_shared::docs;

use super::super::confirm::Destroy;
use super::super::report::is_false;
use super::diff;
use super::given::GivenLimit;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::level::LevelArgs;

/// Sets the configuration of a level.
///
/// Limits and settings that are not named stay. A LIMIT replaces the one of its name, with all its
/// parts. Shows before and after of every limit. Asks before it denies every acquire, or drops
/// something: a burst, mode, class or schedule that a LIMIT does not name, or with --replace.
#[derive(Debug, Args)]
pub struct Set {
    #[command(flatten)]
    level: LevelArgs,
    #[arg(value_name = "LIMIT", value_parser = GivenLimit::parse, help = concat!(
        "Limits: NAME=TOKENS/PERIOD (second, minute, hour, day, or a span such as 1h30m) or \
         NAME=SLOTS, and behind it ,burst=TOKENS, ,mode=shadow or soft, \
         ,class=NAME:AT_LEAST%:LEAVES%, and last ,schedule=RULES (",
        docs!("guide/limits"),
        ")"
    ))]
    limits: Vec<GivenLimit>,
    /// Drops all limits and settings of the level that are not named
    #[arg(long)]
    replace: bool,
    /// Enforces the limits again, after --disabled or --unlimited
    #[arg(long, conflicts_with_all = ["disabled", "unlimited"])]
    enforced: bool,
    /// Denies every acquire of the level
    #[arg(long, conflicts_with = "unlimited")]
    disabled: bool,
    /// Enforces no limit
    #[arg(long)]
    unlimited: bool,
    /// Counts what the limits would deny, and denies nothing; --shadow=false ends that
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    shadow: Option<bool>,
    #[arg(long, value_name = "NAME", value_parser = |text: &str| ClassName::new(text), help = concat!(
        "Class of the callers of the level's entities, whatever a request says (",
        docs!("guide/limits"),
        ")"
    ))]
    class: Option<ClassName>,
    #[command(flatten)]
    destroy: Destroy,
}

/// Deletes the configuration of a level.
///
/// Shows what it was.
#[derive(Debug, Args)]
pub struct Delete {
    #[command(flatten)]
    level: LevelArgs,
    #[command(flatten)]
    destroy: Destroy,
}

#[derive(Serialize)]
struct Changed {
    changed: bool,
    #[serde(skip_serializing_if = "is_false")]
    dry_run: bool,
    before: Option<Config>,
    after: Option<Config>,
}

impl Set {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let level = self.level.level();
        let is_named = self.replace || self.enforced || self.disabled || self.unlimited;
        if self.limits.is_empty() && self.shadow.is_none() && self.class.is_none() && !is_named {
            return Err(Failure::Refused(format!(
                "nothing to set for {level}: give a LIMIT, for example rpm=500/minute, or one of \
                 --enforced, --disabled, --unlimited, --shadow, --class and --replace"
            )));
        }
        let next = |before: Option<&Config>| {
            let kept = before.filter(|_| !self.replace);
            Some(self.patch().onto(kept))
        };
        change(context, &level, self.destroy.dry_run, next, |before| {
            let Some(deed) = self.destroys(&level, before) else {
                return Ok(());
            };
            let namespace = &context.options().namespace;
            let deed = format!("{deed} in namespace {namespace}");
            self.destroy.confirm(&deed, "yes")
        })
        .await
    }

    /// Returns what is lost or denied from now on, if anything is.
    fn destroys(&self, level: &ConfigLevel, before: Option<&Config>) -> Option<String> {
        let status = before.map_or(ConfigStatus::Enforced, |before| before.status);
        let disables = self.disabled && status != ConfigStatus::Disabled;
        let disables = disables.then(|| format!("deny every acquire of {level}"));
        let dropped = before.map(|before| self.dropped(before));
        let dropped = dropped.unwrap_or_default();
        let dropped =
            (!dropped.is_empty()).then(|| format!("drop {} of {level}", dropped.join(", ")));
        let deeds: Vec<_> = disables.into_iter().chain(dropped).collect();
        (!deeds.is_empty()).then(|| deeds.join(" and "))
    }

    /// Returns what the level has and will not have, although nothing names it.
    fn dropped(&self, before: &Config) -> Vec<String> {
        let mut dropped = vec![];
        for limit in &before.limits {
            let mut given = self.limits.iter();
            match given.find(|given| given.limit.name() == limit.name()) {
                Some(given) => {
                    let parts = given.dropped(limit).into_iter();
                    dropped.extend(parts.map(|part| format!("{part} of limit {}", limit.name())));
                }
                None if self.replace => dropped.push(format!("limit {}", limit.name())),
                None => {}
            }
        }
        if self.replace {
            let patch = self.patch();
            let status = (before.status != ConfigStatus::Enforced && patch.status.is_none())
                .then(|| format!("status {}", before.status.as_str()));
            let shadow =
                (before.is_shadow && patch.is_shadow.is_none()).then(|| "shadow".to_owned());
            let class = before.class.as_ref().filter(|_| patch.class.is_none());
            let class = class.map(|class| format!("class {class}"));
            dropped.extend(status.into_iter().chain(shadow).chain(class));
        }
        dropped
    }

    /// Returns what the arguments change.
    fn patch(&self) -> ConfigPatch {
        let limits = self.limits.iter().map(|given| given.limit.clone());
        let statuses = [
            (self.disabled, ConfigStatus::Disabled),
            (self.unlimited, ConfigStatus::Unlimited),
            (self.enforced, ConfigStatus::Enforced),
        ];
        let named = statuses.into_iter().find(|(is_named, _)| *is_named);
        ConfigPatch {
            limits: limits.collect(),
            status: named.map(|(_, status)| status),
            is_shadow: self.shadow,
            class: self.class.clone(),
        }
    }
}

impl Delete {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let level = self.level.level();
        let namespace = &context.options().namespace;
        let deed = format!("delete the limits of {level} in namespace {namespace}");
        self.destroy.confirm(&deed, "yes")?;
        change(context, &level, self.destroy.dry_run, |_| None, |_| Ok(())).await
    }
}

/// Replaces the configuration of a level by what `next` makes of it, if `confirm` lets it.
async fn change(
    context: &Context,
    level: &ConfigLevel,
    dry_run: bool,
    next: impl FnOnce(Option<&Config>) -> Option<Config>,
    confirm: impl FnOnce(Option<&Config>) -> Result<(), Failure>,
) -> Result<Outcome, Failure> {
    let limiter = context.limiter().await?;
    let Versioned { value, version } = stored(&limiter, level).await?;
    let after = next(value.as_ref());
    let changed = Changed { changed: value != after, dry_run, before: value, after };
    let next = changed.after.as_ref();
    if let Some(next) = next {
        next.check().map_err(Error::from)?;
    }
    if changed.changed && dry_run {
        let planned = [(level.clone(), changed.after.clone())];
        limiter.admin().check_configs(&planned).await?;
        limiter.admin().check_entities(&[], &planned).await?;
    }
    let writes = changed.changed && !dry_run;
    if writes {
        confirm(changed.before.as_ref())?;
    }
    // What was confirmed is what changes: another change in the meantime has another version.
    if writes && !limiter.admin().replace_config(level, version, next).await? {
        return Err(Failure::Failed(format!(
            "the configuration of {level} was changed by another command in the meantime, and is \
             not changed by this one: run it again"
        )));
    }
    let output = context.output();
    output.print(&changed, |changed| {
        let configs = [changed.before.as_ref(), changed.after.as_ref()];
        match (changed.changed, configs) {
            (true, [_, after]) => {
                let result = match (dry_run, after.is_some()) {
                    (true, _) => "dry run: nothing changed",
                    (false, true) => "configured",
                    (false, false) => "deleted",
                };
                let rows = diff::config_rows(level, configs);
                format!("{}\n{result}", output.table(&diff::COLUMNS, rows))
            }
            (false, [None, _]) => format!("{level} had no configuration"),
            (false, [Some(_), _]) => format!("no changes: {level} is configured so"),
        }
    })?;
    Ok(Outcome::Done)
}

async fn stored(limiter: &RateLimiter, level: &ConfigLevel) -> Result<Versioned<Config>, Failure> {
    let stored = limiter.admin().read_configs(std::slice::from_ref(level)).await?;
    let stored = stored.into_iter().next();
    stored.ok_or_else(|| Failure::Failed(format!("the configuration of {level} was not read")))
}
