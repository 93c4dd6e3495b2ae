//! Futures that are dropped, or stand still, at any await.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// Runs `future` for at most `polls` polls and then drops it; without `polls`, runs it to its end.
/// Returns `None` if the future was dropped.
pub async fn cancel_after<F: Future>(future: F, polls: Option<u32>) -> Option<F::Output> {
    let (mut future, mut polls) = (Box::pin(future), polls);
    let end = poll_fn(|context| {
        match &mut polls {
            Some(0) => return Poll::Ready(None),
            Some(polls) => *polls -= 1,
            None => {}
        }
        future.as_mut().poll(context).map(Some)
    });
    end.await
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
