//! `weirgate limits export`.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use serde::Serialize;
use weirgate::{Config, ConfigLevel, Entity, FileError, LimitsFileContents};

use super::{Configured, stored};
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Prints all limits and parents of the namespace as a limits file.
///
/// `limits apply` reads it. The same limits have the same text.
#[derive(Debug, Args)]
pub struct Export {}

#[derive(Serialize)]
struct Exported {
    configs: Vec<Configured>,
    entities: Vec<Entity>,
}

impl Export {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let contents = stored::read(&context.limiter().await?).await?;
        let text = contents.to_string();
        check(&contents, &text).map_err(|error| {
            Failure::Failed(format!(
                "a configuration was written by other means, and no limits file has it: {error}"
            ))
        })?;
        let LimitsFileContents { configs, entities } = contents;
        let exported =
            Exported { configs: configs.into_iter().map(Configured::from).collect(), entities };
        let output = context.output();
        output.print(&exported, |_| text)?;
        let plans: BTreeSet<_> =
            exported.configs.iter().filter_map(|config| config.level.plan()).collect();
        for Entity { id, plan, .. } in &exported.entities {
            if let Some(plan) = plan.as_ref().filter(|plan| !plans.contains(plan)) {
                output.note(format!(
                    "entity {id} has plan {plan}, which has no limits, so limits apply to another table refuses this \
                     file: run weirgate limits set --plan {plan}, or give the entity another plan"
                ));
            }
        }
        Ok(Outcome::Done)
    }
}

/// Checks that the text is read as what it was written from: the table may have what no call accepts,
/// such as parts of tokens.
fn check(contents: &LimitsFileContents, text: &str) -> Result<(), FileError> {
    let read = LimitsFileContents::parse("export", text)?;
    let configs = |of: &LimitsFileContents| -> BTreeMap<ConfigLevel, Config> {
        let sorted = |(level, config): &(ConfigLevel, Config)| {
            let mut config = config.clone();
            let limits = &mut config.limits;
            limits.sort_by(|one, other| one.name().cmp(other.name()));
            (level.clone(), config)
        };
        of.configs.iter().map(sorted).collect()
    };
    let (stored, read) = (configs(contents), configs(&read));
    match stored.into_iter().find(|(level, config)| read.get(level) != Some(config)) {
        None => Ok(()),
        Some((level, _)) => Err(FileError {
            path: "export".into(),
            place: None,
            message: format!("{level} would be read as other limits; set it again"),
        }),
    }
}
