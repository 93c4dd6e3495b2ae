//! What the command line says.

use std::path::PathBuf;

use clap::Parser;
use weirgate_aggregator::{Snapshots, parse_windows};
use weirgate_shared::Window;

use crate::count::Options;

/// Counts the usage of stream records that the aggregator could not process, from the objects of the failure bucket:
/// what was not counted yet, once. It may be run twice, beside the aggregator, and again after it was interrupted.
///
/// Exit code: 0 if all was counted, 1 if something was left (the output says what), 2 if the arguments are wrong.
/// Region, credentials and endpoint come from where the AWS CLI has them too, also AWS_ENDPOINT_URL_DYNAMODB.
/// It needs dynamodb:GetItem and dynamodb:UpdateItem on the table, and dynamodb:BatchGetItem for --dry-run.
#[derive(Debug, Clone, Parser)]
#[command(name = "weirgate-replay", version)]
pub struct Args {
    /// The table whose usage is counted: the stack's output TableName
    #[arg(long, value_name = "NAME")]
    pub table: String,

    /// The windows usage is counted in, with commas between: SNAPSHOT_WINDOWS of the aggregator
    ///
    /// A window that is missing here is not counted; a later run with it counts it.
    #[arg(long, value_name = "LIST", value_parser = windows)]
    pub windows: Windows,

    /// Days a snapshot is kept after its window: SNAPSHOT_TTL_DAYS of the aggregator, the least it ever was
    ///
    /// What belongs to a snapshot that may be gone is left: nobody knows what it had counted.
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(i64).range(1..=3650))]
    pub ttl_days: i64,

    /// Counts records of this table, the one that --table was restored from
    #[arg(long, value_name = "NAME")]
    pub from_table: Option<String>,

    /// Also counts records of items without `v` (zae-limiter's), each time they are given
    #[arg(long)]
    pub without_v: bool,

    /// Only says what would be added to which snapshot
    #[arg(long)]
    pub dry_run: bool,

    /// Snapshots written to at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub concurrency: u16,

    /// Files and folders with objects of the failure bucket; `-` is standard input
    #[arg(required = true, value_name = "PATH")]
    pub objects: Vec<PathBuf>,
}

/// Kinds of windows, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows(pub Vec<Window>);

fn windows(list: &str) -> Result<Windows, String> {
    let parsed = parse_windows(list).map(Windows);
    parsed.ok_or_else(|| "it takes one or more of hourly, daily and monthly, each once, with commas between".to_owned())
}

impl Args {
    /// How to count.
    #[must_use]
    pub fn options(&self) -> Options {
        Options {
            snapshots: Snapshots { windows: self.windows.0.clone(), ttl_days: self.ttl_days },
            from_table: self.from_table.clone(),
            without_v: self.without_v,
            dry_run: self.dry_run,
            concurrency: usize::from(self.concurrency),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    const RIGHT: [&str; 8] =
        ["weirgate-replay", "--table", "t", "--windows", "hourly,daily", "--ttl-days", "90", "folder"];

    #[test]
    fn the_settings_of_the_function_have_no_default_that_could_differ_from_it() {
        Args::command().debug_assert();
        let args = Args::try_parse_from(RIGHT).unwrap();
        assert_eq!(args.options().snapshots.windows, [Window::Hourly, Window::Daily]);
        for at in [1, 3, 5] {
            let mut without = RIGHT.to_vec();
            let flag = without.drain(at..at + 2).next().unwrap();
            let error = Args::try_parse_from(without).unwrap_err().to_string();
            assert!(error.contains(flag), "{error}");
        }
    }

    #[test]
    fn a_wrong_argument_is_named_with_what_it_takes() {
        for (at, wrong, takes) in
            [(4, "weekly", "hourly, daily and monthly"), (6, "0", "1..=3650"), (6, "x", "--ttl-days")]
        {
            let mut arguments = RIGHT;
            arguments[at] = wrong;
            let error = Args::try_parse_from(arguments).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            let error = error.to_string();
            assert!(error.contains(wrong) && error.contains(takes), "{error}");
        }
    }
}
