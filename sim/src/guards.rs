//! What invariants rest on, each with the text that takes it out, to see the simulation find that
//! it is gone, or a test where the simulation has too few items.

use serde::Deserialize;

/// What keeps an invariant.
#[derive(Debug, Clone, Deserialize)]
pub struct Guard {
    /// The invariant, as the design names it.
    pub invariant: String,
    /// What it does.
    pub guard: String,
    /// Where it is said; several, if it is said twice.
    pub texts: Vec<Text>,
    /// The test that misses it, if it is not the simulation.
    #[serde(default)]
    pub test: Option<Test>,
}

/// A test of the integration tests.
#[derive(Debug, Clone, Deserialize)]
pub struct Test {
    /// Its binary: a folder of `tests/tests`.
    pub suite: String,
    /// Its module in the folder, and its name: `module::name`.
    pub name: String,
}

/// A place in the sources.
#[derive(Debug, Clone, Deserialize)]
pub struct Text {
    /// The file, from the root of the repository.
    pub file: String,
    /// What stands there once.
    pub from: String,
    /// What stands there without the guard.
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

impl Text {
    /// The file without the guard; nothing if its text is not there just once.
    #[must_use]
    pub fn removed(&self, source: &str) -> Option<String> {
        (source.matches(&self.from).count() == 1).then(|| source.replace(&self.from, &self.to))
    }
}
