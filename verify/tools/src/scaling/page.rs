//! The computed parts of `docs/scaling.md`, each between two marks; the prose between the parts is
//! left alone.

use std::fmt::Write;

use super::facts::*;
use super::{Grouped, Numbers, PicoDollars, Scenario, idle, million, users, watching};
use crate::page::{with_parts, wrapped};

/// The rates the tables have a row for.
pub const RATES: [u64; 5] = [1_000, 10_000, 50_000, 100_000, 1_000_000];

/// Returns the page with its computed parts written again.
///
/// # Errors
/// If a part's marks are missing.
pub fn written(page: &str) -> Result<String, String> {
    with_parts(page, &parts())
}

fn parts() -> [(&'static str, String); 8] {
    [
        ("answer", answer()),
        ("alone", rows(Scenario::alone)),
        ("shared", rows(Scenario::shared)),
        ("limits", limits()),
        ("money", money()),
        ("usage", usage()),
        ("small", small()),
        ("low", low()),
    ]
}

fn answer() -> String {
    let mut text = format!(
        "| acquires a second on one key | every caller alone | {ACQUIRES_PER_SHARED_WRITE} acquires share a write | zae-limiter |\n|---|---|---|---|\n"
    );
    for rate in [10_000, 100_000, 1_000_000] {
        let (alone, shared) = (
            Scenario::alone(rate).numbers(),
            Scenario::shared(rate).numbers(),
        );
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} an hour |",
            Grouped(rate),
            in_short(&alone),
            in_short(&shared),
            alone.peer_hour
        );
    }
    text
}

fn low() -> String {
    let mut text = String::from(
        "| acquires/s of a bucket | window of 1 s | 5 s | 60 s |\n|--:|--:|--:|--:|\n",
    );
    for rate in [1, 10, 100] {
        let [one, five, sixty] = [1, 5, 60].map(|window| million(rate, window));
        let _ = writeln!(text, "| {rate} | {one} | {five} | {sixty} |");
    }
    text
}

fn in_short(numbers: &Numbers) -> String {
    if numbers.fits_one_key() {
        format!(
            "{}, {} an hour",
            count(numbers.shards, "shard"),
            numbers.hour.total()
        )
    } else {
        format!(
            "**not on one key**; over {} keys {} an hour",
            numbers.keys,
            numbers.hour.total()
        )
    }
}

fn rows(scenario: fn(u64) -> Scenario) -> String {
    let mut text = String::from(
        "| acquires/s | shards | write units/s | stream records/s | stream shards, calls at once | calls running | an hour | to do |\n\
         |--:|--:|--:|--:|--:|--:|--:|---|\n",
    );
    for rate in RATES {
        let numbers = scenario(rate).numbers();
        let shards = if numbers.fits_one_key() {
            numbers.shards.to_string()
        } else {
            format!(
                "**{} > {MAX_SHARDS}**; {} keys × {}",
                Grouped(numbers.shards_of_one_key),
                numbers.keys,
                numbers.shards
            )
        };
        let _ = writeln!(
            text,
            "| {} | {shards} | {} | {} | {} | {} | {} | {} |",
            Grouped(rate),
            Grouped(numbers.write_units()),
            Grouped(numbers.records),
            Grouped(numbers.calls_at_once()),
            hundredths(numbers.running_milli() / 10),
            numbers.hour.total(),
            to_do(&numbers),
        );
    }
    text
}

fn to_do(numbers: &Numbers) -> String {
    let mut steps = vec![];
    if !numbers.fits_one_key() {
        steps.push(format!(
            "share writes, or divide the limit over {} entities",
            numbers.keys
        ));
    }
    if numbers.write_units() > TABLE_QUOTA_WRITE_UNITS {
        steps.push("raise the table's quota".to_owned());
    }
    if numbers.write_units() > NEW_TABLE_WRITE_UNITS {
        steps.push("warm the table".to_owned());
    }
    if steps.is_empty() {
        "nothing".to_owned()
    } else {
        steps.join("; ")
    }
}

