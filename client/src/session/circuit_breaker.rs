//! A circuit breaker: after failures in a row it stops requests for a while, then lets one probe
//! through.

use std::collections::{HashSet, VecDeque};
use std::sync::MutexGuard;
use std::time::Duration;

use weirgate_store::{ErrorKind, StoreError};

use super::env::{AgeClock, Moment};
use crate::values::{BreakerState, Error, Locked, change_breaker};

/// Buckets that must be throttled before the table counts as saturated.
const SEVERAL: usize = 3;
/// Time within which they must be throttled: two calls with the default timeout.
const WINDOW: Duration = Duration::from_secs(10);
/// Writes that are remembered.
const MOST: usize = 256;

/// Sets when a limiter stops sending requests to DynamoDB, and for how long.
///
/// A failure is a connection that cannot be made, a request without a response, a server error, or
/// a throttled table or account. Any other response closes the breaker, but for that of a read after a
/// full server has refused a write. A throttled bucket, index
/// or partition counts as neither. But if most writes of 10 s are throttled, and those of at least
/// three buckets, the table as a whole is saturated: each further throttle is a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitBreakerConfig {
    /// Failed requests in a row after which it opens; 0 for never. Default: 10.
    pub failure_threshold: u32,
    /// First pause before one probe; it doubles with each failed probe. Default: 1 s.
    pub open_for: Duration,
    /// Longest pause. Default: 30 s.
    pub max_open_for: Duration,
}

impl Default for CircuitBreakerConfig {
    fn default() -> Self {
        Self {
            failure_threshold: 10,
            open_for: Duration::from_secs(1),
            max_open_for: Duration::from_secs(30),
        }
    }
}

/// The circuit breaker of a limiter.
#[derive(Debug)]
pub(crate) struct CircuitBreaker {
    settings: CircuitBreakerConfig,
    ages: AgeClock,
    seen: Locked<Seen>,
}

/// What the responses showed.
#[derive(Debug)]
struct Seen {
    state: State,
    /// Whether the last failure was of a write that a server refused which may answer reads: one that is full.
    is_write_refused: bool,
    throttles: KeyRangeThrottles,
    /// Number of the last probe.
    probes: u64,
}

#[derive(Debug)]
enum State {
    /// Requests pass; the number of failures in a row.
    Closed(u32),
    /// No request passes.
    Open { until: Moment, stop: Stop },
    /// The probe of this number has passed, and no other request does.
    HalfOpen { stop: Stop, probe: u64 },
}

/// Why no requests pass, and for how long.
#[derive(Debug, Clone)]
struct Stop {
    pause: Duration,
    why: String,
    cause: Cause,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Cause {
    /// Failed requests.
    Failures,
    /// Throttled writes of several buckets; the bucket of the last probe, if it was throttled too.
    Saturation(Option<String>),
}

/// What a recorded request did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent<'a> {
    /// It read, or nothing is known of it. That reads are accepted does not show that writes are.
    Read,
    /// It wrote the item with this partition key.
    Write(&'a str),
    /// It wrote several items. Which of them was throttled is not known.
    Transaction,
}

/// Permission to send a request.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    circuit: &'a CircuitBreaker,
    /// Number of the probe, if it is one.
    probe: Option<u64>,
}

impl CircuitBreaker {
    pub(crate) const fn new(settings: CircuitBreakerConfig, ages: AgeClock) -> Self {
        Self { settings, ages, seen: Locked::new(Seen::NOTHING) }
    }

    /// Returns the shortest pause.
    pub(crate) const fn pause(&self) -> Duration {
        self.settings.open_for
    }

    /// Returns the state.
    pub(crate) fn current(&self) -> BreakerState {
        self.seen.lock().state.name()
    }

    /// Returns whether requests pass, all of them and not only a probe.
    pub(crate) fn is_closed(&self) -> bool {
        self.current() == BreakerState::Closed
    }

    /// Returns whether the table as a whole is saturated.
    pub(crate) fn is_saturated(&self) -> bool {
        let seen = self.seen.lock();
        match &seen.state {
            State::Open { stop, .. } | State::HalfOpen { stop, .. } if stop.is_saturation() => true,
            _ => seen.throttles.are_of_the_table(self.ages.now()),
        }
    }

