//! Flags and environment variables.
//!
//! - `values`: values with a syntax of their own

mod values;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use tracing::level_filters::LevelFilter;
use weirgate::{Builder, ConnectOptions, LimitsFile, OnUnavailable, Prefetch, RateLimiter};

use crate::http::{Address, Bounds, Token};
use crate::rules::RulesSource;
use values::{on_unavailable, prefetch, seconds};

/// Port of the API.
const PORT: u16 = 2774;
/// Port of Envoy's rate limit service, as envoyproxy/ratelimit has it.
const GRPC_PORT: u16 = 8081;

/// Rate limits of a shared DynamoDB table for programs in any language.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "weirgate-agent",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 stopped, 1 failed, 2 wrong usage.\nGuide: docs/guide/agent.md"
)]
pub struct Options {
    /// Name or ARN of the table: the stack's output TableName
    #[arg(long, env = "WEIRGATE_TABLE", value_name = "NAME")]
    pub table: String,
    /// Namespace of the limits
    #[arg(
        long,
        env = "WEIRGATE_NAMESPACE",
        value_name = "NAME",
        default_value = "default"
    )]
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
    #[arg(
        long,
        env = "WEIRGATE_AGENT_RULES",
        value_name = "PATH",
        value_delimiter = ','
    )]
    pub rules: Vec<PathBuf>,
    /// File with the secret that requests show in X-Weirgate-Token
    #[arg(long, env = "WEIRGATE_AGENT_TOKEN_FILE", value_name = "PATH")]
    pub token_file: Option<PathBuf>,
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
    /// Time allowed for a decision, in seconds
    #[arg(long, env = "WEIRGATE_AGENT_TIMEOUT", value_name = "SECONDS", default_value = "5",
          value_parser = seconds)]
    pub timeout: Duration,
    /// Owner of leases, for operators
    #[arg(
        long,
        env = "WEIRGATE_AGENT_OWNER",
        value_name = "NAME",
        default_value = "agent"
    )]
    pub owner: String,
    /// Requests in flight, waiting ones included; more are refused
    #[arg(long, env = "WEIRGATE_AGENT_MAX_IN_FLIGHT", value_name = "NUMBER",
          default_value = "4096", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_in_flight: u32,
    /// Open connections; more are refused
    #[arg(long, env = "WEIRGATE_AGENT_MAX_CONNECTIONS", value_name = "NUMBER",
          default_value = "16384", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: u32,
    /// Time for requests in flight when the agent stops, in seconds
    #[arg(long, env = "WEIRGATE_AGENT_GRACE", value_name = "SECONDS", default_value = "10",
          value_parser = seconds)]
    pub grace: Duration,
    /// Threads that answer requests. Default: one per processor, 4 at most
    #[arg(long, env = "WEIRGATE_AGENT_THREADS", value_name = "NUMBER",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: Option<u16>,
    /// Least level of log lines: error, warn, info or debug
    #[arg(
        long,
        env = "WEIRGATE_AGENT_LOG_LEVEL",
        value_name = "LEVEL",
        default_value = "info"
    )]
    pub log_level: LevelFilter,
}

impl Options {
    /// Returns the builder of the limiter.
    ///
    /// # Errors
    /// A sentence, if the limits file cannot be read.
    pub fn limiter(&self) -> Result<Builder, String> {
        let mut limiter = RateLimiter::builder(&self.table)
            .namespace(&self.namespace)
            .owner(&self.owner)
            .timeout(self.timeout)
            .on_unavailable(self.on_unavailable)
            .connection(self.connection());
        for (resource, prefetch) in &self.prefetch {
            limiter = limiter.prefetch(resource, *prefetch);
        }
        if let Some(path) = &self.limits_file {
            let file = LimitsFile::open(path).map_err(|error| {
                format!(
                    "--limits-file {}: {error}; correct the file",
                    path.display()
                )
            })?;
            limiter = limiter.limits_file(file);
        }
        Ok(limiter)
    }

