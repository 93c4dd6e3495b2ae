//! The state of all partitions: which requests are refused, and what the others cost.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tokio::time::Instant;

use super::balances::{Balances, Kind, Of, Spent, write_units};
use super::conflicts::Conflicts;
use super::counts::Counts;
use super::indexes::{Charge, Scratch, are_touched};
use super::limits::Limits;
use super::target::Target;
use crate::dynamo::{TRANSACTION, cancelled, conflict};

#[derive(Debug)]
pub(super) struct State {
    pub rng: fastrand::Rng,
    pub started: Instant,
    pub balances: Balances,
    pub conflicts: Conflicts,
    pub scratch: Option<Scratch>,
    pub total: Counts,
    pub seconds: BTreeMap<u64, Counts>,
    /// Nothing is refused any more.
    pub is_lifted: bool,
    /// Tokens of the transactions that happened: to ask for one again writes nothing.
    pub tokens: BTreeSet<String>,
}

impl State {
    /// Returns the state at the beginning of the partitions' time.
    pub fn new(limits: &Limits, seed: u64) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(seed),
            started: Instant::now(),
            balances: Balances::new(limits),
            conflicts: Conflicts::new(limits.conflict_window),
            scratch: None,
            is_lifted: false,
            total: Counts::default(),
            seconds: BTreeMap::new(),
            tokens: BTreeSet::new(),
        }
    }

    /// Counts a request.
    pub fn arrive(&mut self, targets: &[Target<'_>]) {
        let is_write = u64::from(!targets.is_empty());
        self.count(|counts| {
            counts.requests += 1;
            counts.writes += is_write;
        });
        let pks: BTreeSet<_> = targets.iter().map(|target| target.pk).collect();
        for pk in pks {
            self.balances.count(Of::Table, pk, |counts| {
                counts.requests += 1;
                counts.writes += 1;
            });
        }
    }

    /// The answer to a write that is not let in. `before` are its items, if it is a transaction or
    /// may change entries of indexes.
    pub fn refusal(
        &mut self,
        operation: &str,
        request: &Value,
        targets: &[Target<'_>],
        before: &[Value],
    ) -> Option<(u16, String)> {
        if self.is_lifted {
            return None;
        }
        let is_transaction = operation == TRANSACTION;
        let mut spent: Vec<_> = targets
            .iter()
            .map(|target| self.balances.spent(Of::Table, Kind::Write, target.pk, 2))
            .collect();
        let mut pks: Vec<_> = targets.iter().map(|target| target.pk.to_owned()).collect();
        if are_touched(request) && self.balances.may_throttle_indexes() {
            let charges = self
                .scratch
                .get_or_insert_with(Scratch::new)
                .charges(operation, request, targets, before);
            for (at, charges) in charges.into_iter().enumerate() {
                for Charge { index, pk, .. } in charges {
                    if let (None, Some(met)) =
                        (spent[at], self.balances.spent(Of::Index(index), Kind::Write, &pk, 2))
                    {
                        spent[at] = Some(met);
                        pks[at] = pk;
                    }
                }
            }
        }
        if let Some(first) = spent.iter().flatten().next().copied() {
            self.refuse_write(&spent, &pks);
            if !is_transaction {
                return Some(first.answer());
            }
            let codes =
                spent.iter().map(|spent| if spent.is_some() { "ThrottlingError" } else { "None" });
            return Some(cancelled(&codes.collect::<Vec<_>>()));
        }
        let is_in_conflict = |target: &Target<'_>| {
            if is_transaction {
                self.conflicts.cancels(target)
            } else {
                self.conflicts.is_held(target)
            }
        };
        let conflicts: Vec<_> = targets.iter().map(is_in_conflict).collect();
        if !conflicts.contains(&true) {
            return None;
        }
        self.count(|counts| counts.conflicts += 1);
        for (target, _) in targets.iter().zip(&conflicts).filter(|(_, conflicts)| **conflicts) {
            self.balances.count(Of::Table, target.pk, |counts| counts.conflicts += 1);
        }
        if !is_transaction {
            return Some(conflict());
        }
        for (target, item) in targets.iter().zip(before) {
            self.charge(target.pk, 2 * write_units(item));
        }
        Some(cancelled(
            &conflicts
                .iter()
                .map(|conflicts| if *conflicts { "TransactionConflict" } else { "None" })
                .collect::<Vec<_>>(),
        ))
    }

    pub fn refuse_write(&mut self, spent: &[Option<Spent>], pks: &[String]) {
        let is_index = spent.iter().flatten().all(|spent| spent.of != Of::Table);
        self.count(|counts| {
            counts.throttled += 1;
            counts.index_throttled += u64::from(is_index);
        });
        let met: BTreeSet<_> =
            spent.iter().zip(pks).filter_map(|(spent, pk)| Some(((*spent)?.of, pk))).collect();
        for (of, pk) in met {
            self.balances.count(of, pk, |counts| counts.throttled += 1);
        }
    }

    pub fn charge(&mut self, pk: &str, units: u64) {
        self.count(|counts| counts.units += units);
        self.balances.charge(Of::Table, Kind::Write, pk, 2 * units);
    }

    pub fn charge_index(&mut self, Charge { index, pk, units }: &Charge) {
        self.count(|counts| counts.index_units += units);
        self.balances.charge(Of::Index(index), Kind::Write, pk, 2 * units);
    }

    pub fn read_spent(&mut self, of: Of, pk: &str, is_consistent: bool) -> Option<Spent> {
        let halves = if is_consistent { 2 } else { 1 };
        if self.is_lifted { None } else { self.balances.spent(of, Kind::Read, pk, halves) }
    }

    pub fn refuse_read(&mut self, pk: &str, spent: Spent) -> (u16, String) {
        self.count(|counts| counts.reads_throttled += 1);
        self.balances.count(spent.of, pk, |counts| counts.reads_throttled += 1);
        spent.answer()
    }

    pub fn charge_read(&mut self, of: Of, pk: &str, halves: u64) {
        self.count(|counts| counts.half_reads += halves);
        self.balances.charge(of, Kind::Read, pk, halves);
    }

    pub fn count(&mut self, count: impl Fn(&mut Counts)) {
        let second = Instant::now().duration_since(self.started).as_secs();
        count(&mut self.total);
        count(self.seconds.entry(second).or_default());
    }
}
