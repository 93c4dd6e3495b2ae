//! `acquire ... -- COMMAND`: every signal at every moment, the lease, and the exit codes.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::libc::{SIGRTMAX, SIGRTMIN};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use weirgate::{OnUnavailable, RateLimiter};
use weirgate_testkit::server::serve_with_faults;
use weirgate_testkit::{Dynamo, Fault, Temporary};

use super::fixtures::Table;
use super::gate::Gate;

/// Longest wait for what has to come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time between two looks at a condition.
const LOOK: Duration = Duration::from_millis(5);

/// The signals that a process can take and that tell of no fault of its own.
const SIGNALS: [Signal; 17] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGTERM,
    Signal::SIGSTKFLT,
    Signal::SIGCONT,
    Signal::SIGURG,
    Signal::SIGXCPU,
    Signal::SIGXFSZ,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGWINCH,
    Signal::SIGIO,
    Signal::SIGPWR,
];

/// Those that end no process by default.
const HARMLESS: [Signal; 3] = [Signal::SIGCONT, Signal::SIGURG, Signal::SIGWINCH];

#[expect(clippy::as_conversions, reason = "the number of a variant")]
fn number(signal: Signal) -> i32 {
    signal as i32
}

/// Prints `ready PID`, the number of each signal that it gets, and ends with 7 after a line.
fn recorder() -> String {
    let traps = SIGNALS.map(number);
    let traps = traps.map(|number| format!("trap 'echo {number}' {number}; "));
    format!("{}echo ready $$; while :; do read -r line && exit 7; done", traps.concat())
}

/// A run of the binary whose output is read while it runs.
struct Run {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Run {
    fn start(mut command: Command) -> Self {
        command.env_clear().env("PATH", "/usr/bin:/bin");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.stderr(Stdio::piped()).spawn().expect("it runs");
        let output = process.stdout.take().expect("it is piped");
        let lines = lines(output);
        Self { input: process.stdin.take().expect("it is piped"), process, lines, seen: vec![] }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.process.id()).expect("it is small")
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("it runs");
    }

    /// Waits for a line, and returns it.
    fn line(&mut self, is_it: impl Fn(&str) -> bool) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("no such line: {:?}", self.seen));
            self.seen.push(line.clone());
            if is_it(&line) {
                return line;
            }
        }
    }

    /// Waits until the command runs. Returns its process.
    fn ready(&mut self) -> Pid {
        let line = self.line(|line| line.starts_with("ready "));
        Pid::from_raw(line["ready ".len()..].trim().parse().expect("a number"))
    }

    /// Waits for the end. Returns how it ended, and what it said.
    fn end(mut self) -> (ExitStatus, String) {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.process.try_wait().expect("it can be awaited") {
                break status;
            }
            assert!(Instant::now() < end, "it does not end: {:?}", self.seen);
            std::thread::sleep(LOOK);
        };
        let mut text = String::new();
        let errors = self.process.stderr.take();
        let mut errors = errors.expect("it is piped");
        errors.read_to_string(&mut text).expect("it is text");
        (status, text)
    }

    /// Ends the command with 7, and requires that the binary does the same.
    fn finish(mut self) {
        writeln!(self.input, "end").expect("the command reads");
        let (status, errors) = self.end();
        assert_eq!(status.code(), Some(7), "{errors}");
        assert_eq!(errors, "");
    }
}

