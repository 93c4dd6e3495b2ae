//! All numbers of one run, with the machine and the versions they were measured with: what
//! `docs/benchmarks.json` has.

use std::path::Path;
use std::{fs, io};

use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::row::Row;

/// The row of a bare write: its time is what other times are multiples of.
pub const BARE_WRITE: &str = "acquire/bare-write";

/// The numbers of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Where and with what.
    pub machine: Machine,
    /// Minutes that it took.
    pub minutes: u64,
    /// What was measured, part by part.
    pub rows: Vec<Row>,
}

impl Run {
    /// Reads a run from its file.
    ///
    /// # Errors
    /// If there is no such file, or it has no run.
    pub fn read(path: &Path) -> Result<Self, String> {
        let said = |error: &dyn std::fmt::Display| {
            format!(
                "{} has no run: {error}; run `make bench` without CHECK to write it",
                path.display()
            )
        };
        let text = fs::read_to_string(path).map_err(|error| said(&error))?;
        serde_json::from_str(&text).map_err(|error| said(&error))
    }

    /// Writes it to its file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        fs::write(path, self.text()?)
    }

    /// Its file: a row on each line, so that a change shows where it is.
    ///
    /// # Errors
    /// If a number is none.
    pub fn text(&self) -> serde_json::Result<String> {
        let rows: Result<Vec<_>, _> = self.rows.iter().map(serde_json::to_string).collect();
        Ok(format!(
            "{{\n\"machine\": {},\n\"minutes\": {},\n\"rows\": [\n{}\n]\n}}\n",
            serde_json::to_string_pretty(&self.machine)?,
            self.minutes,
            rows?.join(",\n")
        ))
    }

    /// A row by its id.
    #[must_use]
    pub fn row(&self, id: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.id == id)
    }

    /// The median of a row.
    ///
    /// # Errors
    /// If there is no such row.
    pub fn median(&self, id: &str) -> Result<f64, String> {
        self.row(id)
            .map(|row| row.spread.median)
            .ok_or_else(|| format!("the run has no row {id:?}"))
    }

    /// The rows of a part.
    pub fn part<'a>(&'a self, part: &'a str) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| row.part() == part)
    }
}
