//! The protocol, explored to its end.

use std::time::Instant;

use stateright::{Checker, Model};
use weirgate_model::{Bounds, Protocol, sizes};

/// Explores all states, and fails with the steps that lead to the first one in which something does not hold.
fn explore(name: &str, bounds: Bounds) {
    let start = Instant::now();
    let checker = Protocol::new(bounds).checker().threads(2).spawn_bfs().join();
    let (states, steps, depth) = (checker.unique_state_count(), checker.state_count(), checker.max_depth());
    println!("{name}: {states} states, {steps} steps, {depth} deep, {:?}", start.elapsed());
    checker.assert_properties();
}

#[test]
fn rate() {
    explore("rate", sizes::rate());
}

#[test]
#[ignore = "larger: slots and renewals have most of it"]
fn leases() {
    explore("leases", sizes::leases());
}

#[test]
fn slots() {
    explore("slots", sizes::slots());
}

#[test]
fn again() {
    explore("again", Bounds { requests: [1, 1], ..sizes::again() });
}

#[test]
#[ignore = "larger: a third take"]
fn again_and_again() {
    explore("again, with a third take", sizes::again());
}

#[test]
fn looks() {
    explore("looks", sizes::looks());
}

#[test]
fn renewals() {
    explore("renewals", sizes::renewals());
}

#[test]
#[ignore = "larger: a request or an answer is lost"]
fn renewals_with_a_fault() {
    explore("renewals, one fault", Bounds { faults: 1, ..sizes::renewals() });
}

#[test]
fn moved_slots() {
    explore("moved slots", sizes::moved_slots());
}

#[test]
fn rested() {
    explore("rested", sizes::rested());
}

#[test]
fn returned() {
    explore("returned", sizes::returned());
}
