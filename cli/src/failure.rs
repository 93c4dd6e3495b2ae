//! Errors as a terminal shows them, and exit codes.

use std::ffi::OsString;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use clap::error::{ContextKind, ContextValue, ErrorKind as ErrorName};
use clap::{Arg, Command};
use weirgate::{Error, ErrorKind, StoreError};
use weirgate_shared::docs;

use crate::output::Unwritten;
use crate::streams;
use crate::text::{Text, without_passwords};

const DONE: u8 = 0;
pub const FAILED: u8 = 1;
const WRONG: u8 = 2;
const DENIED: u8 = 3;
const NEVER_FITS: u8 = 4;
const STOPPED: u8 = 5;
const NO_DECISION: u8 = 6;
const CHANGES: u8 = 7;

/// Every exit code of weirgate itself, with its meaning.
const CODES: [(u8, &str); 8] = [
    (DONE, "done"),
    (FAILED, "failed, or something was found wrong or unreadable"),
    (WRONG, "wrong usage, or not allowed: change command, permissions or file"),
    (DENIED, "denied: the same command may succeed later"),
    (NEVER_FITS, "never fits: more than a limit's capacity"),
    (STOPPED, "stopped or disabled by an operator"),
    (NO_DECISION, "no decision: the table or the credentials are unavailable for now"),
    (CHANGES, "there are changes, with --exit-code"),
];

/// Returns the exit codes as the help has them.
pub fn codes() -> String {
    let lines = CODES.map(|(code, meaning)| format!("  {code}  {meaning}\n"));
    format!("Exit codes:\n{}", lines.concat())
}

/// How a command ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It did what it should.
    Done,
    /// It did what it could: something is left, wrong, or cannot be read.
    Incomplete,
    /// The tokens were denied.
    Denied,
    /// The tokens never fit.
    NeverFits,
    /// The level is stopped or disabled.
    Stopped,
    /// There are changes, and the command was to say so.
    Changes,
    /// The exit code of a command that was run.
    Exit(u8),
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(match outcome {
            Outcome::Done => DONE,
            Outcome::Incomplete => FAILED,
            Outcome::Denied => DENIED,
            Outcome::NeverFits => NEVER_FITS,
            Outcome::Stopped => STOPPED,
            Outcome::Changes => CHANGES,
            Outcome::Exit(code) => code,
        })
    }
}

/// Exit codes of `acquire ... -- COMMAND`, as `timeout` has them, if the command was not run: because
/// the tokens were not granted, and because weirgate failed.
pub const NOT_GRANTED: u8 = 124;
pub const NOT_RUN: u8 = 125;

/// An error, in one line that says what to do.
#[derive(Debug)]
pub enum Failure {
    /// It failed.
    Failed(String),
    /// Wrong usage, or not allowed: the command must change.
    Refused(String),
    /// The table or the credentials are unavailable for now.
    Unavailable(String),
    /// As either of them, with the exit code of a command that runs another one.
    Exit(u8, String),
    /// As another one, of work of which a part is done: its JSON has these fields too, and its text this
    /// remark before it.
    Partly(Box<Self>, Box<Part>),
}

/// What is done of work that failed, and how it goes on.
#[derive(Debug)]
pub struct Part {
    pub remark: String,
    pub fields: serde_json::Value,
}

impl Failure {
    /// Returns the failure of a command that Ctrl-C, SIGTERM or SIGHUP ended.
    pub fn stopped() -> Self {
        Self::Failed("stopped before its end".to_owned())
    }

    /// Adds what is done.
    pub fn with_part(self, remark: String, fields: serde_json::Value) -> Self {
        Self::Partly(Box::new(self), Box::new(Part { remark, fields }))
    }

    /// Returns the text of the error.
    pub fn text(&self) -> &str {
        self.parts().1
    }

    fn parts(&self) -> (u8, &str, Option<&Part>) {
        match self {
            Self::Failed(text) => (FAILED, text, None),
            Self::Refused(text) => (WRONG, text, None),
            Self::Unavailable(text) => (NO_DECISION, text, None),
            Self::Exit(code, text) => (*code, text, None),
            Self::Partly(failure, part) => {
                let (code, text, _) = failure.parts();
                (code, text, Some(part))
            }
        }
    }

    /// Prints the error to standard error, as text or JSON, and returns the exit code.
    pub fn report(&self, is_json: bool) -> ExitCode {
        let (code, text, part) = self.parts();
        let words: Vec<_> = text.split_whitespace().collect();
        let text = without_passwords(&words.join(" "));
        if is_json {
            let mut error = serde_json::json!({"exit_code": code, "message": text});
            let fields = part.and_then(|part| part.fields.as_object());
            for (name, value) in fields.into_iter().flatten() {
                error[name] = value.clone();
            }
            streams::warn_json(&serde_json::json!({ "error": error }));
        } else {
            if let Some(part) = part {
                streams::warn(part.remark.clone());
            }
            let style = Style::new().fg_color(Some(AnsiColor::Red.into())).bold();
            streams::warn(Text::default().with(style, "error:").and(format!(" {text}")));
        }
        ExitCode::from(code)
    }
}

/// What other programs call something, and what to give for it here: the first row that begins with an option of
/// the command.
const HABITS: [(&str, &str); 7] = [
    ("--status", "--disabled, --unlimited or --enforced"),
    ("-o", "--out"),
    ("--output", "--out"),
    ("-o", "--json"),
    ("--output", "--json"),
    ("version", "--version"),
    ("--force", "--yes"),
];

