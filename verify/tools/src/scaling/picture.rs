//! `docs/scaling.svg`: dollars an hour and shards over acquires a second, both axes logarithmic.
//! Integers only, so that it is the same to the byte on every machine.

use super::facts::*;
use super::{Grouped, Numbers, PicoDollars, Scenario};
use crate::chart::{Axis, Svg, powers_of_ten, whole};

const WIDTH: u64 = 960;
const HEIGHT: u64 = 700;
const LEFT: u64 = 84;
const RIGHT: u64 = 780;
const MONEY: Axis = Axis {
    least: 10_000_000_000,
    most: 100_000_000_000_000_000,
    at_least: 404,
    at_most: 124,
};
const SHARDS: Axis = Axis {
    least: 1,
    most: MAX_SHARDS,
    at_least: 630,
    at_most: 468,
};
const RATE: Axis = Axis {
    least: 100,
    most: 1_000_000,
    at_least: LEFT,
    at_most: RIGHT,
};
/// Rates whose dollars are written beside the lines.
const SHOWN: [u64; 2] = [10_000, 100_000];

/// The picture.
#[must_use]
pub fn drawn() -> String {
    let title = "Dollars an hour and shards of one key, from 100 to 1,000,000 acquires a second";
    let mut svg = Svg::begin(WIDTH, HEIGHT, title);
    svg.text(
        whole(LEFT),
        whole(38),
        "head",
        "What one key costs, and how many shards it has",
    );
    let prices = "us-east-1, on demand. Dotted: more than one key can do, parted over several.";
    svg.text(whole(LEFT), whole(59), "soft", prices);
    frame(&mut svg);
    marks(&mut svg);
    money(&mut svg);
    shards(&mut svg);
    svg.end()
}

/// Grid, and what the axes say.
fn frame(svg: &mut Svg) {
    for rate in powers_of_ten(RATE.least, RATE.most) {
        let x = RATE.place(rate);
        svg.line(x, whole(MONEY.at_most), x, whole(MONEY.at_least), "grid");
        svg.line(x, whole(SHARDS.at_most), x, whole(SHARDS.at_least), "grid");
        svg.text(
            x,
            whole(SHARDS.at_least + 20),
            "soft mid",
            &Grouped(rate).to_string(),
        );
    }
    for money in powers_of_ten(MONEY.least, MONEY.most) {
        let (y, shown) = (MONEY.place(money), PicoDollars(money).to_string());
        svg.line(whole(LEFT), y, whole(RIGHT), y, "grid");
        let shown = if money < 1_000_000_000_000 {
            &shown[..shown.len() - 1]
        } else {
            shown.trim_end_matches(".00")
        };
        svg.text(whole(LEFT - 8), y.moved(4), "soft end", shown);
    }
    for doubling in 0..=MAX_SHARDS.ilog2() {
        let y = SHARDS.place(1 << doubling);
        svg.line(whole(LEFT), y, whole(RIGHT), y, "grid");
        svg.text(
            whole(LEFT - 8),
            y.moved(4),
            "soft end",
            &(1_u64 << doubling).to_string(),
        );
    }
    svg.text(
        whole(LEFT),
        whole(MONEY.at_most - 14),
        "name",
        "dollars an hour",
    );
    svg.text(whole(LEFT), whole(SHARDS.at_most - 14), "name", "shards");
    svg.text(
        whole((LEFT + RIGHT) / 2),
        whole(SHARDS.at_least + 44),
        "name mid",
        "acquires a second on one key",
    );
}

/// What no caller alone gets past.
fn marks(svg: &mut Svg) {
    let planned = MAX_SHARDS * SHARD_WRITES;
    for (rate, label) in [
        (
            PARTITION_WRITE_UNITS,
            format!("one partition: {}/s", Grouped(PARTITION_WRITE_UNITS)),
        ),
        (
            planned,
            format!("{MAX_SHARDS} shards: {}/s", Grouped(planned)),
        ),
    ] {
        let x = RATE.place(rate);
        svg.line(
            x,
            whole(MONEY.at_most - 18),
            x,
            whole(MONEY.at_least),
            "mark",
        );
        svg.line(x, whole(SHARDS.at_most), x, whole(SHARDS.at_least), "mark");
        svg.text(
            x.moved(7),
            whole(MONEY.at_most - 8),
            "value alone-fill",
            &label,
        );
    }
}

