//! Results: tables for terminals, JSON for programs.

use std::io::{IsTerminal, Write};

use anstream::AutoStream;
use clap::ColorChoice;
use comfy_table::{CellAlignment, ContentArrangement, presets};
use serde::Serialize;

use crate::failure::Failure;
use crate::progress::Progress;

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
    pub fn print<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        let text = if self.is_json {
            let json = if self.width.is_some() {
                serde_json::to_string_pretty(value)
            } else {
                serde_json::to_string(value)
            };
            json.map_err(|error| Failure::Failed(format!("the result has no JSON: {error}")))?
        } else {
            text(value)
        };
        let text = match text.is_empty() || text.ends_with('\n') {
            true => text,
            false => text + "\n",
        };
        self.print_raw(text.as_bytes())
    }

    /// Prints bytes as they are, but for colours that the terminal does not have.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn print_raw(&self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.write(bytes)?)
    }

    /// As [`print_raw`](Self::print_raw).
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn write(&self, bytes: &[u8]) -> std::io::Result<()> {
        let mut stdout = AutoStream::auto(std::io::stdout().lock());
        stdout.write_all(bytes)?;
        stdout.flush()
    }

    /// Begins a line that shows how far the work is.
    pub fn progress(&self) -> Progress {
        Progress::new(self.is_json)
    }

    /// Prints a remark for people to standard error, unless results are JSON.
    pub fn note(&self, text: &str) {
        if !self.is_json {
            anstream::eprintln!("{text}");
        }
    }

    /// Returns a table as text. Columns whose name begins with `#` hold numbers, and are aligned to
    /// the right. Without a terminal, rows are as wide as their content.
    pub fn table(&self, columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        if let Some(width) = self.width {
            table.set_content_arrangement(ContentArrangement::Dynamic);
            table.set_width(width);
        }
        let header = columns
            .iter()
            .map(|name| name.trim_start_matches('#').to_uppercase());
        table.set_header(header.collect::<Vec<_>>());
        for row in rows {
            table.add_row(row);
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
