//! The commands with which `docs/deployment.md` runs the functions on a local table, as they stand
//! there. Run by `make local-check`.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};

const PAGE: &str = include_str!("../../docs/deployment.md");
/// Enough for the builds that the commands begin with.
const PATIENCE: Duration = Duration::from_secs(900);

/// The shell of a block, as in a terminal at the root of the repository.
fn shell(block: &str) -> Command {
    let text = PAGE
        .split_once(&format!("```sh {block}\n"))
        .and_then(|(_, rest)| rest.split_once("```"))
        .map(|(text, _)| text);
    let mut command = Command::new("bash");
    command
        .args([
            "-euo",
            "pipefail",
            "-c",
            text.expect("the page has the block"),
        ])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    command
}

/// A terminal that runs a block until it is dropped.
struct Terminal(Child);

impl Terminal {
    fn open(block: &str) -> Self {
        let mut command = shell(block);
        command.stdin(Stdio::null()).process_group(0);
        Self(command.spawn().expect("bash starts"))
    }

    /// Waits until the block listens on `port`.
    fn until_listening(&mut self, port: u16) {
        let deadline = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = self.0.try_wait().expect("it can be asked");
            assert!(ended.is_none(), "the block has ended: {ended:?}");
            assert!(Instant::now() < deadline, "nothing listens on {port}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The block's processes are in its group.
        if let Ok(group) = i32::try_from(self.0.id()) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGTERM);
        }
        let _ = self.0.wait();
    }
}

/// The answers of a block: a JSON value on each line.
fn answers(block: &str) -> Vec<Value> {
    let output = shell(block).output().expect("bash starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{block}: {said}{complained}");
    let answer = |line: &str| serde_json::from_str(line).expect("an answer is JSON");
    said.lines().map(answer).collect()
}

#[test]
#[ignore = "needs cargo-lambda on the path; run by `make local-check`"]
fn the_pages_commands_run_both_functions_on_a_local_table() {
    let mut table = Terminal::open("local-table");
    table.until_listening(8000);
    let mut watch = Terminal::open("watch");
    watch.until_listening(9000);

    let aggregated = answers("invoke-aggregator");
    let events = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../events"))
        .expect("the folder is there")
        .filter(|file| {
            let name = file.as_ref().expect("it can be listed").file_name();
            name.to_string_lossy().starts_with("aggregator-")
        })
        .count();
    assert_eq!(aggregated, vec![json!({"batchItemFailures": []}); events]);

    let reconciled = answers("invoke-reconciler");
    assert_eq!(reconciled.len(), 1, "{reconciled:?}");
    assert_eq!(reconciled[0]["errors"], json!([]));
    assert_eq!(reconciled[0]["buckets_seen"], 0);
}
