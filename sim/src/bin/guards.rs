//! Takes out one guard after the other, and prints which seed finds that it is gone. The sources are as before then.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use clap::Parser;
use weirgate_sim::guards::{Guard, Text, guards};

/// Takes each guard out of the sources, builds the simulation without it, and runs seeds until one fails.
#[derive(Debug, Parser)]
#[command(name = "guards")]
struct Args {
    /// Seeds to run at most for each.
    #[arg(long, default_value_t = 2_000)]
    seeds: u32,
    /// Only guards whose file, invariant or words hold this text.
    #[arg(long, default_value = "")]
    only: String,
}

/// Puts a file back.
struct Restored {
    path: PathBuf,
    source: String,
}

impl Drop for Restored {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.path, &self.source) {
            eprintln!("{} could not be put back: {error}: check it out anew", self.path.display());
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let is_meant = |guard: &Guard| {
        [files(guard), guard.invariant.clone(), guard.guard.clone()].iter().any(|of| of.contains(&args.only))
    };
    println!("| invariant | guard removed | in | seed | seeds needed | what it says |\n|---|---|---|---|---|---|");
    let mut unseen = 0;
    for guard in guards().into_iter().filter(is_meant) {
        let Guard { invariant, guard: what, .. } = &guard;
        let found = first_failure(&root, &guard, args.seeds);
        let (seed, needed, says) = match &found {
            Some((seed, says)) => (seed.to_string(), (seed + 1).to_string(), says.as_str()),
            None => {
                unseen += 1;
                ("none".to_owned(), format!("more than {}", args.seeds), "")
            }
        };
        println!("| {invariant} | {what} | {} | {seed} | {needed} | {says} |", files(&guard));
    }
    if unseen == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn files(guard: &Guard) -> String {
    guard.texts.iter().map(|text| format!("`{}`", text.file)).collect::<Vec<_>>().join(", ")
}

/// Takes a text out of its file.
fn take_out(root: &Path, text: &Text) -> Restored {
    let path = root.join(&text.file);
    let source = fs::read_to_string(&path).expect("the guard's file can be read");
    let removed = text.removed(&source).expect("the guard's text is there once");
    let restored = Restored { path, source };
    fs::write(&restored.path, removed).expect("the guard's file can be written");
    restored
}

/// The first seed that fails without the guard, and what it says.
fn first_failure(root: &Path, guard: &Guard, seeds: u32) -> Option<(u32, String)> {
    let mut restored: Vec<_> = guard.texts.iter().map(|text| take_out(root, text)).collect();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo).current_dir(root).args("build --locked --workspace --bin sim".split(' ')).output();
    let built = built.expect("cargo runs");
    assert!(built.status.success(), "without {}: {}", guard.guard, String::from_utf8_lossy(&built.stderr));
    let sim = env::current_exe().expect("this program has a place").with_file_name("sim");
    let seeds = seeds.to_string();
    let run = Command::new(sim).args(["--threads", "1", "--seeds", &seeds]).env("RUST_BACKTRACE", "0").output();
    let run = String::from_utf8_lossy(&run.expect("the simulation runs").stdout).into_owned();
    // The last one first, should two stand in one file.
    while restored.pop().is_some() {}
    let mut failures = run.lines().filter_map(|line| line.strip_prefix("seed ")?.split_once([':', ' ']));
    let (seed, first) = failures.next()?;
    // The invariant it keeps, if that is among what the seed says.
    let is_its = |(other, says): &(&str, &str)| *other == seed && says.trim().starts_with(&guard.invariant);
    let says =
        if first.trim().starts_with(&guard.invariant) { first } else { failures.find(is_its).map_or(first, |of| of.1) };
    Some((seed.parse().ok()?, says.trim().chars().take(120).collect()))
}