fn limits() -> String {
    let mut text = format!(
        "| limit | writes/s | acquires/s, each caller alone | {ACQUIRES_PER_SHARED_WRITE} acquires a write | what happens, what to do |\n|---|--:|--:|--:|---|\n"
    );
    let (planned, end) = (
        format!("{MAX_SHARDS} shards, as planned"),
        format!("{MAX_SHARDS} shards, at their end"),
    );
    let all: [(&str, u64, &str); 6] = [
        (
            "a shard, as planned",
            SHARD_WRITES,
            "nothing: the rest is headroom for peaks and uneven choices",
        ),
        (
            "a shard, at its end",
            PARTITION_WRITE_UNITS,
            "its writes are throttled; callers retry, and the aggregator splits it",
        ),
        (
            "a new on-demand table",
            NEW_TABLE_WRITE_UNITS,
            "it grows by itself, to twice its former peak within half an hour; `WarmThroughput` makes it at once",
        ),
        (
            "a table's quota",
            TABLE_QUOTA_WRITE_UNITS,
            "Service Quotas raises it on request",
        ),
        (
            &planned,
            MAX_SHARDS * SHARD_WRITES,
            "share writes, or divide the limit over several entities",
        ),
        (
            &end,
            MAX_SHARDS * PARTITION_WRITE_UNITS,
            "the same; there is no more",
        ),
    ];
    for (limit, writes, then) in all {
        let shared = Grouped(writes * ACQUIRES_PER_SHARED_WRITE);
        let _ = writeln!(
            text,
            "| {limit} | {0} | {0} | {shared} | {then} |",
            Grouped(writes)
        );
    }
    text
}

fn usage() -> String {
    let mut text = String::from("| load | write units per acquire |\n|---|--:|\n");
    for (load, milli) in USAGE_LOADS {
        let _ = writeln!(text, "| {load} | {}.{:03} |", milli / 1_000, milli % 1_000);
    }
    text
}

/// Returns what small loads cost in all.
fn small() -> String {
    let mut text =
        String::from("| load | write units an hour | an hour | 730 hours |\n|---|--:|--:|--:|\n");
    let mut row = |load: &str, units: u64, hour: PicoDollars| {
        let _ = writeln!(
            text,
            "| {load} | {} | {hour} | {} |",
            Grouped(units),
            PicoDollars(hour.0 * 730)
        );
    };
    row("nothing: the stack is there", 0, idle());
    for rate in [1, 10, 100] {
        let numbers = Scenario::alone(rate).numbers();
        let units = (rate + numbers.refills) * 3_600 + numbers.usage_units_an_hour;
        let watching = watching(BUSY_METRICS).0;
        row(
            &format!("{rate}/s on one key, every caller alone"),
            units,
            PicoDollars(numbers.hour.total().0 + watching),
        );
    }
    let (units, hour) = users(1_000_000);
    row("a million users, one acquire a minute each", units, hour);
    text
}

fn money() -> String {
    let columns = [
        ("10,000 alone", Scenario::alone(10_000)),
        ("50,000 alone", Scenario::alone(50_000)),
        ("100,000 shared", Scenario::shared(100_000)),
        ("1,000,000 shared", Scenario::shared(1_000_000)),
    ];
    let all = columns.map(|(_, scenario)| scenario.numbers());
    let heads = columns.map(|(head, _)| head).join(" | ");
    let mut text = format!("| dollars an hour | {heads} |\n|---|--:|--:|--:|--:|\n");
    let mut row = |what: &str, of: fn(&Numbers) -> PicoDollars| {
        let _ = writeln!(
            text,
            "| {what} | {} |",
            all.map(|numbers| of(&numbers).to_string()).join(" | ")
        );
    };
    row("acquires: write units", |numbers| numbers.hour.acquires);
    row("usage and refills: write units", |numbers| {
        numbers.hour.usage
    });
    row("stream: reads by Lambda", |numbers| numbers.hour.stream);
    row("aggregator: calls and run time", |numbers| {
        numbers.hour.calls
    });
    row("aggregator: logs", |numbers| numbers.hour.logs);
    row("reconciler, once a minute", |numbers| {
        numbers.hour.reconciler
    });
    row("**all**", |numbers| numbers.hour.total());
    row("*zae-limiter, write units only*", |numbers| {
        numbers.peer_hour
    });
    let _ = write!(
        text,
        "\n{}",
        wrapped(
            &format!(
                "zae-limiter 0.17 was measured at {PEER_ACQUIRE_UNITS} write units an acquire and {PEER_USAGE_UNITS_PER_100} for counting 100 \
             of them, which share no writes. Its functions are not counted, nor whether its indexes would take such rates."
            ),
            ""
        )
    );
    text
}

fn count(number: u64, what: &str) -> String {
    format!(
        "{} {what}{}",
        Grouped(number),
        if number == 1 { "" } else { "s" }
    )
}

fn hundredths(number: u64) -> String {
    format!("{}.{:02}", number / 100, number % 100)
}
