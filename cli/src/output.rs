//! Results: tables for terminals, JSON for programs.

use std::fmt;

use clap::ColorChoice;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Width, presets};
use serde::Serialize;

use crate::progress::Progress;
use crate::streams;
use crate::text::{self, Text};

/// Why a result is not on standard output.
#[derive(Debug)]
pub struct Unwritten(String);

impl fmt::Display for Unwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<std::io::Error> for Unwritten {
    fn from(error: std::io::Error) -> Self {
        Self(format!("standard output cannot be written: {error}"))
    }
}

impl From<serde_json::Error> for Unwritten {
    fn from(error: serde_json::Error) -> Self {
        Self(format!("the result has no JSON: {error}"))
    }
}

/// Where results go.
#[derive(Debug)]
pub struct Output {
    is_json: bool,
    /// Columns of the terminal, if there is one.
    width: Option<u16>,
}

impl Output {
    /// Returns the output of this process. Colours are chosen for the whole process.
    pub fn new(is_json: bool, color: ColorChoice) -> Self {
        match color {
            ColorChoice::Auto => anstream::ColorChoice::Auto,
            ColorChoice::Always => anstream::ColorChoice::Always,
            ColorChoice::Never => anstream::ColorChoice::Never,
        }
        .write_global();
        let is_terminal = streams::is_stdout_terminal();
        let width = is_terminal.then(terminal_size::terminal_size).flatten();
        Self { is_json, width: width.map(|(width, _)| width.0) }
    }

    /// Returns whether results are JSON.
    pub const fn is_json(&self) -> bool {
        self.is_json
    }

    /// Prints a result: as JSON if that was requested, otherwise as `text` shows it.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn print<T: Serialize, S: Into<Text>>(
        &self,
        value: &T,
        text: impl FnOnce(&T) -> S,
    ) -> Result<(), Unwritten> {
        if !self.is_json {
            return self.print_text(text(value));
        }
        let json = match self.width {
            Some(_) => serde_json::to_string_pretty(value),
            None => serde_json::to_string(value),
        };
        Ok(streams::to_stdout(&(text::json(&json?) + "\n"))?)
    }

    /// As [`print`](Self::print), to standard error.
    ///
    /// # Errors
    /// If the value has no JSON.
    pub fn warn<T: Serialize, S: Into<Text>>(
        &self,
        value: &T,
        text: impl FnOnce(&T) -> S,
    ) -> Result<(), Unwritten> {
        if !self.is_json {
            streams::warn(text(value));
            return Ok(());
        }
        streams::warn_json(&serde_json::to_value(value)?);
        Ok(())
    }

    /// Prints text, in every format.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn print_text(&self, text: impl Into<Text>) -> Result<(), Unwritten> {
        Ok(self.write_text(text)?)
    }

    /// As [`print_text`](Self::print_text).
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn write_text(&self, text: impl Into<Text>) -> std::io::Result<()> {
        streams::to_stdout(&text.into().terminal_lines())
    }

    /// Returns whether lines about the progress are read: results are text, and standard error is a
    /// terminal.
    pub fn is_watched(&self) -> bool {
        !self.is_json && streams::is_stderr_terminal()
    }

    /// Begins a line that shows how far the work is.
    pub fn progress(&self) -> Progress {
        Progress::new(self.is_watched())
    }

    /// Prints a remark for people to standard error, unless results are JSON.
    pub fn note(&self, text: impl Into<Text>) {
        if !self.is_json {
            streams::warn(text);
        }
    }

    /// Returns a table as text. Columns whose name begins with `#` hold numbers, and are aligned to
    /// the right. Without a terminal, rows are as wide as their content. A cell stays on its line. On a
    /// terminal that is too narrow for the words of all columns, each row is a record: a line or more for
    /// each column.
    pub fn table(&self, columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
        let rows: Vec<_> = rows.into_iter().collect();
        let header = header(columns);
        let is_wide = |width: u16| {
            let all = rows.iter().chain([&header]);
            let widths = columns.iter().enumerate().map(|(at, _)| {
                let cells = all.clone().filter_map(|row| row.get(at));
                usize::from(cells.map(|cell| least_width(cell)).max().unwrap_or_default())
            });
            widths.sum::<usize>() <= usize::from(width) + usize::from(GAP)
        };
        if self.width.is_none_or(is_wide) {
            return self.aligned(columns, rows);
        }
        let records = rows.into_iter().map(|row| {
            let fields = header.iter().zip(row);
            let fields = fields.map(|(name, cell)| vec![name.trim().to_owned(), cell]);
            self.aligned(&[], fields.collect())
        });
        records.collect::<Vec<_>>().join("\n\n")
    }

    fn aligned(&self, columns: &[&str], rows: Vec<Vec<String>>) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        if let Some(width) = self.width {
            table.set_content_arrangement(ContentArrangement::Dynamic);
            table.set_width(width);
        }
        let header = header(columns);
        let mut widths: Vec<_> = header.iter().map(|cell| least_width(cell)).collect();
        if !header.is_empty() {
            table.set_header(header);
        }
        for row in rows {
            let cells: Vec<_> = row.iter().map(|cell| text::one_line(cell)).collect();
            widths.resize(widths.len().max(cells.len()), GAP);
            for (width, cell) in widths.iter_mut().zip(&cells) {
                *width = least_width(cell).max(*width);
            }
            table.add_row(cells);
        }
        for (at, (column, width)) in table.column_iter_mut().zip(widths).enumerate() {
            column.set_padding((0, GAP));
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width)));
            if columns.get(at).is_some_and(|name| name.starts_with('#')) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.trim_fmt()
    }
}

