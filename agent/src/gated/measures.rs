//! Outcomes and durations of the agent's calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A call of one of the protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// `POST /v1/acquire`.
    Acquire,
    /// `POST /v1/settle`.
    Settle,
    /// `POST /v1/report`, and a vendor's answer in a settlement.
    Report,
    /// `POST /v1/peek`.
    Peek,
    /// `POST /v1/usage`.
    Usage,
    /// `POST /v1/limits`.
    Limits,
    /// `POST /v1/limits/set`.
    SetLimits,
    /// `POST /v1/limits/delete`.
    DeleteLimits,
    /// Envoy's `ShouldRateLimit`.
    ShouldRateLimit,
    /// Kuadrant's service.
    Kuadrant,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Granted, settled or read.
    Granted,
    /// Denied.
    Denied,
    /// Above a capacity.
    NeverFits,
    /// Stopped by an operator.
    Disabled,
    /// Refused because it is invalid, or without the token.
    Invalid,
    /// No decision could be made.
    NoDecision,
    /// Refused because too many requests are in flight.
    Overloaded,
    /// The client left before the answer.
    Dropped,
}

/// Upper bounds of the durations that are counted together, in microseconds.
pub const HISTOGRAM_BOUNDS: [u64; 14] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000,
    5_000_000,
];

/// Outcomes and durations since the start.
#[derive(Debug, Default)]
pub struct Measures([CallMeasures; Call::ALL.len()]);

#[derive(Debug, Default)]
struct CallMeasures {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    /// One more than there are bounds, for longer durations.
    durations: [AtomicU64; HISTOGRAM_BOUNDS.len() + 1],
    micros: AtomicU64,
}

/// Outcomes and durations of one call, as they were when they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// Number of calls by outcome.
    pub outcomes: Vec<(Outcome, u64)>,
    /// Number of calls up to each of [`HISTOGRAM_BOUNDS`], and of longer ones.
    pub durations: Vec<u64>,
    /// Sum of the durations, in microseconds.
    pub micros: u64,
}

impl Call {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Acquire,
        Self::Settle,
        Self::Report,
        Self::Peek,
        Self::Usage,
        Self::Limits,
        Self::SetLimits,
        Self::DeleteLimits,
        Self::ShouldRateLimit,
        Self::Kuadrant,
    ];

    /// Returns the protocol's name and the call's.
    #[must_use]
    pub const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Acquire => ("http", "acquire"),
            Self::Settle => ("http", "settle"),
            Self::Report => ("http", "report"),
            Self::Peek => ("http", "peek"),
            Self::Usage => ("http", "usage"),
            Self::Limits => ("http", "limits"),
            Self::SetLimits => ("http", "set_limits"),
            Self::DeleteLimits => ("http", "delete_limits"),
            Self::ShouldRateLimit => ("grpc", "should_rate_limit"),
            Self::Kuadrant => ("grpc", "kuadrant"),
        }
    }
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Granted,
        Self::Denied,
        Self::NeverFits,
        Self::Disabled,
        Self::Invalid,
        Self::NoDecision,
        Self::Overloaded,
        Self::Dropped,
    ];

    /// Returns its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Denied => "denied",
            Self::NeverFits => "never_fits",
            Self::Disabled => "disabled",
            Self::Invalid => "invalid",
            Self::NoDecision => "no_decision",
            Self::Overloaded => "overloaded",
            Self::Dropped => "dropped",
        }
    }
}

/// A call in progress. It counts as dropped unless it [ends](Self::end).
#[derive(Debug)]
pub struct Measuring<'m> {
    measures: &'m Measures,
    call: Call,
    begun: Instant,
    outcome: Outcome,
}

impl Measuring<'_> {
    /// Counts the call.
    pub fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Measuring<'_> {
    fn drop(&mut self) {
        let took = self.begun.elapsed();
        self.measures.record(self.call, self.outcome, took);
    }
}

impl Measures {
    /// Begins a call.
    pub fn begin(&self, call: Call) -> Measuring<'_> {
        Measuring { measures: self, call, begun: Instant::now(), outcome: Outcome::Dropped }
    }

    /// Counts a call that ended.
    fn record(&self, call: Call, outcome: Outcome, took: Duration) {
        let add = |counter: &AtomicU64, by| {
            counter.fetch_add(by, Ordering::Relaxed);
        };
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let measures = self.of(call);
        let place = HISTOGRAM_BOUNDS.partition_point(|bound| *bound < micros);
        add(&measures.durations[place], 1);
        add(&measures.micros, micros);
        if let Some(at) = Outcome::ALL.iter().position(|known| *known == outcome) {
            add(&measures.outcomes[at], 1);
        }
    }

    /// Returns what was measured of a call.
    #[must_use]
    pub fn read(&self, call: Call) -> Measured {
        let measures = self.of(call);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let outcomes = Outcome::ALL.into_iter().zip(measures.outcomes.iter().map(read));
        Measured {
            outcomes: outcomes.collect(),
            durations: measures.durations.iter().map(read).collect(),
            micros: read(&measures.micros),
        }
    }

    fn of(&self, call: Call) -> &CallMeasures {
        let at = Call::ALL.iter().position(|known| *known == call);
        &self.0[at.unwrap_or_default()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_up_to_the_first_bound_that_it_does_not_exceed() {
        let measures = Measures::default();
        for micros in [0, 50, 51, 5_000_000, 5_000_001] {
            measures.record(Call::Peek, Outcome::Granted, Duration::from_micros(micros));
        }
        let measured = measures.read(Call::Peek);
        assert_eq!(measured.durations[..2], [2, 1]);
        assert_eq!(measured.durations[13..], [1, 1]);
        assert_eq!(measured.micros, 10_000_102);
        assert_eq!(measured.outcomes[0], (Outcome::Granted, 5));
        assert_eq!(measures.read(Call::Acquire).outcomes[0].1, 0);
    }

    #[test]
    fn a_call_that_does_not_end_counts_as_dropped() {
        let measures = Measures::default();
        measures.begin(Call::Settle).end(Outcome::Denied);
        drop(measures.begin(Call::Settle));
        let outcomes = measures.read(Call::Settle).outcomes;
        let counted: Vec<_> = outcomes.into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(Outcome::Denied, 1), (Outcome::Dropped, 1)]);
    }
}
