//! Takes from several shards of a bucket, none of which has enough alone.
//!
//! Each gives its part in a write of its own, which other callers of the process share. A transaction would cost twice as
//! much, and any write of another process to one of the shards within the moment it takes would cancel it: on shards in
//! steady use it practically never succeeds.

use futures_util::future::join_all;
use weirgate_shared::MilliTokens;

use super::Request;
use super::route::Asking;
use crate::Error;
use crate::held::Held;
use crate::line::{Delivery, Needs, Told, Verdict, Why};

/// What has been taken of a request so far. Dropped, it goes back in the background.
struct Taken {
    left: Needs,
    /// Each with the acquires that its write counted.
    parts: Vec<(Delivery, i64)>,
    /// One of them has taken what is taken in any case, and counts the acquire.
    has_first: bool,
}

impl Asking<'_> {
    /// Takes `parts` side by side. What some of them lack by then, any others give that are known to have it. If they have
    /// not enough, everything goes back: `None`.
    pub(super) async fn take_parts(&mut self, mut parts: Vec<(u32, Needs)>) -> Result<Option<Held>, Error> {
        let mut taken = Taken { left: self.request.needs.clone(), parts: vec![], has_first: false };
        let failed = loop {
            if let Err(error) = self.take_round(&parts, &mut taken).await {
                break Err(error);
            }
            if taken.left.is_empty() {
                return Ok(taken.parts.into_iter().map(|(part, _)| part.accept()).reduce(Held::and));
            }
            if let Err(error) = self.check_time() {
                break Err(error);
            }
            let now = self.inner.now();
            match self.shards.seen(&self.request.limits, now, |_| true).spread(&taken.left, now) {
                Some(more) => parts = more,
                None => break Ok(None),
            }
        };
        // What cannot be given back counts as used: a lease of it expires.
        let back = taken.parts.into_iter().map(|(part, takes)| part.accept().undo(takes));
        for error in join_all(back).await.into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "a part of a request that was not granted could not be given back");
        }
        failed
    }

    /// Asks each shard for its part.
    async fn take_round(&mut self, parts: &[(u32, Needs)], taken: &mut Taken) -> Result<(), Error> {
        let is_first = |at: usize| at == 0 && !taken.has_first;
        let requests: Vec<_> = parts.iter().enumerate().map(|(at, (_, part))| self.part(part, is_first(at))).collect();
        let asking = &*self;
        let asked = parts.iter().zip(&requests).map(|((shard, _), request)| async move {
            let line = asking.shards.line(*shard);
            asking.stand_in(&line, request).await
        });
        let (mut failed, mut throttled) = (Ok(()), None);
        for (at, (request, told)) in requests.iter().zip(join_all(asked).await).enumerate() {
            match told {
                Ok(Told::Decided(Verdict::Granted(part))) => {
                    taken.has_first |= at == 0;
                    taken.parts.push((part, request.takes));
                    for (limit, amount) in &request.needs {
                        taken.left.entry(limit.clone()).and_modify(|left| *left -= *amount);
                    }
                }
                Ok(Told::Elsewhere(Why::Throttled(error))) => throttled = Some(error),
                Ok(Told::Decided(Verdict::Denied(_)) | Told::Elsewhere(_)) => {}
                Err(error) => failed = Err(error),
            }
        }
        taken.left.retain(|_, left| *left > MilliTokens::ZERO);
        if throttled.is_some() && failed.is_ok() {
            self.last = throttled;
            self.pause().await;
        }
        failed
    }

    /// A part of the request. What is taken in any case goes with the first, which counts the acquire.
    fn part(&self, needs: &Needs, is_first: bool) -> Request {
        let (soft, takes) = if is_first { (self.request.soft.clone(), self.request.takes) } else { (Needs::new(), 0) };
        Request { needs: needs.clone(), soft, takes, ..self.request.clone() }
    }
}
