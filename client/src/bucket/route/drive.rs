//! Drives a router: makes the requests that it commands.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep_until, timeout_at};
use weirgate_shared::{Stamp, read_stamp};
use weirgate_store::Consistency;

use super::spread::Reserved;
use super::{Command, Reply, Router};
use crate::bucket::hold::Hold;
use crate::bucket::state::BucketState;
use crate::queue::{ShardQueue, Taken};
use crate::session::Session;
use crate::values::{BucketRequest, Error, Outcome};

/// Decides one request, enqueued at `enqueued_at`, by the table until the deadline.
pub(crate) async fn acquire_from_table(
    session: &Arc<Session>,
    bucket: &Arc<BucketState>,
    request: &BucketRequest,
    enqueued_at: Instant,
    deadline: Instant,
) -> Result<Outcome<Hold>, Error> {
    let driver = Driver { session, bucket, request, enqueued_at, deadline };
    let mut router = Router::new(bucket, request, enqueued_at, deadline);
    loop {
        match router.poll(&session.env) {
            Command::Done(outcome) => {
                return Ok(outcome?.map(|taken| Hold::of(session, bucket, request, taken)));
            }
            Command::Ask(queue) => {
                let reply = driver.ask(&queue, request).await;
                if let Some(taken) = router.replied(&session.env, &queue, reply) {
                    let hold = Hold::of(session, bucket, request, [taken]);
                    return Ok(Outcome::Granted(hold));
                }
            }
            // Rare, and large.
            command => Box::pin(driver.perform(&mut router, command)).await,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Driver<'a> {
    session: &'a Arc<Session>,
    bucket: &'a Arc<BucketState>,
    request: &'a BucketRequest,
    enqueued_at: Instant,
    deadline: Instant,
}

impl Driver<'_> {
    async fn perform(&self, router: &mut Router<'_, Taken>, command: Command<Taken>) {
        let env = &self.session.env;
        match command {
            Command::AskForParts(parts) => {
                let asked = parts.iter().map(|(shard, part)| self.ask_part(*shard, part));
                router.parts_replied(env, join_all(asked).await);
            }
            Command::Return(parts) => {
                // Each goes on if the request is dropped, or has no time left.
                let back = join_all(parts.into_iter().filter_map(Taken::roll_back));
                timeout_at(self.deadline, back).await.ok();
            }
            Command::ReadStamp => {
                let stamp = self.read_stamp().await;
                router.stamp_read(env, stamp);
            }
            Command::WriteStamp(stamp) => self.write_stamp(&stamp),
            Command::ReadAll(since, consistency) => {
                let read = self.bucket.refresh(self.session, since, consistency);
                let outcome = timeout_at(self.deadline, read).await;
                let timeout = |_| {
                    let request = "BatchGetItem of all shards";
                    let key = self.bucket.key.item_key();
                    let error = self.session.given_up(request, self.request.timeout, &key);
                    Err(error.into())
                };
                router.all_read(env, outcome.unwrap_or_else(timeout));
            }
            Command::Wait(until) => sleep_until(until).await,
            Command::Ask(_) | Command::Done(_) => {}
        }
    }

    async fn ask(&self, queue: &Arc<ShardQueue>, request: &BucketRequest) -> Reply<Taken> {
        let (enqueued_at, deadline) = (self.enqueued_at, self.deadline);
        queue.ask(self.session, request.clone(), enqueued_at, deadline).await
    }

    /// Asks a shard for a part. Until it replies, the part is the request's own.
    async fn ask_part(&self, shard: u32, part: &BucketRequest) -> Reply<Taken> {
        let _reserved = Reserved::new(self.bucket, shard, part);
        self.ask(&self.bucket.queue(shard), part).await
    }

    async fn read_stamp(&self) -> Result<Option<Stamp>, Error> {
        let key = Stamp::key(&self.bucket.key);
        let read = self.session.read_once(&key, Consistency::Eventual);
        let read = timeout_at(self.deadline, read).await;
        let request = "BatchGetItem of the denial stamp";
        let timeout = |_| self.session.given_up(request, self.request.timeout, &key);
        Ok(read.map_err(timeout)??.and_then(|item| read_stamp(item.attributes()).ok()))
    }

    fn write_stamp(&self, stamp: &Stamp) {
        let (session, update) = (Arc::clone(self.session), stamp.update(&self.bucket.key));
        tokio::spawn(async move {
            if let Err(error) = session.update(&update).await {
                tracing::debug!(%error, "denial stamp not written");
            }
        });
    }
}
