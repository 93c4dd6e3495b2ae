//! The requests of a limiter: each is counted, and its outcome tells whether DynamoDB is away.

use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::write::{Action, Update};
use weirgate_shared::{ItemKey, WriteId};
use weirgate_store::{
    Answer, Consistency, ErrorKind, Item, Outcome, Retry, StoreError, Transacted,
};

use crate::inner::Inner;
use crate::stats::count;

impl Inner {
    /// Runs a planned write once, which answers with the item.
    pub(crate) async fn update(&self, update: &Update) -> Result<Outcome, StoreError> {
        count(&self.counters.writes, 1);
        self.heed(self.table.update(update, Answer::Item).await)
    }

    /// Runs a planned write that can be repeated, again where its outcome is unknown; it answers
    /// with the item.
    pub(crate) async fn update_again(&self, update: &Update) -> Result<Outcome, StoreError> {
        count(&self.counters.writes, 1);
        self.heed(
            self.table
                .update_with(update, Answer::Item, Retry::Unknown)
                .await,
        )
    }

    /// Runs a transaction once.
    pub(crate) async fn transact(
        &self,
        actions: &[Action],
        token: &WriteId,
    ) -> Result<Transacted, StoreError> {
        count(&self.counters.writes, 1);
        self.heed(self.table.transact(actions, token).await)
    }

    /// Runs a transaction, again under the same token where its outcome is unknown.
    pub(crate) async fn transact_again(
        &self,
        actions: &[Action],
        token: &WriteId,
    ) -> Result<Transacted, StoreError> {
        count(&self.counters.writes, 1);
        self.heed(
            self.table
                .transact_with(actions, token, Retry::Unknown)
                .await,
        )
    }

    /// Reads up to 100 items.
    pub(crate) async fn read(&self, keys: &[ItemKey]) -> Result<Vec<Item>, StoreError> {
        count(&self.counters.reads, 1);
        self.heed(self.table.read(keys).await)
    }

    /// Reads up to 100 items, as consistent as is asked; a throttled read is repeated until the
    /// deadline, if there is one.
    pub(crate) async fn read_by(
        &self,
        keys: &[ItemKey],
        consistency: Consistency,
        deadline: Option<Instant>,
    ) -> Result<Vec<Item>, StoreError> {
        count(&self.counters.reads, 1);
        self.heed(self.table.read_by(keys, consistency, deadline).await)
    }

    /// Reads one item once.
    pub(crate) async fn read_once(
        &self,
        key: &ItemKey,
        consistency: Consistency,
    ) -> Result<Option<Item>, StoreError> {
        count(&self.counters.reads, 1);
        self.heed(self.table.read_once(key, consistency).await)
    }

    /// Reads up to 100 items, with shards that were merged away.
    pub(crate) async fn read_all(&self, keys: &[ItemKey]) -> Result<Vec<Item>, StoreError> {
        count(&self.counters.reads, 1);
        self.heed(self.table.read_all(keys).await)
    }

    /// A request that was not answered in time, and perhaps is yet.
    pub(crate) fn unanswered(&self, request: &str, within: Duration) -> StoreError {
        let (request, table) = (request.to_owned(), self.table.name().to_owned());
        let error = StoreError {
            kind: ErrorKind::Unknown,
            request,
            table,
            reason: format!("no answer within {within:?}"),
            source: None,
        };
        if self.breaker.heed(Some(&error)) {
            count(&self.counters.breaker_opened, 1);
        }
        error
    }

    fn heed<T>(&self, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
        if self.breaker.heed(outcome.as_ref().err()) {
            count(&self.counters.breaker_opened, 1);
        }
        outcome
    }
}
