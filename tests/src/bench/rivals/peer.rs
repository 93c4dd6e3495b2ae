//! zae-limiter, the closest system there is, in a process of its own: `tests/peer/drive.py` with
//! the environment `.venv/bench`.

use std::path::Path;
use std::process::Stdio;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// A driver that answers each line with one; it ends when it is dropped.
#[derive(Debug)]
pub struct Process {
    _child: Child,
    questions: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts a driver, which prepares what its arguments name: an endpoint, and what it drives.
    pub async fn start(arguments: &[&str]) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut command = Command::new(root.join(".venv/bench/bin/python"));
        command.arg(root.join("tests/peer/drive.py")).args(arguments).envs([
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
        ]);
        Self::of(command, "make .venv/bench/.installed").await
    }

    /// Starts a driver by its command, which `made_by` makes.
    pub async fn of(mut command: Command, made_by: &str) -> Self {
        let started =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn();
        let mut child = started
            .unwrap_or_else(|error| panic!("a rival does not start ({error}): run `{made_by}`"));
        let questions = child.stdin.take().expect("it has an input");
        let answers = child.stdout.take().expect("it has an output");
        let mut process =
            Self { _child: child, questions, answers: BufReader::new(answers).lines() };
        let _: String = process.answer().await;
        process
    }

    /// Sends a line, and returns the answer.
    pub async fn ask<T: DeserializeOwned>(&mut self, line: &str) -> T {
        let line = format!("{line}\n");
        let asked = self.questions.write_all(line.as_bytes()).await;
        asked.expect("the peer reads");
        self.answer().await
    }

    async fn answer<T: DeserializeOwned>(&mut self) -> T {
        let line = self.answers.next_line().await.expect("the peer answers");
        let line = line.expect("the peer goes on: see what it says above");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line:?}"))
    }
}
