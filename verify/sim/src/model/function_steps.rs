//! Steps of the functions: they read, and later write from what they have read.

use std::collections::BTreeMap;
use std::sync::Arc;

use weirgate_shared::write::{
    Action, BalanceChange, change_balances, erase_shard, expire, finish_writes, merge, merged,
    refill, sample, split,
};
use weirgate_shared::{BucketKey, EditId, EpochMillis, MilliTokens, Shard, ShardIndex, WriteId};

use crate::model::guard::Kind;
use crate::model::protocol::Protocol;
use crate::model::state::{FunctionRun, Job, Sent, State};
use crate::model::table::Row;

impl Protocol {
    /// Returns the jobs that a function may begin in `state`.
    pub(crate) fn jobs(&self, state: &State) -> Vec<Job> {
        let counts: Vec<_> = state.table.shards().map(|row| row.bucket().shard_count).collect();
        let may = |kind, row: &Row| match kind {
            Kind::Expire => row.bucket().leases.iter().flatten().next().is_some(),
            Kind::Look => counts.len() > 1,
            Kind::Split => {
                counts == [1]
                    || self.bounds.splits_twice
                        && row.bucket().shard() == ShardIndex { index: 0, count: 2 }
            }
            Kind::Merge => counts.len() > 1 && counts[0] == 2 && row.bucket().key.shard == 0,
            // A new item's `v` is above the last one's, because time has passed.
            Kind::Delete if !self.bounds.keeps_stream => {
                counts == [1] && state.now < self.bounds.ticks
            }
            // Each is one transaction over all shards.
            Kind::Reset | Kind::TopUp | Kind::Erase => row.bucket().key.shard == 0,
            _ => true,
        };
        let of = |row: &Arc<Row>| {
            let shard = usize::try_from(row.bucket().key.shard).expect("one of three");
            let unfinished = row.bucket().escrow.as_ref().map(|_| (Kind::Make, shard));
            let jobs =
                self.bounds.jobs.iter().filter(|kind| may(**kind, row)).map(|kind| (*kind, shard));
            jobs.chain(unfinished).collect::<Vec<_>>()
        };
        state.table.shards().flat_map(of).collect()
    }

    pub(crate) fn read(&self, state: &mut State, job: Job) {
        state.works -= 1;
        state.work = Some(begin_run(state, job));
    }

    /// The function writes, by the clock of when it has read or by that of now. If its answer is
    /// lost, it will do so again.
    pub(crate) fn work(&self, state: &mut State, is_late: bool, answer_is_lost: bool) {
        let Some(mut work) = state.work.take() else {
            return;
        };
        let clock = self.at(if is_late { state.now } else { work.read });
        let sent = work.sent.clone().or_else(|| self.planned(&work, clock).map(Arc::new));
        let Some(sent) = sent else { return };
        self.write(state, &sent);
        if answer_is_lost {
            work.sent = Some(sent);
            state.work = Some(work);
            return;
        }
        self.begin_next_job(state, &work);
    }

    /// Starts the function's next job after `work`: it finishes the split that it began.
    fn begin_next_job(&self, state: &mut State, work: &FunctionRun) {
        let next = match work.job {
            (Kind::Split, shard) => Some(begin_run(state, (Kind::Make, shard))),
            // Uses the same image: the response shows the outcome of the first write.
            (Kind::Make, shard) => {
                Some(FunctionRun { job: (Kind::Clear, shard), sent: None, ..work.clone() })
            }
            _ => None,
        };
        let next = next
            .filter(|next| next.rows[0].as_ref().is_some_and(|row| row.bucket().escrow.is_some()));
        match next {
            Some(next) if self.bounds.splits_at_once => {
                if let Some(sent) = self.planned(&next, self.at(state.now)) {
                    self.write(state, &sent);
                }
                self.begin_next_job(state, &next);
            }
            next => state.work = next,
        }
    }

    /// Returns the write of a split or of an operator, to arrive later.
    pub(crate) fn pending_write(&self, state: &State) -> Option<Arc<Sent>> {
        let work = state.work.as_ref()?;
        let is_late = matches!(work.job.0, Kind::Split | Kind::Make | Kind::Clear | Kind::Erase);
        let planned = || self.planned(work, self.at(work.read)).map(Arc::new);
        if is_late || is_edit(work.job.0) { work.sent.clone().or_else(planned) } else { None }
    }

    /// Another function finishes the split of shard 0, at once.
    pub(crate) fn finish(&self, state: &mut State) {
        let read = begin_run(state, (Kind::Make, 0));
        for kind in [Kind::Make, Kind::Clear] {
            let next = FunctionRun { job: (kind, 0), ..read.clone() };
            if let Some(sent) = self.planned(&next, self.at(state.now)) {
                self.write(state, &sent);
            }
        }
    }

    /// Returns the write of a function that reads and writes at once.
    pub(crate) fn planned_now(&self, state: &State, job: Job) -> Option<Sent> {
        self.planned(&begin_run(state, job), self.at(state.now))
    }

