//! The stream of a connection.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Bytes;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Sleep, sleep};

/// Time for a client to take an answer, from when its socket has no room for more.
pub(super) const TAKING: Duration = Duration::from_secs(10);

/// A stream of bytes that tells when it has some.
pub(super) trait Transport: AsyncRead + AsyncWrite + Unpin + Send + Sync + 'static {
    /// Waits for bytes, or the end.
    fn wait_readable(&self) -> impl Future<Output = io::Result<()>> + Send;
    /// Writes what fits without waiting.
    fn write_now(&self, bytes: &[u8]);
}

impl Transport for tokio::net::TcpStream {
    async fn wait_readable(&self) -> io::Result<()> {
        self.readable().await
    }

    fn write_now(&self, bytes: &[u8]) {
        let _ = self.try_write(bytes);
    }
}

impl Transport for tokio::net::UnixStream {
    async fn wait_readable(&self) -> io::Result<()> {
        self.readable().await
    }

    fn write_now(&self, bytes: &[u8]) {
        let _ = self.try_write(bytes);
    }
}

/// A stream that begins with bytes which were read already, and that ends if its client takes an
/// answer too slowly.
pub(super) struct Prefixed<T> {
    pub(super) prefix: Bytes,
    inner: TokioIo<T>,
    /// When the answer must be taken. Set while the socket has had no room for it.
    late: Option<Pin<Box<Sleep>>>,
}

impl<T> Prefixed<T> {
    pub(super) fn new(prefix: Bytes, inner: T) -> Self {
        Self {
            prefix,
            inner: TokioIo::new(inner),
            late: None,
        }
    }

    /// Returns the bytes that were not read again, and the stream.
    pub(super) fn into_parts(self) -> (Bytes, T) {
        (self.prefix, self.inner.into_inner())
    }

    /// Waits for room in the socket, until it is too late.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let late = self.late.get_or_insert_with(|| Box::pin(sleep(TAKING)));
        late.as_mut()
            .poll(cx)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: Transport> Read for Prefixed<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { prefix, inner, .. } = self.get_mut();
        if prefix.is_empty() {
            return Pin::new(inner).poll_read(cx, buf);
        }
        let part = prefix.split_to(prefix.len().min(buf.remaining()));
        buf.put_slice(&part);
        Poll::Ready(Ok(()))
    }
}

impl<T: Transport> Write for Prefixed<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.inner).poll_write(cx, bytes) {
            Poll::Pending => self.poll_room(cx),
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
            Poll::Pending => self.poll_room(cx),
            written => written,
        }
    }
}
