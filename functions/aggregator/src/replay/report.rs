//! The outcome of each object, and their sum, as text.

use serde::Serialize;

/// Maximum number of lines about the failures of one object. A bad object has the same failure
/// thousands of times.
const MOST_LINES: usize = 10;

/// The outcome of one object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Done {
    /// File of the object.
    pub name: String,
    /// Number of its records, including those without a copy.
    pub records: usize,
    /// Copies that were made.
    pub copied: usize,
    /// Copies that the snapshots had already, or newer ones.
    pub superseded: usize,
    /// Copies of a run that writes nothing, as text.
    pub planned: Vec<String>,
    /// Failed copies and undecodable records, each with its reason.
    pub left: Vec<String>,
}

/// The outcome of all objects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    /// Number of objects.
    pub objects: usize,
    /// Number of objects with failures.
    pub incomplete: usize,
    /// Number of their records.
    pub records: usize,
    /// Copies that were made.
    pub copied: usize,
    /// Copies that the snapshots had already, or newer ones.
    pub superseded: usize,
    /// Copies of a run that writes nothing.
    pub planned: usize,
}

impl Done {
    pub(super) fn new(name: String) -> Self {
        Self { name, ..Self::default() }
    }

    /// Returns the lines of the outcome. The text of a line may have line breaks of its own, from the
    /// object.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let Self { name, records, copied, superseded, planned, left } = self;
        let copies = match planned.len() {
            0 => format!("{copied} copies made, {superseded} already there"),
            planned => format!("{planned} copies planned"),
        };
        let mut lines = vec![format!("{name}: {records} records, {copies}")];
        lines.extend(planned.iter().map(|copy| format!("  planned: {copy}")));
        let shown = left.iter().take(MOST_LINES);
        lines.extend(shown.map(|why| format!("  LEFT: {why}")));
        let more = left.len().saturating_sub(MOST_LINES);
        if more > 0 {
            lines.push(format!("  LEFT: and {more} more"));
        }
        lines
    }

    /// Returns the outcome of an unreadable object.
    pub(super) fn unreadable(name: String, why: String) -> Self {
        Self { left: vec![why], ..Self::new(name) }
    }
}

impl Sum {
    pub(super) fn add(&mut self, done: &Done) {
        self.objects += 1;
        self.incomplete += usize::from(!done.left.is_empty());
        self.records += done.records;
        self.copied += done.copied;
        self.superseded += done.superseded;
        self.planned += done.planned.len();
    }

    /// Returns whether there are no failures.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.incomplete == 0
    }

    /// Returns the last line of the output.
    #[must_use]
    pub fn text(&self, dry_run: bool) -> String {
        let Self { objects, incomplete, records, copied, superseded, planned } = self;
        let copies = match dry_run {
            true => format!("{planned} copies planned; nothing was written"),
            false => format!("{copied} copies made, {superseded} already there"),
        };
        let left = match incomplete {
            0 => String::new(),
            _ => format!("; {incomplete} objects have something left, see above"),
        };
        format!("{objects} objects, {records} records: {copies}{left}\n")
    }
}
