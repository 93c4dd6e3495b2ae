//! What became of an object, and their sum, as text.

use std::fmt;

/// Most lines about what is left of one object. A bad object says the same thousands of times.
const MOST_LINES: usize = 10;

/// What became of one object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Done {
    /// The object's file.
    pub name: String,
    /// Records in it, also those that ask for no copy.
    pub records: usize,
    /// Copies that were made.
    pub copied: usize,
    /// Copies that the snapshots had already, or newer ones.
    pub superseded: usize,
    /// Copies of a run that writes nothing, as text.
    pub planned: Vec<String>,
    /// Copies that were not made and records that cannot be read, each with its reason.
    pub left: Vec<String>,
}

/// What became of all objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sum {
    /// Number of objects.
    pub objects: usize,
    /// Objects of which something is left.
    pub incomplete: usize,
    /// Records in them.
    pub records: usize,
    /// Copies that were made.
    pub copied: usize,
    /// Copies that the snapshots had already, or newer ones.
    pub superseded: usize,
    /// Copies of a run that writes nothing.
    pub planned: usize,
}

impl Done {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            ..Self::default()
        }
    }

    /// An object of which nothing can be read.
    pub(crate) fn unreadable(name: String, why: String) -> Self {
        Self {
            left: vec![why],
            ..Self::new(name)
        }
    }
}

impl Sum {
    pub(crate) fn add(&mut self, done: &Done) {
        self.objects += 1;
        self.incomplete += usize::from(!done.left.is_empty());
        self.records += done.records;
        self.copied += done.copied;
        self.superseded += done.superseded;
        self.planned += done.planned.len();
    }

    /// Returns whether nothing is left.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.incomplete == 0
    }

    /// Returns the last line of the output.
    pub(crate) fn told(&self, dry_run: bool) -> String {
        let Self {
            objects,
            incomplete,
            records,
            copied,
            superseded,
            planned,
        } = self;
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

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            records,
            copied,
            superseded,
            planned,
            left,
        } = self;
        write!(f, "{name}: {records} records")?;
        if planned.is_empty() {
            writeln!(f, ", {copied} copies made, {superseded} already there")?;
        } else {
            writeln!(f, ", {} copies planned", planned.len())?;
        }
        for copy in planned {
            writeln!(f, "  planned: {copy}")?;
        }
        for why in left.iter().take(MOST_LINES) {
            writeln!(f, "  LEFT: {why}")?;
        }
        let more = left.len().saturating_sub(MOST_LINES);
        if more > 0 {
            writeln!(f, "  LEFT: and {more} more")
        } else {
            Ok(())
        }
    }
}
