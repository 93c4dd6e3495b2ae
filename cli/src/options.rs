//! Options that every command takes.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, ColorChoice, Command};
use weirgate::ConnectOptions;
use weirgate_shared::parse_timeout;

use crate::instant::{self, DAY};

/// Options that every command takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub struct Options {
    /// Name or ARN of the table: the stack's output TableName
    #[arg(long, global = true, env = "WEIRGATE_TABLE", value_name = "NAME")]
    pub table: Option<String>,
    /// Table in Redis or Valkey instead: redis://USER@HOST:6379/0, or rediss:// for TLS
    #[arg(
        long,
        global = true,
        env = "WEIRGATE_STORE",
        hide_env_values = true,
        value_name = "URL",
        value_parser = Secret::new
    )]
    pub store: Option<Secret>,
    /// File with the password of the store, which is not in the URL then
    #[arg(long, global = true, env = "WEIRGATE_STORE_PASSWORD_FILE", value_name = "PATH")]
    pub store_password_file: Option<PathBuf>,
    /// Namespace of the limits
    #[arg(
        long,
        global = true,
        env = "WEIRGATE_NAMESPACE",
        value_name = "NAME",
        default_value = "default"
    )]
    pub namespace: String,
    /// Region of the table
    #[arg(long, global = true, env = "AWS_REGION", value_name = "REGION")]
    pub region: Option<String>,
    /// Profile of the AWS configuration; as an argument, its keys are in place of the environment's
    #[arg(long, global = true, env = "AWS_PROFILE", value_name = "NAME")]
    pub profile: Option<String>,
    /// URL of DynamoDB, for a local one
    #[arg(
        long,
        global = true,
        env = "AWS_ENDPOINT_URL_DYNAMODB",
        value_name = "URL",
        value_parser = ConnectOptions::parse_endpoint
    )]
    pub endpoint_url: Option<String>,
    /// Author of changes in the audit, and owner of leases: the user, unless given
    #[arg(long, global = true, env = "WEIRGATE_PRINCIPAL", value_name = "NAME", value_parser = principal)]
    pub principal: Option<String>,
    /// How long the audit keeps changes of this command: `36500d`, or `forever`
    #[arg(
        long,
        global = true,
        env = "WEIRGATE_AUDIT_RETENTION",
        value_name = "SPAN",
        default_value = "90d",
        value_parser = retention
    )]
    pub audit_retention: Retention,
    /// Time allowed for one change or decision
    #[arg(long, global = true, value_name = "SPAN", default_value = "5s", value_parser = parse_timeout)]
    pub timeout: Duration,
    /// Prints JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Whether to print colours; NO_COLOR is obeyed too
    #[arg(long, global = true, value_name = "CHOICE", default_value = "auto")]
    pub color: ColorChoice,
}

/// A URL that may have a password. clap would show what its own parser refuses.
#[derive(Clone)]
pub struct Secret(pub String);

impl Secret {
    fn new(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

/// Shows nothing of it.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Options {
    /// Leaves out the variable of a table if a store is an argument, and the other way round.
    ///
    /// # Errors
    /// If both are arguments, or an argument is for the other one.
    pub fn choose(&mut self, program: &Command, matches: &ArgMatches) -> Result<(), clap::Error> {
        let is_argument = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        // The SDK reads the variable itself: keys in the environment come before its profile, and not before
        // that of an argument.
        if !is_argument("profile") {
            self.profile = None;
        }
        let conflict = |id: &str, other: &str| {
            let names = [id, other].map(|id| {
                let mut arguments = program.get_arguments();
                let argument = arguments.find(|argument| argument.get_id() == id);
                argument.map_or_else(|| id.to_owned(), ToString::to_string)
            });
            let [one, other] = names;
            let text = format!("the argument '{one}' cannot be used with '{other}'");
            program.clone().error(ErrorKind::ArgumentConflict, text)
        };
        match (is_argument("store"), is_argument("table")) {
            (true, true) => return Err(conflict("store", "table")),
            (true, false) => self.table = None,
            (false, true) => self.store = None,
            (false, false) => {}
        }
        let of_aws = ["region", "profile", "endpoint_url"];
        if let Some(other) = of_aws.into_iter().find(|id| is_argument(id)) {
            if self.store.is_some() {
                return Err(conflict("store", other));
            }
            // It prints the variable of the endpoint, so that one may be set.
            if matches.subcommand_name() == Some("local") {
                return Err(conflict(other, "local"));
            }
        }
        match self.store.is_none() && is_argument("store_password_file") {
            true => {
                let text = "the argument '--store-password-file <PATH>' needs '--store <URL>'";
                let mut program = program.clone();
                Err(program.error(ErrorKind::MissingRequiredArgument, text))
            }
            false => Ok(()),
        }
    }
}

/// How long audit events are kept; `None` is indefinitely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention(pub Option<Duration>);

fn principal(text: &str) -> Result<String, String> {
    match text.chars().count() {
        1..=256 => Ok(text.to_owned()),
        count => Err(format!("must have 1 to 256 characters, and has {count}: shorten it")),
    }
}

fn retention(text: &str) -> Result<Retention, String> {
    match text {
        "forever" => Ok(Retention(None)),
        _ => instant::span_within::<1_000, { 36_500 * DAY }>(text)
            .map(|span| Retention(Some(span)))
            .map_err(|must| format!("{must}, or `forever`")),
    }
}

/// Takes an empty variable for one that is not set.
pub fn without_empty_variable(arg: Arg) -> Arg {
    let value = arg.get_env().and_then(std::env::var_os);
    match value.is_some_and(|value| value.is_empty()) {
        true => arg.env(Resettable::Reset),
        false => arg,
    }
}
