//! A table in Redis or Valkey.
//!
//! - `apply.lua`: one script that applies planned writes, and what an item is
//! - `plan`: planned writes as its arguments; `field`: attributes as fields, and back
//! - `records`: [`RecordStream`]: the stream of images of shards
//! - `index`: names of keys, and sorted sets that list items
//! - `connection`: [`RedisOptions`], and the one connection; `info`: which server it takes; `error`: what its
//!   errors mean
//! - `facts`: [`ServerFacts`]: what a server says of itself

mod connection;
mod error;
mod facts;
mod field;
mod index;
mod info;
mod plan;
mod records;

use std::collections::BTreeSet;
use std::sync::Arc;

use redis::{RedisError, Script, Value, cmd, pipe};
use weirgate_shared::write::{Action, Update};
use weirgate_shared::{EpochMillis, ItemKey, WriteId, attr};

use self::connection::Connection;
use self::index::Keys;
use crate::bound::Bound;

use crate::request::{Batch, Listed, Listing, key, position};
use crate::{
    ActionOutcome, Consistency, CorrectedClock, ErrorKind, Item, ReturnValues, ScanPage,
    StoreError, TransactOutcome, WriteOutcome, random_bits,
};

pub use connection::RedisOptions;
pub use facts::{Replica, ServerFacts, StreamFacts};
pub use records::{RecordStream, StreamRecord, Unread};

/// Items of a page without a limit.
const PAGE: i32 = 1_000;
/// Items of an answer at most. One may have some 20 KB, and a longer answer does not arrive before its timeout.
const ANSWER: usize = 100;
/// Expired items that a write removes for each item of its own, so that they get fewer.
const EXPIRED: usize = 2;
/// Removes an entry if the fields of its item are still what was read, which are not of the entry.
const DROP: &str = "
local seen = redis.call('HMGET', KEYS[2], ARGV[2], ARGV[4])
if (seen[1] or '') == ARGV[3] and (seen[2] or '') == ARGV[5] then
  redis.call('ZREM', KEYS[1], ARGV[1])
end";

/// A table in Redis or Valkey. Clones share the connection.
#[derive(Debug, Clone)]
pub(crate) struct RedisTable(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    connection: Arc<Connection>,
    keys: Keys,
    /// `apply.lua`.
    apply: (String, Script),
    skew: CorrectedClock,
    use_server_time: bool,
}

/// What became of a write.
enum Answer {
    /// The item after it, if that was asked for.
    Applied(Option<Item>),
    /// Of each action the item before it, if its condition failed.
    ConditionFailed(Vec<Option<Option<Item>>>),
}

/// What the script says.
struct Ran {
    answer: Answer,
    /// Number of writes of all; 0 if this was none.
    writes: u64,
    /// Number of expired items that it removed.
    expired: usize,
}

/// Returns the id of a write: random bytes but 255, which separates fields in answers.
fn id() -> [u8; 8] {
    random_bits().to_be_bytes().map(|byte| byte.min(254))
}

/// Arguments of the script: see `apply.lua`.
struct Write<'a> {
    items: &'a [String],
    packed: &'a [Vec<u8>],
    id: &'a [u8],
    is_returned: bool,
    token: Option<String>,
    most_expired: usize,
}

