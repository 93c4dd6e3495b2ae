//! The body of a response, which keeps slots until it has been sent.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::tower::GrantHandle;

pin_project! {
    /// The body of a response: the service's own, with the grant of its request, or the limiter's.
    ///
    /// The grant's slots return when the body has ended or is dropped, and no other handle is left.
    #[derive(Debug)]
    pub struct LimitedBody<B> {
        #[pin]
        inner: Option<B>,
        // The limiter's own text, if there is no inner body.
        own: Option<Bytes>,
        held: Option<GrantHandle>,
    }
}

impl<B> LimitedBody<B> {
    /// Returns the body of a request that is not limited.
    pub(crate) const fn free(inner: B) -> Self {
        Self { inner: Some(inner), own: None, held: None }
    }

    pub(crate) const fn holding(inner: B, handle: GrantHandle) -> Self {
        Self { inner: Some(inner), own: None, held: Some(handle) }
    }

    /// Returns the limiter's own body; empty if `text` is.
    pub(crate) fn own(text: String) -> Self {
        Self { inner: None, own: (!text.is_empty()).then(|| text.into()), held: None }
    }
}

impl<B: Body<Data = Bytes>> Body for LimitedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let Some(inner) = this.inner.as_pin_mut() else {
            return Poll::Ready(this.own.take().map(|text| Ok(Frame::data(text))));
        };
        let frame = ready!(inner.poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            *this.held = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().map_or(self.own.is_none(), Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let own = || {
            SizeHint::with_exact(
                self.own.as_ref().map_or(0, |text| text.len().try_into().unwrap_or(u64::MAX)),
            )
        };
        self.inner.as_ref().map_or_else(own, Body::size_hint)
    }
}
