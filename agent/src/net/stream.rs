//! The stream of a connection.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, DuplexStream, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::room::Place;

/// Time for a client to take an answer, from when its socket has no room for more.
pub(crate) const TAKING: Duration = Duration::from_secs(10);

/// A stream of bytes that tells when it has some.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Unpin + Send + Sync + 'static {
    /// Waits for bytes, or the end, and reads nothing.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Writes what fits without waiting.
    fn write_now(&self, bytes: &[u8]);
}

impl Transport for tokio::net::TcpStream {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }

    fn write_now(&self, bytes: &[u8]) {
        let _ = self.try_write(bytes);
    }
}

impl Transport for tokio::net::UnixStream {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }

    fn write_now(&self, bytes: &[u8]) {
        let _ = self.try_write(bytes);
    }
}

/// A connection in memory.
impl Transport for BufReader<DuplexStream> {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self).poll_fill_buf(cx).map_ok(|_| ())
    }

    fn write_now(&self, _: &[u8]) {}
}

/// What a stream does with the room of its connection.
pub(crate) trait Holds {
    /// Holds room for a request of which bytes have come. Returns whether there is room.
    fn arrive(&self) -> bool;
    /// Holds room for bytes of an answer that the client does not take. `None` if there is none.
    fn keep(&self, bytes: usize) -> Option<Place>;
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
        Self {
            prefix,
            inner,
            holds,
            late: None,
        }
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
        late.end
            .as_mut()
            .poll(cx)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
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

    /// Called once all that there is was written.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.late = None;
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
