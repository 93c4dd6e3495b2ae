//! The blocks of the guide's first pages, pasted one after another as a reader pastes them. Run by `make guides`
//! and `make envoy`.
//!
//! The words of a fence say where its block goes:
//!
//! - `sh`: into the reader's terminal
//! - `sh terminal`: into a terminal of its own, where it runs until Ctrl-C
//! - `LANGUAGE FILE`: into this file; one of the checkout (`../weirgate/`) has this text already
//! - `text output`: nowhere; the block before it prints this, where `...` is anything
//!
//! Any other block fails, because nothing shows that it works. The reader works in a new folder beside the checkout,
//! and has the programs on the `PATH`. The pages' ports must be free.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Longest wait for a block, which may compile a program, and for a port.
const PATIENCE: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_millis(50);
/// What the reader's shell prints after each block.
const PROMPT: &str = "the block has ended";

/// Port of the table, of the agent, of its rate limit service, of Envoy, and of its upstream.
const TABLE: u16 = 8000;
const AGENT: u16 = 2774;
const RATE_LIMIT_SERVICE: u16 = 8081;
const GATEWAY: u16 = 10_000;
const UPSTREAM: u16 = 8080;
/// Port of the Node page's service.
const SERVICE: u16 = 3000;
/// Port of the agent that changes limits.
const ALLOWING: u16 = 2773;

fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("it is in the checkout").to_owned()
}

/// The folder of the programs that cargo has built: this one is `deps/blocks` in it.
fn programs() -> PathBuf {
    let this = std::env::current_exe().expect("this program has a path");
    let folder = this.ancestors().nth(2).expect("it is in a folder");
    folder.to_owned()
}

fn page(name: &str) -> String {
    let path = root().join("docs/guide").join(name).with_extension("md");
    std::fs::read_to_string(path).expect("the page can be read")
}

/// Returns a section of a page, up to the next heading of its level.
fn section(name: &str, heading: &str) -> String {
    let (page, heading) = (page(name), format!("\n## {heading}\n"));
    let (_, rest) = page.split_once(&heading).expect("the page has the section");
    rest.split("\n## ").next().unwrap_or_default().to_owned()
}

/// A block of a page: the words of its fence, and its lines.
#[derive(Debug, PartialEq, Eq)]
struct Block<'p> {
    words: &'p str,
    text: String,
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks = vec![];
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(words) = line.strip_prefix("```") {
            let text = lines.by_ref().take_while(|line| *line != "```");
            let text = text.map(|line| format!("{line}\n")).collect();
            blocks.push(Block { words, text });
        }
    }
    blocks
}

