//! The committed page is what the program writes from the committed numbers, and what other pages
//! say of them is true.

use super::run::Run;
use super::{page, pictures};
use crate::scaling::facts;

const PAGE: &str = include_str!("../../../docs/benchmarks.md");
const README: &str = include_str!("../../../README.md");

fn committed() -> Run {
    serde_json::from_str(include_str!("../../../docs/benchmarks.json")).expect("it is a run")
}

#[test]
fn the_page_and_its_charts_are_what_the_program_writes() {
    let run = committed();
    assert!(
        page::written(PAGE, &run).unwrap() == PAGE,
        "docs/benchmarks.md is not of docs/benchmarks.json: run `make bench`"
    );
    for (name, drawn) in pictures::all(&run).unwrap() {
        let path = format!("{}/../docs/pictures/{name}", env!("CARGO_MANIFEST_DIR"));
        let picture = std::fs::read_to_string(path).unwrap();
        assert!(
            drawn == picture,
            "docs/pictures/{name} is not of docs/benchmarks.json: run `make bench`"
        );
    }
}

#[test]
fn the_numbers_are_written_as_they_are_read() {
    let text = include_str!("../../../docs/benchmarks.json");
    assert_eq!(committed().text().unwrap(), text);
}

#[test]
fn the_readme_quotes_the_committed_numbers() {
    assert!(
        page::readme(README, &committed()).unwrap() == README,
        "README.md quotes other numbers than those of docs/benchmarks.json: run `make bench`"
    );
}

/// Bounds that pages state, each with the number that it is about.
#[test]
fn what_pages_promise_was_measured() {
    let run = committed();
    let costs = include_str!("../../../docs/guide/costs.md");
    for (text, id, most) in [
        (
            "32 callers of one process on one bucket | at most 0.1 each",
            "weirgate/one-bucket/units",
            0.1,
        ),
        (
            "acquire from prefetched tokens, 1,000 a second | at most 0.02",
            "prefetch/units",
            0.02,
        ),
    ] {
        for page in [README, costs] {
            assert!(page.contains(text), "{text:?} is on both pages");
        }
        let measured = run.median(id).unwrap();
        assert!(measured <= most, "{text}: {measured}");
    }
    // What `docs/scaling.md` computes with.
    let shared = 1.0 / run.median("weirgate/one-bucket/units").unwrap();
    let fact = f64::from(u32::try_from(facts::ACQUIRES_PER_SHARED_WRITE).unwrap());
    assert!(
        shared >= 0.9 * fact,
        "{shared:.1} acquires share a write, not {fact}"
    );
}

#[test]
fn a_missed_target_stands_out() {
    let mut run = committed();
    let row = run
        .rows
        .iter_mut()
        .find(|row| row.id == "peer/one-bucket/ratio");
    row.unwrap().spread.median = 19.0;
    let written = page::written(PAGE, &run).unwrap();
    let line = "| 32 callers of one bucket: calls/s beside zae-limiter | 19 times |";
    let line = written
        .lines()
        .find(|found| found.starts_with(line))
        .unwrap();
    assert!(
        line.ends_with("| at least 20 times | **MISSED** |"),
        "{line}"
    );
}

#[test]
fn targets_that_are_ratios_come_first() {
    let written = page::written(PAGE, &committed()).unwrap();
    let (_, targets) = written.split_once("<!-- computed: targets -->").unwrap();
    let (targets, _) = targets.split_once("<!-- end: targets -->").unwrap();
    let rows = targets
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(1);
    let is_ratio: Vec<_> = rows.map(|row| row.contains(" times |")).collect();
    assert!(is_ratio.contains(&true) && is_ratio.contains(&false));
    assert!(
        is_ratio.is_sorted_by(|one, next| one >= next),
        "{is_ratio:?}"
    );
}

#[test]
fn a_run_without_a_row_of_the_page_is_refused() {
    let mut run = committed();
    run.rows.retain(|row| row.id != "cost/slots/dollars");
    assert_eq!(
        page::written(PAGE, &run).unwrap_err(),
        "the run has no row \"cost/slots/dollars\""
    );
    assert!(pictures::all(&run).is_err());
}

#[test]
fn ids_are_unique() {
    let run = committed();
    let ids: std::collections::BTreeSet<_> = run.rows.iter().map(|row| &row.id).collect();
    assert_eq!(ids.len(), run.rows.len());
}
