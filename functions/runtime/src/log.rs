//! Log lines for Lambda's JSON log mode. The runtime's own subscriber writes no timestamp, so
//! Lambda treats its lines as INFO.

use std::str::FromStr;

use lambda_runtime::Context;
use lambda_runtime::tracing::level_filters::LevelFilter;
use lambda_runtime::tracing::subscriber::fmt;
use lambda_runtime::tracing::subscriber::fmt::MakeWriter;
use lambda_runtime::tracing::subscriber::util::SubscriberInitExt;
use lambda_runtime::tracing::{self, Span, Subscriber};

/// Writes every event of this process that is of at least `level` to standard output, one JSON
/// object a line.
pub fn log_lines(level: &str) {
    // A second call fails and leaves the first subscriber in place.
    let _ = subscriber(level, std::io::stdout).try_init();
}

/// Returns the span of an invocation. It adds to each of its lines the request id as
/// `span.requestId`, like Lambda's own lines and the objects of the failure bucket, and X-Ray's
/// trace id as `span.xrayTraceId`, if the invocation has one. The runtime's own span is at INFO, so
/// a level above INFO would omit it.
pub(crate) fn invocation(context: &Context) -> Span {
    tracing::error_span!(
        "invocation",
        requestId = context.request_id,
        xrayTraceId = context.xray_trace_id,
    )
}

/// Returns the subscriber that writes events of at least `level` to `writer`.
pub fn subscriber<W>(level: &str, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    fmt()
        .json()
        .flatten_event(true)
        .with_current_span(true)
        .with_span_list(false)
        .with_target(false)
        .with_max_level(least(level))
        .with_writer(writer)
        .finish()
}

/// Returns the minimum level. Lambda's `FATAL` is above all of tracing's levels, so it becomes
/// `ERROR`. So does `off`, because alarms look for errors in the log. An empty text, which tracing
/// parses as `ERROR`, becomes `INFO`.
fn least(level: &str) -> LevelFilter {
    match level {
        "" => LevelFilter::INFO,
        "FATAL" => LevelFilter::ERROR,
        level => LevelFilter::from_str(level).unwrap_or(LevelFilter::INFO).max(LevelFilter::ERROR),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn lines(level: &str, log: impl FnOnce()) -> Vec<serde_json::Value> {
        let lines = Lines::default();
        let writer = lines.clone();
        let _guard = subscriber(level, move || writer.clone()).set_default();
        log();
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_line_is_an_object_with_what_lambda_reads_at_its_top() {
        let lines = lines("", || tracing::error!(items = 3, "two\nlines"));
        assert_eq!(lines.len(), 1, "a line break in a message does not make two lines");
        assert_eq!(lines[0]["level"], "ERROR");
        assert_eq!(lines[0]["message"], "two\nlines");
        assert_eq!(lines[0]["items"], 3);
        let at = lines[0]["timestamp"].as_str().unwrap();
        assert!(
            at.len() >= 20 && at.as_bytes()[10] == b'T' && at.ends_with('Z'),
            "{at} is RFC 3339"
        );
    }

    #[test]
    fn a_line_of_an_invocation_has_its_request_id_and_trace_id_at_every_level() {
        let mut context = Context::default();
        context.request_id = "r-1".to_owned();
        for (level, expected, trace) in [("", 2, None), ("ERROR", 1, Some("Root=1-2-3"))] {
            context.xray_trace_id = trace.map(str::to_owned);
            let lines = lines(level, || {
                let _invocation = invocation(&context).entered();
                tracing::info!("i");
                tracing::error!("e");
            });
            assert_eq!(lines.len(), expected, "{level:?}");
            for line in lines {
                let span = &line["span"];
                assert_eq!(span["requestId"], "r-1", "{line}");
                assert_eq!(span["xrayTraceId"].as_str(), trace, "{line}");
            }
        }
    }

    #[test]
    fn the_least_level_is_lambdas() {
        let all = || {
            tracing::error!("e");
            tracing::warn!("w");
            tracing::info!("i");
            tracing::debug!("d");
        };
        for (level, expected) in [
            ("", 3),
            ("WARN", 2),
            ("FATAL", 1),
            ("DEBUG", 4),
            ("nonsense", 3),
            ("off", 1),
            ("0", 1),
        ] {
            assert_eq!(lines(level, all).len(), expected, "{level:?}");
        }
    }
}
