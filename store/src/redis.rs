//! A table in Redis or Valkey.
//!
//! - `apply.lua`: one script that applies planned writes, and what an item is
//! - `plan`: planned writes as its arguments; `field`: attributes as fields, and back
//! - `index`: names of keys, and sorted sets that list items
//! - `connection`: [`RedisOptions`], and the one connection; `error`: what its errors mean
//! - `facts`: [`ServerFacts`]: what a server says of itself

mod connection;
mod error;
mod facts;
mod field;
mod index;
mod plan;

use std::collections::BTreeSet;
use std::sync::Arc;

use redis::{RedisError, Script, Value, cmd, pipe};
use weirgate_shared::write::{Action, Update};
use weirgate_shared::{EpochMillis, ItemKey, WriteId};

use self::connection::{Connection, texts};
use self::index::Keys;
use crate::bound::Bound;

use crate::request::{Batch, Listed, Listing, key, position};
use crate::{
    ActionOutcome, Consistency, CorrectedClock, ErrorKind, Item, ReturnValues, ScanPage,
    StoreError, TransactOutcome, WriteOutcome, random_bits,
};

pub use connection::RedisOptions;
pub use facts::{Primary, Replica, ServerFacts};

/// Items of a page without a limit.
const PAGE: i32 = 1_000;
/// Allowance for what the server's clock is not known to, in ms.
const CLOCK_MARGIN_MS: i64 = 1_000;
/// Removes an entry if its item does not exist: it has expired.
const DROP: &str =
    "return redis.call('EXISTS', KEYS[2]) == 0 and redis.call('ZREM', KEYS[1], ARGV[1]) or 0";

/// A table in Redis or Valkey. Clones share the connection.
#[derive(Debug, Clone)]
pub(crate) struct RedisTable(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    connection: Connection,
    keys: Keys,
    /// `apply.lua`.
    apply: (String, Script),
    skew: CorrectedClock,
    use_server_time: bool,
}

/// Items of the actions of a write: all after it was applied, or those whose condition failed, before it.
enum Answer {
    Applied(Vec<Option<Option<Item>>>),
    ConditionFailed(Vec<Option<Option<Item>>>),
}

impl RedisTable {
    pub(crate) fn new(options: &RedisOptions, skew: CorrectedClock) -> Result<Self, StoreError> {
        let code = index::constants() + include_str!("redis/apply.lua");
        let script = Script::new(&code);
        Ok(Self(Arc::new(Shared {
            connection: Connection::new(options, skew.clone())?,
            keys: Keys::new(&options.table),
            apply: (code, script),
            skew,
            use_server_time: options.use_server_time,
        })))
    }

    pub(crate) async fn warm(&self) -> Result<(), StoreError> {
        self.0.connection.open().await
    }

    pub(crate) async fn create(&self) -> Result<(), StoreError> {
        self.warm().await
    }

    pub(crate) async fn update(
        &self,
        update: &Update,
        answer: ReturnValues,
    ) -> Result<WriteOutcome, StoreError> {
        // The item keeps the id, so that a repeated write is applied once.
        let id = random_bits().to_be_bytes();
        let is_returned = answer == ReturnValues::AllNew;
        let (items, packed) = (
            vec![self.0.keys.item(&update.key)],
            vec![plan::pack_update(update)],
        );
        let applied = self.apply(&items, &packed, &id, is_returned, None);
        Ok(match applied.await? {
            Answer::Applied(items) => {
                let new = items.into_iter().next().flatten().flatten();
                WriteOutcome::Applied(new.filter(|_| is_returned))
            }
            Answer::ConditionFailed(failed) => {
                let old = failed.into_iter().next().flatten().flatten();
                WriteOutcome::ConditionFailed(
                    old.filter(|item| answer != ReturnValues::Never && !item.is_merged()),
                )
            }
        })
    }

