//! Results: tables for terminals, JSON for programs.

use clap::ColorChoice;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Width, presets};
use serde::Serialize;

use crate::failure::Failure;
use crate::progress::Progress;
use crate::streams;
use crate::text::{self, Text};

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
        Self {
            is_json,
            width: width.map(|(width, _)| width.0),
        }
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
    ) -> Result<(), Failure> {
        if !self.is_json {
            return self.print_text(text(value));
        }
        let json = match self.width {
            Some(_) => serde_json::to_string_pretty(value),
            None => serde_json::to_string(value),
        };
        let json =
            json.map_err(|error| Failure::Failed(format!("the result has no JSON: {error}")))?;
        Ok(streams::to_stdout(&(text::json(&json) + "\n"))?)
    }

    /// As [`print`](Self::print), to standard error.
    ///
    /// # Errors
    /// If the value has no JSON.
    pub fn warn<T: Serialize, S: Into<Text>>(
        &self,
        value: &T,
        text: impl FnOnce(&T) -> S,
    ) -> Result<(), Failure> {
        if !self.is_json {
            streams::warn(text(value));
            return Ok(());
        }
        let json = serde_json::to_value(value);
        let json =
            json.map_err(|error| Failure::Failed(format!("the result has no JSON: {error}")))?;
        streams::warn_json(&json);
        Ok(())
    }

    /// Prints text, in every format.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn print_text(&self, text: impl Into<Text>) -> Result<(), Failure> {
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
    /// the right. Without a terminal, rows are as wide as their content. A cell stays on its line.
    pub fn table(&self, columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        if let Some(width) = self.width {
            table.set_content_arrangement(ContentArrangement::Dynamic);
            table.set_width(width);
        }
        let header = columns
            .iter()
            .map(|name| text::one_line(&name.trim_start_matches('#').to_uppercase()));
        table.set_header(header.collect::<Vec<_>>());
        let mut words = vec![0; columns.len()];
        for row in rows {
            let cells: Vec<_> = row.iter().map(|cell| text::one_line(cell)).collect();
            for (longest, cell) in words.iter_mut().zip(&cells) {
                let word = cell.split(' ').map(|word| word.chars().count()).max();
                *longest = word.unwrap_or_default().max(*longest);
            }
            table.add_row(cells);
        }
        let is_number = columns.iter().map(|name| name.starts_with('#'));
        for ((column, is_number), word) in table.column_iter_mut().zip(is_number).zip(words) {
            column.set_padding((0, 2));
            // An instant has 20 characters. Longer words may break.
            let least = u16::try_from(word.min(20)).unwrap_or(20) + 2;
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
            if is_number {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.trim_fmt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_stays_on_its_line_in_a_narrow_terminal() {
        let at = "2026-11-23T10:00:00Z";
        let row = || vec![at.to_owned(), "word ".repeat(40), "500/minute".to_owned()];
        for width in [20, 40, 50, 80] {
            let output = Output {
                is_json: false,
                width: Some(width),
            };
            let table = output.table(&["at", "text", "#limit"], [row(), row()]);
            assert_eq!(table.matches(at).count(), 2, "{width}: {table}");
            assert_eq!(table.matches("500/minute").count(), 2, "{width}: {table}");
        }
    }
}
