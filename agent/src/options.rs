//! Flags and environment variables.

use std::convert::Infallible;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{BoolishValueParser, Resettable};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, Parser};
use tracing::level_filters::LevelFilter;
use weirgate::{
    Builder, ConnectOptions, LimitsFile, OnUnavailable, Prefetch, RateLimiter, RedisOptions, Table,
    VendorCount,
};
use weirgate_shared::{docs, parse_span, parse_timeout};
use weirgate_store::{StoreUrl, refuse_url};

use crate::json_api::{Address, Bounds};
use crate::rules::RulesSource;
use crate::token::Token;

/// Port of the API.
const PORT: u16 = 2774;
/// Port of Envoy's rate limit service, as envoyproxy/ratelimit has it.
const GRPC_PORT: u16 = 8081;

/// Fewest characters of the secret on an address that other machines reach.
const SECRET_CHARACTERS: usize = 16;

/// Rate limits of a shared DynamoDB table for programs in any language.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "weirgate-agent",
    version,
    max_term_width = 100,
    after_help = concat!(
        "weirgate-agent healthcheck asks a running agent for its health.\n",
        "Exit codes: 0 stopped, 1 failed, 2 wrong usage.\n",
        "Guide: ", docs!("guide/agent")
    )
)]
pub struct Options {
    /// Name or ARN of the table: the stack's output TableName
    #[arg(long, env = "WEIRGATE_TABLE", value_name = "NAME", required_unless_present = "store")]
    pub table: Option<String>,
    /// URL of a table in Redis or Valkey instead: redis://user:password@host:6379/0, or rediss://
    /// for TLS; ?table=NAME and accept_eviction=true
    #[arg(
        long,
        env = "WEIRGATE_STORE",
        value_name = "URL",
        hide_env_values = true,
        conflicts_with = "table"
    )]
    pub store: Option<Store>,
    /// File with the password of that server, in place of one in the URL
    #[arg(long, env = "WEIRGATE_STORE_PASSWORD_FILE", value_name = "PATH")]
    pub store_password_file: Option<PathBuf>,
    /// Runs the functions of a table in Redis too: usage reports need them. Of several agents, one
    /// does at a time
    #[arg(long, env = "WEIRGATE_AGENT_FUNCTIONS", value_parser = BoolishValueParser::new())]
    pub functions: bool,
    /// Namespace of the limits
    #[arg(long, env = "WEIRGATE_NAMESPACE", value_name = "NAME", default_value = "default")]
    pub namespace: String,
    /// Region of the table
    #[arg(long, env = "AWS_REGION", value_name = "REGION")]
    pub region: Option<String>,
    /// URL of DynamoDB, for a local one
    #[arg(long, env = "AWS_ENDPOINT_URL_DYNAMODB", value_name = "URL",
          value_parser = ConnectOptions::parse_endpoint)]
    pub endpoint_url: Option<String>,
    /// Address of the API; port 0 for any. Default: 127.0.0.1:2774, unless there is a Unix socket
    #[arg(long, env = "WEIRGATE_AGENT_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Unix socket of the API, which only the agent's user may open
    #[arg(long, env = "WEIRGATE_AGENT_UNIX_SOCKET", value_name = "PATH")]
    pub unix_socket: Option<PathBuf>,
    /// Address of Envoy's rate limit service; port 0 for any. Default with --rules: 127.0.0.1:8081
    #[arg(long, env = "WEIRGATE_AGENT_GRPC", value_name = "ADDRESS")]
    pub grpc: Option<SocketAddr>,
    /// File or folder with the rules of that service, read again when it changes. Several with
    /// commas
    #[arg(long, env = "WEIRGATE_AGENT_RULES", value_name = "PATH", value_delimiter = ',')]
    pub rules: Vec<PathBuf>,
    /// Starts although there are no rules yet: every descriptor passes until there are some
    #[arg(long, env = "WEIRGATE_AGENT_START_WITHOUT_RULES", value_parser = BoolishValueParser::new())]
    pub start_without_rules: bool,
    /// File with the secret that requests show in X-Weirgate-Token
    #[arg(long, env = "WEIRGATE_AGENT_TOKEN_FILE", value_name = "PATH")]
    pub token_file: Option<PathBuf>,
    /// Serves other machines without a secret: all that reach an address can take and return tokens
    #[arg(long, env = "WEIRGATE_AGENT_WITHOUT_SECRET", value_parser = BoolishValueParser::new())]
    pub without_secret: bool,
    /// Lets requests change limits in the table, for which the role needs the policy of operators
    #[arg(long, env = "WEIRGATE_AGENT_ALLOW_LIMIT_CHANGES", value_parser = BoolishValueParser::new())]
    pub allow_limit_changes: bool,
    /// File with limits, read again when it changes
    #[arg(long, env = "WEIRGATE_AGENT_LIMITS_FILE", value_name = "PATH")]
    pub limits_file: Option<PathBuf>,
    /// Decision while DynamoDB is unavailable: error, deny, allow, or local with a percentage,
    /// "local 25"
    #[arg(long, env = "WEIRGATE_AGENT_ON_UNAVAILABLE", value_name = "DECISION",
          default_value = "error", value_parser = on_unavailable)]
    pub on_unavailable: OnUnavailable,
    /// Resource whose tokens are prefetched, with the largest part of a capacity and the longest
    /// time in ms: gpt-4, gpt-4=10 or gpt-4=10@2000. Several with commas
    #[arg(long, env = "WEIRGATE_AGENT_PREFETCH", value_name = "RESOURCE[=PERCENT[@MS]]",
          value_delimiter = ',', value_parser = prefetch)]
    pub prefetch: Vec<(String, Prefetch)>,
    /// Limit whose balance follows what its vendor says is left of its requests, tokens,
    /// input_tokens or output_tokens: tokens=tpm. Several with commas
    #[arg(long, env = "WEIRGATE_AGENT_FOLLOW_VENDOR", value_name = "COUNT=LIMIT",
          value_delimiter = ',', value_parser = follow_vendor)]
    pub follow_vendor: Vec<(VendorCount, String)>,
    /// Time allowed for a decision
    #[arg(long, env = "WEIRGATE_AGENT_TIMEOUT", value_name = "SPAN", default_value = "5s",
          value_parser = parse_timeout)]
    pub timeout: Duration,
    /// Owner of leases, and author of limit changes, for operators
    #[arg(long, env = "WEIRGATE_AGENT_OWNER", value_name = "NAME", default_value = "agent")]
    pub owner: String,
    /// How long the stack keeps usage: its parameter SnapshotTtlDays
    #[arg(long, env = "WEIRGATE_AGENT_USAGE_RETENTION", value_name = "SPAN", default_value = "90d",
          value_parser = within_a_century)]
    pub usage_retention: Duration,
    /// How long audit events of limit changes are kept, or forever
    #[arg(long, env = "WEIRGATE_AUDIT_RETENTION", value_name = "SPAN", default_value = "90d",
          value_parser = audit_retention)]
    pub audit_retention: AuditRetention,
    /// Requests in flight, waiting ones included; more are refused
    #[arg(long, env = "WEIRGATE_AGENT_MAX_IN_FLIGHT", value_name = "NUMBER",
          default_value = "4096", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_in_flight: u32,
    /// Open connections; more are refused
    #[arg(long, env = "WEIRGATE_AGENT_MAX_CONNECTIONS", value_name = "NUMBER",
          default_value = "16384", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: u32,
    /// Time for requests in flight when the agent stops
    #[arg(long, env = "WEIRGATE_AGENT_GRACE", value_name = "SPAN", default_value = "10s",
          value_parser = parse_timeout)]
    pub grace: Duration,
    /// Threads that answer requests. Default: one per processor, 4 at most
    #[arg(long, env = "WEIRGATE_AGENT_THREADS", value_name = "NUMBER",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: Option<u16>,
    /// Least level of log lines: error, warn, info or debug
    #[arg(long, env = "WEIRGATE_AGENT_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    pub log_level: LevelFilter,
}

