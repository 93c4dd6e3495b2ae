//! Work on many items that ends before its end: it says what is done, and how it goes on.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use weirgate_testkit::{Dynamo, Temporary};

use super::fixtures::{Run, Table};
use super::gate::Gate;

/// What ends a command on its way.
#[derive(Debug, Clone, Copy)]
enum End {
    Signal(Signal),
    /// The namespace is started again, so that the next page is refused.
    Started,
}

const ENDS: [End; 3] = [End::Signal(Signal::SIGINT), End::Signal(Signal::SIGTERM), End::Started];

/// Starts a command on a table behind a gate.
fn spawn(url: &str, words: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weirgate"));
    command.args(["--table", "weirgate", "--endpoint-url", url]);
    command.args(words).env_clear().stdin(Stdio::null());
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it starts")
}

fn finish(child: Child) -> Run {
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn signal(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).expect("a process id");
    kill(Pid::from_raw(pid), signal).expect("it runs");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_that_ends_on_its_way_says_where_it_goes_on() {
    for (end, is_json) in ENDS.into_iter().flat_map(|end| [(end, false), (end, true)]) {
        let dynamo = Dynamo::new().await;
        let table = Table::of(&dynamo);
        table.text("stop --system --yes");
        for at in 0..2_200 {
            dynamo.put(&json!({"PK": {"S": format!("default/X#{at}")}, "SK": {"S": "#"}}));
        }
        let (gate, url) = Gate::to(&table.endpoint);
        let purge = ["purge", "--yes"];
        let json: &[&str] = if is_json { &["--json"] } else { &[] };
        gate.hold("Scan");
        let child = spawn(&url, &[json, &purge].concat());
        gate.until_held();
        match end {
            End::Signal(sent) => signal(&child, sent),
            End::Started => drop(table.text("start --system")),
        }
        gate.open();
        let run = finish(child);
        let seen = format!("{end:?} {is_json}: {run:?}");
        assert!(matches!(run.code, Some(1 | 2)), "{seen}");
        let next = match is_json {
            true => {
                let error: Value = serde_json::from_str(&run.stderr).expect("JSON");
                let error = &error["error"];
                assert!(error["done"]["scanned"].as_u64() > Some(0), "{seen}");
                error["next"].as_str().map(str::to_owned)
            }
            false => {
                assert!(run.stderr.contains(" items read; deleted: "), "{seen}");
                let mut lines = run.stderr.lines();
                let next = lines.find_map(|line| line.strip_prefix("go on: --page "));
                next.map(str::to_owned)
            }
        };
        let next = next.unwrap_or_else(|| panic!("{seen}"));
        assert!(dynamo.items().len() > 100, "{seen}");
        table.text("stop --system --yes");
        table.text([&purge[..], &["--page", &next]].concat());
        let left = dynamo
            .items()
            .into_iter()
            .filter(|item| item["PK"]["S"].as_str().is_some_and(|pk| pk.starts_with("default/X#")));
        assert_eq!(left.count(), 0, "{seen}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_apply_that_a_signal_ends_says_what_is_done_and_the_next_one_does_the_rest() {
    let names: Vec<_> =
        (0..40).map(|at| format!("  r-{at:02}:\n    limits:\n      rpm: 5/minute\n")).collect();
    let text = format!("weirgate: 1\nresources:\n{}", names.concat());
    let file = Temporary::file("bulk.yaml", &text);
    for (sent, is_json) in [
        (Signal::SIGINT, false),
        (Signal::SIGINT, true),
        (Signal::SIGTERM, false),
        (Signal::SIGTERM, true),
    ] {
        let dynamo = Dynamo::new().await;
        let table = Table::of(&dynamo);
        let (gate, url) = Gate::to(&table.endpoint);
        let apply = ["limits", "apply", file.path(), "--yes"];
        let json: &[&str] = if is_json { &["--json"] } else { &[] };
        gate.hold("TransactWriteItems");
        let child = spawn(&url, &[json, &apply].concat());
        gate.until_held();
        signal(&child, sent);
        gate.open();
        let run = finish(child);
        let seen = format!("{sent} {is_json}: {run:?}");
        assert_eq!(run.code, Some(1), "{seen}");
        let (applied, left) = match is_json {
            true => {
                let error: Value = serde_json::from_str(&run.stderr).expect("JSON");
                let counts = [&error["error"]["applied"], &error["error"]["left"]];
                let [applied, left] = counts.map(|count| count.as_u64().expect("a number"));
                (applied, left)
            }
            false => {
                let says = " of 40 changes were made; the same command makes those that are left";
                let (applied, _) = run.stderr.split_once(says).expect(&seen);
                let applied = applied.parse().expect(&seen);
                (applied, 40 - applied)
            }
        };
        let made = dynamo.items().into_iter();
        let made = made.filter(|item| item["SK"]["S"] == "#CONFIG").count();
        let made = u64::try_from(made).expect("few");
        assert_eq!((applied, left), (made, 40 - made), "{seen}");
        table.text(apply);
        assert_eq!(table.text("limits export"), text, "{seen}");
    }
}

/// The first one awaits the changes that have begun, each for its timeout.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_a_second_after_the_first_ends_an_apply_at_once() {
    let file =
        Temporary::file("twice.yaml", "weirgate: 1\nsystem:\n  limits:\n    rpm: 5/minute\n");
    let table = Table::new().await;
    let (gate, url) = Gate::to(&table.endpoint);
    gate.hold("TransactWriteItems");
    let apply = ["--timeout", "1h", "limits", "apply", file.path(), "--yes"];
    let mut child = spawn(&url, &apply);
    gate.until_held();
    let begun = Instant::now();
    let ended = loop {
        if let Some(ended) = child.try_wait().expect("it is a child") {
            break ended;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not end");
        signal(&child, Signal::SIGINT);
        signal(&child, Signal::SIGTERM);
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(ended.code(), Some(1));
    assert!(begun.elapsed() >= Duration::from_secs(1), "too early");
    gate.open();
}
