//! The charts of `docs/benchmarks.md`.

use super::cost::profile::PROFILES;
use super::heat::shard_counts;
use super::row::Target;
use super::run::Run;
use super::scenario::{Rival, SCENARIOS};
use super::unit::{Unit, digits};
use crate::chart::dots::{Dots, Line, drawn};

/// Returns all charts with the names of their files.
///
/// # Errors
/// If a number is missing in the run.
pub fn all(run: &Run) -> Result<[(&'static str, String); 4], String> {
    Ok([
        ("benchmarks-peer.svg", peer(run)?),
        ("benchmarks-calls.svg", calls(run)?),
        ("benchmarks-cost.svg", cost(run)?),
        ("benchmarks-shards.svg", shards(run)?),
    ])
}

fn line(run: &Run, id: &str, label: &str, class: &'static str) -> Result<Line, String> {
    let row = run
        .row(id)
        .ok_or_else(|| format!("the run has no row {id:?}"))?;
    Ok(Line {
        group: None,
        label: label.to_owned(),
        class,
        low: row.spread.low,
        median: row.spread.median,
        high: row.spread.high,
        text: row.median(),
        target: row.target.map(Target::size),
    })
}

/// Calls a second, beside zae-limiter.
fn peer(run: &Run) -> Result<String, String> {
    let mut lines = vec![];
    for scenario in &SCENARIOS {
        let id = |rival: Rival| format!("{}/{}/ratio", rival.part(), scenario.name);
        lines.push(line(run, &id(Rival::Peer), scenario.what, "alone")?);
        if scenario.rivals.contains(&Rival::Prefetched) {
            lines.push(line(
                run,
                &id(Rival::Prefetched),
                "the same, prefetched",
                "shared",
            )?);
        }
    }
    lines.push(line(
        run,
        "aggregator/ratio",
        "aggregator, 100 acquires",
        "alone",
    )?);
    Ok(drawn(&Dots {
        title: "Times as many calls a second as zae-limiter",
        subtitle: "On the same endpoint in the same run; the line is the range of the rounds, the dotted mark the target.",
        tick: digits,
        lines,
    }))
}

/// Calls a second of all.
fn calls(run: &Run) -> Result<String, String> {
    let mut lines = vec![];
    for scenario in &SCENARIOS {
        for (place, rival) in scenario.rivals.iter().enumerate() {
            let id = format!("{}/{}/calls", rival.part(), scenario.name);
            let class = match rival {
                Rival::Weirgate => "alone",
                Rival::Prefetched => "shared",
                Rival::Peer => "peer",
                Rival::Redis | Rival::Governor => "most",
            };
            let mut line = line(run, &id, rival.name(), class)?;
            line.group = (place == 0).then(|| scenario.what.to_owned());
            lines.push(line);
        }
    }
    Ok(drawn(&Dots {
        title: "Calls a second",
        subtitle: "All on this machine, with their servers: DynamoDB is an emulator, Redis keeps nothing on disk.",
        tick: digits,
        lines,
    }))
}

fn cost(run: &Run) -> Result<String, String> {
    let lines = PROFILES.iter().map(|profile| {
        let id = format!("cost/{}/dollars", profile.id());
        line(run, &id, profile.what(), "alone")
    });
    Ok(drawn(&Dots {
        title: "Dollars for a million requests",
        subtitle: "Write units, read units and calls of the aggregator; us-east-1, on demand.",
        tick: |value| Unit::Dollars.shown(value),
        lines: lines.collect::<Result<_, _>>()?,
    }))
}

fn shards(run: &Run) -> Result<String, String> {
    let lines = shard_counts().map(|shards| {
        let id = format!("shards/{shards}/granted");
        let label = format!("{shards} shard{}", if shards == 1 { "" } else { "s" });
        line(run, &id, &label, "alone")
    });
    Ok(drawn(&Dots {
        title: "Acquires a second of callers alone on one key",
        subtitle: "In the model of partitions, a tenth of their size, on virtual time; the dotted mark is 98 % of what is asked.",
        tick: digits,
        lines: lines.collect::<Result<_, _>>()?,
    }))
}
