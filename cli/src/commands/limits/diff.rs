//! `weirgate limits diff`, and what a file would change.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use weirgate::{Config, ConfigLevel, Entity, FileError, LimitsFileContents};
use weirgate_local::why::{Fields, config_fields, differing, entity_fields};

use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::output::Output;

/// Shows what a limits file would change in the table.
///
/// Before and after of every field. Configurations that the file does not have stay.
#[derive(Debug, Args)]
pub struct Diff {
    #[command(flatten)]
    file: FileArgs,
}

/// The file to compare with the table.
#[derive(Debug, Args)]
pub struct FileArgs {
    /// The limits file: YAML, as docs/guide/limits.md describes it
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
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
}

/// A change of the configuration of one level.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigChange {
    pub level: ConfigLevel,
    /// Version of the configuration before.
    pub version: i64,
    pub before: Option<Config>,
    pub after: Config,
}

/// A change of an entity.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntityChange {
    pub before: Option<Entity>,
    pub after: Entity,
}

impl EntityChange {
    /// Returns whether the entity differs. One without a parent in the file needs no item.
    fn is_change(&self) -> bool {
        let before = self.before.as_ref();
        match &self.after.parent {
            Some(_) => before != Some(&self.after),
            None => before.is_some_and(|before| before.parent.is_some()),
        }
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl Diff {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let changes = Changes::of(&self.file.file, context).await?;
        self.file.print(context, &changes)
    }
}

impl Changes {
    /// Compares a limits file with the table.
    ///
    /// # Errors
    /// [`Failure::Refused`] for a broken file, with line and column.
    pub async fn of(file: &Path, context: &Context) -> Result<Self, Failure> {
        let LimitsFileContents { configs, entities } = read(file)?;
        let limiter = context.limiter().await?;
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
            .filter(|change| change.before.as_ref() != Some(&change.after));
        let ids: Vec<_> = entities.iter().map(|entity| entity.id.clone()).collect();
        let stored = limiter.admin().read_entities(&ids).await?;
        let entities = entities.into_iter().zip(stored);
        let entities = entities
            .map(|(after, before)| EntityChange { before, after })
            .filter(EntityChange::is_change);
        Ok(Self {
            weirgate_plan: 1,
            table: context.table()?.to_owned(),
            namespace: context.options().namespace.clone(),
            configs: configs.collect(),
            entities: entities.collect(),
        })
    }

    /// Returns the number of changed items.
    pub const fn count(&self) -> usize {
        self.configs.len() + self.entities.len()
    }
}

impl FileArgs {
    /// Prints the changes.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn print(&self, context: &Context, changes: &Changes) -> Result<Outcome, Failure> {
        let output = context.output();
        output.print(changes, |changes| text(output, changes))?;
        Ok(match self.exit_code && changes.count() > 0 {
            true => Outcome::Changes,
            false => Outcome::Done,
        })
    }
}

/// Reads a limits file. Limits are in the order in which the table returns them.
fn read(path: &Path) -> Result<LimitsFileContents, Failure> {
    let mut contents = LimitsFileContents::read(path)?;
    for (_, config) in &mut contents.configs {
        let limits = &mut config.limits;
        limits.sort_by(|one, other| one.name().cmp(other.name()));
    }
    Ok(contents)
}

/// Returns the changes as a table, with their number.
pub fn text(output: &Output, changes: &Changes) -> String {
    let configs = changes.configs.iter().flat_map(|change| {
        config_rows(&change.level, [change.before.as_ref(), Some(&change.after)])
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
    format!(
        "{}\n{count}",
        output.table(&COLUMNS, configs.chain(entities))
    )
}

/// Columns of changed fields.
pub const COLUMNS: [&str; 4] = ["of", "field", "before", "after"];

/// Returns a row of [`COLUMNS`] for each field of a level in which two configurations differ.
pub fn config_rows(level: &ConfigLevel, configs: [Option<&Config>; 2]) -> Vec<Vec<String>> {
    rows(&level.to_string(), configs.map(config_fields))
}

/// Returns a row of [`COLUMNS`] for each field that differs.
fn rows(of: &str, fields: [Fields; 2]) -> Vec<Vec<String>> {
    let fields = differing(of, fields).into_iter();
    fields
        .map(|field| vec![field.of, field.field, field.before, field.after])
        .collect()
}
