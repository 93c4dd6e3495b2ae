//! The computed parts of `docs/benchmarks.md`.

use std::fmt::Write;

use super::cost::profile::PROFILES;
use super::heat::shard_counts;
use super::row::Row;
use super::run::Run;
use super::scenario::{Rival, SCENARIOS};
use super::unit::{Unit, digits};
use crate::page::{bullets, with_parts};

/// Returns the page with its computed parts written again.
///
/// # Errors
/// If a part's marks are missing, or a number in the run.
pub fn written(page: &str, run: &Run) -> Result<String, String> {
    let parts = [
        ("machine", machine(run)),
        ("targets", targets(run)),
        ("peer", peer(run)?),
        ("calls", calls(run)?),
        ("behind", behind(run)?),
        ("cost", cost(run)?),
        ("shards", shards(run)?),
        ("rest", rest(run)),
    ];
    with_parts(page, &parts)
}

fn row<'a>(run: &'a Run, id: &str) -> Result<&'a Row, String> {
    run.row(id)
        .ok_or_else(|| format!("the run has no row {id:?}"))
}

/// The median of a row, with its unit.
fn shown(run: &Run, id: &str) -> Result<String, String> {
    Ok(row(run, id)?.median())
}

/// The median of a row and its range, with their unit.
fn ranged(run: &Run, id: &str) -> Result<String, String> {
    Ok(row(run, id)?.with_range())
}

/// The median of a row that is a ratio, or nothing but a number.
fn number(run: &Run, id: &str) -> Result<String, String> {
    Ok(digits(run.median(id)?))
}

fn machine(run: &Run) -> String {
    let machine = &run.machine;
    let mut text = String::from("| | |\n|---|---|\n");
    let _ = writeln!(
        text,
        "| measured on | {}, in {} minutes |",
        machine.measured_on, run.minutes
    );
    let _ = writeln!(
        text,
        "| processor | {}, {} cores |",
        machine.processor, machine.cores
    );
    let _ = writeln!(text, "| system | {} |", machine.system);
    for (name, version) in &machine.versions {
        let _ = writeln!(text, "| {name} | {version} |");
    }
    text
}

/// All rows with a target, ratios first.
fn targets(run: &Run) -> String {
    let with_target = || run.rows.iter().filter(|row| row.target.is_some());
    let is_ratio = |row: &&Row| row.unit == Unit::Times;
    let all: Vec<_> = with_target()
        .filter(is_ratio)
        .chain(with_target().filter(|row| !is_ratio(row)))
        .collect();
    let met = all.iter().filter(|row| row.is_met() == Some(true)).count();
    format!("{met} of {} targets are met.\n\n{}", all.len(), table(&all))
}

/// Rows of all parts that have no table of their own and no target.
fn rest(run: &Run) -> String {
    const IN_TABLES: [&str; 7] = [
        "weirgate",
        "prefetched",
        "peer",
        "redis",
        "governor",
        "cost",
        "shards",
    ];
    let rest = run.rows.iter();
    let rest: Vec<_> = rest
        .filter(|row| row.target.is_none() && !IN_TABLES.contains(&row.part()))
        .collect();
    table(&rest)
}

fn table(rows: &[&Row]) -> String {
    let mut text =
        String::from("| | median | range of the rounds | target | |\n|---|--:|--:|--:|---|\n");
    for row in rows {
        let target = row.target.map(|target| target.shown(row.unit));
        let verdict = match row.is_met() {
            Some(false) => "**MISSED**",
            _ => row.verdict(),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {verdict} |",
            row.what,
            row.median(),
            row.range(),
            target.unwrap_or_default()
        );
    }
    text
}

/// A scenario beside zae-limiter: ratio, and both sides' numbers.
fn peer(run: &Run) -> Result<String, String> {
    let mut text = String::from(
        "| | times the calls | calls | p50, p99 | write units a call | requests a call |\n\
         |---|--:|--:|--:|--:|--:|\n",
    );
    for scenario in &SCENARIOS {
        for rival in [Rival::Weirgate, Rival::Prefetched, Rival::Peer] {
            if !scenario.rivals.contains(&rival) {
                continue;
            }
            let id = |name: &str| format!("{}/{}/{name}", rival.part(), scenario.name);
            let (what, ratio) = match rival {
                Rival::Weirgate => {
                    let id = format!("peer/{}/ratio", scenario.name);
                    (format!("**{}**", scenario.what), ranged(run, &id)?)
                }
                Rival::Prefetched => ("prefetched".to_owned(), ranged(run, &id("ratio"))?),
                _ => (rival.name().to_owned(), String::new()),
            };
            let _ = writeln!(
                text,
                "| {what} | {ratio} | {} | {}, {} | {} | {} |",
                ranged(run, &id("calls"))?,
                shown(run, &id("p50"))?,
                shown(run, &id("p99"))?,
                number(run, &id("units"))?,
                number(run, &id("requests"))?,
            );
        }
    }
    Ok(text)
}

