//! State of the circuit breaker, and gauges for the process's metrics recorder. A limiter changes them by differences, so each is the
//! sum over the limiters of the process.

use metrics::{Gauge, Key, Label, Level, Metadata};
use weirgate_shared::{LimitName, MilliTokens, Resource};

use super::limits::Amounts;
use super::vendor::VendorCount;

const BREAKER: &str = "weirgate_breaker_state";
const OUTSTANDING: &str = "weirgate_prefetch_outstanding_millitokens";
const VENDOR_LIMIT: &str = "weirgate_vendor_limit";
const VENDOR_LIMIT_CONFIGURED: &str = "weirgate_vendor_limit_configured";
static BREAKER_KEY: Key = Key::from_static_name(BREAKER);
static OUTSTANDING_KEY: Key = Key::from_static_name(OUTSTANDING);

/// Describes the gauges to the recorder.
pub(crate) fn describe_gauges() {
    metrics::describe_gauge!(
        BREAKER,
        "State of the circuit breaker: 0 closed, 0.5 half open, 1 open; the sum over the limiters of the process."
    );
    metrics::describe_gauge!(
        OUTSTANDING,
        "Prefetched millitokens that are neither spent nor returned, blocks in flight included."
    );
    metrics::describe_gauge!(VENDOR_LIMIT, "Limit that the resource's vendor reported last.");
    metrics::describe_gauge!(
        VENDOR_LIMIT_CONFIGURED,
        "Refill in a minute, or in its own longer period, of the limit that follows the vendor's."
    );
    // A series that is missing until the first outage raises no alarm.
    gauge(&BREAKER_KEY).increment(0.0);
}

/// Changes the gauge of the circuit breaker.
pub(crate) fn change_breaker(from: BreakerState, to: BreakerState) {
    if from != to {
        gauge(&BREAKER_KEY).increment(to.value() - from.value());
    }
}

/// The gauge of a pool's outstanding tokens. By resource and limit if the limiter's metrics are by
/// resource, or else one for all.
#[derive(Debug, Default)]
pub(crate) struct OutstandingGauge {
    resource: Option<Resource>,
}

impl OutstandingGauge {
    pub(crate) const fn new(resource: Option<Resource>) -> Self {
        Self { resource }
    }

    pub(crate) fn raise(&self, by: &Amounts) {
        self.change(by, 1.0);
    }

    pub(crate) fn lower(&self, by: &Amounts) {
        self.change(by, -1.0);
    }

    fn change(&self, by: &Amounts, sign: f64) {
        let Some(resource) = &self.resource else {
            let sum: MilliTokens = by.values().copied().sum();
            gauge(&OUTSTANDING_KEY).increment(sign * as_f64(sum.0));
            return;
        };
        for (limit, amount) in by {
            let labels = vec![
                Label::new("resource", resource.as_str().to_owned()),
                Label::new("limit", limit.as_str().to_owned()),
            ];
            let key = Key::from_parts(OUTSTANDING, labels);
            gauge(&key).increment(sign * as_f64(amount.0));
        }
    }
}

/// Sets the gauges of a vendor's limit, and of the limit that follows it with its refill. They are not
/// sums: the last report of the process counts.
pub(crate) fn set_vendor_limit(
    resource: &Resource,
    counts: VendorCount,
    limit: u64,
    configured: Option<(&LimitName, MilliTokens)>,
) {
    let mut labels = vec![
        Label::new("resource", resource.as_str().to_owned()),
        Label::from_static_parts("counts", counts.name()),
    ];
    let key = Key::from_parts(VENDOR_LIMIT, labels.clone());
    gauge(&key).set(as_f64(i64::try_from(limit).unwrap_or(i64::MAX)));
    if let Some((name, tokens)) = configured {
        labels.push(Label::new("limit", name.as_str().to_owned()));
        let key = Key::from_parts(VENDOR_LIMIT_CONFIGURED, labels);
        gauge(&key).set(as_f64(tokens.0) / 1_000.0);
    }
}

fn gauge(key: &Key) -> Gauge {
    static METADATA: Metadata<'static> =
        Metadata::new(module_path!(), Level::INFO, Some(module_path!()));
    metrics::with_recorder(|recorder| recorder.register_gauge(key, &METADATA))
}

/// Returns a number as a float: exact up to 2^53, of millitokens 9 * 10^12 tokens.
fn as_f64(number: i64) -> f64 {
    const HIGH: f64 = 4_294_967_296.0;
    // The high half is within i32, the low one within u32: both always convert.
    let high = i32::try_from(number >> 32).unwrap_or_default();
    let low = u32::try_from(number & 0xffff_ffff).unwrap_or_default();
    f64::from(high) * HIGH + f64::from(low)
}

/// State of a limiter's [circuit breaker](crate::CircuitBreakerConfig).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum BreakerState {
    /// Requests pass.
    #[default]
    Closed,
    /// One request probes whether DynamoDB answers; no other passes.
    HalfOpen,
    /// No request passes. After the pause, the next one probes.
    Open,
}

impl BreakerState {
    /// Returns the value of the gauge `weirgate_breaker_state`: 0 closed, 0.5 half open, 1 open.
    #[must_use]
    pub const fn value(self) -> f64 {
        match self {
            Self::Closed => 0.0,
            Self::HalfOpen => 0.5,
            Self::Open => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_exact_as_floats() {
        for (number, float) in [
            (0, 0.0),
            (1, 1.0),
            (-1, -1.0),
            (1_500, 1_500.0),
            (4_294_967_295, 4_294_967_295.0),
            (4_294_967_296, 4_294_967_296.0),
            (-4_294_967_297, -4_294_967_297.0),
            (9_007_199_254_740_991, 9_007_199_254_740_991.0),
        ] {
            assert_eq!(as_f64(number).to_bits(), f64::to_bits(float));
        }
    }
}
