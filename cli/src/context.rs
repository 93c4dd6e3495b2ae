//! The connection and the output of one run.

use weirgate::{Builder, ConnectOptions, RateLimiter};
use weirgate_store::Table;

use crate::failure::Failure;
use crate::options::Options;
use crate::output::Output;

/// What a command has beside its own arguments.
#[derive(Debug)]
pub struct Context {
    options: Options,
    output: Output,
    program: fn() -> clap::Command,
}

impl Context {
    /// Takes the options of this run. `program` describes all commands.
    pub fn new(options: Options, program: fn() -> clap::Command) -> Self {
        let output = Output::new(options.json, options.color);
        Self {
            options,
            output,
            program,
        }
    }

    /// Returns the description of all commands.
    pub fn program(&self) -> clap::Command {
        (self.program)()
    }

    /// Returns where results go.
    pub const fn output(&self) -> &Output {
        &self.output
    }

    /// Returns the options of this run.
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the table's name.
    ///
    /// # Errors
    /// [`Failure::Refused`] if none was given.
    pub fn table(&self) -> Result<&str, Failure> {
        let table = self.options.table.as_deref();
        table.filter(|table| !table.is_empty()).ok_or_else(|| {
            let text = "no table: give --table NAME, or set WEIRGATE_TABLE";
            Failure::Refused(text.to_owned())
        })
    }

    /// Connects to the table.
    ///
    /// # Errors
    /// [`Failure::Refused`] for a wrong name or setting.
    pub async fn limiter(&self) -> Result<RateLimiter, Failure> {
        self.limiter_with(|limiter| limiter).await
    }

    /// As [`limiter`](Self::limiter), with more settings.
    ///
    /// # Errors
    /// As [`limiter`](Self::limiter).
    pub async fn limiter_with(
        &self,
        set: impl FnOnce(Builder) -> Builder,
    ) -> Result<RateLimiter, Failure> {
        let mut limiter = RateLimiter::builder(self.table()?)
            .namespace(&self.options.namespace)
            .timeout(self.options.timeout)
            .audit_retention(self.options.audit_retention.0)
            .connection(self.connection());
        let principal = self.options.principal.clone().or_else(user);
        if let Some(principal) = principal.filter(|name| !name.is_empty()) {
            limiter = limiter.owner(&principal).principal(principal);
        }
        Ok(set(limiter).build().await?)
    }

    /// Returns the table as the functions use it, for what the public crate does not do.
    ///
    /// # Errors
    /// [`Failure::Refused`] if no table was given.
    pub async fn stored(&self) -> Result<Table, Failure> {
        let name = self.table()?;
        Ok(Table::new(
            weirgate_store::connect(self.connection()).await,
            name,
        ))
    }

    /// Returns whether the table is on this machine, and no emulator of other services beside it.
    pub fn is_local(&self) -> bool {
        let url = self.options.endpoint_url.as_deref();
        url.is_some_and(ConnectOptions::is_loopback) && !is_set("AWS_ENDPOINT_URL")
    }

    /// Returns how to reach the table. A local DynamoDB needs no credentials.
    pub fn connection(&self) -> ConnectOptions {
        let Options {
            region,
            profile,
            endpoint_url,
            ..
        } = self.options.clone();
        let options = ConnectOptions {
            profile,
            region,
            ..ConnectOptions::default()
        };
        options.with_endpoint(endpoint_url)
    }
}

/// Returns the name of the user, or its number where no variable has the name, as in containers.
fn user() -> Option<String> {
    let variables = ["USER", "LOGNAME"].into_iter();
    let mut names = variables.filter_map(|variable| std::env::var(variable).ok());
    let name = names.find(|name| !name.is_empty());
    let number = || {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let numbers = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        Some(format!("uid {}", numbers.split_whitespace().next()?))
    };
    name.or_else(number)
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}
