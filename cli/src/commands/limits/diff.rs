//! `weirgate limits diff`, and what a file would change.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use weirgate::{Config, ConfigLevel, Entity, Error, FileError, LimitsFileContents, RateLimiter};
use weirgate_local::why::{Fields, config_fields, differing, entity_fields};
use weirgate_shared::files::{MAX_BYTES, TextFile, read_file};

use super::stored;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::output::Output;

/// Shows what a limits file would change in the table.
///
/// Before and after of every limit.
#[derive(Debug, Args)]
pub struct Diff {
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    shown: ShownArgs,
}

/// The file to compare with the table.
#[derive(Debug, Args)]
pub struct FileArgs {
    /// The limits file: YAML; `-` is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Removes what the namespace has and the file has not: limits, and parents and plans of entities
    #[arg(long)]
    pub prune: bool,
}

/// How changes are shown.
#[derive(Debug, Args)]
pub struct ShownArgs {
    /// Exits with 7 if there are changes
    #[arg(long)]
    exit_code: bool,
}

/// What a limits file changes in a namespace, and the state that it was compared with.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changes {
    /// Version of this format, 1.
    pub weirgate_plan: u32,
    pub table: String,
    pub namespace: String,
    pub configs: Vec<ConfigChange>,
    pub entities: Vec<EntityChange>,
    /// Number of changes that remove what the file does not have.
    #[serde(skip)]
    pub pruned: usize,
}

/// A change of the configuration of one level.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigChange {
    pub level: ConfigLevel,
    /// Version of the configuration before.
    pub version: i64,
    pub before: Option<Config>,
    /// `None` removes it.
    pub after: Option<Config>,
}

/// A change of an entity.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntityChange {
    pub before: Option<Entity>,
    pub after: Entity,
}

impl EntityChange {
    /// Returns whether the entity differs. One without a parent and a plan in the file needs no item.
    fn is_change(&self) -> bool {
        let before = self.before.as_ref();
        match is_alone(&self.after) {
            false => before != Some(&self.after),
            true => before.is_some_and(|before| !is_alone(before)),
        }
    }
}

/// Returns whether an entity has neither a parent nor a plan.
const fn is_alone(entity: &Entity) -> bool {
    entity.parent.is_none() && entity.plan.is_none()
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl Diff {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let changes = self.file.changes(context).await?;
        self.shown.print(context, &changes)
    }
}

impl FileArgs {
    /// Compares the file with the table.
    ///
    /// # Errors
    /// [`Failure::Refused`] for a broken file, with line and column, or a change that would be refused.
    pub async fn changes(&self, context: &Context) -> Result<Changes, Failure> {
        self.changes_of(self.read()?, context).await
    }

    /// Reads the text of the file.
    ///
    /// # Errors
    /// [`Failure::Refused`] if it cannot be read.
    pub fn read(&self) -> Result<TextFile, Failure> {
        if self.file != Path::new("-") {
            // Some give /dev/stdin.
            let unread = |error| Failure::Refused(format!("{error}, or give - in its place"));
            return read_file(&self.file).map_err(unread);
        }
        let mut text = String::new();
        let mut input = std::io::stdin().lock().take(MAX_BYTES + 1);
        let read = input.read_to_string(&mut text);
        let path = PathBuf::from("standard input");
        match read.map(u64::try_from) {
            Ok(Ok(..=MAX_BYTES)) => Ok(TextFile { path, text }),
            Ok(_) => Err(Failure::Refused(format!(
                "standard input must have {MAX_BYTES} bytes at most, and has more: split it"
            ))),
            Err(error) => Err(Failure::Refused(format!(
                "standard input must be text in UTF-8, got {error}: correct it, or give a file"
            ))),
        }
    }

    /// As [`changes`](Self::changes), of a text that was read.
    ///
    /// # Errors
    /// As [`changes`](Self::changes).
    pub async fn changes_of(&self, file: TextFile, context: &Context) -> Result<Changes, Failure> {
        let wanted = LimitsFileContents::parse(file.path, file.text)?;
        let limiter = context.limiter().await?;
        let mut pruned = LimitsFileContents::default();
        if self.prune {
            pruned = stored::read(&limiter).await?;
            let levels: BTreeSet<_> = wanted.configs.iter().map(|(level, _)| level).collect();
            pruned.configs.retain(|(level, _)| !levels.contains(level));
            let ids: BTreeSet<_> = wanted.entities.iter().map(|entity| &entity.id).collect();
            pruned.entities.retain(|entity| !ids.contains(&entity.id));
        }
        let number = pruned.configs.len() + pruned.entities.len();
        let wanted_configs = wanted.configs.into_iter().map(|(level, mut config)| {
            // In the order in which the table returns them.
            let limits = &mut config.limits;
            limits.sort_by(|one, other| one.name().cmp(other.name()));
            (level, Some(config))
        });
        let removed = pruned.configs.into_iter().map(|(level, _)| (level, None));
        let configs: Vec<_> = wanted_configs.chain(removed).collect();
        let levels: Vec<_> = configs.iter().map(|(level, _)| level.clone()).collect();
        let stored = limiter.admin().read_configs(&levels).await?;
        let configs = configs.into_iter().zip(stored);
        let configs = configs
            .map(|((level, after), stored)| ConfigChange {
                level,
                version: stored.version,
                before: stored.value,
                after,
            })
            .filter(|change| change.before != change.after)
            .collect::<Vec<_>>();
        // No plan has what its application would refuse.
        check(&limiter, &configs).await?;
        let pruned = pruned.entities.into_iter();
        let alone = pruned.map(|entity| Entity::new(entity.id));
        let entities: Vec<_> = wanted.entities.into_iter().chain(alone).collect();
        let ids: Vec<_> = entities.iter().map(|entity| entity.id.clone()).collect();
        let stored = limiter.admin().read_entities(&ids).await?;
        let entities = entities.into_iter().zip(stored);
        let entities = entities
            .map(|(after, before)| EntityChange { before, after })
            .filter(EntityChange::is_change)
            .collect::<Vec<_>>();
        check_entities(&limiter, &configs, &entities).await?;
        Ok(Changes {
            weirgate_plan: 1,
            table: context.place()?.to_string(),
            namespace: context.options().namespace.clone(),
            configs,
            entities,
            pruned: number,
        })
    }
}

