//! What the environment of a function says, and when Lambda ends an invocation.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lambda_runtime::tracing::subscriber::util::SubscriberInitExt;
use lambda_runtime::{Context, tracing};
use weirgate_aggregator as aggregator;
use weirgate_reconciler as reconciler;
use weirgate_runtime::{ConfigError, subscriber, time_left};
use weirgate_shared::EpochMillis;
use weirgate_store::{ConnectOptions, Table, connect_with};

use crate::answer::{Says, Still};

/// Reads variables, whose values stand in a row with NULs between, and an invocation's end.
pub fn environment(bytes: &[u8]) {
    let names = [
        "TABLE_NAME",
        "SNAPSHOT_TTL_DAYS",
        "WRITE_CONCURRENCY",
        "MAX_SHARDS",
        "RECONCILE_PAGE",
        "AWS_LAMBDA_LOG_LEVEL",
        "AWS_REGION",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_ENDPOINT_URL_DYNAMODB",
        "AWS_ENDPOINT_URL",
    ];
    let values: Vec<_> = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let lookup = |wanted: &str| {
        let at = names.iter().position(|name| *name == wanted)?;
        values.get(at).map(|value| value.clone().into_owned())
    };
    match aggregator::Config::read(lookup) {
        Ok(config) => {
            assert!(aggregator::TTL_DAYS.contains(&config.snapshot_ttl_days));
            assert!((1..=256).contains(&config.write_concurrency));
            assert!(config.max_shards.is_power_of_two() && config.max_shards <= 64);
        }
        Err(error) => told(&error),
    }
    match reconciler::Config::read(lookup) {
        Ok(config) => assert!((1..=1000).contains(&config.page)),
        Err(error) => told(&error),
    }

    connection(lookup);
    least_level(&lookup("AWS_LAMBDA_LOG_LEVEL").unwrap_or_default());

    let mut context = Context::default();
    let numbers = values.iter().filter_map(|value| value.parse().ok());
    for number in numbers.chain([i64::MIN, 0, i64::MAX]) {
        context.deadline = u64::try_from(number).unwrap_or(u64::MAX);
        for now in [i64::MIN, number, i64::MAX] {
            let _ = reconciler::Deadline::after(time_left(&context, EpochMillis(now)));
        }
    }
}

/// Sends a request by the variables of region, credentials and endpoint.
fn connection(lookup: impl Fn(&str) -> Option<String>) {
    let is_set = |name: &str| lookup(name).is_some_and(|value| !value.is_empty());
    let may_sign = is_set("AWS_ACCESS_KEY_ID") && is_set("AWS_SECRET_ACCESS_KEY");
    let answer = Says { status: 200, date: String::new(), body: b"{}".to_vec() };
    let http_client = Some(answer.client());
    let connected = connect_with(
        ConnectOptions { http_client, clock: Arc::new(Still), ..ConnectOptions::default() },
        &lookup,
    );
    let table = Table::new(connected, "t");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let read = runtime.expect("a runtime of one thread is made").block_on(table.warm());
    assert!(may_sign || read.is_err(), "nothing is sent unsigned");
    drop(read.map_err(|error| error.to_string()));
}

/// Logs by the variable of the least level.
fn least_level(level: &str) {
    let lines = Lines::default();
    let writer = lines.clone();
    let logged = subscriber(level, move || writer.clone()).set_default();
    tracing::error!("an error");
    drop(logged);
    assert_eq!(lines.0.load(Ordering::Relaxed), 1, "{level:?} silences errors");
}

/// Counts lines.
#[derive(Clone, Default)]
struct Lines(Arc<AtomicUsize>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.fetch_add(bytes.iter().filter(|byte| **byte == b'\n').count(), Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn told(error: &ConfigError) {
    let line = error.to_string();
    assert!(!line.contains('\n') && line.contains(error.name), "{line:?}");
}