    pub(crate) async fn transact(
        &self,
        actions: &[Action],
        token: &WriteId,
    ) -> Result<TransactOutcome, StoreError> {
        let items: Vec<_> = actions
            .iter()
            .map(|action| self.0.keys.item(key(action)))
            .collect();
        let different: BTreeSet<_> = items.iter().collect();
        if different.len() < items.len() {
            let reason = format!(
                "a transaction must have actions of different items, got {} of {}; leave some out",
                items.len(),
                different.len()
            );
            let request = format!("EVALSHA of {}", items.join(", "));
            let connection = &self.0.connection;
            return Err(connection.refused(ErrorKind::Invalid, request, reason, None));
        }
        let packed: Vec<_> = actions.iter().map(plan::pack).collect();
        // A table sends no transaction without actions.
        let token = self.0.keys.token(key(&actions[0]), token.as_str());
        let applied = self.apply(&items, &packed, &[], false, Some(token));
        Ok(match applied.await? {
            Answer::Applied(_) => TransactOutcome::Applied,
            Answer::ConditionFailed(failed) => {
                let outcomes = failed.into_iter().map(|failed| match failed {
                    Some(old) => ActionOutcome::ConditionFailed(old).without_merged(),
                    None => ActionOutcome::NotReported,
                });
                TransactOutcome::ConditionFailed(outcomes.collect())
            }
        })
    }

    /// Runs the script, and once more if the outcome of the first time is unknown.
    async fn apply(
        &self,
        items: &[String],
        packed: &[Vec<u8>],
        id: &[u8],
        is_returned: bool,
        token: Option<String>,
    ) -> Result<Answer, StoreError> {
        let Shared { keys, apply, .. } = &*self.0;
        let request = || format!("EVALSHA of {}", items.join(", "));
        // Before the first time, by the server's clock; without one, any write of others may have been after it.
        let since = match self.0.use_server_time {
            true => self.0.skew.now().0.saturating_sub(CLOCK_MARGIN_MS),
            false => 0,
        };
        let run = async |is_repeated: bool| {
            let since = if is_repeated {
                since.to_string()
            } else {
                String::new()
            };
            let command = |name: &str, script: &str| {
                let mut command = cmd(name);
                command
                    .arg(script)
                    .arg(keys.indexes.len() + usize::from(token.is_some()) + items.len())
                    .arg(&keys.indexes)
                    .arg(&token)
                    .arg(items)
                    .arg(id)
                    .arg(&since)
                    .arg(u8::from(is_returned))
                    .arg(u8::from(self.0.use_server_time))
                    .arg(packed);
                command
            };
            let sent = self.0.skew.local();
            let answer = self.0.connection.send(&request, async |connection| {
                let known = command("EVALSHA", apply.1.get_hash());
                match known.query_async(connection).await {
                    Err(error) if error.code() == Some("NOSCRIPT") => {
                        command("EVAL", &apply.0).query_async(connection).await
                    }
                    answer => answer,
                }
            });
            self.read_answer(answer.await?, sent)
                .map_err(|error| self.0.connection.failed(request(), error))
        };
        match run(false).await {
            Err(error) if error.kind == ErrorKind::Unconfirmed => {
                tracing::debug!(%error, "repeating with the same id");
                match run(true).await {
                    // It says nothing about the first time.
                    Err(again) if again.kind.was_not_applied() => Err(error),
                    again => again,
                }
            }
            outcome => outcome,
        }
    }

    /// Reads the answer of the script, and the server's time in it.
    fn read_answer(&self, answer: Value, sent: EpochMillis) -> Result<Answer, RedisError> {
        let (is_applied, now, items): (bool, i64, Vec<Value>) = redis::from_redis_value(answer)?;
        if self.0.use_server_time {
            self.0.skew.observe_ms(now, sent, self.0.skew.local());
        }
        // An item whose condition did not fail is nil.
        let read = items.into_iter().map(|fields| match fields {
            Value::Nil => Ok(None),
            fields => Ok::<_, RedisError>(Some(field::item(texts(fields)?))),
        });
        let items = read.collect::<Result<_, _>>()?;
        Ok(match is_applied {
            true => Answer::Applied(items),
            false => Answer::ConditionFailed(items),
        })
    }

    pub(crate) async fn read(
        &self,
        keys: &[ItemKey],
        _: Consistency,
        bound: Option<&Bound>,
    ) -> Result<Batch, StoreError> {
        let request = || format!("HGETALL of {} items", keys.len());
        let found = self.each(&request, "HGETALL", keys).await?;
        let hashes = found.into_iter().map(texts).collect::<Result<Vec<_>, _>>();
        let hashes = hashes.map_err(|error| self.0.connection.failed(request(), error))?;
        if let Some(bound) = bound {
            let lengths = hashes.iter().flatten();
            let bytes: usize = lengths.map(|(field, text)| field.len() + text.len()).sum();
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            bound.count(bytes).map_err(|reason| {
                let connection = &self.0.connection;
                connection.refused(ErrorKind::Rejected, request(), reason, None)
            })?;
        }
        Ok(Batch {
            items: hashes.into_iter().filter_map(field::item).collect(),
            kept_back: None,
        })
    }

