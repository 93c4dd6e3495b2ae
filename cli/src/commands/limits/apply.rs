//! `weirgate limits apply`.

use std::collections::HashMap;
use std::path::Path;

use clap::Args;
use futures_util::stream::{FuturesUnordered, StreamExt};
use serde::Serialize;
use weirgate::{ConfigLevel, RateLimiter};
use weirgate_local::limits::{moved_off, replace_next};

use super::super::confirm::Destroy;
use super::diff::{self, Changes, ConfigChange, EntityChange, FileArgs};
use super::plan::is_plan;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::stop::Stop;
use crate::streams::warn;

/// Changes under way at once.
const CONCURRENCY: usize = 16;

/// Makes the changes of a limits file, or of a plan from `limits plan --out`.
///
/// The changes of a limits file are shown first, and made after a confirmation. What the file does
/// not have stays, unless --prune is given; that is asked separately. A plan has been read, so its
/// changes are made if nothing has changed since, and only what it removes is asked. If something
/// has, or an entity would be its own ancestor, nothing is changed. After an interruption, the same
/// command makes the changes that are left.
#[derive(Debug, Args)]
pub struct Apply {
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    destroy: Destroy,
}

#[derive(Serialize)]
struct Applied {
    /// Changes made now.
    applied: usize,
    /// Changes of the plan that were made before.
    applied_before: usize,
}

/// What the changes were made from.
#[derive(Debug, Clone, Copy)]
enum Source {
    Plan,
    /// A limits file, whose changes the same command makes again.
    File,
}

impl Source {
    fn outdated(self, what: &str) -> Failure {
        match self {
            Self::Plan => Failure::Refused(format!(
                "{what} has changed since the plan was made: nothing was changed; make a new plan"
            )),
            Self::File => Failure::Failed(format!(
                "{what} was changed meanwhile: nothing was changed; run it again"
            )),
        }
    }

    fn raced(self, what: &str) -> Failure {
        match self {
            Self::Plan => Failure::Refused(format!(
                "{what} was changed while the plan was applied: other changes of the plan may be made; make a new plan"
            )),
            Self::File => Failure::Failed(format!(
                "{what} was changed meanwhile: other changes of the file may be made; run it again"
            )),
        }
    }
}

