//! The binary, and endpoints for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

use serde_json::Value;
use weirgate_testkit::server::serve;
use weirgate_testkit::{Dynamo, Temporary};

/// What one run of the binary said.
#[derive(Debug)]
pub struct Run {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Arguments of the binary: a line of words, or words that may have spaces.
pub trait Arguments {
    fn words(&self) -> Vec<&str>;
}

impl Arguments for str {
    fn words(&self) -> Vec<&str> {
        self.split_whitespace().collect()
    }
}

impl Arguments for [&str] {
    fn words(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl<const N: usize> Arguments for [&str; N] {
    fn words(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl Arguments for Vec<&str> {
    fn words(&self) -> Vec<&str> {
        self.clone()
    }
}

impl<T: Arguments + ?Sized> Arguments for &T {
    fn words(&self) -> Vec<&str> {
        (**self).words()
    }
}

/// Runs the binary with these arguments and an empty environment.
pub fn weirgate(arguments: impl Arguments) -> Run {
    weirgate_with(&[], arguments)
}

/// Runs the binary with these variables and arguments.
pub fn weirgate_with(variables: &[(&str, &str)], arguments: impl Arguments) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weirgate"));
    command.args(arguments.words()).env_clear();
    finish(command.envs(variables.iter().copied()).stdin(Stdio::null()))
}

fn finish(command: &mut Command) -> Run {
    let output = command.output().expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Returns the commands that `--help` lists, down to those that have none below.
pub fn commands(path: &[&str]) -> Vec<String> {
    /// Headings of lists of commands.
    const LISTS: [&str; 6] = ["Commands:", "Limits:", "Look:", "Act:", "Operate:", "Local:"];
    let help = weirgate([path, &["--help"]].concat());
    assert_eq!(help.code, Some(0), "{path:?}: {help:?}");
    let mut is_list = false;
    let lines = help.stdout.lines().filter(|line| {
        if !line.starts_with(' ') {
            is_list = LISTS.contains(line);
        }
        is_list && line.starts_with("  ") && !line.starts_with("   ")
    });
    let names = lines.filter_map(|line| line.split_whitespace().next());
    let below: Vec<_> = names
        .filter(|name| *name != "help")
        .flat_map(|name| commands(&[path, &[name]].concat()))
        .collect();
    match below.is_empty() {
        true => vec![path.join(" ")],
        false => below,
    }
}

/// The binary on one table.
pub struct Table {
    /// URL of its DynamoDB; empty if it is in Redis.
    pub endpoint: String,
    /// The options that choose it.
    pub options: Vec<String>,
}

impl Table {
    pub async fn new() -> Self {
        Self::of(&Dynamo::new().await)
    }

    pub fn of(dynamo: &Dynamo) -> Self {
        Self::at_endpoint(serve(dynamo))
    }

    /// A table in DynamoDB at this URL.
    pub fn at_endpoint(endpoint: String) -> Self {
        let options = ["--table", "weirgate", "--endpoint-url", &endpoint];
        Self { options: options.map(str::to_owned).to_vec(), endpoint }
    }

    /// A table in Redis or Valkey.
    pub fn at(store: &str) -> Self {
        Self { endpoint: String::new(), options: vec!["--store".to_owned(), store.to_owned()] }
    }

    fn options(&self) -> Vec<&str> {
        self.options.iter().map(String::as_str).collect()
    }

    /// Runs a command on the table.
    pub fn run(&self, arguments: impl Arguments) -> Run {
        // Before the arguments, which may end with a command of their own.
        weirgate([&self.options()[..], &arguments.words()].concat())
    }

    /// As [`run`](Self::run), with a terminal for standard input, on which this is typed.
    pub fn run_typing(&self, text: &str, arguments: impl Arguments) -> Run {
        let pty = nix::pty::openpty(None, None).expect("a terminal");
        let mut keys = std::fs::File::from(pty.master);
        keys.write_all(text.as_bytes()).expect("it is typed");
        let mut command = Command::new(env!("CARGO_BIN_EXE_weirgate"));
        command.args(self.options());
        command.args(arguments.words()).env_clear();
        finish(command.stdin(std::fs::File::from(pty.slave)))
    }

    /// As [`run`](Self::run), with a terminal, on which `yes` is typed once it asks and `meanwhile` is done.
    pub fn run_asked(&self, meanwhile: impl FnOnce(), arguments: impl Arguments) -> Run {
        let pty = nix::pty::openpty(None, None).expect("a terminal");
        let mut keys = std::fs::File::from(pty.master);
        let mut command = Command::new(env!("CARGO_BIN_EXE_weirgate"));
        command.args(self.options());
        command.args(arguments.words()).env_clear();
        command.stdin(std::fs::File::from(pty.slave));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the binary runs");
        let (mut said, mut byte) = (String::new(), [0]);
        let errors = process.stderr.as_mut().expect("it is piped");
        while !said.ends_with("to confirm: ") {
            errors.read_exact(&mut byte).expect("it asks");
            said.push(byte[0].into());
        }
        meanwhile();
        keys.write_all(b"yes\n").expect("it is typed");
        errors.read_to_string(&mut said).expect("output is UTF-8");
        let output = process.wait_with_output().expect("it ends");
        Run {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("output is UTF-8"),
            stderr: said,
        }
    }

    /// As [`run`](Self::run), with this text on standard input.
    pub fn run_reading(&self, text: &str, arguments: impl Arguments) -> Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weirgate"));
        command.args(self.options());
        command.args(arguments.words()).env_clear();
        let input = Temporary::file("input", text);
        finish(command.stdin(std::fs::File::open(input.path()).expect("it is there")))
    }

    /// Runs a command that succeeds, and returns what it prints.
    pub fn text(&self, arguments: impl Arguments) -> String {
        let run = self.run(&arguments);
        assert_eq!(run.code, Some(0), "{:?}: {run:?}", arguments.words());
        run.stdout
    }

    /// Runs a command that succeeds, and returns its JSON.
    pub fn json(&self, arguments: impl Arguments) -> Value {
        let words = [&["--json"][..], &arguments.words()].concat();
        let text = self.text(&words);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words:?}: {error}: {text}"))
    }
}

/// An endpoint that answers every request with this error of DynamoDB. Returns its URL.
pub fn refusing(code: &str, message: &str) -> String {
    answering(&refusal(code, message))
}

/// Returns an answer with this error of DynamoDB.
pub fn refusal(code: &str, message: &str) -> String {
    let body = format!(r#"{{"__type":"com.amazon.coral.service#{code}","message":"{message}"}}"#);
    let head =
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/x-amz-json-1.0\r\nconnection: close";
    format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// An endpoint that answers every request with these bytes. Returns its URL.
pub fn answering(answer: &str) -> String {
    asked(answer).0
}

/// As [`answering`], with the head of each request, which comes before its answer.
pub fn asked(answer: &str) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let (answer, (send, heads)) = (answer.to_owned(), channel());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (text, send) = (answer.clone(), send.clone());
            // A client that goes away during the answer has its own reasons.
            std::thread::spawn(move || stream.and_then(|stream| answer_once(stream, &text, &send)));
        }
    });
    (url, heads)
}

fn answer_once(stream: TcpStream, answer: &str, heads: &Sender<String>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut length, mut head, mut line) = (0, String::new(), String::new());
    while reader.read_line(&mut line)? > 2 {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
        head.push_str(&line);
        line.clear();
    }
    // A test that does not look has no receiver.
    let _ = heads.send(head);
    reader.read_exact(&mut vec![0; length])?;
    reader.get_mut().write_all(answer.as_bytes())
}
