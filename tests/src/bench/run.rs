//! All numbers of one run, with the machine and the versions: `docs/benchmarks.json`, the table of
//! `docs/benchmarks.md`, and how a run compares with the committed one.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::row::Row;
use super::scenario::{Rival, SCENARIOS};
use crate::number::digits;

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

impl Run {
    /// Its file: a row on each line, so that a change shows where it is.
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
    pub fn row(&self, id: &str) -> Result<&Row, String> {
        let row = self.rows.iter().find(|row| row.id == id);
        row.ok_or_else(|| format!("docs/benchmarks.json has no row {id:?}"))
    }

    /// Returns the table of the page: calls a second of all, with p50, and Weirgate beside
    /// zae-limiter.
    pub fn table(&self) -> Result<String, String> {
        const ALL: [Rival; 7] = [
            Rival::Governor,
            Rival::Prefetched,
            Rival::Redis,
            Rival::OnRedis,
            Rival::Limitador,
            Rival::Weirgate,
            Rival::Peer,
        ];
        let mut text = format!(
            "| calls a second, p50 | {} | beside zae-limiter | write units a call, of both |\n\
             |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
            ALL.map(Rival::name).join(" | ")
        );
        for scenario in &SCENARIOS {
            let of = |rival: Rival, name: &str| {
                self.row(&format!("{}/{}/{name}", rival.part(), scenario.name))
            };
            let mut cells = vec![];
            for rival in ALL {
                cells.push(if scenario.rivals.contains(&rival) {
                    format!("{}, {}", of(rival, "calls")?.median(), of(rival, "p50")?.median())
                } else {
                    "–".to_owned()
                });
            }
            let units = digits(of(Rival::Weirgate, "units")?.median);
            let (ratio, units) = match scenario.rivals.contains(&Rival::Peer) {
                true => (
                    of(Rival::Peer, "ratio")?.median(),
                    format!("{units}, {}", digits(of(Rival::Peer, "units")?.median)),
                ),
                false => ("–".to_owned(), format!("{units}, –")),
            };
            let (what, cells) = (scenario.what, cells.join(" | "));
            let _ = writeln!(text, "| {what} | {cells} | {ratio} | {units} |");
        }
        Ok(text)
    }

    /// Returns the id of a row of the committed run that this one lacks.
    pub fn lacks<'a>(&self, committed: &'a Self) -> Option<&'a str> {
        let mut ids = committed.rows.iter().map(|row| row.id.as_str());
        ids.find(|id| self.row(id).is_err())
    }

    /// Returns what is worse than in the committed run by more than noise.
    pub fn worse_than(&self, committed: &Self) -> Vec<String> {
        let bare = |run: &Self| run.row(BARE_WRITE).map(|row| row.median);
        let slower = match (bare(committed), bare(self)) {
            (Ok(committed), Ok(now)) => now / committed,
            _ => 1.0,
        };
        let before = |now: &Row| committed.row(&now.id).ok();
        let both = self.rows.iter().filter_map(|now| Some((now, before(now)?)));
        both.filter(|(now, before)| now.is_worse_than(before, slower))
            .map(|(now, before)| format!("{}: {now}\n  it was {before}", now.id))
            .collect()
    }
}

impl Machine {
    /// Returns this machine, and the versions of what is installed.
    pub fn this() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let python = root.join(".venv/bench/bin/python").display().to_string();
        let zae = "import zae_limiter; print(zae_limiter.__version__)";
        let redis = "redis-server --version | sed 's/.* v=\\([^ ]*\\).*/\\1/'";
        let versions = [
            ("Weirgate", Some(env!("CARGO_PKG_VERSION").to_owned())),
            ("rustc", output(&["sh", "-c", "rustc --version | cut -d' ' -f2"])),
            ("dynoxide-rs", locked("dynoxide-rs")),
            ("zae-limiter", output(&[&python, "-c", zae])),
            (
                "Python",
                output(&[&python, "-c", "import platform; print(platform.python_version())"]),
            ),
            ("governor", locked("governor")),
            ("redis (crate)", locked("redis")),
            ("redis-server", output(&["sh", "-c", redis])),
            ("limitador", version_of(LIMITADOR, "limitador")),
        ];
        let model = "grep -m 1 '^model name' /proc/cpuinfo | sed 's/.*: //'";
        let said = |command: &[&str]| output(command).unwrap_or_default();
        Self {
            measured_on: said(&["date", "-u", "+%Y-%m-%d"]),
            processor: said(&["sh", "-c", model]),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            system: said(&["uname", "-sr"]),
            versions: versions
                .into_iter()
                .filter_map(|(name, version)| Some((name.to_owned(), version?)))
                .collect(),
        }
    }
}

