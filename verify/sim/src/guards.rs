//! Guards of the invariants, each with the text that removes it. The simulation must detect the
//! removal, or a test if the simulation has too few items.

use serde::Deserialize;

/// Code that keeps an invariant.
#[derive(Debug, Clone, Deserialize)]
pub struct Guard {
    /// Invariant, by its name in the design.
    pub invariant: String,
    /// Description of what the guard does.
    pub guard: String,
    /// Source texts of the guard; several if it occurs more than once.
    pub texts: Vec<Text>,
    /// Test that detects the removal; without one, the simulation does.
    #[serde(default)]
    pub test: Option<Test>,
}

/// A test of the integration tests.
#[derive(Debug, Clone, Deserialize)]
pub struct Test {
    /// Test binary: a folder of `tests/tests`, or `shared`.
    pub suite: String,
    /// Module and name of the test: `module::name`.
    pub name: String,
}

/// A place in the sources.
#[derive(Debug, Clone, Deserialize)]
pub struct Text {
    /// The file, from the root of the repository.
    pub file: String,
    /// Text that occurs exactly once in the file.
    pub from: String,
    /// Text without the guard.
    pub to: String,
}

/// Returns all guards.
pub fn guards() -> Vec<Guard> {
    serde_json::from_str(include_str!("../guards.json")).expect("the list is JSON")
}

impl Text {
    /// Returns the file without the guard, or `None` unless its text occurs exactly once.
    pub fn removed(&self, source: &str) -> Option<String> {
        (source.matches(&self.from).count() == 1).then(|| source.replace(&self.from, &self.to))
    }
}