fn lines(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// A table with one slot for `job` on `gpu`, and a budget that does not refill within a test.
struct World {
    table: Table,
    gate: Gate,
    url: String,
}

impl World {
    async fn new() -> Self {
        let table = Table::new().await;
        table.text("limits set --system slots=1 budget=10/day");
        let (gate, url) = Gate::to(&table.endpoint);
        Self { table, gate, url }
    }

    /// Returns `acquire` through the gate, up to the command.
    fn acquire(&self, options: &[&str], command: &[&str]) -> Command {
        let mut run = Command::new(env!("CARGO_BIN_EXE_weirgate"));
        run.args(["--table", "weirgate", "--endpoint-url", &self.url]);
        run.args(["acquire", "job", "gpu"]).args(options);
        run.arg("--").args(command);
        run
    }

    fn start(&self, options: &[&str]) -> Run {
        Run::start(self.acquire(options, &["/bin/sh", "-c", &recorder()]))
    }

    fn leases(&self) -> Vec<Value> {
        let leases = self.table.json("leases list job gpu");
        leases["items"].as_array().expect("a list").clone()
    }

    /// Requires that nothing is held, and this much of the budget is there.
    fn holds_nothing(&self, budget: i64, when: &str) {
        assert_eq!(self.leases(), Vec::<Value>::new(), "{when}");
        let balances = self.table.json("peek job gpu");
        let limits = balances["limits"].as_array().expect("a list");
        for limit in limits {
            let expected = if limit["limit"] == "slots" { 1 } else { budget };
            assert_eq!(limit["available_tokens"], expected, "{when}: {balances}");
        }
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(LOOK);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_signal_reaches_the_command_each_time_and_its_exit_code_stays() {
    let world = World::new().await;
    // With a lease, and without one.
    for take in ["slots=1", "budget=1"] {
        let mut run = world.start(&[take]);
        run.ready();
        for signal in SIGNALS {
            for _ in 0..2 {
                run.signal(signal);
                run.line(|line| line == number(signal).to_string());
            }
        }
        run.finish();
    }
    world.holds_nothing(9, "after the command");
}

/// No safe call sends a real-time signal, so SIGTERM stands for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_real_time_signal_ends_the_command_and_releases_the_slot() {
    let world = World::new().await;
    let term = number(Signal::SIGTERM).to_string();
    for signal in SIGRTMIN()..=SIGRTMAX() {
        let send = |run: &Run| {
            let mut kill = Command::new("kill");
            kill.arg(format!("-{signal}")).arg(run.pid().to_string());
            assert!(kill.status().expect("it runs").success());
        };
        // A command that decides itself when it ends.
        let mut run = world.start(&["slots=1"]);
        run.ready();
        send(&run);
        run.line(|line| line == term);
        assert_eq!(world.leases().len(), 1, "{signal}: the command still runs");
        // Another one that waits for the slot.
        world.gate.hold("");
        let waiting = world.start(&["slots=1", "--wait", "1h"]);
        world.gate.until_held();
        send(&waiting);
        world.gate.open();
        let (status, errors) = waiting.end();
        assert_eq!(status.code(), Some(128 + signal), "{errors}");
        writeln!(run.input, "end").expect("the command reads");
        let (status, errors) = run.end();
        assert_eq!(status.code(), Some(7), "{signal}: {errors}");
        assert!(errors.contains(&format!("signal {signal} is a real-time signal")));
        world.holds_nothing(10, "after the command");
    }
}

/// A variable that is empty behind `--` leaves no command.
#[tokio::test(flavor = "multi_thread")]
async fn dashes_without_a_command_are_wrong_usage_and_take_nothing() {
    let world = World::new().await;
    for options in [
        &["slots=1"][..],
        &["slots=1", "--limit", "slots=1"],
        &["slots=1", "--wait", "1s", "--on-lost", "keep"],
        &["slots=1", "--json"],
        &["budget=1"],
    ] {
        let (status, errors) = Run::start(world.acquire(options, &[])).end();
        assert_eq!(status.code(), Some(125), "{options:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        world.holds_nothing(10, &format!("{options:?}"));
    }
    // A command may be called so, or have it as its last argument.
    let (status, errors) = Run::start(world.acquire(&["slots=1"], &["--"])).end();
    assert_eq!(status.code(), Some(127), "{errors}");
    let (status, errors) = Run::start(world.acquire(&["slots=1"], &["true", "--"])).end();
    assert_eq!(status.code(), Some(0), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_before_the_command_ends_with_nothing_held() {
    let world = World::new().await;
    let mut holder = world.start(&["slots=1"]);
    holder.ready();
    for signal in SIGNALS {
        // It waits for the slot, or asks for it for the first time.
        world.gate.hold("");
        let run = world.start(&["slots=1", "budget=1", "--wait", "1h"]);
        world.gate.until_held();
        world.gate.open();
        ends(run, signal);
        assert_eq!(world.leases().len(), 1, "{signal}: only the holder's");
    }
    holder.finish();
    world.holds_nothing(10, "after all");
}

/// The balance is negative while it is in the line.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_in_the_line_leaves_it() {
    let table = Table::new().await;
    table.text("limits set --system rpm=60/minute");
    table.text("acquire job gpu rpm=60");
    let left = || table.json("peek job gpu")["limits"][0]["available_tokens"].as_f64();
    for (options, command) in [(&[][..], &[][..]), (&["--"], &["sleep", "60"])] {
        let mut queued = Command::new(env!("CARGO_BIN_EXE_weirgate"));
        queued.args(["--table", "weirgate", "--endpoint-url", &table.endpoint]);
        queued.args(["acquire", "job", "gpu", "rpm=60", "--queue", "1h"]);
        let run = Run::start({
            queued.args(options).args(command);
            queued
        });
        until("it is in the line", || left() < Some(0.0));
        ends(run, Signal::SIGINT);
        assert!(left() >= Some(0.0), "{options:?}");
    }
    let mut both = Command::new(env!("CARGO_BIN_EXE_weirgate"));
    both.args(["acquire", "job", "gpu", "rpm=1", "--queue", "1m", "--now", "--", "true"]);
    let (status, errors) = Run::start(both).end();
    assert_eq!(status.code(), Some(125), "{errors}");
    assert!(errors.contains("'--now' cannot be used with"), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_a_grant_is_on_its_way_ends_with_nothing_held() {
    let world = World::new().await;
    for signal in SIGNALS {
        world.gate.hold("UpdateItem");
        let run = Run::start(world.acquire(&["slots=1"], &["sleep", "60"]));
        world.gate.until_held();
        // The signal comes first, or the grant: then the command gets the signal.
        run.signal(signal);
        world.gate.open();
        ends(run, signal);
        world.holds_nothing(10, signal.as_str());
    }
}

/// Sends a signal, and SIGTERM after one that ends nothing. Requires the exit code of the signal
/// that ended it.
fn ends(run: Run, signal: Signal) {
    run.signal(signal);
    let ended_by = match HARMLESS.contains(&signal) {
        true => {
            run.signal(Signal::SIGTERM);
            Signal::SIGTERM
        }
        false => signal,
    };
    let (status, errors) = run.end();
    let code = 128 + number(ended_by);
    assert_eq!(status.code(), Some(code), "{signal}: {errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_the_slot_is_released_changes_nothing() {
    let world = World::new().await;
    let mut run = world.start(&["slots=1", "--lease", "1h"]);
    run.ready();
    world.gate.hold("UpdateItem");
    writeln!(run.input, "end").expect("the command reads");
    world.gate.until_held();
    for signal in SIGNALS {
        run.signal(signal);
        run.signal(signal);
    }
    world.gate.open();
    let (status, errors) = run.end();
    assert_eq!((status.code(), errors.as_str()), (Some(7), ""));
    world.holds_nothing(10, "after the release");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_says_how_the_command_ended() {
    let world = World::new().await;
    for signal in SIGNALS.into_iter().chain([Signal::SIGKILL, Signal::SIGSEGV]) {
        if HARMLESS.contains(&signal) {
            continue;
        }
        let script = format!("ulimit -c 0; kill -{} $$; sleep 60", number(signal));
        let run = Run::start(world.acquire(&["slots=1"], &["/bin/sh", "-c", &script]));
        let (status, errors) = run.end();
        assert_eq!(status.code(), Some(128 + number(signal)), "{errors}");
        assert_eq!(status.signal(), None);
        world.holds_nothing(10, signal.as_str());
    }
    for code in [0, 1, 2, 7, 124, 125, 255] {
        let script = format!("exit {code}");
        let run = Run::start(world.acquire(&["slots=1"], &["/bin/sh", "-c", &script]));
        let (status, errors) = run.end();
        assert_eq!((status.code(), errors.as_str()), (Some(code), ""));
    }
    // What was not run has used nothing.
    let script = Temporary::file("no-program", "text");
    for (program, code) in
        [("/no/such/program", 127), ("no-such-program", 127), ("/etc", 126), (script.path(), 126)]
    {
        let run = Run::start(world.acquire(&["slots=1", "budget=1"], &[program]));
        let (status, errors) = run.end();
        assert_eq!(status.code(), Some(code), "{errors}");
        assert!(errors.contains("cannot be run"), "{errors}");
        world.holds_nothing(10, program);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_not_run_has_a_code_of_its_own() {
    let world = World::new().await;
    for (options, code) in [
        (&["slots=2"][..], 124),
        (&["budget=11"], 124),
        (&["none=1"], 125),
        (&["slots"], 125),
        (&["slots=1", "--no-such-option"], 125),
    ] {
        let run = Run::start(world.acquire(options, &["true"]));
        let (status, errors) = run.end();
        assert_eq!(status.code(), Some(code), "{options:?}: {errors}");
    }
    let mut holder = world.start(&["slots=1"]);
    holder.ready();
    // Standard output is that of the command alone, which did not run.
    let refused = |options: &[&str], part: &str| {
        for json in [&[][..], &["--json"]] {
            let mut run = Run::start(world.acquire(&[options, json].concat(), &["echo", "ran"]));
            let printed: Vec<_> = run.lines.iter().collect();
            assert_eq!(printed, Vec::<String>::new(), "{part}");
            let status = run.process.wait().expect("it ends");
            let mut errors = String::new();
            let stream = run.process.stderr.as_mut().expect("it is piped");
            stream.read_to_string(&mut errors).expect("it is text");
            assert_eq!(status.code(), Some(124), "{errors}");
            assert!(errors.contains(part), "{part}: {errors}");
        }
    };
    refused(&["slots=1"], "denied");
    refused(&["slots=2"], "capacity");
    world.table.text("stop --system --yes");
    refused(&["budget=1"], "stopped");
    world.gate.set_down(true);
    let down = ["budget=1", "--timeout", "500ms"];
    let (status, errors) = Run::start(world.acquire(&down, &["true"])).end();
    assert_eq!(status.code(), Some(125), "{errors}");
    world.gate.set_down(false);
    holder.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_is_renewed_while_the_command_runs() {
    let world = World::new().await;
    let mut run = world.start(&["slots=1", "--lease", "2s"]);
    run.ready();
    let expiry = || world.leases()[0]["expires_at_ms"].as_i64().expect("a time");
    // Later than the lease that was granted lasts.
    let first = expiry();
    until("it is renewed", || expiry() > first + 2_000);
    let other = world.table.run("acquire job gpu slots=1");
    assert_eq!(other.code, Some(3), "{other:?}");
    // A short outage is bridged.
    let before = expiry();
    world.gate.set_down(true);
    std::thread::yield_now();
    world.gate.set_down(false);
    until("it is renewed again", || expiry() > before);
    run.finish();
    world.holds_nothing(10, "after the command");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_whose_lease_is_lost_is_stopped_or_kept_with_one_warning() {
    let term = number(Signal::SIGTERM).to_string();
    for by_outage in [true, false] {
        for (action, is_stopped) in [(None, true), (Some("stop"), true), (Some("keep"), false)] {
            let world = World::new().await;
            let mut options = vec!["slots=1", "--lease", "1s"];
            options.extend(action.into_iter().flat_map(|action| ["--on-lost", action]));
            let mut run = world.start(&options);
            run.ready();
            if by_outage {
                world.gate.set_down(true);
            } else {
                let lease = world.leases()[0]["id"].as_str().expect("an id").to_owned();
                world.table.text(["leases", "release", "job", "gpu", &lease, "--yes"]);
            }
            let errors = run.process.stderr.take().expect("it is piped");
            let warnings = lines(errors);
            let warning = warnings.recv_timeout(PATIENCE).expect("a warning");
            assert!(warning.contains("the lease is lost"), "{warning}");
            if is_stopped {
                run.line(|line| line == term);
            }
            world.gate.set_down(false);
            writeln!(run.input, "end").expect("the command reads");
            let status = run.process.wait().expect("it ends");
            assert_eq!(status.code(), Some(7));
            let got: Vec<_> = run.lines.iter().collect();
            let stops = run.seen.iter().chain(&got).filter(|line| **line == term);
            assert_eq!(stops.count(), usize::from(is_stopped), "{action:?}");
            let lost = warnings.iter().filter(|line| line.contains("lost"));
            assert_eq!(lost.count(), 0, "one warning");
        }
    }
}

/// Such as the password of a vault that is locked.
#[test]
fn a_signal_while_a_password_is_awaited_ends_it() {
    let pipe = Temporary::at("pipe");
    let made = Command::new("mkfifo").arg(pipe.path()).status();
    assert!(made.expect("it runs").success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_weirgate"));
    command.args(["--store", "redis://user@127.0.0.1:1", "--store-password-file"]);
    command.arg(pipe.path()).args(["acquire", "job", "gpu", "slots=1"]);
    let run = Run::start(command);
    // Opened once the other end is.
    let writer = std::fs::File::options().write(true).open(pipe.path());
    run.signal(Signal::SIGTERM);
    let (status, errors) = run.end();
    drop(writer);
    assert_eq!(status.signal(), Some(number(Signal::SIGTERM)), "{errors}");
}

/// The table has the write, and its answer comes after the deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_gets_no_answer_ends_with_nothing_held() {
    let take = ["job", "gpu", "slots=1", "budget=1", "--timeout", "2s"];
    let load = ["--rate", "1", "--for", "1s"];
    for (name, options, code) in [
        ("acquire", &["--lease", "1h"][..], 6),
        ("acquire", &["--lease", "1h", "--", "true"], 125),
        ("load", &load, 1),
    ] {
        let world = World::new().await;
        world.gate.hold_answers("UpdateItem");
        let mut command = Command::new(env!("CARGO_BIN_EXE_weirgate"));
        command.args(["--table", "weirgate", "--endpoint-url", &world.url, name]);
        command.args(take).args(options);
        let mut run = Run::start(command);
        let told = match name {
            "load" => run.line(|line| line.contains("failed")),
            _ => {
                let errors = run.process.stderr.take().expect("it is piped");
                let line = lines(errors).recv_timeout(PATIENCE);
                line.expect("an error")
            }
        };
        assert_eq!(world.leases().len(), 1, "{name}: it has been written");
        world.gate.open();
        let status = run.process.wait().expect("it ends");
        assert_eq!(status.code(), Some(code), "{name}: {told}");
        world.holds_nothing(10, &told);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_without_the_table_and_one_by_shadow_mode_say_so() {
    let dynamo = Dynamo::new().await;
    let table = Table::at_endpoint(serve_with_faults(&dynamo));
    table.text("limits set --system slots=1 day=1/day,mode=shadow");
    let waived = ["acquire", "job", "api", "day=1"];
    table.text(waived);
    for options in [&[][..], &["--", "true"], &["--json", "--", "true"]] {
        let run = table.run([&waived[..], options].concat());
        assert_eq!(run.code, Some(0), "{run:?}");
        let says = "warning: granted by shadow mode alone: denied";
        assert!(run.stderr.contains(says), "{options:?}: {run:?}");
    }
    let told = table.json(waived);
    assert_eq!(told["would_deny"]["limits"][0]["limit"], "day", "{told}");

    let limiter = RateLimiter::builder("").table(dynamo.table().await);
    let limiter = limiter.build().await.expect("it is built");
    let allow = Some(OnUnavailable::Allow);
    let stored = limiter.admin().store_on_unavailable(allow).send().await;
    stored.expect("it is stored");
    dynamo.fail_when(|_| Some(Fault::ServerError));
    let take = ["--timeout", "1s", "acquire", "job", "gpu", "slots=1"];
    for options in [&[][..], &["--", "true"], &["--json", "--", "true"]] {
        let run = table.run([&take[..], options].concat());
        assert_eq!(run.code, Some(0), "{run:?}");
        let says = "warning: granted without the table, which is unavailable (";
        assert!(run.stderr.contains(says), "{options:?}: {run:?}");
    }
    let told = table.json(take);
    let reason = told["degraded"]["reason"].as_str();
    assert!(reason.is_some_and(|reason| !reason.is_empty()), "{told}");
    let load = "--json --timeout 1s load job gpu slots=1 --rate 2 --for 1s";
    let run = table.run(load);
    let report: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_eq!(run.code, Some(1), "{report}");
    assert_eq!(report["outcomes"]["degraded"]["acquires"], 2, "{report}");
    assert_eq!(report["acquires"], 2, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ignored_signals_stay_ignored() {
    let world = World::new().await;
    let ignoring = |name: &str| {
        let run = world.acquire(&["slots=1"], &["/bin/sh", "-c", &recorder()]);
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &format!("trap '' {name}; exec \"$@\""), "sh"]);
        shell.arg(run.get_program()).args(run.get_args());
        shell
    };
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
        let mut run = Run::start(ignoring(&signal.as_str()["SIG".len()..]));
        run.ready();
        run.signal(signal);
        run.signal(Signal::SIGUSR1);
        run.line(|line| line == number(Signal::SIGUSR1).to_string());
        let ignored = number(signal).to_string();
        assert!(!run.seen.contains(&ignored), "{:?}", run.seen);
        run.finish();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_terminal_reach_the_command_once() {
    keys_reach_once(&[]).await;
}

/// The terminal does not send them to a group of its own.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_terminal_reach_a_command_that_left_the_process_group_once() {
    keys_reach_once(&["setsid"]).await;
}

async fn keys_reach_once(prefix: &[&str]) {
    let world = World::new().await;
    let pty = nix::pty::openpty(None, None).expect("a terminal");
    let (mut keys, screen) = (
        std::fs::File::from(pty.master.try_clone().expect("a copy")),
        std::fs::File::from(pty.master),
    );
    let recorder = recorder();
    let command = [prefix, &["/bin/sh", "-c", &recorder]].concat();
    let run = world.acquire(&["slots=1"], &command);
    // Gives the process its terminal.
    let mut command = Command::new("setsid");
    command.arg("--ctty").arg(run.get_program());
    command.args(run.get_args()).env_clear();
    command.env("PATH", "/usr/bin:/bin");
    let stream = || -> Stdio {
        let copy: OwnedFd = pty.slave.try_clone().expect("a copy");
        copy.into()
    };
    command.stdin(stream()).stdout(stream()).stderr(stream());
    let mut process = command.spawn().expect("it runs");
    let pid = Pid::from_raw(i32::try_from(process.id()).expect("it is small"));
    drop((command, pty.slave));
    let lines = lines(screen);
    let mut seen = vec![];
    let mut line = |expected: &str| loop {
        let line = lines.recv_timeout(PATIENCE).expect("a line");
        // The terminal echoes keys before what the command prints.
        let line = line.trim_end().trim_start_matches(['^', 'C', '\\']).to_owned();
        seen.push(line.clone());
        if line.starts_with(expected) {
            return seen.clone();
        }
    };
    line("ready ");
    let (int, quit) = (number(Signal::SIGINT), number(Signal::SIGQUIT));
    for (key, signal) in [(b"\x03", int), (b"\x1c", quit)] {
        keys.write_all(key).expect("it takes keys");
        line(&signal.to_string());
        // What was sent before this one has arrived.
        kill(pid, Signal::SIGUSR1).expect("it runs");
        let seen = line(&number(Signal::SIGUSR1).to_string());
        let count = seen.iter().filter(|line| **line == signal.to_string());
        assert_eq!(count.count(), 1, "{seen:?}");
    }
    // Another process can send it too.
    kill(pid, Signal::SIGINT).expect("it runs");
    line(&int.to_string());
    keys.write_all(b"end\n").expect("it takes keys");
    let status = process.wait().expect("it ends");
    assert_eq!(status.code(), Some(7));
    assert_eq!(world.leases(), Vec::<Value>::new());
}
