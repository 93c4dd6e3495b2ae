//! Bodies of bounded size, read in bounded time and memory.

use std::fmt::Display;
use std::time::Duration;

use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Bytes;
use tokio::task::coop::consume_budget;
use tokio::time::timeout;

use super::room::Place;

/// Time for a body to arrive.
pub(crate) const ARRIVAL: Duration = Duration::from_secs(10);
/// How much of a body that is too large is read and discarded, so that its sender reads the answer.
const DISCARDED: usize = 16 * 1024 * 1024;

/// Why a body was not read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It has so many bytes, or more.
    TooLarge(usize),
    /// It did not arrive within [`ARRIVAL`].
    Late,
    /// It gave way to other ones, because it had been arriving for the longest time.
    GaveWay,
    /// It ended before its end, or its frames are wrong.
    Broken(String),
}

/// Reads a body of at most `most` bytes, for which `place` takes the room.
pub(crate) async fn read<B>(body: B, most: usize, place: Place) -> Result<Bytes, Unread>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    tokio::select! {
        whole = timeout(ARRIVAL, whole(body, most, &place)) => whole.unwrap_or(Err(Unread::Late)),
        () = place.gave_way() => Err(Unread::GaveWay),
    }
}

async fn whole<B>(mut body: B, most: usize, place: &Place) -> Result<Bytes, Unread>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    let announced = body.size_hint().lower();
    let announced = usize::try_from(announced).unwrap_or(usize::MAX);
    let (mut first, mut all, mut arrived) = (Bytes::new(), vec![], 0_usize);
    // Ends with the body: no hint of its end is asked for.
    while let Some(frame) = body.frame().await {
        // Frames without bytes have no bound but the time, which is looked at when this yields.
        consume_budget().await;
        let frame = frame.map_err(|error| Unread::Broken(error.to_string()))?;
        let Ok(part) = frame.into_data() else {
            continue;
        };
        arrived = arrived.saturating_add(part.len());
        if arrived.max(announced) > most {
            (first, all) = (Bytes::new(), vec![]);
            if arrived > DISCARDED {
                break;
            }
            continue;
        }
        if !place.grow(u64::try_from(part.len()).unwrap_or(u64::MAX)) {
            return Err(Unread::GaveWay);
        }
        if all.is_empty() && first.is_empty() {
            first = part;
        } else {
            if all.is_empty() {
                all.extend_from_slice(&std::mem::take(&mut first));
            }
            all.extend_from_slice(&part);
        }
    }
    match arrived.max(announced) {
        length if length > most => Err(Unread::TooLarge(length)),
        _ if all.is_empty() => Ok(first),
        _ => Ok(all.into()),
    }
}