    fn planned(&self, work: &FunctionRun, clock: EpochMillis) -> Option<Sent> {
        let image = |shard: usize| work.rows[shard].as_ref().map(|row| row.bucket());
        let (kind, shard) = work.job;
        let actions = match kind {
            Kind::Refill => {
                let consumed = BTreeMap::from([(
                    self.bounds.limit.name().clone(),
                    self.bounds.limit.rule().capacity,
                )]);
                vec![Action::Update(refill(image(shard)?, &consumed, clock)?)]
            }
            Kind::Split => vec![Action::Update(split(image(0)?, 0, WriteId::from_bits(7), clock))],
            Kind::Make => vec![Action::Update(finish_writes(image(0)?)?[0].clone())],
            Kind::Clear => vec![Action::Update(finish_writes(image(0)?)?[1].clone())],
            Kind::Merge => {
                let (lower, upper) = (image(0)?, image(1)?);
                merge(lower, merged(lower, upper, clock)?, &[upper])
            }
            Kind::Expire => vec![Action::Update(expire(image(shard)?, clock)?.0)],
            Kind::Look => vec![Action::Update(sample(image(shard)?, clock).0)],
            Kind::Reset | Kind::TopUp => self.edit(work, clock)?,
            Kind::Erase => self.erase(work, clock),
            Kind::Delete => vec![Action::Delete(image(shard)?.key.item_key(), vec![])],
            _ => return None,
        };
        Some(Sent::of(kind, actions, clock))
    }

    /// Returns an operator's change of the balances of all shards, as
    /// `client/src/api/admin/operate/balances.rs` plans it. `None` while a split is unfinished.
    fn edit(&self, work: &FunctionRun, clock: EpochMillis) -> Option<Vec<Action>> {
        let limit = self.bounds.limit.name();
        let more = MilliTokens::from_tokens(self.bounds.needs[0]);
        let change = |shard: &Shard| {
            let state = &shard.limits[limit];
            let room = shard.share(state) - shard.balance(state, clock);
            match work.job.0 {
                Kind::Reset => BalanceChange::SetTo(shard.share(state)),
                _ => BalanceChange::Raise(shard.shard().share(more).min(room)),
            }
        };
        let rows = || work.rows.iter().flatten().filter(|row| !row.is_merged());
        let id = EditId::new(clock, 0, rows().filter_map(|row| row.bucket().edit).max());
        let update = |row: &Arc<Row>| {
            let changes = BTreeMap::from([(limit.clone(), change(row.bucket()))]);
            change_balances(row.bucket(), id, &changes, weirgate_shared::Calendar::default(), clock)
                .map(Action::Update)
        };
        rows().map(update).collect()
    }

    /// Returns an operator's erasure of all shards and of the half of an unfinished split, as
    /// `client/src/api/erase/steps.rs` plans it.
    fn erase(&self, work: &FunctionRun, clock: EpochMillis) -> Vec<Action> {
        let rows = || work.rows.iter().flatten();
        let live = rows().filter(|row| !row.is_merged());
        let halves: Vec<_> = live.filter_map(|row| row.bucket().escrow.as_deref()).collect();
        let all = rows().map(|row| row.meter.write_seq);
        let all = all.chain(halves.iter().map(|half| half.write_seq));
        let v = all.max().unwrap_or_default() + 1;
        let is_half = |key: &BucketKey| halves.iter().any(|half| half.key == *key);
        let erase = |(key, row): (&BucketKey, &Option<Arc<Row>>)| {
            let is_left = row.as_ref().is_some_and(|row| !row.is_erased()) || is_half(key);
            let seen = row.as_ref().map(|row| row.meter.write_seq);
            let names = row.iter().flat_map(|row| row.names());
            is_left.then(|| Action::Update(erase_shard(key, seen, names, v, clock)))
        };
        self.keys.iter().zip(&work.rows).filter_map(erase).collect()
    }

    /// Returns whether the reconciler returns the tokens of a shard's expired leases at once: its
    /// run never ends early.
    pub(crate) fn is_due(&self, state: &State, shard: usize) -> bool {
        let now = self.at(state.now);
        let has_expired = |row: &Arc<Row>| row.bucket().expired(now).next().is_some();
        state.table.rows()[shard].is_some_and(|row| {
            row.bucket().due_at.is_some_and(|due| due <= now) && has_expired(row)
        })
    }
}

/// Returns whether a write is an operator's change of balances.
pub(crate) const fn is_edit(kind: Kind) -> bool {
    matches!(kind, Kind::Reset | Kind::TopUp)
}

/// Returns the read of a function that begins a job now.
fn begin_run(state: &State, job: Job) -> FunctionRun {
    // Only an erasure is for merged shards too.
    let rows = match job.0 {
        Kind::Erase => state.table.items.clone(),
        _ => state.table.rows().map(|row| row.cloned()),
    };
    FunctionRun { job, read: state.now, rows, sent: None }
}
