//! Ids of writes, leases and audit events.

use std::cell::Cell;

use weirgate_shared::WriteId;

thread_local! {
    static SEEDED: Cell<bool> = const { Cell::new(false) };
}

/// Returns 64 random bits from the operating system's generator. A generator in memory would repeat
/// its bits after a restore from a snapshot.
#[must_use]
pub fn random_bits() -> u64 {
    if SEEDED.get() {
        return fastrand::u64(..);
    }
    getrandom::u64().unwrap_or_else(|_| fastrand::u64(..))
}

/// Returns a new id for a write or a lease.
#[must_use]
pub fn random_id() -> WriteId {
    WriteId::from_bits(random_bits())
}

/// Draws this thread's ids from `fastrand` from now on, so that a simulation with a seed runs the
/// same every time.
pub fn seed_ids_of_thread() {
    SEEDED.set(true);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A snapshot holds the state of `fastrand`, and all that are restored from it go on from
    /// there.
    #[test]
    fn ids_do_not_follow_from_the_state_of_the_process() {
        let id = || {
            fastrand::seed(7);
            random_id()
        };
        assert_ne!(id(), id());
        seed_ids_of_thread();
        assert_eq!(id(), id());
    }
}
