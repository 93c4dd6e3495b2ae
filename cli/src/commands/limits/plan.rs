//! `weirgate limits plan`.

use std::path::PathBuf;

use clap::Args;

use super::diff::{FileArgs, ShownArgs};
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Plans the changes of a limits file, for `limits apply`.
///
/// A plan has the version of every configuration, so `limits apply` makes these changes or
/// none. What the file does not have stays, unless --prune is given.
#[derive(Debug, Args)]
pub struct Plan {
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    shown: ShownArgs,
    /// Saves the plan as JSON
    #[arg(long, value_name = "PLAN")]
    out: Option<PathBuf>,
}

impl Plan {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let changes = self.file.changes(context).await?;
        if let Some(path) = &self.out {
            let unsaved = |error: String| {
                Failure::Failed(format!(
                    "{}: the plan is not saved: {error}",
                    path.display()
                ))
            };
            let json =
                serde_json::to_string(&changes).map_err(|error| unsaved(error.to_string()))?;
            std::fs::write(path, json + "\n").map_err(|error| unsaved(error.to_string()))?;
            context.output().note(format!(
                "apply it: weirgate limits apply {}",
                path.display()
            ));
        }
        self.shown.print(context, &changes)
    }
}
