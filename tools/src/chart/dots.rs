//! Numbers with their ranges on a logarithmic axis, one line each.

use super::{Axis, Svg, powers_of_ten, whole};
use crate::number::count;

/// A chart.
#[derive(Debug)]
pub struct Dots<'a> {
    /// Title.
    pub title: &'a str,
    /// What the numbers are.
    pub subtitle: &'a str,
    /// How a number of the axis is shown.
    pub tick: fn(f64) -> String,
    /// The lines, in order.
    pub lines: Vec<Line>,
}

/// A line of a chart.
#[derive(Debug)]
pub struct Line {
    /// A heading above it, where a group begins.
    pub group: Option<String>,
    /// What was measured.
    pub label: String,
    /// Its colour: `alone`, `shared`, `peer` or `most`.
    pub class: &'static str,
    /// The smallest number.
    pub low: f64,
    /// The median.
    pub median: f64,
    /// The largest number.
    pub high: f64,
    /// The median, as it is written beside the line.
    pub text: String,
    /// What must be reached, if anything.
    pub target: Option<f64>,
}

const WIDTH: u64 = 960;
const LEFT: u64 = 300;
const RIGHT: u64 = 820;
const TOP: u64 = 84;
const LINE: u64 = 26;
const GROUP: u64 = 30;
const BOTTOM: u64 = 44;

/// Returns the chart as SVG.
#[must_use]
pub fn drawn(dots: &Dots<'_>) -> String {
    let groups = dots
        .lines
        .iter()
        .filter(|line| line.group.is_some())
        .count();
    let rows = length(dots.lines.len()) * LINE + length(groups) * GROUP;
    let mut svg = Svg::begin(WIDTH, TOP + rows + BOTTOM, dots.title);
    svg.text(whole(24), whole(38), "head", dots.title);
    svg.text(whole(24), whole(59), "soft", dots.subtitle);
    let axis = axis(&dots.lines);
    for tick in powers_of_ten(axis.least, axis.most) {
        let x = axis.place(tick);
        svg.line(x, whole(TOP - 8), x, whole(TOP + rows), "grid");
        let shown = (dots.tick)(millionths(tick));
        svg.text(x, whole(TOP + rows + 20), "soft mid", &shown);
    }
    let mut y = TOP;
    for line in &dots.lines {
        if let Some(group) = &line.group {
            y += GROUP;
            svg.text(whole(24), whole(y - 8), "name", group);
        }
        drawn_line(&mut svg, &axis, line, y);
        y += LINE;
    }
    svg.end()
}

fn drawn_line(svg: &mut Svg, axis: &Axis, line: &Line, y: u64) {
    let (middle, class) = (whole(y + LINE / 2), line.class);
    svg.text(whole(LEFT - 16), middle.moved(4), "end", &line.label);
    let [low, median, high] =
        [line.low, line.median, line.high].map(|value| axis.place(in_millionths(value)));
    svg.path(
        [(low, middle), (high, middle)].into_iter(),
        &format!("line {class}"),
    );
    svg.dot(median, middle, &format!("{class}-fill"));
    if let Some(target) = line.target {
        let x = axis.place(in_millionths(target));
        svg.line(x, whole(y + 3), x, whole(y + LINE - 3), "mark");
    }
    let right = high.moved(12);
    svg.text(
        right,
        middle.moved(4),
        &format!("value {class}-fill"),
        &line.text,
    );
}

/// Powers of ten around all numbers.
fn axis(lines: &[Line]) -> Axis {
    let numbers = lines.iter().flat_map(|line| {
        let target = line.target.unwrap_or(line.median);
        [line.low, line.high, target].map(in_millionths)
    });
    let (mut least, mut most) = (u64::MAX, 1);
    for number in numbers {
        (least, most) = (least.min(number.max(1)), most.max(number));
    }
    let below = powers_of_ten(1, least).last().unwrap_or(1);
    let above = powers_of_ten(below, u64::MAX).find(|power| *power >= most && *power > below);
    Axis {
        least: below,
        most: above.unwrap_or(u64::MAX),
        at_least: LEFT,
        at_most: RIGHT,
    }
}

/// A number in millionths, rounded, so that nothing after it depends on how floats are added.
fn in_millionths(value: f64) -> u64 {
    format!("{:.0}", value * 1e6).parse().unwrap_or_default()
}

fn millionths(value: u64) -> f64 {
    count(value) / 1e6
}

fn length(of: usize) -> u64 {
    u64::try_from(of).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(low: f64, high: f64) -> Line {
        Line {
            group: None,
            label: "any".to_owned(),
            class: "alone",
            low,
            median: low,
            high,
            text: "any".to_owned(),
            target: Some(20.0),
        }
    }

    #[test]
    fn the_axis_holds_all_numbers_and_targets() {
        let axis = axis(&[line(0.4, 0.5), line(2.0, 3.0)]);
        assert_eq!((axis.least, axis.most), (100_000, 100_000_000));
        let one = super::axis(&[line(20.0, 20.0)]);
        assert_eq!((one.least, one.most), (10_000_000, 100_000_000));
    }

    #[test]
    fn a_chart_has_a_line_for_each_number() {
        let mut lines = vec![line(1.0, 2.0), line(30.0, 40.0)];
        lines[1].group = Some("others".to_owned());
        let drawn = drawn(&Dots {
            title: "Title",
            subtitle: "Subtitle",
            tick: |value| format!("{value} times"),
            lines,
        });
        assert_eq!(drawn.matches("<circle").count(), 2);
        assert!(drawn.contains(">others<") && drawn.contains(">10 times<"));
        assert!(drawn.contains("prefers-color-scheme:dark"));
    }
}
