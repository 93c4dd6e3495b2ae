//! The stream of a connection.

use std::fmt::Display;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Bytes;
use tokio::io::{
    AsyncBufRead, AsyncRead, AsyncWrite, BufReader, DuplexStream, Interest, ReadBuf, Ready,
};
use tokio::task::coop::consume_budget;
use tokio::time::{Sleep, sleep, timeout};

use super::room::Place;

/// Time for a client to take an answer, from when its socket has no room for more.
pub(crate) const TAKING: Duration = Duration::from_secs(10);

/// A stream of bytes that tells when it has some.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Unpin + Send + Sync + 'static {
    /// Waits for bytes, or the end, and reads nothing.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Returns whether no more bytes will come than those that have.
    fn has_ended(&mut self, cx: &mut Context<'_>) -> bool;
    /// Writes what fits without waiting.
    fn write_now(&self, bytes: &[u8]);
}

impl Transport for tokio::net::TcpStream {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }

    fn has_ended(&mut self, cx: &mut Context<'_>) -> bool {
        is_end(pin!(self.ready(Interest::READABLE)).poll(cx))
    }

    fn write_now(&self, bytes: &[u8]) {
        let _ = self.try_write(bytes);
    }
}

impl Transport for tokio::net::UnixStream {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }

    fn has_ended(&mut self, cx: &mut Context<'_>) -> bool {
        is_end(pin!(self.ready(Interest::READABLE)).poll(cx))
    }

    fn write_now(&self, bytes: &[u8]) {
        let _ = self.try_write(bytes);
    }
}

/// Returns whether the system has said that the peer sends no more.
fn is_end(ready: Poll<io::Result<Ready>>) -> bool {
    matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
}

/// A connection in memory, which shows its end once its bytes are read.
impl Transport for BufReader<DuplexStream> {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self).poll_fill_buf(cx).map_ok(|_| ())
    }

    fn has_ended(&mut self, cx: &mut Context<'_>) -> bool {
        matches!(Pin::new(self).poll_fill_buf(cx), Poll::Ready(Ok([])))
    }

    fn write_now(&self, _: &[u8]) {}
}

/// What a stream does with the room of its connection.
pub(crate) trait Holds {
    /// Holds room for a request of which bytes have come. Returns whether there is room.
    fn arrive(&self) -> bool;
    /// Holds room for bytes of an answer that the client does not take. `None` if there is none.
    fn keep(&self, bytes: usize) -> Option<Place>;
    /// Returns whether a request that has arrived whole is being answered. A client that leaves then ends
    /// the stream.
    fn is_answering(&self) -> bool;
}

/// A stream that begins with bytes which were read already, and that ends if its client takes an
/// answer too slowly.
pub(crate) struct Prefixed<T, H> {
    pub(crate) prefix: Bytes,
    inner: T,
    holds: H,
    /// The answer for which the socket has had no room.
    late: Option<Late>,
}

/// When an answer must be taken, and the room that it has until then.
struct Late {
    end: Pin<Box<Sleep>>,
    _place: Option<Place>,
}

impl<T, H: Holds> Prefixed<T, H> {
    pub(crate) fn new(prefix: Bytes, inner: T, holds: H) -> Self {
        Self { prefix, inner, holds, late: None }
    }

    /// Returns the bytes that were not read again, and the stream.
    pub(crate) fn into_parts(self) -> (Bytes, T) {
        (self.prefix, self.inner)
    }

    /// Waits for room in the socket for so many bytes, until it is too late.
    fn poll_room(&mut self, cx: &mut Context<'_>, bytes: usize) -> Poll<io::Result<usize>> {
        let late = self.late.get_or_insert_with(|| Late {
            end: Box::pin(sleep(TAKING)),
            _place: self.holds.keep(bytes),
        });
        late.end.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: Transport, H: Holds + Unpin> AsyncRead for Prefixed<T, H> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        if this.prefix.is_empty() {
            ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
        } else {
            let part = this.prefix.split_to(this.prefix.len().min(buf.remaining()));
            buf.put_slice(&part);
        }
        match buf.filled().len() == before || this.holds.arrive() {
            true => Poll::Ready(Ok(())),
            false => Poll::Ready(Err(io::ErrorKind::OutOfMemory.into())),
        }
    }
}

impl<T: Transport, H: Holds + Unpin> AsyncWrite for Prefixed<T, H> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.inner).poll_write(cx, bytes) {
            Poll::Pending => self.poll_room(cx, bytes.len()),
            written => written,
        }
    }

    /// Called whenever the connection is polled, once all that there is was written. HTTP/1 does not read
    /// while it has bytes of a next request, so it would not see the end behind them.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.late = None;
        if self.holds.is_answering() && self.inner.has_ended(cx) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.inner).poll_write_vectored(cx, bytes) {
            Poll::Pending => {
                let length = bytes.iter().map(|part| part.len()).sum();
                self.poll_room(cx, length)
            }
            written => written,
        }
    }
}

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
