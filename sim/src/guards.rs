//! Conditions that invariants rest on, each with the text that takes it out, to see the simulation find that it is gone.

use serde::Deserialize;

/// A place in the sources that keeps an invariant.
#[derive(Debug, Clone, Deserialize)]
pub struct Guard {
    /// The invariant, as the design names it.
    pub invariant: String,
    /// What it does.
    pub guard: String,
    /// Where it stands, from the root of the repository.
    pub file: String,
    /// Its text, which is there once.
    pub from: String,
    /// What stands there without it.
    pub to: String,
}

/// All of them.
///
/// # Panics
/// If the list cannot be read.
#[must_use]
pub fn guards() -> Vec<Guard> {
    serde_json::from_str(include_str!("../guards.json")).expect("the list is JSON")
}

impl Guard {
    /// The file without the guard; nothing if its text is not there just once.
    #[must_use]
    pub fn removed(&self, source: &str) -> Option<String> {
        (source.matches(&self.from).count() == 1).then(|| source.replace(&self.from, &self.to))
    }
}
