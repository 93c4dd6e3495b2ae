//! Decisions of an acquire: granted, denied with a retry-after, never fits, or disabled. Each has a span of
//! `tracing`, and is measured by a histogram through the `metrics` facade.

use std::future::Future;
use std::pin::Pin;

use metrics::{Histogram, Key, Label, Level, Metadata};
use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::grant::{Grant, Granted};
use crate::session::Session;
use crate::values::{Denied, Disabled, Error, NeverFits, count, describe_gauges};

/// Decision of an acquire.
#[derive(Debug)]
#[must_use = "a denial is a decision, not an error: handle every variant"]
pub enum Decision<G = Grant> {
    /// The tokens were taken.
    Granted(G),
    /// Denied for now; nothing was taken.
    Denied(Denied),
    /// Never grantable: the amount exceeds the capacity of a limit.
    NeverFits(NeverFits),
    /// Disabled by the configuration, until it is enabled there, or by a level that is
    /// [stopped](crate::Admin::stop).
    Disabled(Disabled),
}

impl<G> Decision<G> {
    /// Returns the grant, if there is one.
    #[must_use]
    pub fn granted(self) -> Option<G> {
        match self {
            Self::Granted(grant) => Some(grant),
            Self::Denied(_) | Self::NeverFits(_) | Self::Disabled(_) => None,
        }
    }

    /// Returns the denial, if it is one.
    #[must_use]
    pub fn denied(self) -> Option<Denied> {
        match self {
            Self::Denied(denied) => Some(denied),
            Self::Granted(_) | Self::NeverFits(_) | Self::Disabled(_) => None,
        }
    }

    /// Returns whether the tokens were taken.
    #[must_use]
    pub const fn is_granted(&self) -> bool {
        matches!(self, Self::Granted(_))
    }

    /// Turns the grant into something else.
    pub fn map<H>(self, grant: impl FnOnce(G) -> H) -> Decision<H> {
        match self {
            Self::Granted(granted) => Decision::Granted(grant(granted)),
            Self::Denied(denied) => Decision::Denied(denied),
            Self::NeverFits(never) => Decision::NeverFits(never),
            Self::Disabled(disabled) => Decision::Disabled(disabled),
        }
    }
}

/// Duration of decisions by outcome, in seconds, including the wait for tokens.
const SECONDS: &str = "weirgate_decision_seconds";

/// An outcome of a decision, and its series of the histogram.
struct Outcome {
    name: &'static str,
    series: Key,
}

/// Returns an outcome, whose labels are hashed at compile time.
macro_rules! outcome {
    ($name:literal) => {{
        static LABELS: [Label; 1] = [Label::from_static_parts("outcome", $name)];
        static OUTCOME: Outcome =
            Outcome { name: $name, series: Key::from_static_parts(SECONDS, &LABELS) };
        &OUTCOME
    }};
}

/// Describes the histogram and the gauges to the process's metrics recorder.
pub(crate) fn describe() {
    let what = "How long decisions take, by outcome, waiting for tokens included.";
    metrics::describe_histogram!(SECONDS, metrics::Unit::Seconds, what);
    describe_gauges();
}

/// Makes a decision within a span, and records its duration and outcome. Records `resource` too if
/// the limiter is set to, because there may be many. The decision comes pinned: as a value, it would
/// have its space here and at the caller.
pub(crate) async fn instrumented(
    session: &Session,
    entity: &str,
    resource: &str,
    mut decision: Pin<&mut impl Future<Output = Result<Decision<Granted>, Error>>>,
) -> Result<Decision<Granted>, Error> {
    // The names are those of OpenTelemetry; docs/guide/metrics.md lists them. None of a database:
    // an acquire sends any number of requests, and shares them with others.
    let span = tracing::debug_span!(
        "acquire",
        otel.name = "weirgate acquire",
        otel.kind = "client",
        weirgate.entity = entity,
        weirgate.resource = resource,
        weirgate.outcome = Empty,
        error.type = Empty,
        otel.status_code = Empty,
        otel.status_description = Empty,
    );
    let began = Instant::now();
    let decision = if span.is_disabled() {
        decision.as_mut().await
    } else {
        decision.as_mut().instrument(span.clone()).await
    };
    let outcome = outcome(&decision);
    if !span.is_disabled() {
        record(&span, &decision, outcome);
    }
    let seconds = began.elapsed().as_secs_f64();
    if session.settings.has_resource_metrics {
        let labels = vec![
            Label::from_static_parts("outcome", outcome.name),
            Label::new("resource", resource.to_owned()),
        ];
        histogram(&Key::from_parts(SECONDS, labels)).record(seconds);
    } else {
        histogram(&outcome.series).record(seconds);
    }
    decision
}

fn histogram(series: &Key) -> Histogram {
    static METADATA: Metadata<'static> =
        Metadata::new(module_path!(), Level::INFO, Some(module_path!()));
    metrics::with_recorder(|recorder| recorder.register_histogram(series, &METADATA))
}

/// Records the outcome. A denial is no error.
fn record(span: &Span, decision: &Result<Decision<Granted>, Error>, outcome: &Outcome) {
    span.record("weirgate.outcome", outcome.name);
    if let Err(error) = decision {
        span.record("error.type", error.name());
        span.record("otel.status_code", "ERROR");
        span.record("otel.status_description", tracing::field::display(error));
        tracing::debug!(parent: span, %error, "no decision");
    }
}

/// Returns the outcome as a label, from a small fixed set.
fn outcome(decision: &Result<Decision<Granted>, Error>) -> &'static Outcome {
    match decision {
        Ok(Decision::Granted(Granted { degraded: Some(_), .. })) => outcome!("granted_degraded"),
        Ok(Decision::Granted(given))
            if given.by_bucket.iter().any(|one| one.would_deny.is_some()) =>
        {
            outcome!("granted_shadow")
        }
        Ok(Decision::Granted(_)) => outcome!("granted"),
        Ok(Decision::Denied(denied)) if denied.degraded.is_some() => outcome!("denied_degraded"),
        Ok(Decision::Denied(_)) => outcome!("denied"),
        Ok(Decision::NeverFits(_)) => outcome!("never_fits"),
        Ok(Decision::Disabled(_)) => outcome!("disabled"),
        Err(_) => outcome!("error"),
    }
}

/// Counts a decision.
pub(crate) fn count_decision(session: &Session, decision: &Decision<Granted>) {
    let counters = &session.env.counters;
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