    /// Returns a permit.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the breaker is open.
    pub(crate) fn admit(&self) -> Result<Permit<'_>, Error> {
        let mut seen = self.seen.lock();
        let stop = match &seen.state {
            State::Closed(_) => {
                return Ok(Permit { circuit: self, probe: None });
            }
            State::Open { until, stop } => {
                let left = until.since(self.ages.now());
                if !left.is_zero() {
                    return Err(stop.rejection(left));
                }
                stop.clone()
            }
            State::HalfOpen { stop, .. } => return Err(stop.rejection(stop.pause)),
        };
        seen.probes += 1;
        let probe = seen.probes;
        Self::set(seen, State::HalfOpen { stop, probe });
        Ok(Permit { circuit: self, probe: Some(probe) })
    }

    /// Records the outcome of a request. Returns whether the breaker opened.
    pub(crate) fn record(&self, sent: Sent<'_>, error: Option<&StoreError>) -> bool {
        let mut seen = self.seen.lock();
        let Some(error) = error.filter(|error| says_nothing(error.kind) || is_failure(error.kind))
        else {
            self.accepted(seen, sent);
            return false;
        };
        if is_failure(error.kind) {
            seen.is_write_refused = error.kind == ErrorKind::Unavailable && sent != Sent::Read;
            let Some(pause) = self.pause_after_failure(&mut seen.state) else {
                return false;
            };
            return self.open(seen, pause, error, Cause::Failures);
        }
        let (ErrorKind::Throttled { key_range: true }, Sent::Write(pk)) = (error.kind, sent) else {
            return false;
        };
        let now = self.ages.now();
        let bucket = seen.throttles.throttled(pk, now);
        let threshold = self.settings.failure_threshold;
        let (pause, probed) = match &seen.state {
            State::Closed(_) => {
                let is_enough = threshold > 0 && seen.throttles.in_a_row() >= threshold;
                if !is_enough || !seen.throttles.are_of_the_table(now) {
                    return false;
                }
                (self.settings.open_for, None)
            }
            State::HalfOpen { stop, .. } => match &stop.cause {
                // Two probes of one bucket show a hot bucket, and nothing of the table.
                Cause::Saturation(probed) if probed.as_ref() == Some(&bucket) => {
                    seen.throttles.clear();
                    Self::set(seen, State::Closed(0));
                    return false;
                }
                Cause::Saturation(_) => (self.longer(stop.pause), Some(bucket)),
                Cause::Failures => return false,
            },
            State::Open { .. } => return false,
        };
        self.open(seen, pause, error, Cause::Saturation(probed))
    }

    /// Records a response that is no failure.
    fn accepted(&self, mut seen: MutexGuard<'_, Seen>, sent: Sent<'_>) {
        let now = || self.ages.now();
        let is_saturation = match &seen.state {
            State::Open { stop, .. } | State::HalfOpen { stop, .. } => stop.is_saturation(),
            State::Closed(_) => false,
        };
        match sent {
            Sent::Read if is_saturation || seen.is_write_refused => return,
            Sent::Read => {}
            Sent::Write(pk) => seen.throttles.accepted(Some(pk), now),
            Sent::Transaction => seen.throttles.accepted(None, now),
        }
        seen.is_write_refused = false;
        Self::set(seen, State::Closed(0));
    }

    /// Counts a failure. Returns the pause if the breaker opens.
    fn pause_after_failure(&self, state: &mut State) -> Option<Duration> {
        let threshold = self.settings.failure_threshold;
        match state {
            State::Closed(seen) => {
                *seen = seen.saturating_add(1);
                (threshold > 0 && *seen >= threshold).then_some(self.settings.open_for)
            }
            State::HalfOpen { stop, .. } => Some(self.longer(stop.pause)),
            // These requests were sent before it opened.
            State::Open { .. } => None,
        }
    }

    fn longer(&self, pause: Duration) -> Duration {
        pause.saturating_mul(2).min(self.settings.max_open_for)
    }

    fn open(
        &self,
        seen: MutexGuard<'_, Seen>,
        pause: Duration,
        error: &StoreError,
        cause: Cause,
    ) -> bool {
        let stop = Stop { pause, why: error.to_string(), cause };
        let until = self.ages.now() + pause;
        Self::set(seen, State::Open { until, stop });
        true
    }

    /// Sets the state, and then, without the lock, the gauge.
    fn set(mut seen: MutexGuard<'_, Seen>, to: State) {
        let (before, after) = (seen.state.name(), to.name());
        seen.state = to;
        drop(seen);
        change_breaker(before, after);
    }
}

/// Lets another probe through if this one ends without a recorded outcome. After one, the breaker may wait
/// for a later probe.
impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let Some(own) = self.probe else {
            return;
        };
        let seen = self.circuit.seen.lock();
        if let State::HalfOpen { stop, probe } = &seen.state
            && *probe == own
        {
            let open = State::Open { until: self.circuit.ages.now(), stop: stop.clone() };
            CircuitBreaker::set(seen, open);
        }
    }
}