impl RedisTable {
    pub(crate) fn new(options: &RedisOptions, skew: CorrectedClock) -> Result<Self, StoreError> {
        let code = index::constants() + include_str!("redis/apply.lua");
        let script = Script::new(&code);
        let keys = Keys::new(&options.table);
        Ok(Self(Arc::new(Shared {
            connection: Arc::new(Connection::new(options, skew.clone(), keys.writes.clone())?),
            keys,
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
        let id = id();
        let is_returned = answer == ReturnValues::AllNew;
        let (items, packed) =
            (vec![self.0.keys.item(&update.key)], vec![plan::pack_update(update)]);
        let applied = self.apply(&items, &packed, &id, is_returned, None);
        Ok(match applied.await? {
            Answer::Applied(new) => WriteOutcome::Applied(new.filter(|_| is_returned)),
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
        let items: Vec<_> = actions.iter().map(|action| self.0.keys.item(key(action))).collect();
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
        let token = self.0.keys.token(token.as_str());
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

    /// Removes expired items, at most so many, and returns their number. Writes remove some too.
    pub(crate) async fn remove_expired(&self, most: usize) -> Result<usize, StoreError> {
        let write = Write {
            items: &[],
            packed: &[],
            id: &[],
            is_returned: false,
            token: None,
            most_expired: most,
        };
        let answer = self.run(&write, &mut None).await?;
        Ok(answer.expired)
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
        let write =
            Write { items, packed, id, is_returned, token, most_expired: items.len() * EXPIRED };
        let mut since = None;
        let answer = match self.run(&write, &mut since).await {
            Err(error) if error.kind == ErrorKind::Unconfirmed => {
                tracing::debug!(%error, "repeating with the same id");
                match self.run(&write, &mut since).await {
                    // It says nothing about the first time.
                    Err(again) if again.kind.was_not_applied() => Err(error),
                    again => again,
                }
            }
            outcome => outcome,
        }?;
        Ok(answer.answer)
    }

    /// Runs the script once. `since` is the number of writes that was known before the first time: the server
    /// then had at least as many, whatever any clock says, and so has a replica that knows of the write.
    async fn run(&self, write: &Write<'_>, since: &mut Option<u64>) -> Result<Ran, StoreError> {
        let Shared { keys, apply, .. } = &*self.0;
        let Write { items, packed, id, is_returned, token, most_expired } = write;
        let request = || match items {
            [] => "EVALSHA of expired items".to_owned(),
            items => format!("EVALSHA of {}", items.join(", ")),
        };
        let most_expired = match self.0.use_server_time {
            true => *most_expired,
            false => 0,
        };
        let repeated = since.map(|since| since.to_string()).unwrap_or_default();
        let command = |name: &str, script: &str| {
            let mut command = cmd(name);
            command
                .arg(script)
                .arg(keys.of_writes.len() + usize::from(token.is_some()) + items.len())
                .arg(&keys.of_writes)
                .arg(token)
                .arg(*items)
                .arg(*id)
                .arg(&repeated)
                .arg(u8::from(*is_returned))
                .arg(most_expired)
                .arg(u8::from(token.is_some()))
                .arg(*packed);
            command
        };
        let answer = self.0.connection.send_on(&request, async |opened| {
            since.get_or_insert(opened.writes());
            let connection = &mut opened.connection;
            let answer = match command("EVALSHA", apply.1.get_hash()).query_async(connection).await
            {
                Err(error) if error.code() == Some("NOSCRIPT") => {
                    command("EVAL", &apply.0).query_async(connection).await
                }
                answer => answer,
            };
            let ran = self.read_answer(answer?, opened.asked)?;
            opened.said(ran.writes);
            Ok(ran)
        });
        answer.await
    }

    /// Reads the answer of the script, and the server's time in it.
    fn read_answer(&self, answer: Value, sent: EpochMillis) -> Result<Ran, RedisError> {
        let mut parts: Vec<Value> = redis::from_redis_value(answer)?;
        let items = parts.split_off(parts.len().min(4));
        let (is_applied, now, writes, expired): (bool, i64, u64, usize) =
            redis::from_redis_value(Value::Array(parts))?;
        if self.0.use_server_time {
            self.0.skew.observe_ms(now, sent, self.0.skew.local());
        }
        Ok(Ran {
            answer: match (is_applied, &items[..]) {
                (true, [Value::BulkString(before), Value::BulkString(changed)]) => {
                    Answer::Applied(field::changed_item(before, changed))
                }
                (true, _) => Answer::Applied(None),
                (false, items) => {
                    // An item whose condition did not fail is nil.
                    let items = items.iter().map(|fields| match fields {
                        Value::BulkString(fields) => Some(field::answered_item(fields)),
                        _ => None,
                    });
                    Answer::ConditionFailed(items.collect())
                }
            },
            writes,
            expired,
        })
    }

    pub(crate) async fn read(
        &self,
        keys: &[ItemKey],
        _: Consistency,
        bound: Option<&Bound>,
    ) -> Result<Batch, StoreError> {
        let first = keys.first().map(|key| self.0.keys.item(key));
        let request = || match keys.len() {
            0 | 1 => format!("HGETALL of {}", first.as_deref().unwrap_or_default()),
            all => {
                format!("HGETALL of {} and {} more", first.as_deref().unwrap_or_default(), all - 1)
            }
        };
        let mut items = vec![];
        for keys in keys.chunks(ANSWER) {
            let found = self.each(&request, keys, &[]).await?;
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
            let found = keys.iter().zip(hashes);
            for (key, hash) in found.filter(|(_, hash)| !hash.is_empty()) {
                let item = field::item(hash).filter(|item| item.key().as_ref() == Some(key));
                items.push(item.ok_or_else(|| {
                    let request = format!("HGETALL of {}", self.0.keys.item(key));
                    let reason = format!(
                        "the key holds a hash that is not of this table: {}",
                        error::OF_OTHERS
                    );
                    let connection = &self.0.connection;
                    connection.refused(ErrorKind::Invalid, request, reason, None)
                })?);
            }
        }
        Ok(Batch { items, kept_back: None })
    }

    pub(crate) async fn list(&self, listing: &Listing<'_>) -> Result<Listed, StoreError> {
        let bounds = index::bounds(listing);
        let limit = listing.limit.unwrap_or(PAGE);
        let request = || format!("ZRANGE of {}", listing.partition);
        let (items, last, count) =
            self.range(&request, listing.index, bounds, listing.is_descending, limit).await?;
        let is_full = i32::try_from(count).is_ok_and(|count| count >= limit);
        Ok(Listed { items, last: last.filter(|_| is_full) })
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
    /// entry; and the number of entries. An entry that is not of an item is removed: the item is another one, or
    /// was deleted manually.
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
            .send(request, async |connection| command.query_async(connection).await)
            .await?;
        let count = members.len();
        let entries =
            members.into_iter().filter_map(|member| Some((index::parse(&member, index)?, member)));
        let ((of, shown), members): ((Vec<_>, Vec<_>), Vec<_>) = entries.unzip();
        let names = match index {
            Some(index) => vec![index.hash, index.range.0],
            None => vec![],
        };
        let found = self.each(request, &of, &names).await?;
        let last = shown.last().cloned();
        let (mut items, mut gone) = (vec![], pipe());
        for (((key, shown), member), found) in of.iter().zip(shown).zip(members).zip(found) {
            let failed = |error| connection.failed(request(), error);
            let (item, names, seen) = match index {
                Some(index) => {
                    let seen: [Option<String>; 2] =
                        redis::from_redis_value(found).map_err(|error| failed(error.into()))?;
                    let seen = seen.map(Option::unwrap_or_default);
                    let item = index::matches(&shown, index, &seen).then_some(shown);
                    (item, [index.hash, index.range.0], seen)
                }
                None => {
                    let item = field::item(texts(found).map_err(failed)?);
                    (item, [attr::PK, attr::SK], Default::default())
                }
            };
            if item.is_none() {
                let drop = gone.cmd("EVAL").arg(DROP).arg(2).arg(keys.of_index(index));
                drop.arg(keys.item(key)).arg(member);
                for (name, seen) in names.iter().zip(seen) {
                    drop.arg(name).arg(seen);
                }
            }
            items.extend(item);
        }
        if !gone.is_empty() {
            connection.send(request, async |connection| gone.exec_async(connection).await).await?;
        }
        Ok((items, last, count))
    }

    /// Reads these fields of each item, or all, in one round trip for each [`ANSWER`] items.
    async fn each(
        &self,
        request: &impl Fn() -> String,
        keys: &[ItemKey],
        names: &[&str],
    ) -> Result<Vec<Value>, StoreError> {
        let mut found = vec![];
        for keys in keys.chunks(ANSWER) {
            let mut all = pipe();
            for key in keys {
                let key = self.0.keys.item(key);
                match names {
                    [] => all.cmd("HGETALL").arg(key),
                    names => all.cmd("HMGET").arg(key).arg(names),
                };
            }
            let answered: Vec<Value> = self
                .0
                .connection
                .send(request, async |connection| all.query_async(connection).await)
                .await?;
            found.extend(answered);
        }
        Ok(found)
    }
}

/// Returns the texts of an array of fields and values.
fn texts(value: Value) -> Result<Vec<(String, String)>, RedisError> {
    match value {
        Value::Nil => Ok(vec![]),
        Value::Array(all) => {
            let mut all = all.into_iter();
            let mut pairs = Vec::with_capacity(all.len() / 2);
            while let (Some(field), Some(text)) = (all.next(), all.next()) {
                if let (Some(field), Some(text)) = (text_of(field), text_of(text)) {
                    pairs.push((field, text));
                }
            }
            Ok(pairs)
        }
        other => Err(RedisError::from((
            redis::ErrorKind::UnexpectedReturnType,
            "expected fields and values",
            format!("{other:?}"),
        ))),
    }
}

/// Returns a text; `None` for the ids of writes, which are not UTF-8.
fn text_of(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        _ => None,
    }
}
