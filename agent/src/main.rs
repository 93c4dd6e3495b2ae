//! Wires the agent: options, limiter, servers, and their end.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use weirgate::{LimitsFile, MilliTokens, RateLimiter, RedisOptions};
use weirgate_agent::Token;
use weirgate_agent::extension::{self, Extension, ExtensionsApi, SHUTDOWN_GRACE, SHUTDOWN_TIME};
use weirgate_agent::functions::Functions;
use weirgate_agent::gated::GatedLimiter;
use weirgate_agent::health_check::HealthCheck;
use weirgate_agent::json_api::{Api, Bounds, Health, Server};
use weirgate_agent::log;
use weirgate_agent::net::Clients;
use weirgate_agent::options::{HTTP_PORT, Options, extension_address};
use weirgate_agent::rls::{self, Grpc, RateLimitService};
use weirgate_agent::rules::RulesSource;
use weirgate_shared::exact_span;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Open files that are no connection of a client: standard streams, listeners, connections to
/// DynamoDB, files of rules and limits.
const OWN_FILES: u64 = 64;

/// Why the agent ended: it failed, or it was started wrongly.
enum Failure {
    Failed(String),
    Refused(String),
}

fn main() -> ExitCode {
    if let Some(name) = wrong_variable() {
        let text = format!("{name} must be UTF-8; set another value, or none");
        return Failure::Refused(text).report();
    }
    if std::env::args_os().nth(1).is_some_and(|first| first == "healthcheck") {
        return match check_health() {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.report(),
        };
    }
    let lambda = variable("AWS_LAMBDA_RUNTIME_API").map(ExtensionsApi::new);
    let options = Options::read(std::env::args_os()).map_err(|error| usage(&error));
    let threads = match (&lambda, &options) {
        (None, Ok(options)) => threads(options),
        _ => 1,
    };
    let runtime = match threads {
        1 => tokio::runtime::Builder::new_current_thread().enable_all().build(),
        threads => {
            tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()
        }
    };
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return Failure::Failed(format!("no threads: {error}")).report(),
    };
    let ended = runtime.block_on(async {
        match lambda {
            Some(lambda) => run_extension(lambda, options).await,
            None => run_sidecar(options?).await,
        }
    });
    // A read of a file system that hangs would hold up the end.
    runtime.shutdown_background();
    log::flush();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Asks a running agent for its health.
fn check_health() -> Result<(), Failure> {
    let check = HealthCheck::read(std::env::args_os().skip(1)).map_err(|error| usage(&error))?;
    check.run().map_err(Failure::Failed)
}

/// Runs until a signal.
async fn run_sidecar(options: Options) -> Result<(), Failure> {
    log::start(options.log_level);
    let bounds = raise_file_limit(options.bounds());
    let token = options.token(variable("WEIRGATE_AGENT_TOKEN")).map_err(Failure::Refused)?;
    let stopped = stopped().map_err(Failure::Failed)?;
    let rules = options.grpc().map_err(Failure::Refused)?;
    let limits_file = options.limits_file().map_err(Failure::Refused)?;
    let store = options.store().map_err(Failure::Refused)?;
    let limiter = limiter(&options, store.as_ref(), limits_file.clone()).await?;
    let server =
        Server::bind(&options.addresses(), "--listen", bounds).await.map_err(Failure::Failed)?;
    let grpc = match rules {
        Some((address, rules)) => {
            let listener = Grpc::bind(address).await.map_err(Failure::Failed)?;
            Some((listener, rules))
        }
        None => None,
    };
    let functions = store.filter(|_| options.functions);
    let functions = functions.map(|store| Functions::start(&store));
    let functions = functions.transpose().map_err(Failure::Failed)?;
    let mut running = Running::start(server, &options, limiter, token.clone());
    let (reached, is_reached) = oneshot::channel();
    if let Some((listener, rules)) = grpc {
        tokio::spawn(rules.clone().watch());
        running.start_grpc(listener, rules, &options, token, is_reached);
    }
    if let Some(file) = limits_file {
        tokio::spawn(watch(file));
    }
    let reach = Arc::clone(&running.health).reach(running.limiter.clone());
    let reaching = tokio::spawn(async move {
        reach.await;
        // Without the rate limit service nothing waits for it.
        let _ = reached.send(());
    });
    let signal = stopped.await;
    tracing::info!(signal, "stopping");
    reaching.abort();
    let time = options.grace * 2 + options.timeout;
    let ended = running.end(time).await;
    if let Some(functions) = functions {
        functions.stop().await;
    }
    ended.map_err(Failure::Failed)
}

