//! The streams of this process. Nothing else writes to them: what comes from the table passes
//! [`Text`].
#![expect(clippy::disallowed_methods, reason = "the one place that writes to the streams")]

use std::io::{ErrorKind, IsTerminal, Write};

use anstream::AutoStream;

use crate::text::{self, Text};

/// Returns whether standard output is a terminal.
pub fn is_stdout_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Returns whether standard error is a terminal.
pub fn is_stderr_terminal() -> bool {
    std::io::stderr().is_terminal()
}

/// Prints lines to standard error. A stream that is closed or full takes none, which is no reason to
/// end.
pub fn warn(text: impl Into<Text>) {
    to_stderr(&text.into().terminal_lines());
}

/// Prints what is written to it to standard error, as lines.
#[derive(Debug)]
pub struct Warnings;

impl Write for Warnings {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        warn(String::from_utf8_lossy(bytes).trim_end().to_owned());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Prints a value to standard error, as JSON.
pub fn warn_json(value: &serde_json::Value) {
    to_stderr(&(text::json(&value.to_string()) + "\n"));
}

/// Prints a question to standard error; the answer is on the same line.
pub fn ask(question: &str) {
    to_stderr(&text::one_line(&text::without_passwords(question)));
}

/// Replaces the line of standard error on which the cursor is. Without a text, it is empty then.
pub fn replace_line(line: &str) {
    /// Moves to the begin of the line, and clears it.
    const CLEAR: &str = "\r\x1b[K";
    // A line that wraps could not be replaced.
    let size = terminal_size::terminal_size_of(std::io::stderr());
    let width = size.map_or(usize::MAX, |(width, _)| usize::from(width.0) - 1);
    let line: String = text::one_line(line).chars().take(width).collect();
    let line = format!("{CLEAR}{line}");
    // Moving the cursor is no colour, so it does not depend on them.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Prints to standard output what a terminal may obey. A reader that has gone has seen enough, which
/// changes neither what a command does nor how it ends.
///
/// # Errors
/// If it cannot be written.
pub fn to_stdout(text: &str) -> std::io::Result<()> {
    let mut stdout = AutoStream::auto(std::io::stdout().lock());
    let written = stdout.write_all(text.as_bytes());
    match written.and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

fn to_stderr(text: &str) {
    let mut stderr = AutoStream::auto(std::io::stderr().lock());
    // Nothing is left to say it to.
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}