/// Takes the limiter's part out of the gauge.
impl Drop for CircuitBreaker {
    fn drop(&mut self) {
        change_breaker(self.current(), BreakerState::Closed);
    }
}

impl Seen {
    const NOTHING: Self = Self {
        state: State::Closed(0),
        is_write_refused: false,
        throttles: KeyRangeThrottles::NONE,
        probes: 0,
    };
}

impl Stop {
    const fn is_saturation(&self) -> bool {
        matches!(self.cause, Cause::Saturation(_))
    }

    /// Returns the error of a request that does not pass, until a probe may.
    fn rejection(&self, left: Duration) -> Error {
        Error::Unavailable {
            retry_after: left.max(Duration::from_millis(1)),
            last: self.why.clone(),
        }
    }
}

impl State {
    const fn name(&self) -> BreakerState {
        match self {
            Self::Closed(_) => BreakerState::Closed,
            Self::Open { .. } => BreakerState::Open,
            Self::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }
}

pub(crate) const fn is_failure(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Unconfirmed
            | ErrorKind::Unreachable
            | ErrorKind::Unavailable
            | ErrorKind::Throttled { key_range: false }
    )
}

/// Returns whether an error shows neither that DynamoDB is available, nor that it is not.
const fn says_nothing(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Throttled { key_range: true }
            | ErrorKind::IndexThrottled
            | ErrorKind::MissingCredentials
            | ErrorKind::CredentialsUnavailable
            | ErrorKind::ClockSkew
    )
}

/// Throttles of key ranges: those of one bucket show a hot bucket, those of several a saturated table.
///
/// It has the last writes since a throttle: none while nothing is throttled, so nothing is remembered then.
#[derive(Debug)]
struct KeyRangeThrottles {
    /// The first one is a throttle.
    writes: VecDeque<Write>,
    /// Throttles since the last accepted write.
    in_a_row: u32,
}

#[derive(Debug)]
struct Write {
    at: Moment,
    /// Bucket of the item, without its shard; for items of other kinds, the item.
    bucket: String,
    is_throttled: bool,
}

impl KeyRangeThrottles {
    const NONE: Self = Self { writes: VecDeque::new(), in_a_row: 0 };

    /// Records a throttled write of an item, and returns its bucket.
    fn throttled(&mut self, pk: &str, now: Moment) -> String {
        self.in_a_row = self.in_a_row.saturating_add(1);
        let bucket = bucket_of(pk);
        self.push(Write { at: now, bucket: bucket.to_owned(), is_throttled: true });
        bucket.to_owned()
    }

    /// Records an accepted write of an item, or of several items if there is none. The clock is read
    /// only while something is remembered.
    fn accepted(&mut self, pk: Option<&str>, now: impl FnOnce() -> Moment) {
        self.in_a_row = 0;
        if let Some(pk) = pk.filter(|_| !self.writes.is_empty()) {
            self.push(Write { at: now(), bucket: bucket_of(pk).to_owned(), is_throttled: false });
        }
    }

    fn push(&mut self, write: Write) {
        let now = write.at;
        self.writes.push_back(write);
        while let Some(first) = self.writes.front() {
            let is_old = now.since(first.at) >= WINDOW || self.writes.len() > MOST;
            if first.is_throttled && !is_old {
                return;
            }
            self.writes.pop_front();
        }
    }

    /// Forgets all writes.
    fn clear(&mut self) {
        *self = Self::NONE;
    }

    /// Returns the number of throttles since the last accepted write.
    const fn in_a_row(&self) -> u32 {
        self.in_a_row
    }

    /// Returns whether the table is saturated: several buckets are throttled, at least half of all
    /// that were written, and at least half of the writes.
    fn are_of_the_table(&self, now: Moment) -> bool {
        let recent = || {
            let writes = self.writes.iter();
            writes.filter(|write| now.since(write.at) < WINDOW)
        };
        let throttled = || recent().filter(|write| write.is_throttled);
        let buckets: HashSet<_> = throttled().map(|write| &write.bucket).collect();
        let all: HashSet<_> = recent().map(|write| &write.bucket).collect();
        buckets.len() >= SEVERAL
            && buckets.len() * 2 >= all.len()
            && throttled().count() * 2 >= recent().count()
    }
}

/// Returns the partition key without the index of a shard, which follows the last `#`.
fn bucket_of(pk: &str) -> &str {
    match pk.rsplit_once('#') {
        Some((bucket, _)) if pk.contains("/BUCKET#") => bucket,
        _ => pk,
    }
}

#[cfg(test)]
mod tests;
