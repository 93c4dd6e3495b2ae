//! What becomes of a command whose output is not read, or cannot be written.

use std::fs::File;
use std::process::{Command, Stdio};

use serde_json::Value;
use weirgate_testkit::Temporary;

use super::fixtures::{Run, Table};

/// Where the output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Output {
    Read,
    /// The reader has gone, as `head` does.
    Unread,
    /// The disk is full.
    Full,
}

/// What a command has done if its output cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// All: only its report is lost.
    All,
    /// Nothing: what it would do is shown first, or is of use only to a reader.
    Nothing,
}

const FILE: &str = "weirgate: 1\nresources:\n  r:\n    limits:\n      rpm: 5/minute\n";

/// Commands, what comes before each, and their exit codes.
const COMMANDS: [(&[&str], &str, i32, Does); 11] = [
    (&[], "limits apply {file} --yes", 0, Does::Nothing),
    (&[], "limits diff {file} --exit-code", 7, Does::Nothing),
    (&[], "limits plan {file} --exit-code", 7, Does::Nothing),
    (&[], "limits set --resource r rpm=5/minute", 0, Does::All),
    (&[], "acquire e job slots=1 --lease 1h", 0, Does::Nothing),
    (&[], "acquire e job slots=1 budget=2", 0, Does::Nothing),
    (&["acquire e job budget=10"], "acquire e job budget=1", 3, Does::Nothing),
    (&[], "acquire e job budget=99", 4, Does::Nothing),
    (&["stop --system --yes"], "acquire e job budget=1", 5, Does::Nothing),
    (&["acquire e job budget=10"], "top-up e job budget=5", 0, Does::All),
    (&[], "peek e job", 0, Does::Nothing),
];

fn run(table: &Table, output: Output, command: &str) -> Run {
    let mut run = Command::new(env!("CARGO_BIN_EXE_weirgate"));
    run.args(&table.options).args(command.split(' '));
    run.env_clear().stdin(Stdio::null());
    match output {
        Output::Read => {}
        Output::Unread => {
            let (reader, writer) = std::io::pipe().expect("a pipe");
            drop(reader);
            run.stdout(writer).stderr(Stdio::piped());
        }
        Output::Full => {
            let full = File::options().write(true).open("/dev/full");
            run.stdout(full.expect("it is there")).stderr(Stdio::piped());
        }
    }
    let output = run.output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Returns what the table has: limits, leases, and what is left.
fn state(table: &Table) -> (String, usize, Value) {
    let leases = table.json("leases list e job");
    let left = table.json("peek e job")["limits"][0]["available_tokens"].clone();
    (table.text("limits export"), leases["items"].as_array().map_or(0, Vec::len), left)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_is_not_read_changes_nothing_and_one_that_is_lost_is_an_error() {
    let file = Temporary::file("outcomes.yaml", FILE);
    for (before, command, code, does) in COMMANDS {
        let command = command.replace("{file}", file.path());
        let prepared = async || {
            let table = Table::new().await;
            table.text("limits set --system budget=10/366d slots=2");
            before.iter().for_each(|command| drop(table.text(command)));
            table
        };
        let table = prepared().await;
        let unchanged = state(&table);
        let read = run(&table, Output::Read, &command);
        assert_eq!(read.code, Some(code), "{command}: {read:?}");
        let changed = state(&table);
        let table = prepared().await;
        let unread = run(&table, Output::Unread, &command);
        assert_eq!(unread.code, Some(code), "{command}: {unread:?}");
        assert_eq!(state(&table), changed, "{command}: {unread:?}");
        let table = prepared().await;
        let full = run(&table, Output::Full, &command);
        assert_eq!(full.code, Some(1), "{command}: {full:?}");
        let says = "standard output cannot be written: No space left on device";
        assert!(full.stderr.contains(says), "{command}: {full:?}");
        let expected = match does {
            Does::All => changed,
            Does::Nothing => unchanged,
        };
        assert_eq!(state(&table), expected, "{command}: {full:?}");
    }
}
