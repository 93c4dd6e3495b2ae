//! The checker's own record of responses to callers; it never reads the table.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::scenario::Scenario;

/// A limit of a bucket, by their indexes in the scenario.
pub type LimitIndex = (usize, usize);

/// Tokens granted to a caller. Times are the world's, in ms.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Limit of the claim.
    pub of: LimitIndex,
    /// Amount, in millitokens.
    pub amount: i64,
    /// Whether it bypassed the limits: it counts, and nothing of it was ever in a balance.
    pub is_bypass: bool,
    /// When the request was sent.
    pub sent: i64,
    /// When the grant was received.
    pub answered: i64,
    /// Earliest instant at which its lease may have returned it, if it has one.
    pub expires: Option<i64>,
    /// Id of that lease.
    pub lease: Option<String>,
    /// When its holder began to end it, or died.
    pub ended: Option<i64>,
    /// Whether its end is confirmed, so that no lease can return it.
    pub is_settled: bool,
    /// Possible returns.
    pub backs: Vec<Back>,
    /// Usage above the claim, as adjusted by its holder; perhaps applied.
    pub more: i64,
}

/// A part of a claim that its holder returned, or tokens that an operator added.
#[derive(Debug, Clone)]
pub struct Back {
    /// When the return began.
    pub from: i64,
    /// When the return was confirmed. Until then, and indefinitely if it never is, it may still
    /// happen.
    pub until: Option<i64>,
    /// Amount, in millitokens.
    pub amount: i64,
}

impl Claim {
    /// Returns the sum of the possible returns.
    pub fn back(&self) -> i64 {
        self.backs.iter().map(|back| back.amount).sum()
    }
}

/// All claims of a run.
#[derive(Debug, Default)]
pub struct Ledger {
    claims: Vec<Claim>,
    /// Requested amounts without a response; each may have been taken once.
    unanswered: BTreeMap<LimitIndex, i64>,
    /// Tokens that an operator may have added to each limit.
    added: BTreeMap<LimitIndex, Vec<Back>>,
    /// When items of each bucket were deleted.
    remade: BTreeMap<usize, Vec<i64>>,
}

/// Claims that a grant stands for.
pub type ClaimIds = Vec<usize>;

impl Ledger {
    /// Records a request for `amounts`.
    pub fn asks(&mut self, amounts: &[(LimitIndex, i64)]) {
        for (of, amount) in amounts {
            *self.unanswered.entry(*of).or_default() += amount;
        }
    }

    /// Records a response to a request for `amounts`.
    pub fn answered(&mut self, amounts: &[(LimitIndex, i64)]) {
        for (of, amount) in amounts {
            *self.unanswered.entry(*of).or_default() -= amount;
        }
    }

    /// Returns what unanswered requests may have taken of a limit.
    pub fn unanswered(&self, of: LimitIndex) -> i64 {
        self.unanswered.get(&of).copied().unwrap_or_default()
    }

    /// Records a grant of `amounts`, with the times of its request and response. Returns its claims.
    pub fn granted(
        &mut self,
        amounts: &[(LimitIndex, i64)],
        is_bypass: bool,
        (sent, answered): (i64, i64),
        lease: Option<&(String, i64)>,
    ) -> ClaimIds {
        let first = self.claims.len();
        let claim = |(of, amount): &(LimitIndex, i64)| Claim {
            of: *of,
            amount: *amount,
            is_bypass,
            sent,
            answered,
            expires: lease.map(|(_, expires)| *expires),
            lease: lease.map(|(id, _)| id.clone()),
            ended: None,
            is_settled: false,
            backs: vec![],
            more: 0,
        };
        self.claims.extend(amounts.iter().map(claim));
        (first..self.claims.len()).collect()
    }

    /// Records that the holder begins to end a grant, or died.
    pub fn ends(&mut self, ids: &ClaimIds, now: i64) {
        for id in ids {
            self.claims[*id].ended.get_or_insert(now);
        }
    }

    /// Records that an operator begins to add an amount of at most `amount`.
    pub fn adds(&mut self, of: LimitIndex, amount: i64, now: i64) {
        let until = None;
        self.added.entry(of).or_default().push(Back { from: now, until, amount });
    }

    /// Records that the operator's last addition is done, of `amount`.
    pub fn added(&mut self, of: LimitIndex, amount: i64, now: i64) {
        if let Some(last) = self.added.get_mut(&of).and_then(|added| added.last_mut()) {
            (last.until, last.amount) = (Some(now), amount);
        }
    }

    /// Records that items of a bucket are deleted, so that a full one may be made.
    pub fn remakes(&mut self, scenario: &Scenario, bucket: usize, now: i64) {
        let plan = &scenario.buckets[bucket];
        for (limit, _) in plan.used_up() {
            self.adds((bucket, limit), plan.most(limit), now);
            self.added((bucket, limit), plan.most(limit), now);
        }
        self.remade.entry(bucket).or_default().push(now);
    }

    /// Returns the first deletion of items of a bucket after `at`, if there is one.
    pub fn remade_after(&self, bucket: usize, at: i64) -> Option<i64> {
        let remade = self.remade.get(&bucket)?;
        remade.iter().copied().find(|remade| *remade >= at)
    }

    /// Returns the tokens that an operator may have added to a limit.
    pub fn additions(&self, of: LimitIndex) -> &[Back] {
        self.added.get(&of).map_or(&[], |added| added)
    }

    /// Records the confirmed end of a grant: no lease returns it any more.
    pub fn settled(&mut self, ids: &ClaimIds) {
        for id in ids {
            self.claims[*id].is_settled = true;
        }
    }

    /// Records that all of a grant may be returned from now on.
    pub fn goes_back(&mut self, ids: &ClaimIds, now: i64) {
        for id in ids {
            let claim = &mut self.claims[*id];
            let amount = claim.amount - claim.back();
            claim.backs.push(Back { from: now, until: None, amount });
        }
    }

    /// Records that the possible returns of a grant are done.
    pub fn went_back(&mut self, ids: &ClaimIds, now: i64) {
        for id in ids {
            for back in &mut self.claims[*id].backs {
                back.until.get_or_insert(now);
            }
        }
    }

    /// Changes the claims of `limit` to `actual`; the difference to a larger amount may be returned
    /// from now on.
    pub fn adjusts(&mut self, ids: &ClaimIds, limit: usize, actual: i64, now: i64) {
        for id in ids {
            let claim = &mut self.claims[*id];
            if claim.of.1 == limit {
                let before = claim.amount - claim.back();
                if before > actual {
                    claim.backs.push(Back { from: now, until: None, amount: before - actual });
                } else {
                    claim.more += actual - before;
                }
            }
        }
    }

    /// Records that a grant may last longer.
    pub fn renewed(&mut self, ids: &ClaimIds, expires: i64) {
        for id in ids {
            let known = &mut self.claims[*id].expires;
            *known = Some(known.map_or(expires, |known| known.max(expires)));
        }
    }

    /// Returns the claims of each limit.
    pub fn by_limit(&self) -> BTreeMap<LimitIndex, Vec<&Claim>> {
        let mut by: BTreeMap<LimitIndex, Vec<&Claim>> = BTreeMap::new();
        for claim in &self.claims {
            by.entry(claim.of).or_default().push(claim);
        }
        by
    }
}

/// The ledger that all callers of a run share.
#[derive(Debug, Clone, Default)]
pub struct SharedLedger(Arc<Mutex<Ledger>>);

impl SharedLedger {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
