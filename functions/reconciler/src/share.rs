//! The share of each namespace in a run: pure.

use std::collections::HashMap;

/// Units for the entries of one namespace in one partition before all others had their turn.
const FIRST: u64 = 256;
/// Factor by which the shares grow after all had their turn.
const GROWTH: u64 = 4;
/// Bytes of a response that count as one key.
const BYTES: u64 = 4096;

/// The shares of a run in one partition of the index. A namespace that has used up its share waits
/// until all others had theirs. Then the shares grow, so the rest of the run goes to namespaces
/// with more work.
#[derive(Debug)]
pub struct Shares {
    most: u64,
    used: HashMap<String, u64>,
    is_short: bool,
}

impl Default for Shares {
    fn default() -> Self {
        Self { most: FIRST, used: HashMap::new(), is_short: false }
    }
}

impl Shares {
    /// Returns whether the namespace of the partition key `pk` has some of its share left, and
    /// subtracts a key.
    pub fn take(&mut self, pk: &str) -> bool {
        let used = self.used.get(namespace(pk)).copied().unwrap_or_default();
        if used >= self.most {
            self.is_short = true;
            return false;
        }
        self.charge(pk, 1, 0);
        true
    }

    /// Subtracts keys and bytes of responses from the namespace's share.
    pub fn charge(&mut self, pk: &str, keys: usize, bytes: u64) {
        let units = u64::try_from(keys).unwrap_or(u64::MAX).saturating_add(bytes / BYTES);
        let namespace = namespace(pk);
        let used = self.used.get(namespace).copied().unwrap_or_default().saturating_add(units);
        self.used.insert(namespace.to_owned(), used);
    }

    /// Increases the shares if one was too small. Returns whether one was.
    pub fn grow(&mut self) -> bool {
        self.most = self.most.saturating_mul(GROWTH);
        std::mem::take(&mut self.is_short)
    }
}

fn namespace(pk: &str) -> &str {
    pk.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_has_had_its_share_waits_for_the_others() {
        let mut shares = Shares::default();
        let taken =
            |shares: &mut Shares, pk: &str| (0..10_000).take_while(|_| shares.take(pk)).count();
        assert_eq!(taken(&mut shares, "a/BUCKET#e#r#0"), 256);
        shares.charge("b/x", 2, 100 * 4096);
        assert_eq!(taken(&mut shares, "b/BUCKET#e#r#0"), 256 - 102);
        assert!(shares.grow());
        assert_eq!(taken(&mut shares, "a/BUCKET#e#r#1"), 1024 - 256);
        assert!(shares.take("c/x") && shares.grow() && !shares.grow());
    }
}
