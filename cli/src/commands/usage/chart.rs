//! Usage as bars in a terminal.

use std::collections::BTreeMap;

use weirgate::{EpochMillis, Granularity, LimitName, MilliTotal, UsageRow};

use crate::instant;

/// Width of the longest bar, in characters.
const WIDTH: i128 = 48;
/// Bars that end within a character, by eighths.
const EIGHTHS: [&str; 8] =
    ["", "\u{258f}", "\u{258e}", "\u{258d}", "\u{258c}", "\u{258b}", "\u{258a}", "\u{2589}"];

/// Usage of a limit over all buckets: label and amount of every interval of the range.
pub struct Series<'a> {
    pub limit: &'a LimitName,
    pub points: Vec<(String, MilliTotal)>,
}

/// Draws a chart of each limit: one bar for each interval, over all buckets.
pub fn of(rows: &[UsageRow], granularity: Granularity) -> String {
    let chart = |Series { limit, points }: Series<'_>| {
        let most = points.iter().map(|(_, amount)| *amount).max();
        let most = most.unwrap_or_default().max(MilliTotal(1));
        let line = |(label, amount): &(String, MilliTotal)| {
            format!("{label}  {} {amount}\n", bar(*amount, most))
        };
        format!("{limit}\n") + &points.iter().map(line).collect::<String>()
    };
    let charts = series(rows, granularity).into_iter().map(chart);
    charts.collect::<Vec<_>>().join("\n")
}

/// Returns the usage of each limit, in the order of their names. Intervals without usage have 0.
pub fn series(rows: &[UsageRow], granularity: Granularity) -> Vec<Series<'_>> {
    let mut by_limit: BTreeMap<&LimitName, BTreeMap<EpochMillis, MilliTotal>> = BTreeMap::new();
    for row in rows {
        for (limit, amount) in &row.usage.tokens {
            let at = by_limit.entry(limit).or_default().entry(row.start).or_default();
            *at += *amount;
        }
    }
    let first = rows.iter().map(|row| row.start).min();
    let last = rows.iter().map(|row| row.end).max().unwrap_or_default();
    let starts = std::iter::successors(first, |start| Some(granularity.end(*start)));
    let starts: Vec<_> = starts.take_while(|start| *start < last).collect();
    let series = by_limit.into_iter().map(|(limit, amounts)| Series {
        limit,
        points: starts
            .iter()
            .map(|start| {
                let amount = amounts.get(start).copied().unwrap_or_default();
                (label(*start, granularity), amount)
            })
            .collect(),
    });
    series.collect()
}

/// Returns a bar whose length is to [`WIDTH`] as `amount` is to `most`.
fn bar(amount: MilliTotal, most: MilliTotal) -> String {
    let eighths = amount.0.max(0).saturating_mul(WIDTH * 8) / most.0;
    let eighths = usize::try_from(eighths).unwrap_or_default();
    "\u{2588}".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// Returns the label of an interval: its date, with the hour or without the day.
fn label(start: EpochMillis, granularity: Granularity) -> String {
    let text = instant::text(start);
    let length = match granularity {
        Granularity::Hourly => "2026-11-23T10:00".len(),
        Granularity::Monthly => "2026-11".len(),
        _ => "2026-11-23".len(),
    };
    text[..length.min(text.len())].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_part_of_the_most() {
        let most = MilliTotal(4_800);
        assert_eq!(bar(most, most).chars().count(), 48);
        assert_eq!(bar(MilliTotal(2_450), most), "\u{2588}".repeat(24) + "\u{258c}");
        assert_eq!(bar(MilliTotal(-5), most), "");
    }
}
