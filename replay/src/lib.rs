//! Counts the usage of stream records that nobody could process, from what Lambda left of them in the failure bucket:
//! what was not counted yet, once, however often and beside whatever else it runs.
//!
//! # Layout
//!
//! - `args`: [`Args`]: what the command line says
//! - `source`: files, folders and standard input to the objects in them, oldest first
//! - [`object`]: one object to its event, and the tables its records come from
//! - [`count`]: an event to what was added to the snapshots, or would be
//! - `report`: [`Done`]: what became of an object, and their sum
//!
//! Only usage is counted. Old images say nothing about today's buckets, so nothing is refilled and nothing split.

mod args;
pub mod count;
pub mod object;
mod report;
mod source;

use std::io::{Read, Write};

use weirgate_store::{StoreError, Table};

pub use args::Args;
pub use count::Replay;
pub use report::{Done, Sum, Tally};
pub use source::{Object, Place, SourceError, Unreadable, open};

/// Why a replay ended before its last object.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// What was to be read could not be.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The table cannot be reached at all.
    #[error(transparent)]
    Table(#[from] StoreError),
    /// Nobody reads the output.
    #[error("the output cannot be written: {0}")]
    Output(#[from] std::io::Error),
}

/// Counts all that `args` name, and writes a line for each object and their sum to `out`.
///
/// # Errors
/// [`ReplayError`] if it could not go on. What was counted until then stays counted.
pub async fn replay(args: &Args, table: &Table, input: impl Read, out: &mut impl Write) -> Result<Sum, ReplayError> {
    // Shows early that the table is there, and corrects the clock by which snapshots have expired.
    table.warm().await?;
    let mut replay = Replay::new(table, args.options(), table.skew().now());
    let mut sum = Sum::default();
    for place in open(&args.objects, input)? {
        for object in place.objects()? {
            let done = match object {
                Ok(object) => replay.object(&object.name, &object.text).await,
                Err(unreadable) => Done::unreadable(unreadable.name, unreadable.why),
            };
            write!(out, "{done}")?;
            sum.add(&done);
        }
    }
    write!(out, "{}", sum.told(args.dry_run))?;
    Ok(sum)
}