fn money(svg: &mut Svg) {
    type Of = fn(&Numbers) -> PicoDollars;
    type Line<'a> = (&'a str, &'a str, fn(u64) -> Scenario, Of);
    let (ours, peers): (Of, Of) = (|numbers| numbers.hour.total(), |numbers| numbers.peer_hour);
    let shared = format!("{ACQUIRES_PER_SHARED_WRITE} acquires a write");
    let lines: [Line<'_>; 3] = [
        ("peer", "zae-limiter", Scenario::alone, peers),
        ("alone", "every caller alone", Scenario::alone, ours),
        ("shared", &shared, Scenario::shared, ours),
    ];
    for (class, name, scenario, of) in lines {
        let at = |rate: u64| {
            (
                RATE.place(rate),
                MONEY.place(of(&scenario(rate).numbers()).0),
            )
        };
        let one_key_to = if class == "alone" {
            MAX_SHARDS * SHARD_WRITES
        } else {
            RATE.most
        };
        let (one_key, several): (Vec<_>, Vec<_>) =
            rates().into_iter().partition(|rate| *rate <= one_key_to);
        svg.path(
            one_key.iter().copied().chain([one_key_to]).map(at),
            &format!("line {class}"),
        );
        if !several.is_empty() {
            svg.path(
                [one_key_to].into_iter().chain(several).map(at),
                &format!("line {class} over"),
            );
        }
        for rate in SHOWN {
            let (x, y) = at(rate);
            svg.dot(x, y, &format!("{class}-fill"));
            let value = of(&scenario(rate).numbers()).to_string();
            svg.text(
                x.moved(8),
                y.moved(16),
                &format!("value {class}-fill"),
                &value,
            );
        }
        let (x, y) = at(RATE.most);
        let last = scenario(RATE.most).numbers();
        svg.dot(x, y, &format!("{class}-fill"));
        svg.text(
            x.moved(12),
            y.moved(-2),
            &format!("name {class}-fill"),
            name,
        );
        let over = if class == "alone" && !last.fits_one_key() {
            format!(", {} keys", last.keys)
        } else {
            String::new()
        };
        svg.text(
            x.moved(12),
            y.moved(14),
            &format!("value {class}-fill"),
            &format!("{}{over}", of(&last)),
        );
    }
}

fn shards(svg: &mut Svg) {
    let top = SHARDS.place(MAX_SHARDS);
    svg.line(whole(LEFT), top, whole(RIGHT), top, "most");
    svg.text(
        whole(RIGHT + 12),
        top.moved(4),
        "name most-fill",
        &format!("no more than {MAX_SHARDS}"),
    );
    for (class, name, per_write) in [
        ("alone", "alone", 1),
        ("shared", "shared", ACQUIRES_PER_SHARED_WRITE),
    ] {
        let mut corners = vec![(RATE.place(RATE.least), SHARDS.place(1))];
        let mut end = RATE.place(RATE.most);
        for doubling in 0..=MAX_SHARDS.ilog2() {
            // Up to here the shards so far are enough.
            let rate = (SHARD_WRITES * per_write) << doubling;
            let y = SHARDS.place(1 << doubling);
            if rate >= RATE.most {
                break;
            }
            corners.push((RATE.place(rate), y));
            if 1 << doubling == MAX_SHARDS {
                end = RATE.place(rate);
            } else {
                corners.push((RATE.place(rate), SHARDS.place(2 << doubling)));
            }
        }
        let last = corners.last().map_or(top, |(_, y)| *y);
        corners.push((end, last));
        svg.path(corners.iter().copied(), &format!("line {class}"));
        svg.dot(end, last, &format!("{class}-fill"));
        let (x, y) = corners[corners.len() / 2];
        svg.text(
            x.moved(-10),
            y.moved(-8),
            &format!("name end {class}-fill"),
            name,
        );
    }
}

/// Rates to draw lines through, 24 for each power of ten.
fn rates() -> Vec<u64> {
    const OF_A_DECADE: [u64; 24] = [
        100, 110, 120, 130, 150, 160, 180, 200, 220, 240, 270, 300, 330, 360, 390, 430, 470, 510,
        560, 620, 680, 750, 820, 910,
    ];
    let mut rates: Vec<_> = powers_of_ten(RATE.least, RATE.most / 10)
        .flat_map(|power| OF_A_DECADE.map(|hundredths| hundredths * power / 100))
        .collect();
    rates.push(RATE.most);
    rates
}
