//! Counting usage exactly once: one write per bucket shard and window.

use std::fmt;

use super::{Change, Condition, Path, Update, Value};
use crate::{Counted, ItemKey, LimitName, MilliTokens, Ranges, SnapshotKey, attr, window::Iso};

/// What one stream record says was used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The writes it covers: `v` before and after, one apart; `None` for items of other software.
    pub span: Option<(i64, i64)>,
    /// Net consumed of each limit, in the order of [`Count::limits`].
    pub tokens: Vec<MilliTokens>,
    /// Granted acquires.
    pub events: i64,
}

/// The records of one bucket shard, of one batch, in one window; their spans follow each other without a gap, or
/// none has a span.
#[derive(Debug, Clone)]
pub struct Count<'a> {
    /// The snapshot.
    pub key: SnapshotKey,
    /// The bucket shard.
    pub shard: u32,
    /// The limits the pieces speak of.
    pub limits: &'a [LimitName],
    /// At least one.
    pub pieces: &'a [Piece],
    /// Epoch seconds after which the snapshot may be deleted, if this count makes it.
    pub ttl_seconds: i64,
}

/// What is counted where, for a log that must do when it cannot be.
impl fmt::Display for Count<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ItemKey { pk, sk } = self.key.item_key();
        write!(f, "count in {pk} {sk} of shard {}", self.shard)?;
        if let Some((after, through)) = self.span() {
            write!(f, ", writes {after}-{through}")?;
        }
        let (tokens, events) = sum(self.limits.len(), self.pieces);
        for (limit, amount) in self.limits.iter().zip(tokens) {
            write!(f, ", {limit} {amount}")?;
        }
        write!(f, ", {events} acquires")
    }
}

impl Count<'_> {
    /// Counts all pieces, if the shard was counted up to the first one, or never.
    ///
    /// What lies before the first piece ever counted is kept as not counted: a later replay of it still counts.
    /// Without a span nothing can be known, and every delivery counts.
    #[must_use]
    pub fn next(&self) -> Update {
        let Some((after, through)) = self.span() else { return self.update(self.pieces.iter(), vec![], vec![]) };
        let (q, g) = self.attributes();
        let here = Condition::Equals(q.clone(), Value::Int(after));
        let conditions = vec![Condition::AbsentOr(q.clone(), Box::new(here))];
        let missing = Ranges::one(0, after).to_string();
        let changes = vec![Change::Set(q, Value::Int(through)), Change::SetIfAbsent(g, Value::Text(missing))];
        self.update(self.pieces.iter(), conditions, changes)
    }

    /// Counts the pieces that are not in `counted` yet, and keeps a gap before them as not counted. `None` if all were.
    #[must_use]
    pub fn rest(&self, counted: &Counted) -> Option<Update> {
        let Some(counted_through) = counted.through else { return Some(self.next()) };
        let mut now = counted.clone();
        let mut fresh = vec![];
        for piece in self.pieces {
            let (after, through) = piece.span?;
            if now.take(after, through) {
                fresh.push(piece);
            }
        }
        if fresh.is_empty() {
            return None;
        }
        now.bound();
        let (q, g) = self.attributes();
        let conditions = vec![
            Condition::Equals(q.clone(), Value::Int(counted_through)),
            Condition::Equals(g.clone(), Value::Text(counted.gaps.to_string())),
        ];
        let through = now.through.unwrap_or(counted_through);
        let changes = vec![Change::Set(q, Value::Int(through)), Change::Set(g, Value::Text(now.gaps.to_string()))];
        Some(self.update(fresh.into_iter(), conditions, changes))
    }

    /// Whether counting the same pieces twice is impossible.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.span().is_some()
    }

    fn span(&self) -> Option<(i64, i64)> {
        Some((self.pieces.first()?.span?.0, self.pieces.last()?.span?.1))
    }

    fn attributes(&self) -> (Path, Path) {
        (Path::of(attr::counted_through(self.shard)), Path::of(attr::not_counted(self.shard)))
    }

    fn update<'p>(
        &self,
        pieces: impl Iterator<Item = &'p Piece>,
        conditions: Vec<Condition>,
        mut changes: Vec<Change>,
    ) -> Update {
        let (tokens, events) = sum(self.limits.len(), pieces);
        let used = |(limit, amount): (&LimitName, MilliTokens)| {
            Change::Add(Path::of(limit.to_string()), Value::Tokens(amount))
        };
        changes.extend(self.limits.iter().zip(tokens).map(used));
        changes.push(Change::Add(Path::of(attr::TOTAL_EVENTS), Value::Int(events)));
        let SnapshotKey { entity, resource, window, start, .. } = &self.key;
        for (name, value) in [
            (attr::ENTITY_ID, Value::text(entity.as_str())),
            (attr::RESOURCE, Value::text(resource.as_str())),
            (attr::WINDOW, Value::text(window.as_str())),
            (attr::WINDOW_START, Value::Text(Iso(*start).to_string())),
            (attr::WINDOW_END, Value::Text(Iso(window.end(*start)).to_string())),
        ] {
            changes.push(Change::Set(Path::of(name), value));
        }
        // As long as was said when the snapshot was made: who counts later, with other settings, must not shorten it.
        changes.push(Change::SetIfAbsent(Path::of(attr::TTL), Value::Int(self.ttl_seconds)));
        Update { key: self.key.item_key(), conditions, changes }
    }
}

/// What the pieces used of each of so many limits, and their acquires.
fn sum<'p>(limits: usize, pieces: impl IntoIterator<Item = &'p Piece>) -> (Vec<MilliTokens>, i64) {
    let (mut tokens, mut events) = (vec![MilliTokens::ZERO; limits], 0_i64);
    for piece in pieces {
        events = events.saturating_add(piece.events);
        for (sum, amount) in tokens.iter_mut().zip(&piece.tokens) {
            *sum += *amount;
        }
    }
    (tokens, events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EpochMillis, Window};

    #[test]
    fn a_count_says_what_is_to_be_counted_where() {
        let limits = ["rpm", "tpm"].map(|name| LimitName::new(name).unwrap());
        let piece = |span, tokens: [i64; 2]| Piece { span, tokens: tokens.map(MilliTokens).into(), events: 1 };
        let count = |pieces| {
            let (entity, resource) = ("e-1".try_into().unwrap(), "gpt-4".try_into().unwrap());
            let (window, start) = (Window::Daily, EpochMillis(1_795_132_800_000));
            let key = SnapshotKey { namespace: "default".try_into().unwrap(), entity, resource, window, start };
            Count { key, shard: 3, limits: &limits, pieces, ttl_seconds: 0 }.to_string()
        };
        let at = "count in default/ENTITY#e-1 #USAGE#gpt-4#daily#2026-11-20T00:00:00Z of shard 3";
        let spans = [piece(Some((6, 7)), [1000, 2500]), piece(Some((7, 8)), [2000, -4500])];
        assert_eq!(count(&spans), format!("{at}, writes 6-8, rpm 3, tpm -2, 2 acquires"));
        assert_eq!(count(&[piece(None, [500, 0])]), format!("{at}, rpm 0.5, tpm 0, 1 acquires"));
    }
}