/// The URL of a store, or what is wrong with the text. Shows neither user nor password.
#[derive(Debug, Clone)]
pub struct Store(Result<StoreUrl, String>);

impl std::str::FromStr for Store {
    type Err = Infallible;

    /// Takes any text: the error of a flag would show it.
    fn from_str(url: &str) -> Result<Self, Self::Err> {
        let url = StoreUrl::parse(url);
        Ok(Self(url.map_err(|error| format!("--store {error}"))))
    }
}

/// How long audit events are kept; `None` is indefinitely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditRetention(Option<Duration>);

fn audit_retention(text: &str) -> Result<AuditRetention, String> {
    match text {
        "forever" => Ok(AuditRetention(None)),
        _ => within_a_century(text)
            .map(|span| AuditRetention(Some(span)))
            .map_err(|must| format!("{must}, or `forever`")),
    }
}

fn within_a_century(text: &str) -> Result<Duration, String> {
    let days = |days: u64| Duration::from_hours(24 * days);
    parse_span(text)
        .filter(|span| (days(1)..=days(36_500)).contains(span))
        .ok_or_else(|| "must be a span from 1d to 36500d, for example 90d".to_owned())
}

impl Options {
    /// Reads the arguments, and the variables that are not empty.
    ///
    /// # Errors
    /// What is wrong with them, or the help that they ask for.
    pub fn read(
        arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        read(arguments)
    }

