//! Replays stream records that the aggregator gave up, from the objects that Lambda left in the
//! failure bucket. Copies are absolute, so a replay may run repeatedly, and beside the aggregator.
//!
//! - `source`: files, folders and standard input to the objects in them
//! - [`object`]: one object to its event, and the tables its records come from
//! - `copies`: [`Replay`]: an event to the copies that the aggregator makes of it
//! - `report`: [`Done`]: what became of an object, and their sum
//!
//! Only usage is copied. Old images do not show the current shards, so none is refilled or split.

mod copies;
pub mod object;
mod report;
mod source;

use std::io::Read;
use std::path::PathBuf;

use weirgate_store::{StoreError, Table};

pub use copies::{Options, Replay};
pub use report::{Done, Sum};
pub use source::{Object, Place, SourceError, Unreadable, open};

/// Why a replay ended before its last object.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A file or folder cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The table cannot be reached at all.
    #[error(transparent)]
    Table(#[from] StoreError),
    /// The output is closed.
    #[error("the output cannot be written: {0}")]
    Output(#[from] std::io::Error),
}

/// Replays the objects in `paths`, and calls `each` with the outcome of each object.
///
/// # Errors
/// [`ReplayError`] if it could not go on. Copies that were made until then stay.
pub async fn replay(
    paths: &[PathBuf],
    options: Options,
    table: &Table,
    input: impl Read,
    mut each: impl FnMut(Done) -> std::io::Result<()>,
) -> Result<Sum, ReplayError> {
    // Checks early that the table exists, and corrects the clock that decides which snapshots have
    // expired.
    table.warm().await?;
    let mut replay = Replay::new(table, options);
    let mut sum = Sum::default();
    for place in open(paths, input)? {
        for object in place.objects()? {
            let done = match object {
                Ok(object) => replay.object(&object.name, &object.text).await,
                Err(unreadable) => Done::unreadable(unreadable.name, unreadable.why),
            };
            sum.add(&done);
            each(done)?;
        }
    }
    Ok(sum)
}
