//! `weirgate replay`.

use std::path::PathBuf;

use clap::Parser;
use serde::Serialize;
use weirgate_aggregator::replay::{Done, Options, ReplayError, Sum, replay};
use weirgate_aggregator::{DEFAULT_TTL_DAYS, TTL_DAYS};

use crate::amounts;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::output::Unwritten;
use crate::text::one_line;

/// Makes usage copies from the objects of the failure bucket.
///
/// They are those that the aggregator could not make. It may run twice, beside the aggregator, and again after an interruption: a copy that is there
/// already changes nothing. It needs dynamodb:GetItem and dynamodb:UpdateItem on the table; with
/// --dry-run only the first. Exit code 1 if something is left, and the output says what.
#[derive(Debug, Clone, Parser)]
#[command(after_help = "Example: weirgate replay --ttl-days 90 --dry-run failures/")]
pub struct Replay {
    /// Days a snapshot is kept after its window: SNAPSHOT_TTL_DAYS of the aggregator
    ///
    /// Matters only for the snapshots that the replay makes itself; those that are there keep their
    /// ttl. Copies of windows that ended longer ago are left, because their snapshots may be
    /// deleted.
    // Also for snapshots of releases that kept them for one day or two.
    #[arg(long, value_name = "DAYS", default_value_t = DEFAULT_TTL_DAYS,
        value_parser = amounts::within::<1, { *TTL_DAYS.end() }, i64>)]
    pub ttl_days: i64,

    /// Takes records of this table, the one that the table was restored from
    #[arg(long, value_name = "NAME")]
    pub from_table: Option<String>,

    /// Only prints the copies that the objects ask for
    #[arg(long)]
    pub dry_run: bool,

    /// The most copies under way at once
    #[arg(long, value_name = "COUNT", default_value_t = 32, value_parser = amounts::within::<1, 256, u16>)]
    pub concurrency: u16,

    /// Files and folders with objects of the failure bucket; `-` is standard input
    #[arg(required = true, value_name = "PATH")]
    pub objects: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Replayed {
    objects: Vec<Done>,
    sum: Sum,
}

/// Replays what the arguments name. As text, the outcome of each object is printed at once.
pub async fn run(args: Replay, context: &Context) -> Result<Outcome, Failure> {
    context.needs_dynamodb("replay", "a store has no failure bucket; leave it out")?;
    let output = context.output();
    let table = context.stored().await?;
    let (input, mut objects) = (std::io::stdin().lock(), vec![]);
    let options = Options {
        ttl_days: args.ttl_days,
        from_table: args.from_table,
        dry_run: args.dry_run,
        concurrency: usize::from(args.concurrency),
    };
    let sum = replay(&args.objects, options, &table, input, |done| {
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
        false => Outcome::Incomplete,
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
            ReplayError::Output(error) => Unwritten::from(error).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_objects_have_no_default() {
        Replay::command().debug_assert();
        let args = Replay::try_parse_from(["replay", "folder"]).unwrap();
        assert_eq!((args.ttl_days, args.concurrency, args.dry_run), (DEFAULT_TTL_DAYS, 32, false));
        let error = Replay::try_parse_from(["replay"]).unwrap_err().to_string();
        assert!(error.contains("<PATH>"), "{error}");
    }

    #[test]
    fn a_wrong_argument_is_named_with_what_it_takes() {
        for (flag, wrong, takes) in [
            ("--ttl-days", "0", "from 1 to 3650"),
            ("--ttl-days", "x", "--ttl-days"),
            ("--concurrency", "257", "from 1 to 256"),
        ] {
            let error = Replay::try_parse_from(["replay", flag, wrong, "folder"]).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            let error = error.to_string();
            assert!(error.contains(wrong) && error.contains(takes), "{error}");
        }
    }
}
