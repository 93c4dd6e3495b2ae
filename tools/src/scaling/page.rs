//! The computed parts of `docs/scaling.md`, each between two marks; the prose between the parts is
//! left alone.

use std::fmt::Write;

use super::facts::*;
use super::{
    Grouped, Numbers, PicoDollars, Scenario, call_ms, final_units, function_records, idle, million,
    readable_records, snapshot_units, usage_units_an_hour, users, watching,
};

/// The rates the tables have a row for.
pub const RATES: [u64; 5] = [1_000, 10_000, 50_000, 100_000, 1_000_000];

/// Returns the page with its computed parts written again.
///
/// # Errors
/// If a part's marks are missing.
pub fn written(page: &str) -> Result<String, String> {
    filled(page, &parts())
}

/// Returns a page with these parts between their marks.
///
/// # Errors
/// If a part's marks are missing.
pub fn filled(page: &str, parts: &[(&str, String)]) -> Result<String, String> {
    let mut page = page.to_owned();
    for (name, text) in parts {
        let (begin, end) = (
            format!("<!-- computed: {name} -->\n"),
            format!("<!-- end: {name} -->"),
        );
        let from = page
            .find(&begin)
            .ok_or_else(|| format!("the page has no line {:?}", begin.trim_end()))?
            + begin.len();
        let length = page[from..]
            .find(&end)
            .ok_or_else(|| format!("the page has no line {end:?}"))?;
        page.replace_range(from..from + length, text);
    }
    Ok(page)
}

