//! Removes one guard after the other from a copy of the committed sources, and prints which seed or
//! test detects it, with its message.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::{env, fs};

use clap::Parser;
use weirgate_sim::guards::{Guard, Test, guards};

/// Removes each guard from the committed sources, builds the simulation without it, and runs seeds
/// until one fails, or runs the guard's own test.
///
/// The copy and its build are kept in the target folder. The first build takes as long as that of a
/// fresh clone.
#[derive(Debug, Parser)]
#[command(name = "guards")]
struct Args {
    /// Most seeds to run for each guard.
    #[arg(long, default_value_t = 2_000)]
    seeds: u32,
    /// Only guards whose file, invariant or description contains this text.
    #[arg(long, default_value = "")]
    only: String,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let copy = Copy::of_what_is_committed();
    let is_meant = |guard: &Guard| {
        [files(guard), guard.invariant.clone(), guard.guard.clone()]
            .iter()
            .any(|of| of.contains(&args.only))
    };
    let mut is_each_found = true;
    for guard in guards().into_iter().filter(is_meant) {
        copy.remove(&guard);
        let found = match &guard.test {
            Some(test) => failure(&copy, test),
            None => first_failure(&copy, args.seeds),
        };
        is_each_found &= found.is_some();
        let (found, files) = (found.unwrap_or("NOT FOUND".to_owned()), files(&guard));
        println!("{}: {} in {files}: {found}", guard.invariant, guard.guard);
    }
    if is_each_found { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn files(guard: &Guard) -> String {
    let files: Vec<_> = guard.texts.iter().map(|text| text.file.as_str()).collect();
    files.join(", ")
}

/// A second checkout of the committed sources, so that guards are never removed from the working
/// tree.
struct Copy {
    source: PathBuf,
    target: PathBuf,
}

impl Copy {
    fn of_what_is_committed() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = env::current_exe().expect("this program has a place");
        let target = target.ancestors().nth(2).expect("it is in a target folder").join("guards");
        let copy = Self { source: target.join("source"), target: target.join("build") };
        if !copy.source.exists() {
            let source = copy.source.to_str().expect("the folder's name is text");
            ran(Command::new("git")
                .current_dir(&root)
                .args(["worktree", "add", "--detach", "--force", source]));
        }
        let head = ran(Command::new("git").current_dir(&root).args(["rev-parse", "HEAD"]));
        copy.git(&[
            "checkout",
            "--quiet",
            "--force",
            "--detach",
            String::from_utf8_lossy(&head.stdout).trim(),
        ]);
        copy
    }

    fn git(&self, args: &[&str]) {
        ran(Command::new("git").current_dir(&self.source).args(args));
    }

    /// Restores the sources, then removes a guard.
    fn remove(&self, guard: &Guard) {
        self.git(&["checkout", "--quiet", "--force", "--", "."]);
        for text in &guard.texts {
            let path = self.source.join(&text.file);
            let source = fs::read_to_string(&path).expect("the guard's file can be read");
            let removed = text.removed(&source).expect("the guard's text is there once");
            fs::write(&path, removed).expect("the guard's file can be written");
        }
    }

    fn cargo(&self, args: &[&str]) -> Command {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .current_dir(&self.source)
            .env("CARGO_TARGET_DIR", &self.target)
            .args(["--config", "verify/sim/optimized.toml"])
            .args(args);
        cargo
    }

    /// Builds the simulation from the current sources. Returns the path of the binary.
    fn simulation(&self) -> PathBuf {
        ran(&mut self.cargo(&["build", "--locked", "--workspace", "--bin", "sim"]));
        self.target.join("debug/sim")
    }
}

/// Runs a command to its end.
fn ran(command: &mut Command) -> Output {
    let output =
        command.output().unwrap_or_else(|error| panic!("{command:?} does not run: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Returns the test's message if it fails.
fn failure(copy: &Copy, test: &Test) -> Option<String> {
    let suite = ["test", "--locked", "--workspace", "--test", &test.suite];
    ran(copy.cargo(&suite).arg("--no-run"));
    let run =
        copy.cargo(&suite).args(["--", "--exact", &test.name]).env("RUST_BACKTRACE", "0").output();
    let run = run.expect("the test runs");
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(text.contains("running 1 test"), "the test {} is there: {text}", test.name);
    let mut lines = text.lines().skip_while(|line| !line.contains("panicked at"));
    let says = lines.nth(1).unwrap_or("it ends otherwise");
    (!run.status.success()).then(|| format!("{}: {says}", test.name))
}

/// Returns the first message of the first seed that fails.
fn first_failure(copy: &Copy, seeds: u32) -> Option<String> {
    let seeds = seeds.to_string();
    let mut sim = Command::new(copy.simulation());
    let run = sim.args(["--threads", "1", "--seeds", &seeds]).env("RUST_BACKTRACE", "0").output();
    let run = String::from_utf8_lossy(&run.expect("the simulation runs").stdout).into_owned();
    let found = run.lines().find(|line| line.starts_with("seed "))?;
    Some(found.chars().take(140).collect())
}
