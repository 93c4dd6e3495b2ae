//! Usage as a page: one file without scripts, and nothing that it loads.

use weirgate::{Granularity, MilliTotal, UsageRow};

use super::chart::{self, Series};
use super::{cells, columns, limits};
use crate::instant;

/// Width of a bar and its gap, and height of a chart, in units of the picture.
const WIDTH: usize = 12;
const HEIGHT: i128 = 160;

const HEAD: &str = "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
    <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Usage</title>\n<style>\n\
    :root { color-scheme: light dark }\n\
    body { font: 15px/1.4 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }\n\
    figure { margin: 2rem 0 }\n\
    svg { width: 100%; height: 10rem; fill: light-dark(#1f5fa8, #7db4f0); border-bottom: 1px solid }\n\
    .axis { display: flex; justify-content: space-between }\n\
    .scroll { overflow-x: auto }\n\
    th, td { text-align: left; padding: .2rem 1.2rem .2rem 0; white-space: nowrap }\n\
    .n { text-align: right; font-variant-numeric: tabular-nums }\n\
    </style>\n<h1>Usage</h1>\n";

/// Returns the page: a chart of each limit over all buckets, and a table of all rows.
pub fn of(rows: &[UsageRow], granularity: Granularity) -> String {
    let charts: String = chart::series(rows, granularity).iter().map(figure).collect();
    format!("{HEAD}{charts}{}</html>\n", table(rows))
}

fn figure(series: &Series<'_>) -> String {
    let Series { limit, points } = series;
    let most = points.iter().map(|(_, amount)| *amount).max();
    let most = most.unwrap_or_default().max(MilliTotal(1));
    let bar = |(at, (label, amount)): (usize, &(String, MilliTotal))| {
        let height = amount.0.max(0).saturating_mul(HEIGHT) / most.0;
        format!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{height}\"><title>{label}: {amount}</title></rect>\n",
            at * WIDTH,
            HEIGHT - height,
            WIDTH - 2,
        )
    };
    let bars: String = points.iter().enumerate().map(bar).collect();
    let [first, last] =
        [points.first(), points.last()].map(|point| point.map_or("", |(label, _)| label.as_str()));
    format!(
        "<figure>\n<figcaption>{limit}: at most {most} in one interval</figcaption>\n\
         <svg viewBox=\"0 0 {} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{limit}, the numbers are in the table\">\n\
         {bars}</svg>\n<div class=\"axis\"><span>{first}</span><span>{last}</span></div>\n</figure>\n",
        points.len() * WIDTH,
        limit = escaped(limit.as_str()),
    )
}

fn table(rows: &[UsageRow]) -> String {
    let limits = limits(rows.iter().map(|row| &row.usage));
    let names = columns(&limits);
    let numbers = names.iter().map(|name| cell("th", "n", name));
    let head = ["entity", "resource", "from", "state"].map(|name| cell("th", "", name));
    let head: String = head.into_iter().chain(numbers).collect();
    let line = |row: &UsageRow| {
        let state = row.state.to_string();
        let start = instant::text(row.start);
        let texts = [row.entity.as_str(), row.resource.as_str(), &start, &state];
        let texts = texts.map(|text| cell("td", "", text));
        let numbers = cells(&row.usage, &limits);
        let numbers = numbers.iter().map(|number| cell("td", "n", number));
        let line: String = texts.into_iter().chain(numbers).collect();
        format!("<tr>{line}</tr>\n")
    };
    let lines: String = rows.iter().map(line).collect();
    format!(
        "<div class=\"scroll\" tabindex=\"0\">\n<table>\n<tr>{head}</tr>\n{lines}</table>\n</div>\n"
    )
}

fn cell(element: &str, class: &str, text: &str) -> String {
    let class = match class {
        "" => String::new(),
        class => format!(" class=\"{class}\""),
    };
    format!("<{element}{class}>{}</{element}>", escaped(text))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_end_their_element() {
        assert_eq!(cell("td", "", "a<b&\"c"), "<td>a&lt;b&amp;&quot;c</td>");
    }
}