/// Runs until Lambda shuts the extension down. What keeps it from starting is told to Lambda, so
/// that the log of the function has it.
async fn run_extension(
    lambda: ExtensionsApi,
    options: Result<Options, Failure>,
) -> Result<(), Failure> {
    let executable = std::env::args_os().next().map(PathBuf::from);
    let name = executable.as_deref().and_then(Path::file_name);
    let name = name.map_or_else(|| "weirgate-agent".into(), |name| name.to_string_lossy());
    let started = start_extension(options).await;
    let extension = Extension::register(lambda, &name).await.map_err(Failure::Failed)?;
    let running = match started {
        Ok(running) => running,
        Err(failure) => {
            extension.fail(failure.text()).await;
            return Err(failure);
        }
    };
    let reason = extension.shut_down().await;
    match &reason {
        Ok(reason) => tracing::debug!(reason, "shutting down"),
        Err(error) => tracing::error!(error, "shutting down without an event"),
    }
    let ended = running.end(SHUTDOWN_TIME).await;
    if let Err(error) = reason {
        extension.exit(&error).await;
        return Err(Failure::Failed(error));
    }
    ended.map_err(Failure::Failed)
}

/// Listens on the port of the extension. No task runs until a request comes.
async fn start_extension(options: Result<Options, Failure>) -> Result<Running, Failure> {
    let options = options?;
    log::start(options.log_level);
    extension::check_variables(variable).map_err(Failure::Refused)?;
    let address = extension_address(variable(HTTP_PORT)).map_err(Failure::Refused)?;
    let token = extension::token(variable).map_err(Failure::Refused)?;
    let bounds = Bounds { grace: SHUTDOWN_GRACE, ..raise_file_limit(options.bounds()) };
    let server = Server::bind(&[address], HTTP_PORT, bounds).await.map_err(Failure::Failed)?;
    let limits_file = options.limits_file().map_err(Failure::Refused)?;
    let store = options.store().map_err(Failure::Refused)?;
    let limiter = limiter(&options, store.as_ref(), limits_file).await?;
    // Also health and metrics: no other process than the function may ask.
    let token = Some(token.for_all());
    Ok(Running::start(server, &options, limiter, token))
}

/// A server, and what it works with.
struct Running {
    limiter: RateLimiter,
    health: Arc<Health>,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
    gated: Arc<GatedLimiter>,
    /// The connections of all listeners.
    clients: Clients,
    grpc: Option<JoinHandle<()>>,
}

impl Running {
    fn start(
        server: Server,
        options: &Options,
        limiter: RateLimiter,
        token: Option<Token>,
    ) -> Self {
        for address in server.addresses() {
            let (table, namespace) = (options.table_name(), &options.namespace);
            tracing::info!(%address, table, namespace, "listening");
        }
        let clients = server.clients().clone();
        // Of the connections, an eighth at least is left for health checks.
        let parts = |eighths: u32| (clients.max() * eighths / 8).max(1);
        let (most, most_settling) = (parts(5), parts(2));
        if options.max_in_flight > most_settling {
            tracing::warn!(
                requests = options.max_in_flight.min(most),
                settlements = most_settling,
                "--max-connections allows fewer in flight than --max-in-flight: raise it, or the limit of open files"
            );
        }
        let gated = Arc::new(GatedLimiter::with(
            limiter.clone(),
            options.max_in_flight.min(most),
            options.max_in_flight.min(most_settling),
        ));
        let health = Arc::new(Health::default());
        let api = Api::new(Arc::clone(&gated), token, Arc::clone(&health))
            .with_limit_changes(options.allow_limit_changes);
        let stop = watch::Sender::new(false);
        let mut stopped = stop.subscribe();
        let serving = tokio::spawn(server.serve(api, async move {
            let _ = stopped.wait_for(|is_stopped| *is_stopped).await;
        }));
        Self { limiter, health, stop, serving, gated, clients, grpc: None }
    }

    /// Serves Envoy's rate limit service too.
    fn start_grpc(
        &mut self,
        listener: Grpc,
        rules: RulesSource,
        options: &Options,
        token: Option<Token>,
        reached: oneshot::Receiver<()>,
    ) {
        if let Some(address) = listener.address() {
            tracing::info!(address = %format_args!("grpc://{address}"), "listening");
        }
        let answers = rls::Options { timeout: options.timeout };
        let service =
            RateLimitService::new(Arc::clone(&self.gated), rules, answers).with_token(token);
        let mut stopped = self.stop.subscribe();
        let stop = async move {
            let _ = stopped.wait_for(|is_stopped| *is_stopped).await;
        };
        let ready = async move {
            if reached.await.is_err() {
                // The agent stops before the table was reached.
                std::future::pending().await
            }
        };
        let clients = self.clients.clone();
        self.grpc = Some(tokio::spawn(listener.serve(service, clients, ready, stop)));
    }