    /// Opens the limits file, if there is one.
    ///
    /// # Errors
    /// A sentence, if it cannot be read.
    pub fn limits_file(&self) -> Result<Option<LimitsFile>, String> {
        let Some(path) = &self.limits_file else {
            return Ok(None);
        };
        let shown = path.display();
        let opened = LimitsFile::open(path);
        let opened =
            opened.map_err(|error| format!("--limits-file {shown}: {error}; correct the file"))?;
        Ok(Some(opened))
    }

    /// Returns the options of a table in Redis, if it is there. Reads the file of its password, which may be a pipe
    /// that can be read once.
    ///
    /// # Errors
    /// A sentence, if the URL is none, the password cannot be read or is there twice, or functions are asked for
    /// that another table has already.
    pub fn store(&self) -> Result<Option<RedisOptions>, String> {
        let Some(Store(url)) = &self.store else {
            let remedy = "give the URL of a table in Redis by --store";
            refuse_url(&self.table_name(), remedy)?;
            let refused = "--functions needs --store, because the stack runs those of a table in DynamoDB; leave it out";
            return match (self.functions, &self.store_password_file) {
                (true, _) => Err(refused.to_owned()),
                (false, Some(path)) => Err(format!(
                    "--store-password-file {} needs --store, whose password it is; leave it out",
                    path.display()
                )),
                (false, None) => Ok(None),
            };
        };
        let url = url.clone()?;
        let url = match &self.store_password_file {
            Some(path) => url.with_password_file(path),
            None => Ok(url),
        };
        let url = url.map_err(|error| error.to_string())?;
        Ok(Some(url.options()))
    }

    /// Returns what the log calls the table.
    #[must_use]
    pub fn table_name(&self) -> String {
        match (&self.table, &self.store) {
            (Some(table), _) => table.clone(),
            (None, Some(Store(Ok(url)))) => url.to_string(),
            (None, _) => String::new(),
        }
    }

