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
    /// Shows what would be changed, and writes nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub key: KeyArgs,
}

/// Makes a repeated change one.
#[derive(Debug, Clone, Args)]
pub struct KeyArgs {
    /// Makes the change at most once for this key, ever
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
}

#[derive(Serialize)]
struct Changed {
    changed: bool,
    #[serde(skip_serializing_if = "is_false")]
    dry_run: bool,
}

/// Returns whether a field is left out of JSON.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
pub const fn is_false(value: &bool) -> bool {
    !*value
}

/// Reports a change that has no other result.
///
/// # Errors
/// If standard output cannot be written.
pub fn done(context: &Context, changed: bool, text: &str) -> Result<Outcome, Failure> {
    let dry_run = false;
    print(context, &Changed { changed, dry_run }, text)
}

/// Reports a change that was not made. `changed` is whether it would change anything.
///
/// # Errors
/// If standard output cannot be written.
pub fn dry_run(context: &Context, changed: bool, text: &str) -> Result<Outcome, Failure> {
    let dry_run = true;
    let text = format!("{text} (dry run: nothing changed)");
    print(context, &Changed { changed, dry_run }, &text)
}

fn print(context: &Context, changed: &Changed, text: &str) -> Result<Outcome, Failure> {
    context.output().print(changed, |_| one_line(text))?;
    Ok(Outcome::Done)
}

/// Returns what became of a change, as text.
pub fn outcome_text(outcome: &OperationOutcome) -> String {
    match outcome {
        OperationOutcome::Applied => "applied".to_owned(),
        OperationOutcome::AppliedBefore(at) => {
            format!("applied before, at {}: nothing changed now", instant::text(*at))
        }
        OperationOutcome::DryRun => "dry run: nothing changed".to_owned(),
        OperationOutcome::Unchanged => "nothing to change".to_owned(),
    }
}