/// Reports arguments that are wrong: one line, and which help to read. Prints the help if that was
/// asked for.
pub fn usage(error: &clap::Error, program: &Command) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorName::DisplayHelpOnMissingArgumentOrSubcommand {
        error.exit();
    }
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let end = ["\n\nUsage: ", "\n\nFor more information"]
        .into_iter()
        .filter_map(|end| text.find(end))
        .min();
    let text = &text[..end.unwrap_or(text.len())];
    let arguments: Vec<_> = std::env::args_os().collect();
    let end = arguments.iter().position(|argument| argument == "--");
    let options = &arguments[..end.unwrap_or(arguments.len())];
    let (below, command) = named(program, options);
    let has = |given: &str| {
        let option = given.trim_start_matches('-').split(',').next();
        let mut all = program.get_arguments().chain(below.get_arguments());
        all.any(|argument| argument.get_long() == option)
            || option == Some("version") && below.get_version().is_some()
    };
    let unknown = [ContextKind::InvalidArg, ContextKind::InvalidSubcommand];
    let unknown = unknown.into_iter().find_map(|kind| error.get(kind));
    let here = HABITS.iter().find(|(other, given)| {
        let is_it = matches!(unknown, Some(ContextValue::String(unknown)) if unknown == other);
        is_it && has(given)
    });
    let mut tips = text.split("  tip: ").map(str::trim);
    let mut text = tips.next().unwrap_or_default().to_owned();
    // Nothing of weirgate is a value that begins with dashes, and a habit has a better one.
    for tip in tips.filter(|tip| here.is_none() && !tip.starts_with("to pass ")) {
        text += "; ";
        text += tip;
    }
    let here = here.map(|(_, here)| format!("; give {here}"));
    let text = text + &here.unwrap_or_default();
    let text = format!("{text}; see '{command} --help'");
    let is_json = options.iter().any(|option| option == "--json");
    // Also if COMMAND is missing.
    match end.is_some() && command == "weirgate acquire" {
        true => Failure::Exit(NOT_RUN, text).report(is_json),
        false => Failure::Refused(text).report(is_json),
    }
}

/// Returns the command that the arguments are for, as far as they name one, and its name.
fn named<'p>(program: &'p Command, arguments: &[OsString]) -> (&'p Command, String) {
    let (mut command, mut name) = (program, program.get_name().to_owned());
    let mut arguments = arguments.iter().skip(1).filter_map(|text| text.to_str());
    while let Some(argument) = arguments.next() {
        if let Some(below) = command.find_subcommand(argument) {
            command = below;
            name = format!("{name} {}", below.get_name());
        } else if let Some(option) = argument.strip_prefix("--") {
            let mut options = program.get_arguments().chain(command.get_arguments());
            let takes_value = |argument: &Arg| {
                argument.get_long() == Some(option) && argument.get_action().takes_values()
            };
            if options.any(takes_value) {
                arguments.next();
            }
        } else if !command.has_subcommands() {
            break;
        }
    }
    (command, name)
}

/// What the crate calls something, as its errors name it, and what it is here.
const OF_CRATE: [(&str, &str); 1] = [("erase with LiveLeases::Discard", "give --discard-leases")];

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        if let Error::Invalid(text) = error {
            let here = |text: String, (of_crate, here): (&str, &str)| text.replace(of_crate, here);
            return Self::Refused(OF_CRATE.into_iter().fold(text, here));
        }
        match &error {
            Error::NotConfigured { .. } => Self::Refused(format!("{error} (--limit)")),
            Error::Store(store) => Self::from(&**store),
            Error::Timeout { last: Some(last), .. } => Self::from(&**last),
            Error::Halfway(_) => Self::Failed(error.to_string()),
            error if error.is_transient() => Self::Unavailable(error.to_string()),
            error => Self::Refused(error.to_string()),
        }
    }
}

impl From<&StoreError> for Failure {
    fn from(error: &StoreError) -> Self {
        let remedy = match error.kind {
            ErrorKind::Unreachable if error.is_of_redis() => "check --store",
            // The reason has it.
            _ if error.is_of_redis() => "",
            ErrorKind::TableNotFound => "check --table, --region and --profile",
            ErrorKind::CredentialsUnavailable => "sign in again, or give another --profile",
            ErrorKind::AccessDenied => {
                concat!(
                    "use a role with the policy for this command: ",
                    docs!("security", "policies-for-callers")
                )
            }
            ErrorKind::Unreachable => "check --region and --endpoint-url",
            _ => "",
        };
        let StoreError { kind, request, table, reason, .. } = error;
        let text = match (kind, remedy) {
            // No request is to blame for it.
            (ErrorKind::MissingCredentials, _) if error.is_of_redis() => {
                format!("{reason}; or give --store-password-file")
            }
            (ErrorKind::MissingCredentials, _) => {
                format!("{reason}; or give --region or --profile")
            }
            (_, "") => error.to_string(),
            (_, remedy) => {
                format!("{request} on table {table:?}: {}: {reason}; {remedy}", error.meaning())
            }
        };
        match error.kind {
            ErrorKind::TableNotFound
            | ErrorKind::MissingCredentials
            | ErrorKind::AccessDenied
            | ErrorKind::Invalid => Self::Refused(text),
            kind if kind.is_transient() => Self::Unavailable(text),
            _ => Self::Failed(text),
        }
    }
}

impl From<weirgate::NameError> for Failure {
    fn from(error: weirgate::NameError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<weirgate::DescriptionError> for Failure {
    fn from(error: weirgate::DescriptionError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<Unwritten> for Failure {
    fn from(error: Unwritten) -> Self {
        Self::Failed(format!("{error}; see what the command did before you repeat it"))
    }
}
