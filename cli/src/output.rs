//! Results: tables for terminals, JSON for programs. Nothing else writes to them: what comes from
//! the table passes [`Text`].
#![expect(
    clippy::disallowed_methods,
    reason = "the one place that writes to the streams"
)]

use std::io::{IsTerminal, Write};

use anstream::AutoStream;
use clap::ColorChoice;
use comfy_table::{CellAlignment, ContentArrangement, presets};
use serde::Serialize;

use crate::failure::Failure;
use crate::progress::Progress;
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
        let is_terminal = std::io::stdout().is_terminal();
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
        Ok(to_stdout(&(text::json(&json) + "\n"))?)
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
        to_stdout(&text.into().terminal_lines())
    }

    /// Returns whether lines about the progress are read: results are text, and standard error is a
    /// terminal.
    pub fn is_watched(&self) -> bool {
        !self.is_json && std::io::stderr().is_terminal()
    }

    /// Begins a line that shows how far the work is.
    pub fn progress(&self) -> Progress {
        Progress::new(self.is_watched())
    }

    /// Prints a remark for people to standard error, unless results are JSON.
    pub fn note(&self, text: impl Into<Text>) {
        if !self.is_json {
            warn(text);
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
        for row in rows {
            table.add_row(row.iter().map(|cell| text::one_line(cell)));
        }
        let is_number = columns.iter().map(|name| name.starts_with('#'));
        for (column, is_number) in table.column_iter_mut().zip(is_number) {
            column.set_padding((0, 2));
            if is_number {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.trim_fmt()
    }
}

/// Prints lines to standard error. A stream that is closed or full takes none, which is no reason to
/// end.
pub fn warn(text: impl Into<Text>) {
    to_stderr(&text.into().terminal_lines());
}

/// Prints a value to standard error, as JSON.
pub fn warn_json(value: &serde_json::Value) {
    to_stderr(&(text::json(&value.to_string()) + "\n"));
}

/// Prints a question to standard error; the answer is on the same line.
pub fn ask(question: &str) {
    to_stderr(&text::one_line(question));
}

/// Replaces the line of standard error on which the cursor is. Without a text, it is empty then.
pub fn replace_line(line: &str) {
    /// Moves to the begin of the line, and clears it.
    const CLEAR: &str = "\r\x1b[K";
    let line = format!("{CLEAR}{}", text::one_line(line));
    // Moving the cursor is no colour, so it does not depend on them.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn to_stdout(text: &str) -> std::io::Result<()> {
    let mut stdout = AutoStream::auto(std::io::stdout().lock());
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

fn to_stderr(text: &str) {
    let mut stderr = AutoStream::auto(std::io::stderr().lock());
    // Nothing is left to say it to.
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}
