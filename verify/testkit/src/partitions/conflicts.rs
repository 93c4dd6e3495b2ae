//! Which transactions and writes meet each other.
//!
//! DynamoDB cancels a transaction if a single write reached one of its items between the
//! transaction's timestamp and its prepare, and refuses a single write to an item between prepare
//! and commit. One window stands for both spans: a transaction is prepared as it arrives, with a
//! timestamp of one window before, and committed one window later. Nothing else writes to its items
//! meanwhile, so here it is applied at once.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::target::Target;

#[derive(Debug)]
pub(super) struct Conflicts {
    window: Duration,
    /// When each item was last written.
    written: HashMap<(String, String), Instant>,
    /// Until when each item belongs to a transaction.
    held: HashMap<(String, String), Instant>,
}

impl Conflicts {
    pub fn new(window: Duration) -> Self {
        Self { window, written: HashMap::new(), held: HashMap::new() }
    }

    /// Whether the item belongs to a running transaction.
    pub fn is_held(&self, target: &Target<'_>) -> bool {
        self.held.get(&target.key()).is_some_and(|until| Instant::now() < *until)
    }

    /// Whether a transaction that arrives now is cancelled because of this item.
    pub fn cancels(&self, target: &Target<'_>) -> bool {
        let is_recent = |at: &Instant| Instant::now().duration_since(*at) <= self.window;
        self.is_held(target) || self.written.get(&target.key()).is_some_and(is_recent)
    }

    /// A transaction begins to run.
    pub fn hold(&mut self, targets: &[Target<'_>]) {
        if !self.window.is_zero() {
            let until = Instant::now() + self.window;
            self.held.extend(targets.iter().map(|target| (target.key(), until)));
        }
    }

    /// These were written.
    pub fn note(&mut self, targets: &[Target<'_>]) {
        if !self.window.is_zero() {
            let written = targets.iter().filter(|target| !target.is_check);
            self.written.extend(written.map(|target| (target.key(), Instant::now())));
        }
    }
}
