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
    /// When its holder began to end it, or died.
    pub ended: Option<i64>,
    /// Whether a lease can give it back no more, as its end was confirmed.
    pub is_settled: bool,
    /// What may have gone back, and since when.
    pub backs: Vec<(i64, i64)>,
    /// What may have been used beyond it, as its holder said afterwards.
    pub more: i64,
}

/// All claims of a run.
#[derive(Debug, Default)]
pub struct Told {
    claims: Vec<Claim>,
}

/// Which claims a grant stands for.
pub type Ids = Vec<usize>;

impl Told {
    /// A caller has been told that it has `amounts`.
    pub fn granted(&mut self, amounts: &[(Of, i64)], sent: i64, told: i64, expires: Option<i64>) -> Ids {
        let first = self.claims.len();
        let claim = |(of, amount): &(Of, i64)| Claim {
            of: *of,
            amount: *amount,
            sent,
            told,
            expires,
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
            let amount = self.claims[*id].amount;
            self.claims[*id].backs.push((now, amount));
        }
    }

    /// The claims of `limit` are for `actual` now, of which what is less than before may go back from now on.
    pub fn adjusts(&mut self, ids: &Ids, limit: usize, actual: i64, now: i64) {
        for id in ids {
            let claim = &mut self.claims[*id];
            if claim.of.1 == limit {
                let before = claim.amount - claim.backs.iter().map(|(_, amount)| amount).sum::<i64>();
                if before > actual {
                    claim.backs.push((now, before - actual));
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

    /// All of it.
    #[must_use]
    pub fn claims(&self) -> &[Claim] {
        &self.claims
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