/// Calls a second of all, with p50.
fn calls(run: &Run) -> Result<String, String> {
    const ALL: [Rival; 5] = [
        Rival::Governor,
        Rival::Prefetched,
        Rival::Redis,
        Rival::Weirgate,
        Rival::Peer,
    ];
    let heads = ALL.map(Rival::name).join(" | ");
    let mut text = format!("| calls, p50 | {heads} |\n|---|--:|--:|--:|--:|--:|\n");
    for scenario in &SCENARIOS {
        let of = |rival: Rival| {
            if !scenario.rivals.contains(&rival) {
                return Ok("–".to_owned());
            }
            let id = |name: &str| format!("{}/{}/{name}", rival.part(), scenario.name);
            let (calls, p50) = (ranged(run, &id("calls"))?, shown(run, &id("p50"))?);
            Ok::<_, String>(format!("{calls}, {p50}"))
        };
        let cells: Result<Vec<_>, _> = ALL.into_iter().map(of).collect();
        let _ = writeln!(text, "| {} | {} |", scenario.what, cells?.join(" | "));
    }
    Ok(text)
}

/// By how much Weirgate is slower, and why.
fn behind(run: &Run) -> Result<String, String> {
    let beside =
        |rival: Rival, scenario: &str| number(run, &format!("{}/{scenario}/ratio", rival.part()));
    // No row compares these two.
    let calls = |rival: Rival| run.median(&format!("{}/sequential/calls", rival.part()));
    let ahead = calls(Rival::Governor)? / calls(Rival::Prefetched)?;
    let p50 =
        |rival: Rival, scenario: &str| shown(run, &format!("{}/{scenario}/p50", rival.part()));
    Ok(bullets([
        format!(
            "**In memory.** For one caller governor makes {alone} times the calls of Weirgate with its write for each, and {ahead} \
             times those with prefetched tokens: a decision takes it {governor}, prefetched tokens {prefetched}. It compares \
             and swaps a number in the process. Other processes do not see that number, it ends with the process, and \
             usage is not counted. Prefetched tokens are taken from a table that all processes share, and each acquire of them \
             awaits, counts two limits and can be returned.",
            alone = beside(Rival::Governor, "sequential")?,
            ahead = digits(ahead),
            governor = p50(Rival::Governor, "sequential")?,
            prefetched = p50(Rival::Prefetched, "sequential")?,
        ),
        format!(
            "**Redis.** One caller makes {alone} times the calls on Redis ({redis} beside {ours}), 32 callers of 50 buckets {many} \
             times, 32 callers of one bucket {one} times. A script on Redis is one small message to one thread that holds \
             everything in memory, and here it keeps nothing on disk. An acquire is a signed HTTP request with an expression, to a \
             table that is written durably; 32 callers of one bucket share such requests. Both run on this machine: the network of \
             AWS adds to each, and DynamoDB itself takes some milliseconds for a write.",
            alone = beside(Rival::Redis, "sequential")?,
            many = beside(Rival::Redis, "many-buckets")?,
            one = beside(Rival::Redis, "one-bucket")?,
            redis = p50(Rival::Redis, "sequential")?,
            ours = p50(Rival::Weirgate, "sequential")?,
        ),
    ]))
}

fn cost(run: &Run) -> Result<String, String> {
    let mut text = String::from(
        "| a request is | dollars a million | write units | of the aggregator | read units |\n|---|--:|--:|--:|--:|\n",
    );
    for profile in PROFILES {
        let id = |name: &str| format!("cost/{}/{name}", profile.id());
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            profile.what(),
            shown(run, &id("dollars"))?,
            number(run, &id("units"))?,
            number(run, &id("usage-units"))?,
            number(run, &id("read-units"))?,
        );
    }
    Ok(text)
}

fn shards(run: &Run) -> Result<String, String> {
    let mut text = String::from(
        "| shards | times the calls of one | granted | writes applied | writes throttled |\n|--:|--:|--:|--:|--:|\n",
    );
    let one = run.median("shards/1/granted")?;
    for shards in shard_counts() {
        let id = |name: &str| format!("shards/{shards}/{name}");
        let granted = run.median(&id("granted"))?;
        let _ = writeln!(
            text,
            "| {shards} | {} | {} | {} | {} |",
            digits(granted / one),
            shown(run, &id("granted"))?,
            shown(run, &id("writes"))?,
            shown(run, &id("throttled"))?,
        );
    }
    Ok(text)
}
