//! What callers were told: the checker's own record, which knows nothing of the table.

use std::collections::BTreeMap;

/// A limit of a bucket, by their places in the scenario.
pub type Of = (usize, usize);

/// Tokens that a caller was told to have. Times are the world's, in ms.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Of what.
    pub of: Of,
    /// How many, in millitokens.
    pub amount: i64,
    /// When it was asked for.
    pub sent: i64,
    /// When it was told.
    pub told: i64,
    /// From when on its lease may have given it back, if it has one.
    pub expires: Option<i64>,
    /// The id of that lease.
    pub lease: Option<String>,
    /// When its holder began to end it, or died.
    pub ended: Option<i64>,
    /// Whether a lease can give it back no more, as its end was confirmed.
    pub is_settled: bool,
    /// What may have gone back.
    pub backs: Vec<Back>,
    /// What may have been used beyond it, as its holder said afterwards.
    pub more: i64,
}

/// A part of a claim that its holder gave back.
#[derive(Debug, Clone)]
pub struct Back {
    /// When he began to.
    pub from: i64,
    /// When he was told that it is done; until then, and for ever if he never was, it may happen
    /// yet.
    pub until: Option<i64>,
    /// How much, in millitokens.
    pub amount: i64,
}

impl Claim {
    /// What may have gone back.
    #[must_use]
    pub fn back(&self) -> i64 {
        self.backs.iter().map(|back| back.amount).sum()
    }
}

/// All claims of a run.
#[derive(Debug, Default)]
pub struct Told {
    claims: Vec<Claim>,
    /// What was asked for and never answered, so that it may have been taken, once.
    unanswered: BTreeMap<Of, i64>,
}

/// Which claims a grant stands for.
pub type Ids = Vec<usize>;

impl Told {
    /// A caller asks for `amounts`.
    pub fn asks(&mut self, amounts: &[(Of, i64)]) {
        for (of, amount) in amounts {
            *self.unanswered.entry(*of).or_default() += amount;
        }
    }

    /// He is told what has become of it.
    pub fn answered(&mut self, amounts: &[(Of, i64)]) {
        for (of, amount) in amounts {
            *self.unanswered.entry(*of).or_default() -= amount;
        }
    }

    /// What may have been taken of a limit for callers who were never told.
    #[must_use]
    pub fn unanswered(&self, of: Of) -> i64 {
        self.unanswered.get(&of).copied().unwrap_or_default()
    }

    /// A caller has been told that it has `amounts`.
    pub fn granted(
        &mut self,
        amounts: &[(Of, i64)],
        sent: i64,
        told: i64,
        lease: Option<&(String, i64)>,
    ) -> Ids {
        let first = self.claims.len();
        let claim = |(of, amount): &(Of, i64)| Claim {
            of: *of,
            amount: *amount,
            sent,
            told,
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

    /// Its holder begins to end a grant, or is no more.
    pub fn ends(&mut self, ids: &Ids, now: i64) {
        for id in ids {
            self.claims[*id].ended.get_or_insert(now);
        }
    }

    /// The end of a grant is confirmed: no lease gives it back any more.
    pub fn settled(&mut self, ids: &Ids) {
        for id in ids {
            self.claims[*id].is_settled = true;
        }
    }

    /// All of a grant may go back from now on.
    pub fn goes_back(&mut self, ids: &Ids, now: i64) {
        for id in ids {
            let claim = &mut self.claims[*id];
            let amount = claim.amount - claim.back();
            claim.backs.push(Back {
                from: now,
                until: None,
                amount,
            });
        }
    }

    /// What was to go back of a grant has done so.
    pub fn went_back(&mut self, ids: &Ids, now: i64) {
        for id in ids {
            for back in &mut self.claims[*id].backs {
                back.until.get_or_insert(now);
            }
        }
    }

    /// The claims of `limit` are for `actual` now, of which what is less than before may go back
    /// from now on.
    pub fn adjusts(&mut self, ids: &Ids, limit: usize, actual: i64, now: i64) {
        for id in ids {
            let claim = &mut self.claims[*id];
            if claim.of.1 == limit {
                let before = claim.amount - claim.back();
                if before > actual {
                    claim.backs.push(Back {
                        from: now,
                        until: None,
                        amount: before - actual,
                    });
                } else {
                    claim.more += actual - before;
                }
            }
        }
    }

    /// A grant may last longer.
    pub fn renewed(&mut self, ids: &Ids, expires: i64) {
        for id in ids {
            let known = &mut self.claims[*id].expires;
            *known = Some(known.map_or(expires, |known| known.max(expires)));
        }
    }

    /// The claims of each limit.
    #[must_use]
    pub fn by_limit(&self) -> BTreeMap<Of, Vec<&Claim>> {
        let mut by: BTreeMap<Of, Vec<&Claim>> = BTreeMap::new();
        for claim in &self.claims {
            by.entry(claim.of).or_default().push(claim);
        }
        by
    }
}