fn parts() -> [(&'static str, String); 11] {
    [
        ("answer", answer()),
        ("alone", rows(Scenario::alone)),
        ("shared", rows(Scenario::shared)),
        ("sharing", sharing()),
        ("limits", limits()),
        ("shards", splitting()),
        ("aggregator", aggregator()),
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
            "nothing: what is left is for crests, and for uneven choices",
        ),
        (
            "a shard, at its end",
            PARTITION_WRITE_UNITS,
            "its writes are throttled; callers try again and ask for the split, which the aggregator makes",
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

fn sharing() -> String {
    let rate = 1_000_000;
    let one_a_write = 1_000 / WRITE_MS;
    let of_a_process = ACQUIRES_PER_SHARED_WRITE * one_a_write;
    bullets([
        format!(
            "A write carries what comes to one process, for one shard, while the write before is under way. With {WRITE_MS} ms for \
             a write, {ACQUIRES_PER_SHARED_WRITE} acquires a write are {busy} acquires a second in one process for one shard; {rate} \
             acquires a second then come from at most {processes} such processes.",
            busy = Grouped(of_a_process),
            rate = Grouped(rate),
            processes = Grouped(rate.div_ceil(of_a_process)),
        ),
        format!(
            "Sharing needs concurrency: a process with {one_a_write} acquires a second or fewer shares nothing, and one that spreads its \
             callers over n tables or entities needs n times as many for the same effect. Of one bucket's shards a process \
             keeps to one while it has writes under way there, so shards do not thin out the sharing."
        ),
    ])
}

fn splitting() -> String {
    let hot = PARTITION_WRITE_UNITS - SHARD_WRITES;
    let (doublings, splits) = (MAX_SHARDS.ilog2(), MAX_SHARDS - 1);
    bullets([
        format!(
            "Shards needed: the least power of two that is at least writes a second ÷ {SHARD_WRITES}. A shard splits when \
             DynamoDB throttles it, at {thousand} a second, or before that when it is let burst and its write-unit balance falls \
             below {HOT_BELOW_PERCENT} %, that is {hot}. Planned with {SHARD_WRITES}, a fifth is left for crests; a load just below \
             {thousand} a shard rests at half as many shards, until it is throttled.",
            thousand = Grouped(PARTITION_WRITE_UNITS),
        ),
        format!(
            "{MAX_SHARDS} is the end: a request can ask for all shards in one transaction (`in_one_transaction`), a transaction \
             takes {TRANSACTION_ITEMS} items, and {MAX_SHARDS} is the largest power of two in it.",
        ),
        format!(
            "From 1 to {MAX_SHARDS} shards are {doublings} doublings, {splits} splits of {SPLIT_UNITS} write units and \
             {SPLIT_INDEX_UNITS} of indexes, {units} in all with the entry of shard 0 in `DueIndex`. Each doubling is seen in a batch of the stream first, so the whole way takes {doublings} batches or more.",
            units = splits * (SPLIT_UNITS + SPLIT_INDEX_UNITS) + FIRST_SPLIT_INDEX_UNITS,
        ),
    ])
}

fn aggregator() -> String {
    let records = SHARD_WRITES + 1;
    let took = call_ms(records);
    bullets([
        format!(
            "A stream shard brings at most {records} records a second ({SHARD_WRITES} acquires and a refill), {kb} KB. Lambda reads it \
             {STREAM_READS} times a second, 1 MB at most, which would be {readable} records. DynamoDB does not charge Lambda for \
             these reads.",
            kb = Grouped((records * RECORD_BYTES).div_ceil(1_024)),
            readable = Grouped(readable_records()),
        ),
        format!(
            "With a window of {BATCH_WINDOW_SECONDS} s that is one call a second and stream shard. {MEMORY_MB} MB are {share} % of a vCPU, \
             and read {function} records a second if a vCPU is half of the desktop core that was measured. The call takes {took} ms, \
             so the one call that a stream shard may have runs for {busy} % of the time.",
            share = MEMORY_MB * 100 / VCPU_MB,
            function = Grouped(function_records()),
            busy = took.div_ceil(10),
        ),
        format!(
            "A call refills its bucket shard at most once. It copies the shard's usage to {WINDOWS} snapshots when the hour ends, and \
             once in {interim} writes before that, every {seconds} seconds at {writes} writes a second. A snapshot keeps about \
             {SNAPSHOT_BYTES_PER_SHARD} bytes for each shard of two limits: a write of it costs {one} unit up to {upto} shards, {last} at \
             {MAX_SHARDS}. All snapshots of one entity lie in one partition: of the {thousand} write units a second that it takes, {usage} \
             at {MAX_SHARDS} busy shards within the hour, and {ends} within the {ROLL_SECONDS} seconds or so in which the processes end it.",
            interim = Grouped(INTERIM_WRITES),
            seconds = INTERIM_WRITES.div_ceil(SHARD_WRITES),
            writes = SHARD_WRITES,
            one = snapshot_units(1),
            upto = largest_with(snapshot_units(1)),
            last = snapshot_units(MAX_SHARDS),
            usage = usage_units_an_hour(MAX_SHARDS, SHARD_WRITES).div_ceil(3_600),
            ends = final_units(MAX_SHARDS),
            thousand = Grouped(PARTITION_WRITE_UNITS),
        ),
        format!(
            "Calls at once are stream shards times the parallelization factor ({PARALLELIZATION}): at most {most} for one key, of the \
             {account} that all functions of an account have by default. New accounts have fewer.",
            most = MAX_SHARDS * PARALLELIZATION,
            account = Grouped(ACCOUNT_CALLS),
        ),
    ])
}

/// The largest shard count at which a snapshot's write costs no more than so many units.
fn largest_with(units: u64) -> u64 {
    (0..=MAX_SHARDS.ilog2())
        .map(|k| 1 << k)
        .filter(|shards| snapshot_units(*shards) <= units)
        .max()
        .unwrap_or(1)
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

fn bullets<const N: usize>(texts: [String; N]) -> String {
    texts
        .iter()
        .map(|text| wrapped(&format!("- {text}"), "  "))
        .collect()
}

/// Lines of at most 120 characters, each but the first behind an indent.
fn wrapped(text: &str, indent: &str) -> String {
    let (mut lines, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > 120 {
            let _ = write!(lines, "\n{indent}");
            width = indent.len();
        } else if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines.push('\n');
    lines
}
