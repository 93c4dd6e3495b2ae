//! `GET /metrics`: Prometheus' text format.

use std::fmt::{Display, Write};

use serde::Serialize;
use serde_json::Value;
use weirgate::VendorAdvice;
use weirgate_shared::{docs, exact_span};

use crate::gated::{Call, GatedLimiter, HISTOGRAM_BOUNDS, Measured};

/// The type of the text.
pub(super) const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns the text.
pub(super) fn text(gated: &GatedLimiter, connections: u64) -> String {
    let mut text = String::new();
    calls(&mut text, gated);
    let stats = gated.limiter.stats();
    let gauges: [(&str, &str, &dyn Display); 5] = [
        (
            "weirgate_agent_in_flight",
            "Requests in flight.",
            &(gated.gate.in_flight() + gated.settling.in_flight()),
        ),
        (
            "weirgate_agent_in_flight_max",
            "Requests that may be in flight, those that settle included; more are refused.",
            &(u64::from(gated.gate.max()) + u64::from(gated.settling.max())),
        ),
        ("weirgate_agent_connections", "Open connections, of HTTP and gRPC.", &connections),
        (
            "weirgate_available",
            "Whether the table answers: 0 while the circuit breaker is open.",
            &u8::from(gated.limiter.is_available()),
        ),
        (
            "weirgate_breaker_state",
            "State of the circuit breaker: 0 closed, 0.5 half open, 1 open.",
            &stats.breaker.value(),
        ),
    ];
    for (name, help, value) in gauges {
        head(&mut text, name, "gauge", help);
        line(&mut text, name, "", value);
    }
    let name = "weirgate_agent_log_lines_lost_total";
    head(
        &mut text,
        name,
        "counter",
        "Log lines that were not written: the output took none, or too many were of one kind.",
    );
    line(&mut text, name, "", crate::log::lost());
    let name = "weirgate_prefetch_outstanding_tokens";
    head(
        &mut text,
        name,
        "gauge",
        "Prefetched tokens that are neither spent nor returned, blocks in flight included.",
    );
    for ((resource, limit), amount) in gated.limiter.prefetched() {
        let labels = format!("resource={},limit={}", quoted(&resource), quoted(&limit));
        line(&mut text, name, &labels, amount);
    }
    vendor_limits(&mut text, &gated.limiter.vendor_advice());
    counters(&mut text, "weirgate_", &stats, concat!("See ", docs!("guide/metrics")));
    let cache = gated.limiter.cache_stats();
    counters(&mut text, "weirgate_config_", &cache, "Of the cache of configurations.");
    text
}

fn calls(text: &mut String, gated: &GatedLimiter) {
    let all: Vec<(String, Measured)> = Call::ALL
        .into_iter()
        .map(|call| {
            let (protocol, name) = call.names();
            let labels = format!("protocol=\"{protocol}\",call=\"{name}\"");
            (labels, gated.measures.read(call))
        })
        .collect();
    let name = "weirgate_agent_calls_total";
    head(text, name, "counter", "Calls by outcome.");
    for (labels, measured) in &all {
        for (outcome, count) in &measured.outcomes {
            line(text, name, &format!("{labels},outcome=\"{}\"", outcome.name()), count);
        }
    }
    let name = "weirgate_agent_call_duration_seconds";
    head(text, name, "histogram", "Time from the head of a call to its answer.");
    for (labels, measured) in &all {
        let mut count = 0;
        let bounds = HISTOGRAM_BOUNDS.map(seconds);
        let bounds = bounds.into_iter().chain(["+Inf".to_owned()]);
        for (bound, more) in bounds.zip(&measured.durations) {
            count += more;
            line(text, &format!("{name}_bucket"), &format!("{labels},le=\"{bound}\""), count);
        }
        line(text, &format!("{name}_sum"), labels, seconds(measured.micros));
        line(text, &format!("{name}_count"), labels, count);
    }
}

/// Writes what vendors say their limits are, and the limits that follow them.
fn vendor_limits(text: &mut String, all: &[VendorAdvice]) {
    let labels = |advice: &VendorAdvice| {
        let (resource, counts) = (quoted(&advice.resource), advice.counts.name());
        format!("resource={resource},counts=\"{counts}\"")
    };
    let name = "weirgate_vendor_limit";
    let help = "Limit that the resource's vendor reported last.";
    head(text, name, "gauge", help);
    for advice in all {
        line(text, name, &labels(advice), advice.limit);
    }
    let name = "weirgate_vendor_limit_configured";
    let help = "Refill in the period, of the limit that follows the vendor's.";
    head(text, name, "gauge", help);
    for advice in all {
        if let Some(rate) = &advice.configured {
            let (limit, period) = (quoted(&rate.name), exact_span(rate.period));
            let labels = format!("{},limit={limit},period=\"{period}\"", labels(advice));
            line(text, name, &labels, rate.tokens);
        }
    }
}

/// Writes counters by the names of their fields.
fn counters(text: &mut String, prefix: &str, stats: &impl Serialize, help: &str) {
    let Ok(Value::Object(fields)) = serde_json::to_value(stats) else {
        return;
    };
    // Those of `Stats` that are no counters are above.
    let is_above = |field: &str| matches!(field, "breaker" | "prefetch_outstanding_millitokens");
    for (field, value) in fields.into_iter().filter(|(field, _)| !is_above(field)) {
        let (name, kind) = match field.as_str() {
            "entries" => (format!("{prefix}{field}"), "gauge"),
            _ => (format!("{prefix}{field}_total"), "counter"),
        };
        head(text, &name, kind, help);
        line(text, &name, "", value);
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

fn line(text: &mut String, name: &str, labels: &str, value: impl Display) {
    let _ = match labels {
        "" => writeln!(text, "{name} {value}"),
        labels => writeln!(text, "{name}{{{labels}}} {value}"),
    };
}

/// Returns microseconds as seconds.
fn seconds(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns the value of a label.
fn quoted(value: &impl Display) -> String {
    let value = value.to_string().replace('\\', "\\\\");
    format!("\"{}\"", value.replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_are_written_as_seconds() {
        let written = [0, 1, 50, 1_000, 1_000_000, 10_500_000].map(seconds);
        assert_eq!(written, ["0", "0.000001", "0.00005", "0.001", "1", "10.5"]);
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(quoted(&"a\"b\\c\n"), "\"a\\\"b\\\\c\\n\"");
    }
}