/// The lock file of the workspace of limitador.
const LIMITADOR: &str = include_str!("../../../verify/rivals/limitador/Cargo.lock");

/// The version that `Cargo.lock` has of a crate.
fn locked(name: &str) -> Option<String> {
    version_of(include_str!("../../../Cargo.lock"), name)
}

fn version_of(lock: &str, name: &str) -> Option<String> {
    let (_, entry) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    Some(entry.split_once('"')?.0.to_owned())
}

fn output(command: &[&str]) -> Option<String> {
    let (program, arguments) = command.split_first()?;
    let done = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(done.stdout).ok()?;
    (done.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

/// The committed page is of the committed numbers, and other pages compute with what was measured.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::count;
    use crate::page::with_part;
    use crate::scaling::{PROFILES, facts};

    fn committed() -> Run {
        serde_json::from_str(include_str!("../../../docs/benchmarks.json")).expect("it is a run")
    }

    #[test]
    fn the_table_is_of_the_committed_numbers_which_have_targets_and_unique_ids() {
        let (run, page) = (committed(), include_str!("../../../docs/benchmarks.md"));
        let written = with_part(page, "calls", &run.table().unwrap()).unwrap();
        assert!(written == page, "docs/benchmarks.md is out of date: run `make bench`");
        assert_eq!(run.text().unwrap(), include_str!("../../../docs/benchmarks.json"));
        let ids: std::collections::BTreeSet<_> = run.rows.iter().map(|row| &row.id).collect();
        assert_eq!(ids.len(), run.rows.len());
    }

    #[test]
    fn a_row_is_worse_beyond_the_noise_of_its_kind() {
        let run = committed();
        let worse = |id: &str, by: f64, slower: f64| {
            let before = run.row(id).unwrap();
            let now = before.measured(&[before.low * by, before.high * by]);
            now.is_worse_than(before, slower)
        };
        for (id, within, beyond) in [
            ("peer/sequential/ratio", 0.95, 0.5),
            ("weirgate/adjusted/units", 1.009, 1.02),
            ("function/aggregator/start", 1.1, 9.0),
        ] {
            assert!(!worse(id, within, 1.0) && worse(id, beyond, 1.0), "{id}");
        }
        // A time is a multiple of a bare write, and some rows are only shown.
        assert!(!worse("function/aggregator/start", 9.0, 9.0) && !worse("acquire/p50", 9.0, 1.0));
    }

    #[test]
    fn the_facts_of_the_scaling_page_were_measured() {
        let run = committed();
        let median = |id: &str| run.row(id).unwrap().median;
        assert!(1.0 / median("cost/shared/units") >= 0.9 * count(facts::ACQUIRES_PER_SHARED_WRITE));
        for load in ["few", "hot", "many", "hour"] {
            assert!(median(&format!("aggregator/{load}/records")) >= count(facts::CORE_RECORDS));
        }
        let ids = ["alone", "shared", "prefetched", "users", "estimates", "slots", "exhausted"];
        for (profile, id) in PROFILES.into_iter().zip(ids) {
            let row = |unit: &str| median(&format!("cost/{id}/{unit}"));
            // Without the calls of the aggregator, and beyond by the repeated writes of lone callers.
            let dollars = |writes: f64, reads: f64| {
                writes * count(facts::WRITE_UNIT_PRICE) + reads * count(facts::READ_UNIT_PRICE)
            };
            let measured = dollars(row("units") + row("usage-units"), row("read-units"));
            let milli = |units: u64| count(units) / 1_000.0;
            let page = dollars(milli(profile.write_milli), milli(profile.read_milli));
            let beyond = if ["estimates", "slots"].contains(&id) { 1.0 } else { 1.05 };
            assert!(measured <= page * beyond, "{id}: {measured} picodollars, not {page}");
        }
    }
}