impl Apply {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let file = self.file.read()?;
        let is_plan = is_plan(&file.text);
        if is_plan && self.file.prune {
            let text = "a plan has its removals: leave --prune out, or make the plan with --prune";
            return Err(Failure::Refused(text.to_owned()));
        }
        let mut plan = match is_plan {
            true => read(&file.path, &file.text)?,
            false => self.file.changes_of(file, context).await?,
        };
        let place = context.place()?.to_string();
        let option = match plan.table.contains("://") {
            true => "--store",
            false => "--table",
        };
        for (what, option, planned, given) in [
            ("table", option, plan.table.as_str(), place.as_str()),
            (
                "namespace",
                "--namespace",
                plan.namespace.as_str(),
                context.options().namespace.as_str(),
            ),
        ] {
            if planned != given {
                return Err(Failure::Refused(format!(
                    "the plan is for {what} {planned:?}, got {given:?}: give {option} {planned}"
                )));
            }
        }
        match (is_plan, plan.removed()) {
            _ if self.destroy.dry_run => {}
            (true, 0) => {}
            (true, removed) => {
                let file = self.file.file.display();
                let deed = format!("remove {removed} levels, parents and plans, as {file} says");
                self.destroy.confirm(&deed, "prune")?;
            }
            (false, _) => self.ask(context, &plan)?,
        }
        let source = if is_plan { Source::Plan } else { Source::File };
        let limiter = context.limiter().await?;
        let configs = open_configs(&limiter, &plan, source).await?;
        diff::check(&limiter, configs.iter().copied()).await?;
        let entities = open_entities(&limiter, &plan, source).await?;
        diff::check_entities(&limiter, configs.iter().copied(), &entities).await?;
        let output = context.output();
        if self.destroy.dry_run {
            let open: Vec<_> = configs.iter().map(|change| change.level.clone()).collect();
            plan.configs.retain(|change| open.contains(&change.level));
            plan.entities = entities;
            output.print(&plan, |plan| diff::text(output, plan))?;
            output.note("dry run: nothing changed");
            return Ok(Outcome::Done);
        }
        let left = configs.len() + entities.len();
        let mut applied = 0;
        let stop = Stop::new()?;
        let open = (source, configs, entities);
        let made = make(&limiter, open, &mut applied, &stop, context);
        if let Err(failure) = made.await {
            // A refusal is permanent: only another file or plan goes on.
            let next = match failure {
                Failure::Refused(_) => "correct the cause",
                _ => "the same command makes those that are left",
            };
            let remark = format!("{applied} of {left} changes were made; {next}");
            let fields = serde_json::json!({"applied": applied, "left": left - applied});
            return Err(failure.with_part(remark, fields));
        }
        let report = Applied { applied, applied_before: plan.count() - applied };
        output.print(&report, |report| match report {
            Applied { applied, applied_before: 0 } => format!("applied: {applied}"),
            Applied { applied, applied_before } => {
                format!("applied: {applied}, before: {applied_before}")
            }
        })?;
        Ok(Outcome::Done)
    }

    /// Shows the changes, and asks whether to make them.
    fn ask(&self, context: &Context, changes: &Changes) -> Result<(), Failure> {
        let output = context.output();
        if !output.is_json() {
            output.print_text(diff::text(output, changes))?;
        }
        if changes.count() == 0 {
            return Ok(());
        }
        // Standard output has the result alone.
        if output.is_json() && self.destroy.asks() {
            warn(diff::text(output, changes));
        }
        let namespace = &context.options().namespace;
        let deed = format!("make these changes in namespace {namespace}");
        self.destroy.confirm(&deed, "yes")?;
        match changes.pruned {
            0 => Ok(()),
            pruned => {
                let file = self.file.file.display();
                let deed =
                    format!("remove {pruned} levels, parents and plans that {file} does not have");
                self.destroy.confirm(&deed, "prune")
            }
        }
    }
}

/// Makes the changes until `stop`, and counts those that were made in `applied`. After an error or the
/// stop no change begins, and those that have begun are awaited.
async fn make(
    limiter: &RateLimiter,
    (source, mut configs, entities): (Source, Vec<&ConfigChange>, Vec<EntityChange>),
    applied: &mut usize,
    stop: &Stop,
    context: &Context,
) -> Result<(), Failure> {
    let left = configs.len() + entities.len();
    let of_each = entities.into_iter();
    let (mut stored, entities): (Vec<_>, Vec<_>) =
        of_each.map(|change| (change.before, change.after)).unzip();
    let mut progress = context.output().progress();
    let mut count = || {
        *applied += 1;
        progress.show(|| format!("{applied} of {left} changes"));
    };
    // What is removed goes last, so no level is without limits on the way and no entity has a plan
    // without limits, and the widest level of it first, so none gets a limit of another kind.
    let step = |change: &ConfigChange| match (&change.after, &change.level) {
        (Some(_), _) => 0,
        (None, ConfigLevel::System) => 1,
        (None, ConfigLevel::Resource(_)) => 2,
        (None, ConfigLevel::Plan(_)) => 3,
        (None, ConfigLevel::PlanResource(..)) => 4,
        (None, ConfigLevel::Entity(_)) => 5,
        (None, ConfigLevel::EntityResource(..)) => 6,
    };
    configs.sort_by_key(|change| step(change));
    let (set, removed) = configs.split_at(configs.partition_point(|change| step(change) == 0));
    apply_all(limiter, (source, set), stop, &mut count).await?;
    for at in 0..entities.len() {
        if stop.is_asked() {
            return Err(Failure::stopped());
        }
        if !replace_next(limiter, &mut stored, &entities, at).await? {
            return Err(source.raced(&format!("entity {}", entities[at].id)));
        }
        count();
    }
    for removed in removed.chunk_by(|one, next| step(one) == step(next)) {
        apply_all(limiter, (source, removed), stop, &mut count).await?;
    }
    Ok(())
}