    /// Returns where a sidecar listens.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        let standard = self.unix_socket.is_none().then(|| local(PORT));
        let tcp = self.listen.or(standard).map(Address::Tcp);
        let unix = self.unix_socket.clone().map(Address::Unix);
        tcp.into_iter().chain(unix).collect()
    }

    /// Returns the address of Envoy's rate limit service, and its rules, if it is wanted.
    ///
    /// # Errors
    /// A sentence, if a rules file cannot be read, or is missing.
    pub fn grpc(&self) -> Result<Option<(SocketAddr, RulesSource)>, String> {
        match (self.grpc, &*self.rules) {
            (None, []) => Ok(None),
            (Some(grpc), []) => Err(format!(
                "--grpc {grpc} needs rules, which say what is limited: give --rules PATH"
            )),
            (grpc, paths) => {
                let rules = RulesSource::open(paths.to_vec())
                    .map_err(|error| format!("--rules {error}; correct the file"))?;
                Ok(Some((grpc.unwrap_or_else(|| local(GRPC_PORT)), rules)))
            }
        }
    }

    /// Returns the bounds of the server.
    #[must_use]
    pub const fn bounds(&self) -> Bounds {
        Bounds {
            max_connections: self.max_connections,
            grace: self.grace,
        }
    }

    /// Returns the secret of a sidecar: the contents of its file, or else of `variable`.
    ///
    /// # Errors
    /// A sentence, if the secret cannot be read or sent, or is missing on an address that other
    /// machines reach.
    pub fn token(&self, variable: Option<String>) -> Result<Option<Token>, String> {
        let secret = match &self.token_file {
            Some(path) => {
                let shown = path.display();
                let text = std::fs::read_to_string(path).map_err(|error| {
                    format!("--token-file {shown}: {error}; give a file that the agent may read")
                })?;
                let token = Token::new(text.trim()).map_err(|rule| {
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
        let open = self.listen.filter(|listen| !listen.ip().is_loopback());
        match (open, &secret) {
            (Some(open), None) => Err(format!(
                "--listen {open} is reachable from other machines, so requests must show a secret: \
                 give --token-file, or listen on 127.0.0.1"
            )),
            _ => Ok(secret),
        }
    }

    /// Returns how to reach the table. A local DynamoDB needs no credentials.
    fn connection(&self) -> ConnectOptions {
        let options = ConnectOptions {
            region: self.region.clone(),
            ..ConnectOptions::default()
        };
        options.with_endpoint(self.endpoint_url.clone())
    }
}

/// Returns the address of an extension: the port of `WEIRGATE_HTTP_PORT`, or the standard one.
///
/// # Errors
/// A sentence, if the variable is no port.
pub fn extension_address(port: Option<String>) -> Result<Address, String> {
    let Some(port) = port.filter(|port| !port.is_empty()) else {
        return Ok(Address::Tcp(local(PORT)));
    };
    let number = port.parse();
    number.map(|port| Address::Tcp(local(port))).map_err(|_| {
        format!("WEIRGATE_HTTP_PORT must be 1 to 65535, got {port:?}; set a port, or leave it out")
    })
}

fn local(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn options(arguments: &[&str]) -> Result<Options, String> {
        let all = [&["weirgate-agent", "--table", "limits"], arguments].concat();
        Options::try_parse_from(all).map_err(|error| error.to_string())
    }

    #[test]
    fn the_flags_are_consistent() {
        Options::command().debug_assert();
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
        assert_eq!(
            addresses(&["--unix-socket", "/run/w.sock"]),
            std::slice::from_ref(&unix)
        );
        let both = ["--unix-socket", "/run/w.sock", "--listen", "127.0.0.1:1"];
        assert_eq!(addresses(&both), [tcp(1), unix]);
    }

    #[test]
    fn an_address_that_other_machines_reach_needs_a_secret() {
        let open = options(&["--listen", "0.0.0.0:2774"]).unwrap();
        let error = open.token(None).unwrap_err();
        assert!(error.contains("--listen 0.0.0.0:2774") && error.contains("--token-file"));
        assert!(open.token(Some("secret".to_owned())).unwrap().is_some());
        let closed = options(&["--listen", "127.0.0.2:2774"]).unwrap();
        assert!(closed.token(None).unwrap().is_none());
        let error = closed.token(Some("two words".to_owned())).unwrap_err();
        assert!(error.contains("WEIRGATE_AGENT_TOKEN must be"), "{error}");
    }

    #[test]
    fn the_rate_limit_service_needs_rules() {
        assert!(options(&[]).unwrap().grpc().unwrap().is_none());
        let error = options(&["--grpc", "127.0.0.1:0"])
            .unwrap()
            .grpc()
            .unwrap_err();
        assert!(error.contains("--rules PATH"), "{error}");
        let error = options(&["--rules", "/no/file"])
            .unwrap()
            .grpc()
            .unwrap_err();
        assert!(
            error.contains("--rules /no/file: cannot be read"),
            "{error}"
        );
    }

    #[test]
    fn the_port_of_an_extension_is_a_variable() {
        let port = |text: &str| extension_address(Some(text.to_owned()));
        assert_eq!(extension_address(None), Ok(Address::Tcp(local(2774))));
        assert_eq!(port("2800"), Ok(Address::Tcp(local(2800))));
        assert!(port("70000").unwrap_err().contains("got \"70000\""));
    }
}
