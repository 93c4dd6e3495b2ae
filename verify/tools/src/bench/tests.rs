//! The committed page is what the program writes from the committed numbers, and what other pages
//! say of them is true.

use super::machine::Machine;
use super::page;
use super::row::Row;
use super::run::Run;
use super::unit::Unit;
use crate::number::count;
use crate::scaling::{facts, volume};

const PAGE: &str = include_str!("../../../../docs/benchmarks.md");

fn committed() -> Run {
    serde_json::from_str(include_str!("../../../../docs/benchmarks.json")).expect("it is a run")
}

/// A run that has every row of the page, and one with a target that is no ratio.
fn made_up() -> Run {
    let mut run = Run {
        machine: Machine::this(),
        minutes: 9,
        rows: vec![Row::new("edge/time", "a time", Unit::Seconds, &[1.0]).at_most(2.0)],
    };
    while let Err(message) = page::written(PAGE, &run) {
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
fn the_page_is_what_the_program_writes() {
    let run = committed();
    assert!(
        page::written(PAGE, &run).unwrap() == PAGE,
        "docs/benchmarks.md is not of docs/benchmarks.json: run `make bench`"
    );
}

#[test]
fn the_numbers_are_written_as_they_are_read() {
    let text = include_str!("../../../../docs/benchmarks.json");
    assert_eq!(committed().text().unwrap(), text);
}

/// Bounds that a page states, each with the number that it is about.
#[test]
fn what_the_page_of_costs_promises_was_measured() {
    let run = committed();
    let costs = include_str!("../../../../docs/guide/costs.md");
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
}

/// `docs/scaling.md` computes with them.
#[test]
fn the_facts_of_the_scaling_page_were_measured() {
    let run = committed();
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
    let written = written.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        written.contains(&format!(
            "{} of {} are met. Missed are peer/one-bucket/ratio: 19 times (target: at least 20 times).",
            run.rows.len() - 1,
            run.rows.len()
        )),
        "{written}"
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