    /// Finishes the requests in flight, and returns what was prefetched and what dropped requests
    /// took, within `time`.
    async fn end(self, time: Duration) -> Result<(), String> {
        let deadline = Instant::now() + time;
        self.stop.send_replace(true);
        // The servers bound their own end.
        let _ = self.serving.await;
        if let Some(grpc) = self.grpc {
            let _ = grpc.await;
        }
        // Settlements whose client has gone, what calls reported although they were answered, and calls
        // of the rate limit service, which end by their deadline. The rest of the time is for returns.
        let until = deadline - self.clients.grace();
        let drained = async {
            self.gated.gate.close_and_drain().await;
            self.gated.settling.close_and_drain().await;
        };
        if timeout_at(until, drained).await.is_err() {
            tracing::warn!("what was settled or reported was not all written");
        }
        let ended = timeout_at(deadline.max(Instant::now()), self.limiter.shutdown());
        match ended.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("prefetched tokens were not returned: {error}")),
            Err(_) if !has_prefetched(&self.limiter) => {
                tracing::warn!("requests to the table were still in flight at the end");
                Ok(())
            }
            Err(_) => {
                Err(format!("prefetched tokens were not returned within {}", exact_span(time)))
            }
        }
    }
}

/// Returns whether prefetched tokens were not returned yet.
fn has_prefetched(limiter: &RateLimiter) -> bool {
    let mut amounts = limiter.prefetched().into_values();
    amounts.any(|amount| amount > MilliTokens::ZERO)
}

/// Checks a limits file once a second, so that a fault in it is logged also while there are no
/// requests.
async fn watch(file: LimitsFile) {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    loop {
        seconds.tick().await;
        drop(file.error());
    }
}

async fn limiter(
    options: &Options,
    store: Option<&RedisOptions>,
    limits_file: Option<LimitsFile>,
) -> Result<RateLimiter, Failure> {
    let builder = options.limiter(store, limits_file);
    let builder = builder.map_err(Failure::Refused)?;
    let built = builder.build().await;
    built.map_err(|error| Failure::Refused(error.to_string()))
}

/// Returns what waits for a signal to stop, from now on; it returns the signal's name.
fn stopped() -> Result<impl Future<Output = &'static str>, String> {
    let signals = |kind| signal(kind).map_err(|error| format!("signals: {error}"));
    let mut terminate = signals(SignalKind::terminate())?;
    let mut interrupt = signals(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}

/// Allows as many open files as the system does: a connection is one, and the usual limit is 1,024.
/// Returns the bounds that this allows, which leave some files to what the agent opens itself.
fn raise_file_limit(bounds: Bounds) -> Bounds {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return bounds;
    };
    let files = match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(error) => {
            tracing::warn!(%error, soft, "the limit of open files was not raised");
            soft
        }
    };
    let most = files - OWN_FILES.min(files / 2);
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    if most < bounds.max_connections {
        tracing::warn!(
            files,
            max_connections = most,
            "the limit of open files allows fewer connections than --max-connections: raise it"
        );
    }
    Bounds { max_connections: bounds.max_connections.min(most), ..bounds }
}

/// Returns the number of threads.
fn threads(options: &Options) -> usize {
    const MOST: usize = 4;
    let processors =
        std::thread::available_parallelism().map_or(1, |number| number.get().min(MOST));
    options.threads.map_or(processors, usize::from)
}

/// Returns the name of a variable whose value cannot be read: it would count as not set.
fn wrong_variable() -> Option<String> {
    let mut all = std::env::vars_os().filter(|(_, value)| value.to_str().is_none());
    all.find_map(|(name, _)| {
        let name = name.to_string_lossy().into_owned();
        (name.starts_with("WEIRGATE_") || name.starts_with("AWS_")).then_some(name)
    })
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Failure {
    fn text(&self) -> &str {
        match self {
            Self::Failed(text) | Self::Refused(text) => text,
        }
    }

    /// Prints the error, in one line.
    fn report(&self) -> ExitCode {
        let text = self.text().split_whitespace().collect::<Vec<_>>();
        log::print_error(&format!("error: {}", text.join(" ")));
        ExitCode::from(match self {
            Self::Failed(_) => 1,
            Self::Refused(_) => 2,
        })
    }
}

/// Returns what is wrong with the arguments. Prints the help and exits if that was asked for.
fn usage(error: &clap::Error) -> Failure {
    if !error.use_stderr() {
        error.exit();
    }
    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let text = text.split("\n\nUsage: ").next().unwrap_or(text);
    let text = text.split("\n\nFor more information").next().unwrap_or(text);
    let text = text.replace("\n\n  tip: ", "; ");
    let remedy = "; see 'weirgate-agent --help'";
    let table = "; give --table NAME or --store URL, or set WEIRGATE_TABLE or WEIRGATE_STORE";
    let is_table = text.contains("--table");
    Failure::Refused(format!("{text}{}", if is_table { table } else { remedy }))
}