    pub(crate) async fn list(&self, listing: &Listing<'_>) -> Result<Listed, StoreError> {
        let bounds = index::bounds(listing);
        let limit = listing.limit.unwrap_or(PAGE);
        let request = || format!("ZRANGE of {}", listing.partition);
        let (items, last, count) = self
            .range(
                &request,
                listing.index,
                bounds,
                listing.is_descending,
                limit,
            )
            .await?;
        let is_full = i32::try_from(count).is_ok_and(|count| count >= limit);
        Ok(Listed {
            items,
            last: last.filter(|_| is_full),
        })
    }

    pub(crate) async fn scan(
        &self,
        prefix: &str,
        limit: i32,
        after: Option<&Item>,
    ) -> Result<ScanPage, StoreError> {
        let bounds = index::bounds_of_scan(prefix, after);
        let request = || "ZRANGE of all items".to_owned();
        let (items, last, count) = self.range(&request, None, bounds, false, limit).await?;
        let is_full = i32::try_from(count).is_ok_and(|count| count >= limit);
        Ok(ScanPage {
            items,
            scanned: count,
            next: last.filter(|_| is_full).map(|Item(key)| position(key)),
        })
    }

    /// Returns the items of entries between bounds, of an index their keys alone; the key attributes of the last
    /// entry; and the number of entries. An entry whose item has expired is removed.
    async fn range(
        &self,
        request: &impl Fn() -> String,
        index: Option<crate::Index>,
        [lower, upper]: [Vec<u8>; 2],
        is_descending: bool,
        limit: i32,
    ) -> Result<(Vec<Item>, Option<Item>, usize), StoreError> {
        let keys = &self.0.keys;
        let mut command = cmd("ZRANGE");
        command.arg(keys.of_index(index));
        match is_descending {
            false => command.arg(lower).arg(upper).arg("BYLEX"),
            true => command.arg(upper).arg(lower).arg("BYLEX").arg("REV"),
        };
        command.arg("LIMIT").arg(0).arg(limit);
        let connection = &self.0.connection;
        let members: Vec<String> = connection
            .send(request, async |connection| {
                command.query_async(connection).await
            })
            .await?;
        let count = members.len();
        let entries = members
            .into_iter()
            .filter_map(|member| Some((index::parse(&member, index)?, member)));
        let ((of, shown), members): ((Vec<_>, Vec<_>), Vec<_>) = entries.unzip();
        let read = if index.is_some() { "EXISTS" } else { "HGETALL" };
        let found = self.each(request, read, &of).await?;
        let last = shown.last().cloned();
        let (mut items, mut gone) = (vec![], pipe());
        for (((key, shown), member), found) in of.iter().zip(shown).zip(members).zip(found) {
            let item = match found {
                Value::Int(exists) => (exists > 0).then_some(shown),
                fields => {
                    field::item(texts(fields).map_err(|error| connection.failed(request(), error))?)
                }
            };
            if item.is_none() {
                let drop = gone.cmd("EVAL").arg(DROP).arg(2).arg(keys.of_index(index));
                drop.arg(keys.item(key)).arg(member);
            }
            items.extend(item);
        }
        if !gone.is_empty() {
            connection
                .send(request, async |connection| {
                    gone.exec_async(connection).await
                })
                .await?;
        }
        Ok((items, last, count))
    }

    /// Sends a command for the key of each item, in one round trip.
    async fn each(
        &self,
        request: &impl Fn() -> String,
        command: &str,
        keys: &[ItemKey],
    ) -> Result<Vec<Value>, StoreError> {
        let mut all = pipe();
        for key in keys {
            all.cmd(command).arg(self.0.keys.item(key));
        }
        if keys.is_empty() {
            return Ok(vec![]);
        }
        self.0
            .connection
            .send(request, async |connection| {
                all.query_async(connection).await
            })
            .await
    }
}
