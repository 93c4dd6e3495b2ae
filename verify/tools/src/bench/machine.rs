//! Where a run was measured, and with which versions.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// A machine and the versions on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Day of the measurement, in UTC.
    pub measured_on: String,
    /// Model of the processor.
    pub processor: String,
    /// Cores that the benchmarks may use.
    pub cores: usize,
    /// Kernel.
    pub system: String,
    /// What was measured and what measured it, with versions.
    pub versions: Vec<(String, String)>,
}

impl Machine {
    /// Returns this machine, and the versions of what is installed. What is not installed is left
    /// out.
    #[must_use]
    pub fn this() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let python = root.join(".venv/bench/bin/python");
        let python = python.to_string_lossy();
        let versions = [
            ("Weirgate", Some(env!("CARGO_PKG_VERSION").to_owned())),
            ("rustc", word(&["rustc", "--version"], 1)),
            ("dynoxide-rs", locked("dynoxide-rs")),
            (
                "zae-limiter",
                word(
                    &[
                        &python,
                        "-c",
                        "import zae_limiter; print(zae_limiter.__version__)",
                    ],
                    0,
                ),
            ),
            ("Python", word(&[&python, "--version"], 1)),
            ("governor", locked("governor")),
            ("redis (crate)", locked("redis")),
            ("redis-server", redis()),
        ];
        let versions = versions.into_iter();
        Self {
            measured_on: output(&["date", "-u", "+%Y-%m-%d"]).unwrap_or_default(),
            processor: processor(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            system: format!("Linux {}", output(&["uname", "-r"]).unwrap_or_default()),
            versions: versions
                .filter_map(|(name, version)| Some((name.to_owned(), version?)))
                .collect(),
        }
    }

    /// Whether times of both can be compared as they are.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        (&self.processor, self.cores) == (&other.processor, other.cores)
    }
}

fn processor() -> String {
    let about = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = about
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    model.map_or_else(
        || output(&["uname", "-m"]).unwrap_or_default(),
        |model| model.trim_start_matches([' ', '\t', ':']).to_owned(),
    )
}

/// The version that `Cargo.lock` has of a crate.
fn locked(name: &str) -> Option<String> {
    let lock = include_str!("../../../../Cargo.lock");
    let entry = lock.split("[[package]]").find(|entry| {
        entry
            .lines()
            .any(|line| line == format!("name = \"{name}\""))
    })?;
    let version = entry
        .lines()
        .find_map(|line| line.strip_prefix("version = "))?;
    Some(version.trim_matches('"').to_owned())
}

/// `Redis server v=7.0.15 sha=...`
fn redis() -> Option<String> {
    let said = output(&["redis-server", "--version"])?;
    let version = said
        .split_whitespace()
        .find_map(|word| word.strip_prefix("v="));
    version.map(str::to_owned)
}

/// The word at this place of what a command says.
fn word(command: &[&str], at: usize) -> Option<String> {
    output(command)?
        .split_whitespace()
        .nth(at)
        .map(str::to_owned)
}

fn output(command: &[&str]) -> Option<String> {
    let (program, arguments) = command.split_first()?;
    let done = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(done.stdout).ok()?;
    (done.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_and_what_is_always_there_are_named() {
        let machine = Machine::this();
        assert!(!machine.processor.is_empty() && machine.cores > 0);
        assert_eq!(machine.measured_on.len(), "2026-11-24".len());
        let names: Vec<_> = machine.versions.iter().map(|(name, _)| &**name).collect();
        for name in [
            "Weirgate",
            "rustc",
            "dynoxide-rs",
            "governor",
            "redis (crate)",
        ] {
            assert!(names.contains(&name), "{name} is not among {names:?}");
        }
        assert!(machine.is_like(&machine));
    }
}
