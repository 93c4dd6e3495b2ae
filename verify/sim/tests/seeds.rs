//! Fixed seeds, the same every time; `make guards` and `make sim` run more.

use std::process::Command;
use std::thread;

use weirgate_sim::fault::{Counts, Event, Kind};
use weirgate_sim::{guards, run, run_all};

/// Runs as many seeds. Returns what happened in them.
fn hold_with(seeds: u64) -> (Counts<Kind>, Counts<Event>) {
    let (mut counts, mut events, mut failed) = (Counts::default(), Counts::default(), vec![]);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    run_all(0..seeds, threads, |outcome| {
        counts.merge(&outcome.counts);
        events.merge(&outcome.events);
        if !outcome.violations.is_empty() {
            failed.push((outcome.seed, outcome.violations));
        }
        true
    });
    assert!(
        failed.is_empty(),
        "seeds and what they say, to be replayed with make sim ARGS='--seed N': {failed:#?}"
    );
    (counts, events)
}

#[test]
fn i1_to_i7_hold_with_40_seeds() {
    hold_with(40);
}

#[test]
#[ignore = "larger: a minute or two"]
fn i1_to_i7_hold_with_200_seeds_and_every_kind_of_trouble() {
    let (counts, events) = hold_with(200);
    for &kind in Kind::ALL {
        assert!(counts.of(kind) > 0, "{kind:?} never happened:\n{counts}");
    }
    for &event in Event::ALL {
        assert!(events.of(event) > 0, "{event:?} never happened:\n{events}");
    }
}

#[test]
fn a_seed_runs_the_same_in_another_process() {
    for seed in 0..4 {
        let sim = Command::new(env!("CARGO_BIN_EXE_sim"))
            .args(["--seed", &seed.to_string()])
            .output()
            .unwrap();
        let told = String::from_utf8(sim.stdout).unwrap();
        let here = format!("seed {seed} ran as {:016x}", run(seed, false).hash);
        assert_eq!(told.lines().last(), Some(here.as_str()));
    }
}

#[test]
fn every_guard_is_where_the_table_says() {
    let source = |file: &str| {
        std::fs::read_to_string(format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    };
    for test in guards::guards().into_iter().filter_map(|guard| guard.test) {
        let path = format!("{}/{}", test.suite, test.name.replace("::", "/"));
        let (file, name) = path.rsplit_once('/').unwrap();
        let folder = match test.suite.as_str() {
            "shared" => "shared/tests",
            _ => "tests/tests",
        };
        let suite = source(&format!("{folder}/{file}.rs"));
        assert!(suite.contains(&format!("fn {name}(")), "{} is in {}", test.name, test.suite);
    }
    for text in guards::guards().into_iter().flat_map(|guard| guard.texts) {
        let source = source(&text.file);
        let removed = text.removed(&source);
        assert!(
            removed.is_some_and(|removed| removed != source),
            "{:?} is not there once: {}",
            text.from,
            text.file
        );
    }
}