    /// Returns the builder of the limiter.
    ///
    /// # Errors
    /// A sentence, if the options of the store cannot be.
    pub fn limiter(
        &self,
        store: Option<&RedisOptions>,
        limits_file: Option<LimitsFile>,
    ) -> Result<Builder, String> {
        let limiter = match store {
            Some(store) => {
                let table = Table::on_redis(store).map_err(|error| error.to_string())?;
                RateLimiter::builder(table.name().to_owned()).table(table)
            }
            None => RateLimiter::builder(self.table_name()).connection(self.connection()),
        };
        let mut limiter = limiter
            .namespace(&self.namespace)
            .owner(&self.owner)
            .timeout(self.timeout)
            .on_unavailable(self.on_unavailable)
            .usage_retention(self.usage_retention)
            .audit_retention(self.audit_retention.0);
        for (resource, prefetch) in &self.prefetch {
            limiter = limiter.prefetch(resource, *prefetch);
        }
        for (counts, limit) in &self.follow_vendor {
            limiter = limiter.follow_vendor(*counts, limit);
        }
        Ok(match limits_file {
            Some(file) => limiter.limits_file(file),
            None => limiter,
        })
    }

    /// Returns where a sidecar listens.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        addresses(self.listen, self.unix_socket.as_deref())
    }

    /// Returns the address of Envoy's rate limit service, and its rules, if it is wanted.
    ///
    /// # Errors
    /// A sentence, if a rules file cannot be read, or is missing.
    pub fn grpc(&self) -> Result<Option<(SocketAddr, RulesSource)>, String> {
        let rules = match (self.grpc, &*self.rules) {
            (None, []) => return Ok(None),
            (Some(grpc), []) if !self.start_without_rules => {
                return Err(format!(
                    "--grpc {grpc} needs rules, which say what is limited: give --rules PATH"
                ));
            }
            (_, paths) if self.start_without_rules => RulesSource::open_or_wait(paths.to_vec()),
            (_, paths) => RulesSource::open(paths.to_vec()),
        };
        let rules = rules.map_err(|error| {
            let remedy = match error.place {
                Some(_) => "correct the file",
                None => "put the rules there, or start without any by --start-without-rules",
            };
            format!("--rules {error}; {remedy}")
        })?;
        let address = self.grpc.unwrap_or_else(|| local(GRPC_PORT));
        Ok(Some((address, rules)))
    }

    /// Returns the bounds of the server.
    #[must_use]
    pub const fn bounds(&self) -> Bounds {
        Bounds { max_connections: self.max_connections, grace: self.grace }
    }

    /// Returns the secret of a sidecar: the contents of its file, or else of `variable`.
    ///
    /// # Errors
    /// A sentence, if the secret cannot be read or sent, or is missing or short on an address that
    /// other machines reach.
    pub fn token(&self, variable: Option<String>) -> Result<Option<Token>, String> {
        let secret = match &self.token_file {
            Some(path) => {
                let shown = path.display();
                let file = weirgate_shared::files::read_file(path).map_err(|error| {
                    format!("--token-file {error}; give a file that the agent may read")
                })?;
                let token = Token::new(file.text.trim()).map_err(|rule| {
                    format!("--token-file {shown}: the secret {rule}; write another one")
                })?;
                Some(token)
            }
            None => {
                let secret = variable.filter(|secret| !secret.is_empty());
                let token = secret.map(|secret| Token::new(&secret)).transpose();
                token.map_err(|rule| format!("WEIRGATE_AGENT_TOKEN {rule}; set another one"))?
            }
        };
        let listeners = [("--listen", self.listen), ("--grpc", self.grpc)];
        let open = listeners
            .into_iter()
            .filter_map(|(flag, address)| Some((flag, address?)))
            .find(|(_, address)| !address.ip().to_canonical().is_loopback());
        let Some((flag, address)) = open.filter(|_| !self.without_secret) else {
            return Ok(secret);
        };
        let got = match secret.as_ref().map(Token::characters) {
            Some(SECRET_CHARACTERS..) => return Ok(secret),
            Some(characters) => format!("one of {characters}"),
            None => "none".to_owned(),
        };
        Err(format!(
            "{flag} {address} is reachable from other machines, so requests must show a secret of \
             {SECRET_CHARACTERS} characters at least, got {got}: give --token-file, listen on \
             127.0.0.1, or serve all of them by --without-secret"
        ))
    }

    /// Returns how to reach the table. A local DynamoDB needs no credentials.
    fn connection(&self) -> ConnectOptions {
        let options = ConnectOptions { region: self.region.clone(), ..ConnectOptions::default() };
        options.with_endpoint(self.endpoint_url.clone())
    }
}

