//! `weirgate limits plan`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::diff::{FileArgs, ShownArgs};
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Plans the changes of a limits file, for `limits apply`.
///
/// A plan has the version of every configuration, so `limits apply` overwrites nothing that was
/// changed since. What the file does not have stays, unless --prune is given.
#[derive(Debug, Args)]
pub struct Plan {
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    shown: ShownArgs,
    /// Saves the plan as JSON; `-` is standard output
    #[arg(long, value_name = "PLAN")]
    out: Option<PathBuf>,
    /// Overwrites a file that is not a plan
    #[arg(long, requires = "out")]
    force: bool,
}

impl Plan {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let saved = self.out.as_deref().filter(|path| *path != Path::new("-"));
        // Before any request, as all wrong arguments.
        if let Some(path) = saved {
            self.check_saved(path)?;
        }
        let changes = self.file.changes(context).await?;
        let Some(out) = &self.out else {
            return self.shown.print(context, &changes);
        };
        let unsaved = |error: String| {
            Failure::Failed(format!("{}: the plan is not saved: {error}", out.display()))
        };
        let json = serde_json::to_string(&changes).map_err(|error| unsaved(error.to_string()))?;
        let Some(path) = saved else {
            context.output().print_text(json)?;
            return Ok(self.shown.outcome(&changes));
        };
        std::fs::write(path, json + "\n").map_err(|error| unsaved(error.to_string()))?;
        context.output().note(format!("apply it: weirgate limits apply {}", path.display()));
        self.shown.print(context, &changes)
    }

    /// Requires that saving the plan overwrites nothing but a plan.
    fn check_saved(&self, path: &Path) -> Result<(), Failure> {
        let shown = path.display();
        let real = path.canonicalize();
        if real.is_ok() && real.ok() == self.file.file.canonicalize().ok() {
            return Err(Failure::Refused(format!(
                "--out must be another file than FILE, got {shown}; name another one"
            )));
        }
        let is_other = path.is_file()
            && std::fs::read(path).is_ok_and(|bytes| {
                let text = String::from_utf8_lossy(&bytes);
                !text.trim().is_empty() && !is_plan(&text)
            });
        match is_other && !self.force {
            true => Err(Failure::Refused(format!(
                "--out must be a new file or a plan, got {shown}, which is neither; name another \
                 one, or add --force"
            ))),
            false => Ok(()),
        }
    }
}

/// Returns whether a text is a plan, or the beginning of one, and no limits file.
pub fn is_plan(text: &str) -> bool {
    const KEY: &str = "weirgate_plan";
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(value) => value.get(KEY).is_some(),
        Err(_) => {
            let first = text.trim_start().strip_prefix('{').map(str::trim_start);
            let first = first.and_then(|first| first.strip_prefix('"'));
            first.is_some_and(|first| first.starts_with(KEY))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_known_by_its_first_key_and_not_by_a_word() {
        for text in [
            r#"{"weirgate_plan":1}"#,
            r#"{"table":"t","weirgate_plan":1}"#,
            "{ \"weirgate_plan\": 1,",
        ] {
            assert!(is_plan(text), "{text}");
        }
        for text in [
            "",
            "# made from \"weirgate_plan\"\nweirgate: 1\n",
            "{weirgate: 1}",
            r#"{"weirgate":1,"entities":{"weirgate_plan":{}}}"#,
            r#"["weirgate_plan"]"#,
        ] {
            assert!(!is_plan(text), "{text}");
        }
    }
}
