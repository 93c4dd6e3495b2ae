//! The committed page is what the program writes from the committed numbers, and what other pages
//! say of them is true.

use super::machine::Machine;
use super::row::Row;
use super::run::Run;
use super::unit::Unit;
use super::{page, pictures};
use crate::number::count;
use crate::scaling::{facts, volume};

const PAGE: &str = include_str!("../../../docs/benchmarks.md");

fn committed() -> Run {
    serde_json::from_str(include_str!("../../../docs/benchmarks.json")).expect("it is a run")
}

/// A run that has every row of the page and the charts, and one with a target that is no ratio.
fn made_up() -> Run {
    let mut run = Run {
        machine: Machine::this(),
        minutes: 9,
        rows: vec![Row::new("edge/time", "a time", Unit::Seconds, &[1.0]).at_most(2.0)],
    };
    let all = |run: &Run| {
        page::written(PAGE, run)?;
        pictures::all(run).map(drop)
    };
    while let Err(message) = all(&run) {
        let id = message
            .strip_prefix("the run has no row \"")
            .expect("only rows are missing");
        let id = id.trim_end_matches('"');
        let (unit, target) = if id.ends_with("/ratio") {
            (Unit::Times, 20.0)
        } else {
            (Unit::PerSecond, 1.0)
        };
        run.rows
            .push(Row::new(id, id, unit, &[30.0, 29.0, 31.0]).at_least(target));
    }
    run
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

/// Bounds that a page states, each with the number that it is about.
#[test]
fn what_pages_promise_was_measured() {
    let run = committed();
    let costs = include_str!("../../../docs/guide/costs.md");
    for (text, id, most) in [
        (
            "32 callers of one process on one bucket: at most 0.1 each",
            "weirgate/one-bucket/units",
            0.1,
        ),
        (
            "acquire from prefetched tokens, 1,000 a second: at most 0.02",
            "prefetch/units",
            0.02,
        ),
    ] {
        assert!(costs.contains(text), "docs/guide/costs.md lacks {text:?}");
        let measured = run.median(id).unwrap();
        assert!(measured <= most, "{text}: {measured}");
    }
    // What `docs/scaling.md` computes with.
    let shared = 1.0 / run.median("cost/shared/units").unwrap();
    let fact = f64::from(u32::try_from(facts::ACQUIRES_PER_SHARED_WRITE).unwrap());
    assert!(
        shared >= 0.9 * fact,
        "{shared:.1} acquires share a write, not {fact}"
    );
    let slowest = ["few", "hot", "many", "hour"]
        .map(|load| run.median(&format!("aggregator/{load}/records")).unwrap())
        .into_iter()
        .reduce(f64::min)
        .unwrap();
    let fact = count(facts::CORE_RECORDS);
    assert!(fact <= slowest, "{slowest} records a second, not {fact}");
}

/// `docs/guide/cost-by-volume.md` has no profile that costs much less than it was measured.
#[test]
fn the_months_of_the_guide_are_not_below_what_was_measured() {
    let run = committed();
    let ids = [
        "alone",
        "shared",
        "prefetched",
        "users",
        "estimates",
        "slots",
        "exhausted",
    ];
    for (profile, id) in volume::PROFILES.into_iter().zip(ids) {
        let row = |unit: &str| run.median(&format!("cost/{id}/{unit}")).unwrap();
        // Both without the calls of the aggregator, which the page has in another column.
        let dollars = |writes: f64, reads: f64| {
            writes * count(facts::WRITE_UNIT_PRICE) + reads * count(facts::READ_UNIT_PRICE)
        };
        let measured = dollars(row("units") + row("usage-units"), row("read-units"));
        let milli = |units: u64| count(units) / 1_000.0;
        let page = dollars(milli(profile.write_milli), milli(profile.read_milli));
        // Repeated writes of lone callers are not in what tests hold.
        let most = match id {
            "estimates" | "slots" => page,
            _ => page * 1.05,
        };
        assert!(measured <= most, "{id}: {measured} picodollars, not {page}");
    }
}

#[test]
fn a_missed_target_stands_out() {
    let mut run = made_up();
    let row = run
        .rows
        .iter_mut()
        .find(|row| row.id == "peer/one-bucket/ratio");
    row.unwrap().spread.median = 19.0;
    let written = page::written(PAGE, &run).unwrap();
    let line =
        "| peer/one-bucket/ratio | 19 times | 29 to 31 times | at least 20 times | **MISSED** |";
    assert!(written.lines().any(|found| found == line), "{written}");
    assert!(written.contains(&format!(
        "{0} of {1} targets are met.",
        run.rows.len() - 1,
        run.rows.len()
    )));
}

#[test]
fn targets_that_are_ratios_come_first() {
    let written = page::written(PAGE, &made_up()).unwrap();
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
    let mut run = made_up();
    run.rows.retain(|row| row.id != "cost/slots/dollars");
    assert_eq!(
        page::written(PAGE, &run).unwrap_err(),
        "the run has no row \"cost/slots/dollars\""
    );
    assert!(pictures::all(&run).is_err());
}

#[test]
fn a_run_is_read_as_it_was_written() {
    let run = made_up();
    let read: Run = serde_json::from_str(&run.text().unwrap()).unwrap();
    assert_eq!(read, run);
}

#[test]
fn ids_are_unique() {
    let run = committed();
    let ids: std::collections::BTreeSet<_> = run.rows.iter().map(|row| &row.id).collect();
    assert_eq!(ids.len(), run.rows.len());
}
