//! Metrics and traces of decisions: a histogram through the `metrics` facade, and a `tracing` span
//! each.

use std::future::Future;

use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::decision::Decision;
use super::granted::Granted;
use crate::session::Session;
use crate::values::{Error, count};

/// Duration of decisions by outcome, in seconds, including the wait for tokens.
const SECONDS: &str = "weirgate_decision_seconds";

/// Describes the histogram to the process's metrics recorder.
pub(crate) fn describe() {
    let what = "How long decisions take, by outcome, waiting for tokens included.";
    metrics::describe_histogram!(SECONDS, metrics::Unit::Seconds, what);
}

/// Makes a decision within a span, and records its duration and outcome. Records `resource` too if
/// the limiter is set to, because there may be many.
pub(crate) async fn instrumented(
    session: &Session,
    entity: &str,
    resource: &str,
    decision: impl Future<Output = Result<Decision<Granted>, Error>>,
) -> Result<Decision<Granted>, Error> {
    let span = tracing::debug_span!("acquire", entity, resource, outcome = Empty);
    let began = Instant::now();
    let decision = decision.instrument(span.clone()).await;
    let outcome = outcome(&decision);
    record(&span, &decision, outcome);
    let seconds = began.elapsed().as_secs_f64();
    if session.settings.has_resource_metrics {
        metrics::histogram!(SECONDS, "outcome" => outcome, "resource" => resource.to_owned())
            .record(seconds);
    } else {
        metrics::histogram!(SECONDS, "outcome" => outcome).record(seconds);
    }
    decision
}

fn record(span: &Span, decision: &Result<Decision<Granted>, Error>, outcome: &'static str) {
    span.record("outcome", outcome);
    if let Err(error) = decision {
        tracing::debug!(parent: span, %error, "no decision");
    }
}

/// Returns the outcome as a label, from a small fixed set.
fn outcome(decision: &Result<Decision<Granted>, Error>) -> &'static str {
    match decision {
        Ok(Decision::Granted(Granted {
            degraded: Some(_), ..
        })) => "granted_degraded",
        Ok(Decision::Granted(given))
            if given.by_bucket.iter().any(|one| one.would_deny.is_some()) =>
        {
            "granted_shadow"
        }
        Ok(Decision::Granted(_)) => "granted",
        Ok(Decision::Denied(denied)) if denied.degraded.is_some() => "denied_degraded",
        Ok(Decision::Denied(_)) => "denied",
        Ok(Decision::NeverFits(_)) => "never_fits",
        Ok(Decision::Disabled(_)) => "disabled",
        Err(_) => "error",
    }
}

/// Counts a decision.
pub(crate) fn count_decision(session: &Session, decision: &Decision<Granted>) {
    let counters = &session.counters;
    match decision {
        Decision::Granted(given) => {
            count(&counters.granted, 1);
            count(
                &counters.shadow_denied,
                u64::from(given.by_bucket.iter().any(|one| one.would_deny.is_some())),
            );
        }
        Decision::Denied(_) => count(&counters.denied, 1),
        Decision::NeverFits(_) | Decision::Disabled(_) => {}
    }
}