/// Columns between two of a table.
const GAP: u16 = 2;

/// Returns the first row of a table.
fn header(columns: &[&str]) -> Vec<String> {
    let names = columns.iter();
    let names = names.map(|name| text::one_line(&name.trim_start_matches('#').to_uppercase()));
    names.collect()
}

/// Returns the width that a column needs so that no word of a cell breaks. An instant has 20 characters;
/// longer words may break.
fn least_width(cell: &str) -> u16 {
    let word = cell.split(' ').map(|word| word.chars().count()).max();
    u16::try_from(word.unwrap_or_default().min(20)).unwrap_or(20) + GAP
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns of tables with a cell of each.
    const TABLES: [&[(&str, &str)]; 6] = [
        &[
            ("of", "customer-4711-production-eu"),
            ("limit", "tpm"),
            ("#available", "123456789"),
            ("#capacity", "1000000000"),
            ("refill", "resets on 15 Dec 09:00 (Berlin)"),
            ("mode", "enforced"),
            ("wait", "paused, 30s"),
            ("saturation", "100% in 59m59s"),
            ("from", "entity customer-4711-production-eu on resource gpt-4"),
        ],
        &[
            ("outcome", "never fits"),
            ("#acquires", "12345"),
            ("#per s", "123.4"),
            ("#p50 ms", "1234.56"),
            ("#p90 ms", "1234.56"),
            ("#p99 ms", "1234.56"),
            ("#p99.9 ms", "1234.56"),
            ("#max ms", "1234.56"),
        ],
        &[
            ("lease", "01M7XPF39G0000000000000001"),
            ("tokens", "slots 1  tpm 1000"),
            ("expires", "2026-11-23T10:00:00Z"),
            ("owner", "alice@example.com"),
            ("#shard", "0"),
        ],
        &[
            ("namespace", "default"),
            ("entity", "customer-4711"),
            ("resource", "gpt-4"),
            ("#shard", "128"),
            ("due since", "2026-11-23T10:00:00Z"),
            ("would", "end 3 expired leases (slots 1), finish 1 splits"),
        ],
        &[
            ("cannot be read", "default/BUCKET#user-2#gpt-4#0 #STATE"),
            ("entity", "user-2"),
            ("resource", "gpt-4"),
            ("#shard", "0"),
            ("reason", "attribute h must be a map; correct or delete the item"),
        ],
        &[("next: because", "rpm of e is used up"), ("run", "weirgate usage --entity e")],
    ];

    #[test]
    fn no_line_is_wider_than_the_terminal_and_no_word_of_a_header_breaks() {
        for table in TABLES {
            let columns: Vec<_> = table.iter().map(|(name, _)| *name).collect();
            let row = || table.iter().map(|(_, cell)| (*cell).to_owned()).collect();
            for width in 40..=120 {
                let output = Output { is_json: false, width: Some(width) };
                let text = output.table(&columns, [row(), row()]);
                for line in text.lines() {
                    let length = line.chars().count();
                    assert!(length <= usize::from(width), "{width}: {length}\n{text}");
                }
                let words: Vec<_> = text.split_whitespace().collect();
                let names = header(&columns);
                let mut named = names.iter().flat_map(|name| name.split_whitespace());
                let broken = named.find(|name| !words.contains(name));
                assert_eq!(broken, None, "{width}:\n{text}");
            }
        }
    }

    #[test]
    fn an_instant_stays_on_its_line_in_a_narrow_terminal() {
        let at = "2026-11-23T10:00:00Z";
        let row = || vec![at.to_owned(), "word ".repeat(40), "500/minute".to_owned()];
        for width in [20, 40, 50, 80] {
            let output = Output { is_json: false, width: Some(width) };
            let table = output.table(&["at", "text", "#limit"], [row(), row()]);
            assert_eq!(table.matches(at).count(), 2, "{width}: {table}");
            assert_eq!(table.matches("500/minute").count(), 2, "{width}: {table}");
        }
    }
}