/// Makes changes of configurations whose order does not matter.
async fn apply_all(
    limiter: &RateLimiter,
    (source, changes): (Source, &[&ConfigChange]),
    stop: &Stop,
    mut count: impl FnMut(),
) -> Result<(), Failure> {
    let (mut begun, mut ended) = (FuturesUnordered::new(), Ok(()));
    let mut changes = changes.iter();
    loop {
        while ended.is_ok()
            && begun.len() < CONCURRENCY
            && let Some(change) = changes.next()
        {
            match stop.is_asked() {
                true => ended = Err(Failure::stopped()),
                false => begun.push(apply(limiter, source, change)),
            }
        }
        match begun.next().await {
            Some(Ok(())) => count(),
            // The first one says why.
            Some(Err(failure)) => ended = ended.and(Err(failure)),
            None => return ended,
        }
    }
}

fn read(path: &Path, text: &str) -> Result<Changes, Failure> {
    let refused = |error: String| Failure::Refused(format!("{}: {error}", path.display()));
    let plan: Changes = serde_json::from_str(text)
        .map_err(|error| refused(format!("no plan of weirgate limits plan --out: {error}")))?;
    match plan.weirgate_plan {
        1 => Ok(plan),
        other => Err(refused(format!(
            "weirgate_plan must be 1, got {other}: make the plan with this version of weirgate"
        ))),
    }
}

/// Returns the changes of configurations that have not been made.
async fn open_configs<'p>(
    limiter: &RateLimiter,
    plan: &'p Changes,
    source: Source,
) -> Result<Vec<&'p ConfigChange>, Failure> {
    let levels: Vec<_> = plan.configs.iter().map(|change| change.level.clone()).collect();
    let mut open = vec![];
    for (change, stored) in plan.configs.iter().zip(limiter.admin().read_configs(&levels).await?) {
        if stored.version == change.version {
            open.push(change);
        } else if stored.version != change.version + 1 || stored.value != change.after {
            return Err(source.outdated(&format!("the configuration of {}", change.level)));
        }
    }
    Ok(open)
}

/// Returns the changes of entities that have not been made, in an order without a cycle on the way.
///
/// # Errors
/// [`Failure::Refused`] if all together would make a cycle, or a chain that is too long.
async fn open_entities(
    limiter: &RateLimiter,
    plan: &Changes,
    source: Source,
) -> Result<Vec<EntityChange>, Failure> {
    let all = plan.entities.iter().map(|change| change.after.clone());
    let all = limiter.admin().order_entities(&all.collect::<Vec<_>>()).await?;
    let ids: Vec<_> = all.iter().map(|after| after.id.clone()).collect();
    let planned = plan.entities.iter();
    let planned: HashMap<_, _> =
        planned.map(|change| (&change.after.id, change.before.as_ref())).collect();
    let mut open = vec![];
    for (after, stored) in all.into_iter().zip(limiter.admin().read_entities(&ids).await?) {
        if stored.as_ref() == Some(&after) {
            continue;
        }
        let before = planned[&after.id];
        // An interrupted run may have removed a parent that it moves.
        if stored.as_ref() != before && (stored.is_none() || stored != moved_off(before, &after)) {
            return Err(source.outdated(&format!("entity {}", after.id)));
        }
        open.push(EntityChange { before: stored, after });
    }
    Ok(open)
}

async fn apply(
    limiter: &RateLimiter,
    source: Source,
    change: &ConfigChange,
) -> Result<(), Failure> {
    let ConfigChange { level, version, after, .. } = change;
    if limiter.admin().replace_config(level, *version, after.as_ref()).await? {
        return Ok(());
    }
    Err(source.raced(&format!("the configuration of {level}")))
}