/// Requires that the table would accept these changes as it is now.
pub async fn check(
    limiter: &RateLimiter,
    changes: impl IntoIterator<Item = &ConfigChange>,
) -> Result<(), Error> {
    let changes = changes.into_iter();
    let changes = changes.map(|change| (change.level.clone(), change.after.clone()));
    let changes: Vec<_> = changes.collect();
    limiter.admin().check_configs(&changes).await
}

/// Requires that the table would accept these entities after these changes of configurations.
pub async fn check_entities(
    limiter: &RateLimiter,
    configs: impl IntoIterator<Item = &ConfigChange>,
    entities: &[EntityChange],
) -> Result<(), Error> {
    let configs = configs.into_iter();
    let configs = configs.map(|change| (change.level.clone(), change.after.clone()));
    let configs: Vec<_> = configs.collect();
    let entities: Vec<_> = entities.iter().map(|change| change.after.clone()).collect();
    limiter.admin().check_entities(&entities, &configs).await
}

impl Changes {
    /// Returns the number of changed items.
    pub const fn count(&self) -> usize {
        self.configs.len() + self.entities.len()
    }

    /// Returns the number of configurations, and of parents and plans, that are removed.
    pub fn removed(&self) -> usize {
        let configs = self.configs.iter().filter(|change| change.after.is_none());
        let is_removed = |EntityChange { before, after }: &&EntityChange| {
            let had = |of: &dyn Fn(&Entity) -> bool| before.as_ref().is_some_and(of);
            had(&|before| before.parent.is_some()) && after.parent.is_none()
                || had(&|before| before.plan.is_some()) && after.plan.is_none()
        };
        configs.count() + self.entities.iter().filter(is_removed).count()
    }
}

impl ShownArgs {
    /// Prints the changes.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn print(&self, context: &Context, changes: &Changes) -> Result<Outcome, Failure> {
        let output = context.output();
        output.print(changes, |changes| text(output, changes))?;
        Ok(self.outcome(changes))
    }

    /// Returns the outcome of a command that found these changes.
    pub const fn outcome(&self, changes: &Changes) -> Outcome {
        match self.exit_code && changes.count() > 0 {
            true => Outcome::Changes,
            false => Outcome::Done,
        }
    }
}

/// Returns the changes as a table, with their number.
pub fn text(output: &Output, changes: &Changes) -> String {
    let configs = changes.configs.iter().flat_map(|change| {
        let configs = [change.before.as_ref(), change.after.as_ref()];
        config_rows(&change.level, configs)
    });
    let entities = changes.entities.iter().flat_map(|change| {
        let fields = [change.before.as_ref(), Some(&change.after)].map(entity_fields);
        rows(&format!("entity {}", change.after.id), fields)
    });
    let count = match changes.count() {
        0 => return "no changes".to_owned(),
        1 => "1 change".to_owned(),
        count => format!("{count} changes"),
    };
    let count = match changes.removed() {
        0 => count,
        removed => {
            format!("{count}, of which {removed} remove limits of a level, a parent or a plan")
        }
    };
    format!("{}\n{count}", output.table(&COLUMNS, configs.chain(entities)))
}

/// Columns of changed fields.
pub const COLUMNS: [&str; 4] = ["of", "field", "before", "after"];

/// Returns a row of [`COLUMNS`] for each field of a level in which two configurations differ.
pub fn config_rows(level: &ConfigLevel, configs: [Option<&Config>; 2]) -> Vec<Vec<String>> {
    rows(&level.to_string(), config_fields(configs))
}

/// Returns a row of [`COLUMNS`] for each field that differs.
fn rows(of: &str, fields: [Fields; 2]) -> Vec<Vec<String>> {
    let fields = differing(of, fields).into_iter();
    fields.map(|field| vec![field.of, field.field, field.before, field.after]).collect()
}
