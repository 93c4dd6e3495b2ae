//! Log lines as Lambda's JSON mode reads them: it takes `timestamp` and `level` from the line, and counts a line
//! without them as INFO. The subscriber of the Lambda runtime writes no timestamp.

use std::fmt::{Debug, Write as _};
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use weirgate_shared::{EpochMillis, Iso};

/// Writes each event as one line of JSON to standard output. Spans are not used and cost nothing.
#[derive(Debug)]
pub struct JsonLines {
    level: LevelFilter,
}

/// Has every event from `level` up written to standard output; Lambda sets `AWS_LAMBDA_LOG_LEVEL` to what the template
/// says. INFO if it is anything else.
pub fn init(level: Option<&str>) {
    let level = match level {
        Some("TRACE") => Level::TRACE,
        Some("DEBUG") => Level::DEBUG,
        Some("WARN") => Level::WARN,
        Some("ERROR" | "FATAL") => Level::ERROR,
        _ => Level::INFO,
    };
    // Fails if a test has set one before.
    let _ = tracing::subscriber::set_global_default(JsonLines { level: level.into() });
}

impl Subscriber for JsonLines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn event(&self, event: &Event<'_>) {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = EpochMillis(i64::try_from(since_1970.as_millis()).unwrap_or_default());
        let mut text = line(now, event);
        text.push('\n');
        // A log that cannot be written cannot be complained about.
        let _ = std::io::stdout().lock().write_all(text.as_bytes());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn line(now: EpochMillis, event: &Event<'_>) -> String {
    let mut timestamp = Iso(now).to_string();
    timestamp.pop();
    // Writing to a String cannot fail.
    let _ = write!(timestamp, ".{:03}Z", now.0.rem_euclid(1000));
    let mut fields = Fields(Map::new());
    fields.0.insert("timestamp".to_owned(), timestamp.into());
    fields.0.insert("level".to_owned(), event.metadata().level().as_str().into());
    event.record(&mut fields);
    Value::Object(fields.0).to_string()
}

struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}