/// Returns where a sidecar with these two options listens.
pub(crate) fn addresses(listen: Option<SocketAddr>, unix_socket: Option<&Path>) -> Vec<Address> {
    let standard = unix_socket.is_none().then(|| local(PORT));
    let tcp = listen.or(standard).map(Address::Tcp);
    let unix = unix_socket.map(|path| Address::Unix(path.to_owned()));
    tcp.into_iter().chain(unix).collect()
}

/// Variable with the port of an extension.
pub const HTTP_PORT: &str = "WEIRGATE_HTTP_PORT";

/// Returns the address of an extension: the port of [`HTTP_PORT`], or the standard one.
///
/// # Errors
/// A sentence, if the variable is no port.
pub fn extension_address(port: Option<String>) -> Result<Address, String> {
    let Some(port) = port.filter(|port| !port.is_empty()) else {
        return Ok(Address::Tcp(local(PORT)));
    };
    // The system would choose one for 0, and the function not know it.
    match port.parse() {
        Ok(number) if number > 0 => Ok(Address::Tcp(local(number))),
        _ => Err(format!(
            "{HTTP_PORT} must be 1 to 65535, got {port:?}; set a port, or leave it out"
        )),
    }
}

/// Reads the arguments of a command, and the variables that are not empty.
pub(crate) fn read<C: Parser>(
    arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<C, clap::Error> {
    let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let mut command = C::command().mut_args(without_empty_variable);
    // An argument for one table is in place of the variables of another one.
    for (given, others) in
        [("--store", &["table"][..]), ("--table", &["store", "store_password_file", "functions"])]
    {
        let is_given = arguments
            .iter()
            .filter_map(|argument| argument.to_str())
            .any(|argument| argument.split('=').next() == Some(given));
        command =
            command.mut_args(|arg| match is_given && others.iter().any(|id| arg.get_id() == id) {
                true => arg.env(Resettable::Reset),
                false => arg,
            });
    }
    let matches = command.try_get_matches_from_mut(&arguments)?;
    let knows = |id: &str| command.get_arguments().any(|known| known.get_id() == id);
    let source = |id: &str| knows(id).then(|| matches.value_source(id)).flatten();
    let is_argument = |id: &&str| source(id) == Some(ValueSource::CommandLine);
    let other = ["region", "endpoint_url"].into_iter().find(is_argument);
    if let (Some(_), Some(other)) = (source("store"), other) {
        let text = format!(
            "--{} is of a table in DynamoDB, and --store of one in Redis: leave one of them out",
            other.replace('_', "-")
        );
        return Err(command.error(ErrorKind::ArgumentConflict, text));
    }
    C::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Takes an empty variable for one that is not set.
fn without_empty_variable(arg: Arg) -> Arg {
    let value = arg.get_env().and_then(std::env::var_os);
    match value.is_some_and(|value| value.is_empty()) {
        true => arg.env(Resettable::Reset),
        false => arg,
    }
}

fn local(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// Parses a decision for outages.
fn on_unavailable(text: &str) -> Result<OnUnavailable, String> {
    OnUnavailable::parse(text).ok_or_else(|| {
        "must be error, deny, allow, or local with 1 to 100: \"local 25\"".to_owned()
    })
}

/// Parses a resource with the bounds of its prefetch.
fn prefetch(text: &str) -> Result<(String, Prefetch), String> {
    let (resource, numbers) = text.rsplit_once('=').unwrap_or((text, ""));
    let (percent, age) = numbers.split_once('@').unwrap_or((numbers, ""));
    let mut prefetch = Prefetch::default();
    let number = |text: &str| text.parse::<u32>().ok();
    if !percent.is_empty() {
        let rule = "the part of a capacity must be 1 to 100 percent: gpt-4=10";
        let percent = number(percent).filter(|percent| (1..=100).contains(percent));
        prefetch = prefetch.max_outstanding_percent(percent.ok_or(rule)?);
    }
    if !age.is_empty() {
        let rule = "the longest time must be 100 to 60000 ms: gpt-4=10@2000";
        let age = number(age).filter(|age| (100..=60_000).contains(age));
        prefetch = prefetch.max_age(Duration::from_millis(age.ok_or(rule)?.into()));
    }
    Ok((resource.to_owned(), prefetch))
}

/// Parses what a vendor counts, and the limit that follows it.
fn follow_vendor(text: &str) -> Result<(VendorCount, String), String> {
    let (counts, limit) = text.split_once('=').unwrap_or((text, ""));
    let counts = VendorCount::parse(counts).filter(|_| !limit.is_empty());
    counts.map(|counts| (counts, limit.to_owned())).ok_or_else(|| {
        let all = VendorCount::ALL.map(VendorCount::name).join(", ");
        format!("must be one of {all}, and the limit that follows it: tokens=tpm")
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn options(arguments: &[&str]) -> Result<Options, String> {
        let all = [&["weirgate-agent", "--table", "limits"], arguments].concat();
        Options::read(all).map_err(|error| error.to_string())
    }

    #[test]
    fn the_flags_are_consistent() {
        Options::command().debug_assert();
    }

    fn on_store(arguments: &[&str]) -> Result<Options, String> {
        let all = [&["weirgate-agent"], arguments].concat();
        Options::read(all).map_err(|error| error.to_string())
    }

    #[test]
    fn a_store_takes_the_place_of_the_table_and_hides_its_password() {
        let url = "redis://user:wrong-one@127.0.0.1:6379/0";
        let options = on_store(&["--store", url, "--functions"]).unwrap();
        assert_eq!(options.table_name(), "redis://127.0.0.1:6379/0");
        assert!(!format!("{options:?}").contains("wrong-one"));
        assert!(options.store().unwrap().is_some());
        let both = on_store(&["--store", url, "--table", "limits"]).unwrap_err();
        assert!(both.contains("--table") && both.contains("--store"), "{both}");
        assert!(!both.contains("wrong-one"), "{both}");
        let neither = on_store(&[]).unwrap_err();
        assert!(neither.contains("--table"), "{neither}");
    }

    #[test]
    fn an_endpoint_that_is_no_url_is_refused_at_the_start() {
        let error = options(&["--endpoint-url", "http://127.0.0.1:8000."]).unwrap_err();
        assert!(
            error.contains("--endpoint-url") && error.contains("a port (1 to 65535)"),
            "{error}"
        );
    }

    #[test]
    fn a_unix_socket_takes_the_place_of_the_standard_address() {
        let unix = Address::Unix("/run/w.sock".into());
        let tcp = |port| Address::Tcp(local(port));
        let addresses = |arguments: &[&str]| options(arguments).unwrap().addresses();
        assert_eq!(addresses(&[]), [tcp(2774)]);
        assert_eq!(addresses(&["--unix-socket", "/run/w.sock"]), std::slice::from_ref(&unix));
        let both = ["--unix-socket", "/run/w.sock", "--listen", "127.0.0.1:1"];
        assert_eq!(addresses(&both), [tcp(1), unix]);
    }

    #[test]
    fn an_address_that_other_machines_reach_needs_a_secret_of_sixteen_characters() {
        let secret = |options: &Options, characters: usize| {
            let secret = (characters > 0).then(|| "s".repeat(characters));
            options.token(secret).map(|token| token.is_some())
        };
        let open = [
            "0.0.0.0:1",
            "10.0.0.1:1",
            "169.254.0.1:1",
            "[::]:1",
            "[::ffff:0.0.0.0]:1",
            "[::ffff:10.0.0.1]:1",
            "[::7f00:1]:1",
            "[fe80::1]:1",
        ];
        for flag in ["--listen", "--grpc"] {
            for address in open {
                let options = options(&[flag, address]).unwrap();
                for characters in [0, 1, 15] {
                    let error = secret(&options, characters).unwrap_err();
                    let names = format!("{flag} {address}");
                    assert!(error.contains(&names) && error.contains("--token-file"), "{error}");
                }
                assert_eq!(secret(&options, 16), Ok(true), "{flag} {address}");
                let allowed = Options { without_secret: true, ..options };
                assert_eq!(secret(&allowed, 0), Ok(false));
                assert_eq!(secret(&allowed, 1), Ok(true));
            }
            let closed = [
                "127.0.0.1:1",
                "127.0.0.2:1",
                "[::1]:1",
                "[::ffff:127.0.0.1]:1",
                "[::ffff:127.255.255.255]:1",
            ];
            for address in closed {
                let options = options(&[flag, address]).unwrap();
                assert_eq!(secret(&options, 0), Ok(false), "{flag} {address}");
                assert_eq!(secret(&options, 1), Ok(true));
            }
        }
        let closed = options(&[]).unwrap();
        let error = closed.token(Some("two words".to_owned())).unwrap_err();
        assert!(error.contains("WEIRGATE_AGENT_TOKEN must be"), "{error}");
    }

    #[test]
    fn the_rate_limit_service_needs_rules() {
        assert!(options(&[]).unwrap().grpc().unwrap().is_none());
        let error = options(&["--grpc", "127.0.0.1:0"]).unwrap().grpc().unwrap_err();
        assert!(error.contains("--rules PATH"), "{error}");
        let error = options(&["--rules", "/no/file"]).unwrap().grpc().unwrap_err();
        assert!(error.contains("--rules /no/file: cannot be read"), "{error}");
    }

    #[test]
    fn the_port_of_an_extension_is_a_variable() {
        let port = |text: &str| extension_address(Some(text.to_owned()));
        assert_eq!(extension_address(None), Ok(Address::Tcp(local(2774))));
        assert_eq!(port("2800"), Ok(Address::Tcp(local(2800))));
        assert!(port("70000").unwrap_err().contains("got \"70000\""));
    }

    #[test]
    fn a_limit_that_follows_a_vendor_has_what_it_counts() {
        let both = options(&["--follow-vendor", "tokens=tpm,requests=rpm"]).unwrap();
        let expected = [(VendorCount::Tokens, "tpm"), (VendorCount::Requests, "rpm")];
        let expected = expected.map(|(counts, limit)| (counts, limit.to_owned()));
        assert_eq!(both.follow_vendor, expected);
        for wrong in ["tpm", "tokens", "tokens=", "=tpm", "Tokens=tpm", "tpm=tokens"] {
            let error = options(&["--follow-vendor", wrong]).unwrap_err();
            assert!(error.contains("output_tokens, and the limit"), "{error}");
        }
    }

    #[test]
    fn prefetch_names_the_resource_and_its_bounds() {
        let all = ["gpt-4", "search=20", "a=b=5@300"].map(|text| prefetch(text).unwrap());
        let default = Prefetch::default();
        let five = default.max_outstanding_percent(5);
        let expected = [
            ("gpt-4".to_owned(), default),
            ("search".to_owned(), default.max_outstanding_percent(20)),
            ("a=b".to_owned(), five.max_age(Duration::from_millis(300))),
        ];
        assert_eq!(all, expected);
        for wrong in ["gpt-4=0", "gpt-4=101", "gpt-4=x", "gpt-4=5@99", "gpt-4=5@x"] {
            let error = prefetch(wrong).unwrap_err();
            assert!(error.contains("must be"), "{error}");
        }
    }
}
