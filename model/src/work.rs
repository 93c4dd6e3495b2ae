//! What the functions do: they read, and write a while later by what they have read.

use std::collections::BTreeMap;
use std::sync::Arc;

use weirgate_shared::write::{Action, expire, joined, look, merge, refill, split};
use weirgate_shared::{EpochMillis, MilliTokens, WriteId};

use crate::guard::Kind;
use crate::protocol::Protocol;
use crate::state::{Sent, State};
use crate::table::Row;

/// What a function has read, to do something about it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Work {
    /// What it is to do.
    pub job: Job,
    /// When it has read.
    pub read: i64,
    rows: [Option<Arc<Row>>; 2],
    /// Its answer was lost, and it is to write the same again.
    sent: Option<Arc<Sent>>,
}

/// A write of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Job {
    /// Credits a shard.
    Refill(usize),
    /// Makes two of the one shard.
    Split,
    /// Makes one of the two shards.
    Merge,
    /// Gives back what expired leases of a shard held.
    Expire(usize),
    /// Looks at a shard.
    Look(usize),
    /// Deletes a shard's item, as an operator may.
    Delete(usize),
}

impl Protocol {
    /// What a function may begin to do in `state`.
    pub(crate) fn jobs(&self, state: &State) -> Vec<Job> {
        let mut jobs = vec![];
        let counts: Vec<_> = state.table.shards().map(|row| row.bucket().shard_count).collect();
        let has_leases = |row: &Arc<Row>| row.bucket().leases.iter().flatten().next().is_some();
        let does = |kind| self.bounds.jobs.contains(&kind);
        for (shard, row) in state.table.rows().into_iter().enumerate() {
            let Some(row) = row else { continue };
            jobs.extend(does(Kind::Refill).then_some(Job::Refill(shard)));
            jobs.extend((does(Kind::Expire) && has_leases(row)).then_some(Job::Expire(shard)));
            jobs.extend((does(Kind::Look) && counts.len() > 1).then_some(Job::Look(shard)));
            jobs.extend(does(Kind::Delete).then_some(Job::Delete(shard)));
        }
        jobs.extend((does(Kind::Split) && counts == [1]).then_some(Job::Split));
        jobs.extend((does(Kind::Merge) && counts.len() > 1).then_some(Job::Merge));
        jobs
    }

    pub(crate) fn read(&self, state: &mut State, job: Job) {
        state.works -= 1;
        state.work = Some(Work { job, read: state.now, rows: state.table.rows().map(|row| row.cloned()), sent: None });
    }

    /// The function writes, by the clock of when it has read or by that of now. If its answer is lost, it will do so again.
    pub(crate) fn work(&self, state: &mut State, is_late: bool, answer_is_lost: bool) {
        let Some(mut work) = state.work.take() else { return };
        let clock = self.at(if is_late { state.now } else { work.read });
        let sent = work.sent.clone().or_else(|| self.planned(&work, clock).map(Arc::new));
        let Some(sent) = sent else { return };
        self.write(state, &sent);
        if answer_is_lost {
            work.sent = Some(sent);
            state.work = Some(work);
        }
    }

    /// Whether the write is fixed already, so that it does not matter when it is made.
    pub(crate) const fn is_fixed(work: &Work) -> bool {
        work.sent.is_some()
    }

    /// What a function writes that reads and writes at once.
    pub(crate) fn planned_now(&self, state: &State, job: Job) -> Option<Sent> {
        let work = Work { job, read: state.now, rows: state.table.rows().map(|row| row.cloned()), sent: None };
        self.planned(&work, self.at(state.now))
    }

    fn planned(&self, work: &Work, clock: EpochMillis) -> Option<Sent> {
        let image = |shard: usize| work.rows[shard].as_ref().map(|row| row.bucket());
        let (kind, actions) = match work.job {
            Job::Refill(shard) => {
                let consumed = BTreeMap::from([(self.bounds.limit.name().clone(), self.bounds.limit.rule().capacity)]);
                (Kind::Refill, vec![Action::Update(refill(image(shard)?, &consumed, clock)?)])
            }
            Job::Split => (Kind::Split, split(image(0)?, 0, WriteId::from_bits(7), clock).into()),
            Job::Merge => {
                let (lower, upper) = (image(0)?, image(1)?);
                (Kind::Merge, merge(lower, joined(lower, upper, clock)?, &[upper]))
            }
            Job::Expire(shard) => (Kind::Expire, vec![Action::Update(expire(image(shard)?, clock)?.0)]),
            Job::Look(shard) => (Kind::Look, vec![Action::Update(look(image(shard)?, clock).0)]),
            Job::Delete(shard) => (Kind::Delete, vec![Action::Delete(image(shard)?.key.item_key(), vec![])]),
        };
        Some(Sent { kind, actions, clock, admitted: MilliTokens::ZERO, ops: vec![] })
    }

    /// What the reconciler writes at once about a shard that is due: its run is never given up for good.
    pub(crate) fn due(&self, state: &State, shard: usize) -> Option<Sent> {
        let clock = self.at(state.now);
        let row = state.table.rows()[shard].filter(|row| row.bucket().due.is_some_and(|due| due <= clock))?;
        let (update, restored) = expire(row.bucket(), clock)?;
        let sent = Sent {
            kind: Kind::Expire,
            actions: vec![Action::Update(update)],
            clock,
            admitted: MilliTokens::ZERO,
            ops: vec![],
        };
        (restored.leases > 0).then_some(sent)
    }
}
