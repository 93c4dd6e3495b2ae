//! The open loop.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, timeout};
use weirgate::{Decision, RateLimiter, Settlement};

use super::Load;
use super::report::{Answer, Ending, Tally, reason};
use crate::stop::Signals;

/// How often acquires begin that are due.
const TICK: Duration = Duration::from_millis(1);

/// What signals have ended so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ended {
    Nothing,
    Holds,
    Acquires,
}

type Ends = watch::Receiver<Ended>;

/// Begins acquires, of such a lease, at the load's rate until its time is over or a signal, which also
/// ends the holds, and awaits their answers; another signal ends that too. Calls `each_second` with the
/// counts, the second, and the number of acquires without an answer. Returns the counts, and for how
/// long acquires began.
pub async fn run(
    load: Load,
    lease: Option<Duration>,
    limiters: Vec<RateLimiter>,
    mut signals: Signals,
    mut each_second: impl FnMut(&mut Tally, u64, usize),
) -> (Tally, Duration) {
    let load = Arc::new(load);
    let planned = planned(load.rate, load.duration);
    let in_flight = load.in_flight.get();
    let (mut tally, mut answers) = (Tally::default(), JoinSet::new());
    let mut limiters = limiters.iter().cycle();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (start, mut number, mut second) = (Instant::now(), 0, 1);
    let (end, ends) = watch::channel(Ended::Nothing);
    while number < planned {
        tokio::select! {
            biased;
            () = signals.next() => {
                end.send_replace(Ended::Holds);
                break;
            }
            _ = ticks.tick() => {
                let due = due(load.rate, start.elapsed()).min(planned);
                for number in number..due {
                    let at = start + offset(load.rate, number);
                    match limiters.next() {
                        Some(limiter) if answers.len() < in_flight => {
                            let load = Arc::clone(&load);
                            let call = (limiter.clone(), ends.clone());
                            answers.spawn(acquire(load, lease, call, number, at));
                        }
                        _ => tally.count_not_begun(),
                    }
                }
                number = due;
                if start.elapsed() >= Duration::from_secs(second) {
                    each_second(&mut tally, second, answers.len());
                    second += 1;
                }
            }
            Some(answer) = answers.join_next() => tally.count(joined(answer)),
        }
    }
    let began_for = match number < planned {
        true => start.elapsed(),
        false => load.duration,
    };
    loop {
        tokio::select! {
            biased;
            // After the load's time, the first signal ends the holds.
            () = signals.next() => end.send_modify(|ended| {
                *ended = match ended {
                    Ended::Nothing => Ended::Holds,
                    Ended::Holds | Ended::Acquires => Ended::Acquires,
                };
            }),
            answer = answers.join_next() => match answer {
                Some(answer) => tally.count(joined(answer)),
                None => break,
            }
        }
    }
    (tally, began_for)
}

fn joined(answer: Result<Answer, JoinError>) -> Answer {
    answer.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Makes the acquire of this number, which is due at `due`.
async fn acquire(
    load: Arc<Load>,
    lease: Option<Duration>,
    (limiter, mut ends): (RateLimiter, Ends),
    number: u64,
    due: Instant,
) -> Answer {
    let entity = load.entity(number);
    let mut acquire = limiter.acquire(&entity, load.bucket.resource.as_str());
    if !load.limits.is_empty() {
        acquire = acquire.limits(&load.limits);
    }
    for take in &load.takes {
        acquire = acquire.take(take.limit.as_str(), take.tokens);
    }
    if let Some(class) = &load.class {
        acquire = acquire.class(class.as_str());
    }
    if let Some(wait) = load.wait {
        acquire = acquire.wait_up_to(wait);
    }
    if let Some(lease) = lease {
        acquire = acquire.lease(lease);
    }
    let ended = || Err("the load was ended before the answer".to_owned());
    let decision = tokio::select! {
        decision = acquire.send() => Some(decision),
        () = has(&mut ends, Ended::Acquires) => None,
    };
    let time = due.elapsed();
    let one_of_many = (load.entities.get() > 1).then_some(&*entity);
    let failed = |error| reason(&error, one_of_many);
    let ending = match decision {
        None => ended(),
        Some(Ok(Decision::Granted(grant))) => {
            let ending = match grant.degraded() {
                Some(_) => Ending::Degraded,
                None => Ending::Granted,
            };
            if !load.hold.is_zero() {
                let _ = timeout(load.hold, has(&mut ends, Ended::Holds)).await;
            }
            let settled = tokio::select! {
                settled = grant.release() => Some(settled),
                () = has(&mut ends, Ended::Acquires) => None,
            };
            match settled {
                None => ended(),
                Some(Ok(Settlement::Applied)) => Ok(ending),
                Some(Ok(Settlement::LeaseGone)) => {
                    Err("the lease ended before its release".to_owned())
                }
                Some(Err(error)) => Err(failed(error)),
            }
        }
        Some(Ok(Decision::Denied(denied))) if denied.degraded.is_some() => Ok(Ending::Degraded),
        Some(Ok(Decision::Denied(_))) => Ok(Ending::Denied),
        Some(Ok(Decision::NeverFits(_))) => Ok(Ending::NeverFits),
        Some(Ok(Decision::Disabled(_))) => Ok(Ending::Disabled),
        Some(Err(error)) => Err(failed(error)),
    };
    Answer { ending, time }
}

/// Waits until signals have ended this.
async fn has(ends: &mut Ends, ended: Ended) {
    // The loop outlives what it awaits.
    let _ = ends.wait_for(|so_far| *so_far >= ended).await;
}

/// Returns the number of acquires of a whole load.
fn planned(rate: u32, duration: Duration) -> u64 {
    let milli = u128::from(rate) * duration.as_millis();
    u64::try_from(milli.div_ceil(1000)).unwrap_or(u64::MAX)
}

/// Returns the number of acquires that are due once `elapsed` has passed. The first is due at once.
fn due(rate: u32, elapsed: Duration) -> u64 {
    let nanos = u128::from(rate) * elapsed.as_nanos();
    u64::try_from(nanos / 1_000_000_000 + 1).unwrap_or(u64::MAX)
}

/// Returns when an acquire is due, after the start.
fn offset(rate: u32, number: u64) -> Duration {
    let nanos = u128::from(number) * 1_000_000_000 / u128::from(rate);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acquires_are_due_evenly_from_the_start() {
        for (rate, milliseconds, number) in
            [(300, 10_000, 3_000), (1, 500, 1), (1, 1_000, 1), (1, 1_001, 2), (3, 500, 2)]
        {
            let time = Duration::from_millis(milliseconds);
            assert_eq!(planned(rate, time), number, "{rate} {milliseconds}");
            let before = time - Duration::from_nanos(1);
            assert_eq!(due(rate, before), number, "{rate} {milliseconds}");
        }
        assert_eq!(offset(4, 3), Duration::from_millis(750));
        for rate in [1, 7, 300, 1_000_000] {
            for number in [0, 1, 2, 999, 123_456] {
                let at = offset(rate, number);
                assert!(due(rate, at + Duration::from_nanos(1)) > number, "{rate} {number}");
                if let Some(before) = at.checked_sub(Duration::from_nanos(1)) {
                    assert!(due(rate, before) <= number, "{rate} {number}");
                }
            }
        }
    }
}
