//! `weirgate replay`.

use serde::Serialize;
use weirgate_replay::{Args, Done, ReplayError, Sum, replay};

use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::text::one_line;

#[derive(Serialize)]
struct Replayed {
    objects: Vec<Done>,
    sum: Sum,
}

/// Replays what the arguments name. As text, the outcome of each object is printed at once.
pub async fn run(args: Args, context: &Context) -> Result<Outcome, Failure> {
    let output = context.output();
    let table = context.stored().await?;
    let (input, mut objects) = (std::io::stdin().lock(), vec![]);
    let sum = replay(&args, &table, input, |done| {
        if output.is_json() {
            objects.push(done);
            return Ok(());
        }
        let lines: Vec<_> = done.lines().iter().map(|line| one_line(line)).collect();
        output.write_text(lines.join("\n"))
    })
    .await?;
    let outcome = match sum.is_complete() {
        true => Outcome::Done,
        false => Outcome::Negative,
    };
    let replayed = Replayed { objects, sum };
    output.print(&replayed, |replayed| replayed.sum.text(args.dry_run))?;
    Ok(outcome)
}

impl From<ReplayError> for Failure {
    fn from(error: ReplayError) -> Self {
        match error {
            ReplayError::Source(error) => Self::Refused(error.to_string()),
            ReplayError::Table(error) => Self::from(&error),
            ReplayError::Output(error) => Self::from(error),
        }
    }
}