/// Returns whether a block printed what its page shows. White space does not count, because a page is narrow.
fn is_as_shown(printed: &str, shown: &str) -> bool {
    let packed = |text: &str| text.split_whitespace().collect::<String>();
    let (printed, shown) = (packed(printed), packed(shown));
    let Some((begin, middle)) = shown.split_once("...") else {
        return printed == shown;
    };
    let (middle, end) = middle.rsplit_once("...").unwrap_or(("", middle));
    let rest = printed.strip_prefix(begin);
    let Some(mut rest) = rest.and_then(|rest| rest.strip_suffix(end)) else {
        return false;
    };
    middle.split("...").all(|part| match rest.split_once(part) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

/// A reader of pages, with the terminals that are open.
struct Reader {
    /// Has the reader's folder, and the checkout beside it.
    place: PathBuf,
    keys: ChildStdin,
    screen: Receiver<String>,
    shell: Child,
    terminals: Vec<Terminal>,
    /// Pages share ports, so only one is read at a time, by all processes of this checkout.
    _turn: File,
}

/// A process group, which is killed at the end.
struct Terminal {
    text: String,
    process: Child,
}

impl Terminal {
    fn signal(&self, name: &str) {
        let group = format!("-{}", self.process.id());
        let mut kill = Command::new("kill");
        // Perhaps it has ended.
        let kill = kill.args(["-s", name, "--", &group]).stderr(Stdio::null());
        let _ = kill.status();
    }

    /// Ends the terminal by Ctrl-C.
    fn interrupt(&mut self) {
        self.signal("INT");
        let begun = Instant::now();
        while self
            .process
            .try_wait()
            .expect("it can be awaited")
            .is_none()
        {
            assert!(
                begun.elapsed() < PATIENCE,
                "Ctrl-C does not end {}",
                self.text
            );
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.signal("KILL");
        let _ = self.process.wait();
    }
}

impl Reader {
    fn new(name: &str) -> Self {
        let turn = File::create(programs().join("blocks.lock")).expect("a file can be made");
        turn.lock().expect("it can be locked");
        let place = format!("weirgate-blocks-{name}-{}", std::process::id());
        let place = std::env::temp_dir().join(place);
        for folder in ["home", "first"] {
            std::fs::create_dir_all(place.join(folder)).expect("a folder can be made");
        }
        symlink(root(), place.join("weirgate")).expect("a link can be made");
        // What is pasted fails at its first command that fails.
        let mut shell = bash(&place, &["--norc", "-e"]);
        let shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().expect("bash starts");
        let keys = shell.stdin.take().expect("it has an input");
        let output = BufReader::new(shell.stdout.take().expect("it has an output"));
        let (lines, screen) = channel();
        std::thread::spawn(move || {
            // The last line is of no use without a reader.
            output
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| lines.send(line))
        });
        Self {
            place,
            keys,
            screen,
            shell,
            terminals: vec![],
            _turn: turn,
        }
    }

    /// Pastes the blocks of a page. Each terminal of its own has a port, on which the reader waits. Returns what the
    /// blocks in the reader's terminal printed.
    fn read(&mut self, page: &str, ports: &[u16]) -> Vec<String> {
        let mut ports = ports.iter();
        let mut printed: Vec<String> = vec![];
        for Block { words, text } in blocks(page) {
            println!("```{words}\n{text}```");
            match words.split(' ').collect::<Vec<_>>()[..] {
                ["sh"] => {
                    let text = self.paste(&text);
                    println!("{text}");
                    printed.push(text);
                }
                ["sh", "terminal"] => {
                    let port = ports.next().expect("the test knows each port");
                    self.open(&text, *port);
                }
                ["text", "output"] => {
                    let last = printed.last().expect("a block is before its output");
                    assert!(is_as_shown(last, &text), "shown:\n{text}\nprinted:\n{last}");
                }
                [_, file] => {
                    assert!(page.contains(&format!("`{file}`")), "the page names {file}");
                    let path = self.place.join("first").join(file);
                    if file.starts_with("../weirgate/") {
                        let there = std::fs::read_to_string(path).expect(file);
                        assert_eq!(there, text, "{file}");
                    } else {
                        std::fs::write(path, text).expect("it can be written");
                    }
                }
                _ => panic!("a block that is not run, {words:?}:\n{text}"),
            }
        }
        assert_eq!(ports.next(), None, "each port has a terminal");
        printed
    }

    fn paste(&mut self, text: &str) -> String {
        let path = self.place.join("pasted");
        std::fs::write(&path, text).expect("it can be written");
        // The shell keeps its variables and its folder, and a program cannot read what is pasted next.
        let line = format!(". {} < /dev/null; echo; echo '{PROMPT}'", path.display());
        writeln!(self.keys, "{line}").expect("the shell reads");
        let mut printed = String::new();
        loop {
            let line = self.screen.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("it fails:\n{text}\nprinted:\n{printed}"));
            if line == PROMPT {
                return printed;
            }
            printed += &(line + "\n");
        }
    }

    fn open(&mut self, text: &str, port: u16) {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        free.unwrap_or_else(|error| panic!("port {port} of the page: {error}"));
        let number = self.terminals.len();
        let path = self.place.join(format!("terminal-{number}"));
        std::fs::write(&path, text).expect("it can be written");
        let log = File::create(path.with_extension("log")).expect("a file can be made");
        let mut command = bash(&self.place, &["--norc", "-e"]);
        let command = command.arg(&path).stdin(Stdio::null()).process_group(0);
        let command = command.stdout(log.try_clone().expect("a copy")).stderr(log);
        self.terminals.push(Terminal {
            text: text.to_owned(),
            process: command.spawn().expect("bash starts"),
        });
        let begun = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            let process = &mut self.terminals[number].process;
            let ended = process.try_wait().expect("it can be awaited");
            if ended.is_some() || begun.elapsed() > PATIENCE {
                let log = std::fs::read_to_string(path.with_extension("log"));
                panic!("port {port} does not listen ({ended:?}):\n{text}\n{log:?}");
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Ends all terminals by Ctrl-C, the last one first.
    fn close(mut self) {
        while let Some(mut terminal) = self.terminals.pop() {
            terminal.interrupt();
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
        self.terminals.clear();
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

/// A shell in the reader's folder, with the environment of a reader.
fn bash(place: &Path, arguments: &[&str]) -> Command {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let home = |name: &str, folder: &str| match variable(name) {
        set if set.is_empty() => format!("{}/{folder}", variable("HOME")),
        set => set,
    };
    let path = [programs(), envoy()].map(|folder| folder.display().to_string());
    // What runs in the background of a shell ignores Ctrl-C.
    let mut command = Command::new("env");
    command
        .args(["--default-signal=INT", "bash"])
        .args(arguments);
    command.current_dir(place.join("first")).env_clear();
    command
        .env("PATH", format!("{}:{}", path.join(":"), variable("PATH")))
        .env("HOME", place.join("home"))
        .env("LANG", "C.UTF-8")
        .env("USER", "reader")
        .env("CARGO_HOME", home("CARGO_HOME", ".cargo"))
        .env("RUSTUP_HOME", home("RUSTUP_HOME", ".rustup"));
    // Another value would build the crates again.
    if let Some(incremental) = std::env::var_os("CARGO_INCREMENTAL") {
        command.env("CARGO_INCREMENTAL", incremental);
    }
    command
}

/// The folder of Envoy, as `make envoy` installs it; only its page needs it.
fn envoy() -> PathBuf {
    let installed = std::fs::read_dir(root().join(".venv/envoy/lib"));
    let versions = installed.into_iter().flatten().filter_map(Result::ok);
    let mut folders = versions.map(|version| version.path().join("site-packages/envoy/_bin"));
    folders.next().unwrap_or_default()
}

#[test]
#[ignore = "needs Python, Node and curl: make guides"]
fn the_first_page_leads_to_a_denial_in_each_language_and_to_its_usage() {
    let mut reader = Reader::new("start");
    let page = page("start");
    assert!(page.split_whitespace().count() <= 600, "the page is short");
    let printed = reader.read(&page, &[TABLE, AGENT]);
    let [_limits, _curl, python, node, rust, usage] = &printed[..] else {
        panic!("{printed:?}");
    };
    for printed in [python, node, rust] {
        let lines: Vec<_> = printed.lines().filter(|line| !line.is_empty()).collect();
        for (line, call) in lines.iter().zip(1..) {
            let decision = if call == 4 { "denied" } else { "granted" };
            assert!(
                line.starts_with(&format!("call {call}: {decision}")),
                "{printed}"
            );
        }
        assert_eq!(lines.len(), 4, "{printed}");
    }
    // The usage of the page is what was adjusted, of the calls that were granted.
    assert!(usage.contains("3006"), "{usage}");
    reader.close();
}

#[test]
#[ignore = "needs curl: make guides"]
fn the_agents_page_takes_settles_and_reads() {
    let mut reader = Reader::new("agent");
    let printed = reader.read(&page("agent"), &[TABLE, AGENT, ALLOWING]);
    let [_limits, _acquire, settle, read, in_force, _changed] = &printed[..] else {
        panic!("{printed:?}");
    };
    assert!(settle.contains(r#""settlement":"settled""#), "{settle}");
    assert!(read.contains(r#""complete_until_ms""#), "{read}");
    let level = r#""level":{"level":"resource","resource":"gpt-4"},"status":"enforced""#;
    assert!(in_force.contains(level), "{in_force}");
    reader.close();
}

#[test]
#[ignore = "needs Python: make guides"]
fn the_calls_of_the_python_page_work() {
    let mut reader = Reader::new("python");
    reader.read(&section("agent", "Run"), &[TABLE, AGENT]);
    let printed = reader.read(&page("python"), &[]);
    assert!(printed[1].contains("HOW MANY?"), "{printed:?}");
    reader.close();
}

#[test]
#[ignore = "needs Go: make guides"]
fn the_calls_of_the_go_page_work() {
    let mut reader = Reader::new("go");
    reader.read(&section("agent", "Run"), &[TABLE, AGENT]);
    let printed = reader.read(&page("go"), &[]);
    assert!(printed[1].contains("HOW MANY?"), "{printed:?}");
    reader.close();
}

#[test]
#[ignore = "needs Node and curl: make guides"]
fn the_calls_and_the_service_of_the_node_page_work() {
    let mut reader = Reader::new("node");
    reader.read(&section("agent", "Run"), &[TABLE, AGENT]);
    let printed = reader.read(&page("node"), &[SERVICE]);
    assert!(printed[1].contains("HOW MANY?"), "{printed:?}");
    reader.close();
}

#[test]
#[ignore = "needs Envoy, Python and curl: make envoy"]
fn the_envoy_page_runs_a_gateway_that_denies() {
    let mut reader = Reader::new("envoy");
    reader.read(
        &page("envoy"),
        &[TABLE, UPSTREAM, RATE_LIMIT_SERVICE, GATEWAY],
    );
    reader.close();
}

#[test]
fn a_block_is_what_is_between_its_fences() {
    let page = "a\n```sh\nls\n\nls\n```\nb\n```text output\n```\n";
    let sh = Block {
        words: "sh",
        text: "ls\n\nls\n".to_owned(),
    };
    let output = Block {
        words: "text output",
        text: String::new(),
    };
    assert_eq!(blocks(page), [sh, output]);
}

#[test]
fn output_may_differ_only_where_the_page_leaves_something_out() {
    for (shown, printed) in [
        ("a b\n", "a\nb"),
        ("a ... c", "a b c"),
        ("a ... c", "a c"),
        ("... c ... e", "b c d e"),
        ("a ...", "a b"),
    ] {
        assert!(is_as_shown(printed, shown), "{shown:?} {printed:?}");
    }
    for (shown, printed) in [
        ("a", "a b"),
        ("a ... c", "a b"),
        ("a ... c", "b c"),
        ("a ... c ... e", "a b d e"),
        ("a ... b ... b", "a b"),
    ] {
        assert!(!is_as_shown(printed, shown), "{shown:?} {printed:?}");
    }
}
