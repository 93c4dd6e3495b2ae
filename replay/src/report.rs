//! What became of an object, and their sum, as text.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use weirgate_shared::write::Piece;
use weirgate_shared::{ItemKey, LimitName, MilliTokens, Window};

/// Most lines of one kind told of one object. A bad object says the same thousands of times.
const MOST_LINES: usize = 10;

/// Records counted in one kind of window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Now, or in a run that writes nothing: would be.
    pub counted: usize,
    /// Before.
    pub before: usize,
    /// Now or before: the answer to the write was lost, and by the next one they were counted.
    pub now_or_before: usize,
}

/// What became of one object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Done {
    /// Where it is.
    pub name: String,
    /// Records in it, also those that say nothing about usage.
    pub records: usize,
    /// By kind of window.
    pub windows: BTreeMap<Window, Tally>,
    /// What was not counted and should be, and of how many records that is true.
    pub left: BTreeMap<String, usize>,
    /// What would be added to which snapshot, in a run that writes nothing.
    pub added: Vec<String>,
}

/// What became of all objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sum {
    /// How many.
    pub objects: usize,
    /// Of which so many left something.
    pub incomplete: usize,
    /// Records in them.
    pub records: usize,
    /// By kind of window.
    pub windows: BTreeMap<Window, Tally>,
}

impl Done {
    pub(crate) fn new(name: String, records: usize) -> Self {
        Self { name, records, ..Self::default() }
    }

    /// An object of which nothing was counted.
    pub(crate) fn unreadable(name: String, why: String) -> Self {
        Self { name, left: BTreeMap::from([(why, 0)]), ..Self::default() }
    }

    pub(crate) fn left(&mut self, records: usize, why: String) {
        *self.left.entry(why).or_default() += records;
    }

    pub(crate) fn would_add(&mut self, key: &ItemKey, amounts: &Amounts) {
        if !amounts.is_empty() {
            self.added.push(format!("{} {}:{amounts}", key.pk, key.sk));
        }
    }
}

/// What would be added to one snapshot.
#[derive(Debug, Default)]
pub(crate) struct Amounts {
    records: usize,
    tokens: BTreeMap<LimitName, MilliTokens>,
    events: i64,
}

impl Amounts {
    pub(crate) fn add(&mut self, limits: &[LimitName], pieces: &[&Piece]) {
        for piece in pieces {
            self.records += 1;
            self.events += piece.events;
            for (limit, used) in limits.iter().zip(&piece.tokens) {
                *self.tokens.entry(limit.clone()).or_default() += *used;
            }
        }
    }

    const fn is_empty(&self) -> bool {
        self.records == 0
    }
}

impl fmt::Display for Amounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (limit, used) in &self.tokens {
            write!(f, " {limit} {used},")?;
        }
        write!(f, " {} acquires", self.events)
    }
}

impl Sum {
    pub(crate) fn add(&mut self, done: &Done) {
        self.objects += 1;
        self.incomplete += usize::from(!done.left.is_empty());
        self.records += done.records;
        for (window, tally) in &done.windows {
            let sum = self.windows.entry(*window).or_default();
            sum.counted += tally.counted;
            sum.before += tally.before;
            sum.now_or_before += tally.now_or_before;
        }
    }

    /// Whether everything is counted now.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.incomplete == 0
    }

    /// The last line of the output.
    pub(crate) fn told(&self, dry_run: bool) -> String {
        let Self { objects, incomplete, records, windows } = self;
        let mut told = format!("{objects} objects, {records} records");
        tell(&mut told, windows);
        if *incomplete > 0 {
            let _ = write!(told, "; {incomplete} objects have something left, see above");
        }
        told.push_str(if dry_run { "; nothing was written\n" } else { "\n" });
        told
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = format!("{}: {} records", self.name, self.records);
        tell(&mut line, &self.windows);
        writeln!(f, "{line}")?;
        let left = self.left.iter().map(|(why, records)| match records {
            0 => why.clone(),
            1 => format!("1 record {why}"),
            _ => format!("{records} records {why}"),
        });
        told(f, "would add to", self.added.iter().cloned())?;
        told(f, "LEFT", left)
    }
}

fn told(f: &mut fmt::Formatter<'_>, what: &str, lines: impl ExactSizeIterator<Item = String>) -> fmt::Result {
    let more = lines.len().saturating_sub(MOST_LINES);
    for line in lines.take(MOST_LINES) {
        writeln!(f, "  {what}: {line}")?;
    }
    if more > 0 { writeln!(f, "  {what}: and {more} more") } else { Ok(()) }
}

fn tell(line: &mut String, windows: &BTreeMap<Window, Tally>) {
    for (window, Tally { counted, before, now_or_before }) in windows {
        let _ = write!(line, "; {window} {counted} counted, {before} before");
        if *now_or_before > 0 {
            let _ = write!(line, ", {now_or_before} now or before (an answer was lost)");
        }
    }
}
