//! Quotas of a scenario, and when their windows end: by arithmetic of the checker's own, because a
//! checker must not trust the calendar that it checks.

use std::time::Duration;

use fastrand::Rng;
use weirgate::{EpochMillis, Every, Limit, RefillRule};

/// An hour in ms.
const HOUR: i64 = 3_600_000;

/// How a quota's windows follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaSpan {
    /// So many ms from the first use.
    Session(i64),
    /// Each hour of UTC, from this minute.
    Hour(i64),
}

impl QuotaSpan {
    /// Draws a session, or a full hour that begins at a minute of the run: between `start` and
    /// `start` + `lasts`, or the next one. A bucket that is to be split has no session.
    fn draw(rng: &mut Rng, start: EpochMillis, lasts: Duration, is_sharded: bool) -> Self {
        let (kind, is_long) = (rng.u32(..4), rng.u32(..4) == 0);
        let seconds = if is_long { rng.i64(60..=3_600) } else { rng.i64(2..=40) };
        let lasts = i64::try_from(lasts.as_millis()).unwrap_or_default();
        let first = start.0.div_euclid(60_000) + 1;
        let last = (start.0 + lasts).div_euclid(60_000).max(first);
        let minute = rng.i64(first..=last).rem_euclid(60);
        if kind < if is_sharded { 1 } else { 2 } {
            Self::Session(seconds * 1_000)
        } else {
            Self::Hour(minute)
        }
    }

    /// Returns the quota of `tokens` in each window.
    fn limit(self, name: &str, tokens: i64) -> Limit {
        let limit = match self {
            Self::Session(ms) => {
                Limit::session(name, tokens, Duration::from_millis(ms.unsigned_abs()))
            }
            Self::Hour(minute) => {
                let minute = u8::try_from(minute).expect("a minute of an hour");
                Limit::quota(name, tokens, Every::hour().at_minute(minute))
            }
        };
        limit.expect("a quota like others")
    }

    /// Returns the ends of windows that may be begun by a clock between `from` and `to`: the
    /// earliest, the latest, and the distance from one to the next.
    pub(crate) fn ends(self, from: i64, to: i64) -> (i64, i64, i64) {
        match self {
            Self::Session(ms) => (from + ms, to + ms, 1),
            Self::Hour(minute) => {
                let off = minute * 60_000;
                let end = |at: i64| (at - off).div_euclid(HOUR) * HOUR + HOUR + off;
                (end(from), end(to), HOUR)
            }
        }
    }

    /// Returns the length of a window.
    pub(crate) const fn length_ms(self) -> i64 {
        match self {
            Self::Session(ms) => ms,
            Self::Hour(_) => HOUR,
        }
    }

    /// Returns the time after which all present windows have ended, and the next one is whole.
    pub(crate) fn rest(self, now: EpochMillis) -> Duration {
        let at = match self {
            Self::Session(ms) => now.0 + ms,
            Self::Hour(_) => self.ends(now.0, now.0).0,
        };
        Duration::from_millis((at - now.0 + 1).unsigned_abs())
    }
}

/// The windows of a scenario's quotas, by the number that stands for each in an item.
#[derive(Debug, Clone, Default)]
pub struct Quotas(Vec<(i64, QuotaSpan)>);

impl Quotas {
    /// Makes the first limit of some buckets a quota, before a change of their limits, after it, or
    /// both.
    pub(crate) fn draw<'a>(
        rng: &mut Rng,
        buckets: impl Iterator<Item = (&'a mut Limit, Option<&'a mut Limit>)>,
        (start, lasts): (EpochMillis, Duration),
        is_sharded: bool,
    ) -> Self {
        let mut quotas = Self::default();
        for (first, later) in buckets {
            let spans = [(); 2].map(|()| QuotaSpan::draw(rng, start, lasts, is_sharded));
            let [is_first, is_later] = [(); 2].map(|()| rng.u32(..4) > 0);
            let keeps_window = rng.bool();
            if is_first {
                quotas.replace(first, spans[0]);
            }
            if let Some(later) = later.filter(|_| is_later) {
                let span = spans[usize::from(!keeps_window)];
                quotas.replace(later, span);
            }
        }
        quotas
    }

    fn replace(&mut self, limit: &mut Limit, span: QuotaSpan) {
        let tokens = limit.rule().capacity.whole_tokens();
        *limit = span.limit(limit.name().as_str(), tokens);
        self.0.push((limit.rule().refill_period_ms, span));
    }

    /// Returns the windows of a rule; `None` if it is no quota.
    pub fn span(&self, rule: &RefillRule) -> Option<QuotaSpan> {
        let known = self.0.iter().find(|(code, _)| *code == rule.refill_period_ms);
        known.map(|(_, span)| *span).filter(|_| is_quota(rule))
    }

    /// Returns the time after which every window of the run has ended.
    pub fn longest(&self) -> Duration {
        let lengths = self.0.iter().map(|(_, span)| span.length_ms());
        Duration::from_millis(lengths.max().unwrap_or_default().unsigned_abs())
    }

    /// Returns whether the run has quotas.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns whether a rule is a quota.
pub const fn is_quota(rule: &RefillRule) -> bool {
    rule.refill_amount.0 == 0 && rule.refill_period_ms <= 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_of_an_hour_ends_at_its_minute() {
        let of = |minute, at| QuotaSpan::Hour(minute).ends(at, at).0;
        assert_eq!(of(0, 0), HOUR);
        assert_eq!(of(0, HOUR - 1), HOUR);
        assert_eq!(of(59, HOUR - 60_000), 2 * HOUR - 60_000);
        assert_eq!(of(30, 29 * 60_000), HOUR / 2);
        assert_eq!(QuotaSpan::Session(7).ends(1, 3), (8, 10, 1));
    }
}
