//! Where an example runs: on the table that the environment names, or on a table in memory.
//!
//! With `WEIRGATE_TABLE` the table, region, endpoint and credentials come from the environment;
//! `weirgate local` prints such an environment. Without it the table is in memory, and its time is
//! simulated: a wait takes no real time.

// Each program uses a part of it.
#![allow(dead_code)]

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use weirgate::testing::TestTable;
use weirgate::{Builder, Clock, ConnectOptions, EpochMillis, RateLimiter, SystemClock};

/// 2026-11-20T18:10:00Z: no hour ends while an example runs.
const START: EpochMillis = EpochMillis(1_795_198_200_000);

/// The namespace, unless `WEIRGATE_NAMESPACE` names another. Examples stop levels, overwrite
/// configurations and erase entities, so they keep away from the namespace `default`.
const NAMESPACE: &str = "examples";

/// Result of an example.
pub type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The table of an example.
#[derive(Debug)]
pub struct Place {
    memory: Option<TestTable>,
    table: String,
    namespace: String,
}

impl Place {
    fn of_environment() -> Option<Self> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Some(Self {
            memory: None,
            table: variable("WEIRGATE_TABLE")?,
            namespace: variable("WEIRGATE_NAMESPACE").unwrap_or_else(|| NAMESPACE.to_owned()),
        })
    }

    fn in_memory() -> Self {
        Self {
            memory: Some(TestTable::starting_at(START)),
            table: "in-memory".to_owned(),
            namespace: NAMESPACE.to_owned(),
        }
    }

    /// Returns a builder of a limiter. Each limiter stands for a process of its own.
    #[must_use]
    pub fn builder(&self) -> Builder {
        let builder = match &self.memory {
            Some(table) => table.builder(),
            None => RateLimiter::builder(&self.table),
        };
        builder.namespace(&self.namespace)
    }

    /// Returns the time of the table.
    #[must_use]
    pub fn now(&self) -> EpochMillis {
        match &self.memory {
            Some(table) => table.clock().now(),
            None => SystemClock.now(),
        }
    }

    /// Returns a builder of a limiter that cannot reach its table.
    #[must_use]
    pub fn unreachable(&self) -> Builder {
        if self.memory.is_some() {
            let table = TestTable::new();
            table.set_unavailable(true);
            return table.builder();
        }
        // Nothing listens on this port.
        let nowhere = ConnectOptions {
            local_endpoint: Some("http://127.0.0.1:1".to_owned()),
            ..ConnectOptions::default()
        };
        self.builder().connection(nowhere)
    }
}

/// Runs an example. Its result is the exit code.
pub fn run(example: impl AsyncFnOnce(Place) -> Outcome) -> ExitCode {
    let place = Place::of_environment();
    match &place {
        Some(Place { table, namespace, .. }) => {
            eprintln!("On the table {table}, in the namespace {namespace}.")
        }
        None => eprintln!("On a table in memory: WEIRGATE_TABLE is not set."),
    }
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(place.is_none()).build();
    let runtime = runtime.expect("a runtime of one thread can be built");
    let place = async { place.unwrap_or_else(Place::in_memory) };
    exit(runtime.block_on(async { example(place.await).await }))
}

/// Returns the exit code of an example, after its error on standard error.
pub fn exit(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns a wait in milliseconds, as text.
#[must_use]
pub fn millis(wait: Option<Duration>) -> String {
    match wait {
        Some(wait) => format!("{} ms", wait.as_millis()),
        None => "no time".to_owned(),
    }
}
