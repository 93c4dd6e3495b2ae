//! The computed parts of `docs/benchmarks.md`: one table, and what explains it.

use std::fmt::Write;

use super::cost::profile::PROFILES;
use super::heat::shard_counts;
use super::row::Row;
use super::run::Run;
use super::scenario::{Rival, SCENARIOS};
use super::unit::digits;
use crate::page::{bullets, with_parts};

/// Returns the page with its computed parts written again.
///
/// # Errors
/// If a part's marks are missing, or a number in the run.
pub fn written(page: &str, run: &Run) -> Result<String, String> {
    with_parts(page, &[("calls", calls(run)?), ("notes", notes(run)?)])
}

/// The median of a row, with its unit.
fn shown(run: &Run, id: &str) -> Result<String, String> {
    let row = run.row(id);
    row.map(Row::median)
        .ok_or_else(|| format!("the run has no row {id:?}"))
}

/// The median of a row that is a ratio, or nothing but a number.
fn number(run: &Run, id: &str) -> Result<String, String> {
    Ok(digits(run.median(id)?))
}

/// Calls a second of all, with p50, and Weirgate beside zae-limiter.
fn calls(run: &Run) -> Result<String, String> {
    const ALL: [Rival; 5] = [
        Rival::Governor,
        Rival::Prefetched,
        Rival::Redis,
        Rival::Weirgate,
        Rival::Peer,
    ];
    let heads = ALL.map(Rival::name).join(" | ");
    let mut text = format!(
        "| calls a second, p50 | {heads} | beside zae-limiter | write units a call, of both |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|\n"
    );
    for scenario in &SCENARIOS {
        let of = |rival: Rival| {
            if !scenario.rivals.contains(&rival) {
                return Ok("–".to_owned());
            }
            let id = |name: &str| format!("{}/{}/{name}", rival.part(), scenario.name);
            let (calls, p50) = (shown(run, &id("calls"))?, shown(run, &id("p50"))?);
            Ok::<_, String>(format!("{calls}, {p50}"))
        };
        let cells: Result<Vec<_>, _> = ALL.into_iter().map(of).collect();
        let units =
            |rival: Rival| number(run, &format!("{}/{}/units", rival.part(), scenario.name));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {}, {} |",
            scenario.what,
            cells?.join(" | "),
            shown(run, &format!("peer/{}/ratio", scenario.name))?,
            units(Rival::Weirgate)?,
            units(Rival::Peer)?,
        );
    }
    Ok(text)
}

/// Where it was measured, which targets are missed, by how much Weirgate is slower and why, and
/// the numbers that are in no column.
fn notes(run: &Run) -> Result<String, String> {
    let beside =
        |rival: Rival, scenario: &str| number(run, &format!("{}/{scenario}/ratio", rival.part()));
    // No row compares these two.
    let of_one = |rival: Rival| run.median(&format!("{}/sequential/calls", rival.part()));
    let ahead = of_one(Rival::Governor)? / of_one(Rival::Prefetched)?;
    let shards = shard_counts().last().unwrap_or(1);
    let granted = |shards| run.median(&format!("shards/{shards}/granted"));
    let dollars = PROFILES.into_iter().map(|profile| {
        let dollars = shown(run, &format!("cost/{}/dollars", profile.id()))?;
        Ok::<_, String>(format!("{dollars} ({})", profile.what()))
    });
    Ok(bullets([
        machine(run),
        targets(run),
        format!(
            "**In memory.** For one caller governor makes {alone} times the calls of Weirgate with its write for each, and \
             {ahead} times those with prefetched tokens. It compares and swaps a number in the process. Other processes do \
             not see that number, it ends with the process, and usage is not counted.",
            alone = beside(Rival::Governor, "sequential")?,
            ahead = digits(ahead),
        ),
        format!(
            "**Redis.** One caller makes {alone} times the calls on Redis, 32 callers of 50 buckets {many} times, 32 callers \
             of one bucket {one} times. A script on Redis is one small message to a thread that holds everything in memory. \
             An acquire is a signed HTTP request to a table that is written durably.",
            alone = beside(Rival::Redis, "sequential")?,
            many = beside(Rival::Redis, "many-buckets")?,
            one = beside(Rival::Redis, "one-bucket")?,
        ),
        format!(
            "**Aggregator.** It counts 100 acquires in {time}, which is {ratio} as fast as that of zae-limiter.",
            time = shown(run, "aggregator/time")?,
            ratio = shown(run, "aggregator/ratio")?,
        ),
        format!(
            "**At the edge.** With demand above 200 a second, 8 callers of one process are granted {callers} of the refill, 8 \
             processes {processes}, and 8 callers of zae-limiter {peer}.",
            callers = shown(run, "edge/callers/fast")?,
            processes = shown(run, "edge/processes/fast")?,
            peer = shown(run, "edge/peer/fast")?,
        ),
        format!(
            "**Shards.** {shards} shards grant {times} times the acquires of one, with {throttled} of the writes throttled.",
            times = digits(granted(shards)? / granted(1)?),
            throttled = shown(run, &format!("shards/{shards}/throttled"))?,
        ),
        format!(
            "**A million requests** cost {}.",
            dollars.collect::<Result<Vec<_>, _>>()?.join("; ")
        ),
    ]))
}

fn machine(run: &Run) -> String {
    let machine = &run.machine;
    let versions = machine.versions.iter();
    let versions: Vec<_> = versions
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    format!(
        "**Machine.** {}, {} cores, {}; on {}, in {} minutes. {}.",
        machine.processor,
        machine.cores,
        machine.system,
        machine.measured_on,
        run.minutes,
        versions.join(", ")
    )
}

fn targets(run: &Run) -> String {
    let all = run.rows.iter().filter(|row| row.target.is_some()).count();
    let missed = run.rows.iter().filter_map(|row| {
        let target = row.target?;
        let is_met = target.is_met_by(row.spread.median);
        (!is_met).then(|| {
            let target = target.shown(row.unit);
            format!("{}: {} (target: {target})", row.what, row.median())
        })
    });
    let missed: Vec<_> = missed.collect();
    let met = all - missed.len();
    match missed.is_empty() {
        true => format!("**Targets.** {met} of {all} are met."),
        false => format!(
            "**Targets.** {met} of {all} are met. Missed are {}.",
            missed.join("; ")
        ),
    }
}
