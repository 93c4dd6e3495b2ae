//! What the functions do: they read, and write a while later by what they have read.

use std::collections::BTreeMap;
use std::sync::Arc;

use weirgate_shared::write::{Action, expire, joined, look, merge, refill, split};
use weirgate_shared::{EpochMillis, WriteId};

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
    pub sent: Option<Arc<Sent>>,
}

/// A write of a function, and its shard.
pub type Job = (Kind, usize);

impl Work {
    fn of(state: &State, job: Job) -> Self {
        Self { job, read: state.now, rows: state.table.rows().map(|row| row.cloned()), sent: None }
    }
}

impl Protocol {
    /// What a function may begin to do in `state`.
    pub(crate) fn jobs(&self, state: &State) -> Vec<Job> {
        let counts: Vec<_> = state.table.shards().map(|row| row.bucket().shard_count).collect();
        let may = |kind, row: &Row| match kind {
            Kind::Expire => row.bucket().leases.iter().flatten().next().is_some(),
            Kind::Look => counts.len() > 1,
            Kind::Split => counts == [1],
            Kind::Merge => counts.len() > 1 && row.bucket().key.shard == 0,
            _ => true,
        };
        let of = |row: &Arc<Row>| {
            let shard = usize::from(row.bucket().key.shard > 0);
            self.bounds.jobs.iter().filter(|kind| may(**kind, row)).map(|kind| (*kind, shard)).collect::<Vec<_>>()
        };
        state.table.shards().flat_map(of).collect()
    }

    pub(crate) fn read(&self, state: &mut State, job: Job) {
        state.works -= 1;
        state.work = Some(Work::of(state, job));
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

    /// What a function writes that reads and writes at once.
    pub(crate) fn planned_now(&self, state: &State, job: Job) -> Option<Sent> {
        self.planned(&Work::of(state, job), self.at(state.now))
    }

    fn planned(&self, work: &Work, clock: EpochMillis) -> Option<Sent> {
        let image = |shard: usize| work.rows[shard].as_ref().map(|row| row.bucket());
        let (kind, shard) = work.job;
        let actions = match kind {
            Kind::Refill => {
                let consumed = BTreeMap::from([(self.bounds.limit.name().clone(), self.bounds.limit.rule().capacity)]);
                vec![Action::Update(refill(image(shard)?, &consumed, clock)?)]
            }
            Kind::Split => split(image(0)?, 0, WriteId::from_bits(7), clock).into(),
            Kind::Merge => {
                let (lower, upper) = (image(0)?, image(1)?);
                merge(lower, joined(lower, upper, clock)?, &[upper])
            }
            Kind::Expire => vec![Action::Update(expire(image(shard)?, clock)?.0)],
            Kind::Look => vec![Action::Update(look(image(shard)?, clock).0)],
            Kind::Delete => vec![Action::Delete(image(shard)?.key.item_key(), vec![])],
            _ => return None,
        };
        Some(Sent::of(kind, actions, clock))
    }

    /// Whether the reconciler gives back at once what expired leases of a shard held: its run is never given up.
    pub(crate) fn is_due(&self, state: &State, shard: usize) -> bool {
        let now = self.at(state.now);
        let has_expired = |row: &Arc<Row>| row.bucket().expired(now).next().is_some();
        state.table.rows()[shard].is_some_and(|row| row.bucket().due.is_some_and(|due| due <= now) && has_expired(row))
    }
}
