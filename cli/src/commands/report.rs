//! Reports of changes.

use clap::Args;
use serde::Serialize;
use weirgate::OperationOutcome;

use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::instant;
use crate::text::one_line;

/// Options of a change that an operator makes.
#[derive(Debug, Clone, Args)]
pub struct ChangeArgs {
    /// Reads and reports, and changes nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Makes the change at most once for this key, ever
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

#[derive(Serialize)]
struct Changed {
    changed: bool,
}

/// Reports a change that has no other result.
///
/// # Errors
/// If standard output cannot be written.
pub fn done(context: &Context, changed: bool, text: &str) -> Result<Outcome, Failure> {
    context
        .output()
        .print(&Changed { changed }, |_| one_line(text))?;
    Ok(Outcome::Done)
}

/// Returns what became of a change, as text.
pub fn outcome_text(outcome: &OperationOutcome) -> String {
    match outcome {
        OperationOutcome::Applied => "applied".to_owned(),
        OperationOutcome::AppliedBefore(at) => {
            format!(
                "applied before, at {}: nothing changed now",
                instant::text(*at)
            )
        }
        OperationOutcome::DryRun => "dry run: nothing changed".to_owned(),
        OperationOutcome::Unchanged => "nothing to change".to_owned(),
    }
}
