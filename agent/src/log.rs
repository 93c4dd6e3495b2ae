//! Log lines: one JSON object each, on standard output. Lambda reads their `timestamp` and `level`.

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::fmt::MakeWriter;

/// Writes the events of this process that are of at least `level`.
pub fn start(level: LevelFilter) {
    // A second call fails and leaves the first subscriber in place.
    let _ = tracing::subscriber::set_global_default(subscriber(level, std::io::stdout));
}

/// Returns what writes events of at least `level` to `writer`.
fn subscriber<W>(level: LevelFilter, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_target(false)
        .with_max_level(level)
        .with_writer(writer)
        .finish()
}
