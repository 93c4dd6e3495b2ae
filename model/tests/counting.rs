//! Usage is counted once, whatever becomes of its records (I3).

use std::time::Instant;

use stateright::{Checker, Model};
use weirgate_model::counting::Counting;
use weirgate_model::{Protocol, sizes};

fn explore(deliveries: u8, faults: u8) {
    let start = Instant::now();
    let model = Counting::new(&Protocol::new(sizes::recorded()), deliveries, faults, None);
    let streams = model.streams();
    let checker = model.checker().threads(2).spawn_bfs().join();
    let (states, steps) = (checker.unique_state_count(), checker.state_count());
    println!("counting: {streams} streams, {states} states, {steps} steps, {:?}", start.elapsed());
    checker.assert_properties();
}

#[test]
fn counted_is_consumed() {
    explore(3, 0);
}

#[test]
fn counted_is_consumed_though_an_answer_is_lost_or_a_function_killed() {
    explore(2, 1);
}
