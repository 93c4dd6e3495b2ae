//! Demand per second of each limit, as observed. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use weirgate_shared::{LimitName, MilliTokens, Millis};

use crate::session::Moment;
use crate::values::Amounts;

const WINDOW: Duration = Duration::from_secs(1);

/// Demand of the last windows.
#[derive(Debug)]
pub(super) struct Demand {
    /// Beginning of the current window.
    since: Moment,
    flows: BTreeMap<LimitName, LimitDemand>,
}

#[derive(Debug, Default)]
struct LimitDemand {
    /// Amount requested in this window.
    requested: MilliTokens,
    /// Demand per second in earlier windows; older ones count less.
    rate: MilliTokens,
}

impl Demand {
    pub(super) fn new(now: Moment) -> Self {
        Self { since: now, flows: BTreeMap::new() }
    }

    /// Begins a new window if the current one is over.
    pub(super) fn advance(&mut self, now: Moment) {
        let elapsed = now.since(self.since);
        if elapsed < WINDOW {
            return;
        }
        let elapsed_ms = Millis::from(elapsed).0;
        for flow in self.flows.values_mut() {
            let seen = MilliTokens(flow.requested.0.saturating_mul(1000)) / elapsed_ms;
            // After a pause, earlier windows say nothing.
            flow.rate = if elapsed < 2 * WINDOW { (flow.rate + seen) / 2 } else { seen };
            flow.requested = MilliTokens::ZERO;
        }
        self.since = now;
    }

    /// Adds the amounts of a request.
    pub(super) fn count(&mut self, amounts: &Amounts) {
        for (limit, need) in amounts {
            if let Some(flow) = self.flows.get_mut(limit) {
                flow.requested += *need;
            } else {
                self.flows.insert(
                    limit.clone(),
                    LimitDemand { requested: *need, rate: MilliTokens::ZERO },
                );
            }
        }
    }

    /// Returns the demand of a limit within `span`. A rising demand shows at once, through the
    /// current window.
    pub(super) fn within(&self, limit: &LimitName, span: Millis) -> MilliTokens {
        let rate =
            self.flows.get(limit).map_or(MilliTokens::ZERO, |flow| flow.rate.max(flow.requested));
        MilliTokens(rate.0.saturating_mul(span.0)) / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::AgeClock;

    const SECOND: Millis = Millis(1000);

    fn name() -> LimitName {
        LimitName::new("rpm").unwrap()
    }

    /// Requests a token every `every_ms` for `seconds`. Returns the expected demand of the next
    /// second.
    fn ask(demand: &mut Demand, now: &mut Moment, every_ms: u64, seconds: u64) -> i64 {
        for _ in 0..seconds * 1000 / every_ms {
            demand.advance(*now);
            demand.count(&Amounts::from([(name(), MilliTokens::from_tokens(1))]));
            *now = *now + Duration::from_millis(every_ms);
        }
        demand.advance(*now);
        demand.within(&name(), SECOND).whole_tokens()
    }

    #[test]
    fn a_steady_load_is_measured() {
        let mut now = AgeClock::default().now();
        let mut demand = Demand::new(now);
        let seen = ask(&mut demand, &mut now, 10, 20);
        assert!((99..=101).contains(&seen), "{seen}");
        assert_eq!(demand.within(&name(), Millis(100)).0 / 1000, seen / 10);
    }

    #[test]
    fn a_rising_load_shows_within_the_second_and_a_sinking_one_by_halves() {
        let mut now = AgeClock::default().now();
        let mut demand = Demand::new(now);
        ask(&mut demand, &mut now, 100, 5);
        // Not whole seconds, so a window is in progress.
        for _ in 0..500 {
            demand.advance(now);
            demand.count(&Amounts::from([(name(), MilliTokens::from_tokens(1))]));
            now = now + Duration::from_millis(1);
        }
        let risen = demand.within(&name(), SECOND).whole_tokens();
        assert!(risen >= 499, "{risen}");
        ask(&mut demand, &mut now, 1, 10);
        let sunk = ask(&mut demand, &mut now, 1000, 3);
        assert!((100..=300).contains(&sunk), "{sunk}: an eighth of a thousand");
    }

    #[test]
    fn demand_before_a_pause_is_forgotten() {
        let mut now = AgeClock::default().now();
        let mut demand = Demand::new(now);
        ask(&mut demand, &mut now, 1, 5);
        now = now + Duration::from_secs(60);
        demand.advance(now);
        assert!(demand.within(&name(), SECOND).whole_tokens() < 20);
    }
}
