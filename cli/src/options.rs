//! Options that every command takes.

use std::time::Duration;

use clap::builder::Resettable;
use clap::{Arg, Args, ColorChoice};
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
    /// Profile of the AWS configuration
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
    #[arg(long, global = true, env = "WEIRGATE_PRINCIPAL", value_name = "NAME")]
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

/// How long audit events are kept; `None` is indefinitely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention(pub Option<Duration>);

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
