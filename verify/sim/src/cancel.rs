//! Futures that are dropped, or stand still, at any await.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

/// A future that is dropped instead of being polled once more.
pub struct CancelAfter<F> {
    future: Option<Pin<Box<F>>>,
    polls: Option<u32>,
}

/// Runs `future` for at most `polls` polls and then drops it; without `polls`, runs it to its end.
/// Returns `None` if the future was dropped.
pub fn cancel_after<F: Future>(future: F, polls: Option<u32>) -> CancelAfter<F> {
    CancelAfter {
        future: Some(Box::pin(future)),
        polls,
    }
}

impl<F: Future> Future for CancelAfter<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<F::Output>> {
        match &mut self.polls {
            Some(0) => self.future = None,
            Some(polls) => *polls -= 1,
            None => {}
        }
        match &mut self.future {
            None => Poll::Ready(None),
            Some(future) => future.as_mut().poll(context).map(Some),
        }
    }
}

/// Runs `future` to its end. After so many polls it stands still for a span, as a process without
/// CPU does.
pub async fn stall_after<F: Future>(future: F, stall: Option<(u32, Duration)>) -> F::Output {
    let mut future = pin!(future);
    if let Some((mut polls, span)) = stall {
        let first = poll_fn(|context| {
            if polls == 0 {
                return Poll::Ready(None);
            }
            polls -= 1;
            future.as_mut().poll(context).map(Some)
        });
        if let Some(done) = first.await {
            return done;
        }
        tokio::time::sleep(span).await;
    }
    future.await
}

impl<F> std::fmt::Debug for CancelAfter<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CancelAfter after {:?} polls", self.polls)
    }
}
