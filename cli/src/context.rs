//! The connection and the output of one run.

use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

use futures_util::future::join_all;
use weirgate::{Builder, ConnectOptions, RateLimiter};
use weirgate_store::{StoreUrl, Table, refuse_url};

use crate::failure::Failure;
use crate::options::Options;
use crate::output::Output;
use crate::streams::warn;

/// Characters that the owner of a lease has at most.
const OWNER: usize = 64;

/// What a command has beside its own arguments.
#[derive(Debug)]
pub struct Context {
    options: Options,
    output: Output,
    program: fn() -> clap::Command,
    /// Those of this run.
    limiters: Mutex<Vec<RateLimiter>>,
    /// Read once, because a password may come from a pipe.
    place: OnceLock<Result<Place, String>>,
}

/// Where the limits are. It shows no password.
#[derive(Debug, Clone)]
pub enum Place {
    /// A table in DynamoDB.
    Table(String),
    /// A table in Redis or Valkey.
    Store(StoreUrl),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(name) => f.write_str(name),
            Self::Store(url) => url.fmt(f),
        }
    }
}

impl Context {
    /// Takes the options of this run. `program` describes all commands.
    pub fn new(options: Options, program: fn() -> clap::Command) -> Self {
        let output = Output::new(options.json, options.color);
        Self { options, output, program, limiters: Mutex::default(), place: OnceLock::new() }
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

    /// Returns where the limits are.
    ///
    /// # Errors
    /// [`Failure::Refused`] if that was not given, or is wrong.
    pub fn place(&self) -> Result<&Place, Failure> {
        let place = self.place.get_or_init(|| place(&self.options));
        place.as_ref().map_err(|text| Failure::Refused(text.clone()))
    }

    /// Returns the URL of the store, if one was given.
    ///
    /// # Errors
    /// [`Failure::Refused`] if it is wrong.
    pub fn store(&self) -> Result<Option<&StoreUrl>, Failure> {
        if self.options.store.is_none() {
            return Ok(None);
        }
        Ok(match self.place()? {
            Place::Store(url) => Some(url),
            Place::Table(_) => None,
        })
    }

    /// Requires a table in DynamoDB. `what` needs one, because of `reason`.
    ///
    /// # Errors
    /// [`Failure::Refused`] for a store.
    pub fn needs_dynamodb(&self, what: &str, reason: &str) -> Result<(), Failure> {
        match self.place()? {
            Place::Table(_) => Ok(()),
            Place::Store(url) => Err(Failure::Refused(format!(
                "{what} must be for a table in DynamoDB, got the store {url}: {reason}"
            ))),
        }
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
        let limiter = match self.place()? {
            Place::Table(name) => RateLimiter::builder(name).connection(self.connection()),
            Place::Store(url) => RateLimiter::builder(url.to_string()).table(opened(url).await?),
        };
        let limiter = set(self.limiter_of(limiter)).build().await?;
        let mut limiters = self.limiters.lock().unwrap_or_else(PoisonError::into_inner);
        limiters.push(limiter.clone());
        Ok(limiter)
    }

    /// Waits until the limiters of this run have returned what was taken for requests that got no answer,
    /// for [the time allowed](Options::timeout) at most: the end of the process would end that too.
    pub async fn shut_down(self) {
        let limiters = self.limiters.into_inner();
        let limiters = limiters.unwrap_or_else(PoisonError::into_inner);
        for ended in join_all(limiters.iter().map(RateLimiter::shutdown)).await {
            if let Err(error) = ended {
                warn(format!("warning: tokens could not be returned: {error}"));
            }
        }
    }

    /// Returns a limiter on a table, to be built, with the options of this run.
    pub fn limiter_of(&self, limiter: Builder) -> Builder {
        let mut limiter = limiter
            .namespace(&self.options.namespace)
            .timeout(self.options.timeout)
            .audit_retention(self.options.audit_retention.0);
        if let Some(principal) = self.options.principal.clone().or_else(user) {
            // An owner is shorter, and only shown.
            let owner: String = principal.chars().take(OWNER).collect();
            limiter = limiter.owner(owner).principal(principal);
        }
        limiter
    }

    /// Returns the table as the functions use it, for what the public crate does not do.
    ///
    /// # Errors
    /// [`Failure::Refused`] if no table was given.
    pub async fn stored(&self) -> Result<Table, Failure> {
        match self.place()? {
            Place::Table(name) => {
                Ok(Table::new(weirgate_store::connect(self.connection()).await, name))
            }
            Place::Store(url) => opened(url).await,
        }
    }

    /// Returns whether the table is on this machine, and no emulator of other services beside it.
    pub fn is_local(&self) -> bool {
        let url = self.options.endpoint_url.as_deref();
        url.is_some_and(ConnectOptions::is_loopback) && !is_set("AWS_ENDPOINT_URL")
    }

    /// Returns how to reach the table. A local DynamoDB needs no credentials.
    pub fn connection(&self) -> ConnectOptions {
        let Options { region, profile, endpoint_url, .. } = self.options.clone();
        let options = ConnectOptions { profile, region, ..ConnectOptions::default() };
        options.with_endpoint(endpoint_url)
    }
}

/// Connects to a store, so that its server and not a request is named if that fails.
async fn opened(url: &StoreUrl) -> Result<Table, Failure> {
    let table = Table::on_redis(&url.options()).map_err(|error| Failure::from(&error))?;
    let opened = table.warm().await;
    opened.map_err(|error| Failure::from(&error))?;
    Ok(table)
}

/// Returns where the limits are, by the options.
fn place(options: &Options) -> Result<Place, String> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let table = given(&options.table);
    if let Some(table) = &table {
        refuse_url(table, "give the URL of a table in Redis by --store")?;
    }
    let (url, table) = match (&options.store, table) {
        (Some(url), None) => (url, None),
        (None, Some(table)) => return Ok(Place::Table(table)),
        (Some(url), Some(table)) => (url, Some(table)),
        (None, None) => {
            let text = "no table: give --table NAME or --store URL, or set WEIRGATE_TABLE or WEIRGATE_STORE";
            return Err(text.to_owned());
        }
    };
    let url = StoreUrl::parse(&url.0)
        .map_err(|error| format!("the URL of the store {error} (--store)"))?;
    if let Some(table) = table {
        return Err(format!(
            "the variables WEIRGATE_STORE and WEIRGATE_TABLE must not both be set, got {url} and {table:?}: unset one, or give \
             --store or --table"
        ));
    }
    let Some(path) = &options.store_password_file else {
        return Ok(Place::Store(url));
    };
    let url = url.with_password_file(path);
    url.map(Place::Store).map_err(|error| error.to_string())
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
