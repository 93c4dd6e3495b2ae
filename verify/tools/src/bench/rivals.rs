//! All rate limiters in one run, by the same scenarios, round by round in turn, so that what else the
//! machine does meets all of them.
//!
//! # Layout
//!
//! - [`weirgate`]: this project, with and without prefetched tokens
//! - [`peer`]: zae-limiter, in a process of its own: `tests/peer/drive.py`
//! - [`redis`]: `tests/peer/token_bucket.lua` on a redis-server
//! - [`governor`]: limiters in memory

pub mod governor;
pub mod peer;
pub mod redis;
pub mod weirgate;

use std::time::Duration;

use weirgate_testkit::Dynamo;
use weirgate_testkit::server::serve;

use super::harness::{Measured, call_for};
use super::row::Row;
use super::scenario::{Calls, Rival, SCENARIOS, Scenario};
use crate::number::Unit;

const OURS: [Rival; 2] = [Rival::Weirgate, Rival::Prefetched];
const ROUNDS: usize = 5;
const LASTS: Duration = Duration::from_secs(1);
/// In which connections are opened, and prefetched tokens get as many as are used.
const WARM_UP: Duration = Duration::from_millis(500);

/// Drives these rivals beside Weirgate, with and without prefetched tokens, and gives `each` row.
///
/// # Panics
/// If one is not installed, or fails.
pub async fn run(rivals: &[Rival], each: &mut dyn FnMut(Row)) {
    let endpoints = Endpoints {
        dynamodb: serve(&Dynamo::new().await),
        redis: if rivals.contains(&Rival::Redis) {
            Some(redis::Server::start().await)
        } else {
            None
        },
    };
    for scenario in &SCENARIOS {
        let driven = scenario.rivals.iter().copied();
        let driven: Vec<_> = driven
            .filter(|rival| OURS.contains(rival) || rivals.contains(rival))
            .collect();
        let rounds = rounds(scenario, &driven, &endpoints).await;
        rows(scenario, &driven, &rounds)
            .into_iter()
            .for_each(&mut *each);
    }
}

/// What each rival did in each round.
async fn rounds(
    scenario: &Scenario,
    rivals: &[Rival],
    endpoints: &Endpoints,
) -> Vec<Vec<Measured>> {
    let mut ready = vec![];
    for rival in rivals {
        let mut one = Ready::new(*rival, scenario, endpoints).await;
        let _ = one.round(scenario.callers, WARM_UP).await;
        ready.push(one);
    }
    let mut rounds = vec![vec![]; ready.len()];
    for _ in 0..ROUNDS {
        for (one, rounds) in ready.iter_mut().zip(&mut rounds) {
            rounds.push(one.round(scenario.callers, LASTS).await);
        }
    }
    rounds
}

/// A ratio of two rounds of the same turn.
type Ratio = fn(&Measured, &Measured) -> f64;

fn rows(scenario: &Scenario, rivals: &[Rival], rounds: &[Vec<Measured>]) -> Vec<Row> {
    let of = |rival: Rival| {
        let at = rivals.iter().position(|driven| *driven == rival)?;
        Some(&rounds[at])
    };
    let ours = of(Rival::Weirgate).expect("Weirgate is always driven");
    let mut rows = vec![];
    for (rival, theirs) in rivals.iter().zip(rounds) {
        let against =
            |what: &'static str, text: String, ratio: Ratio, of: &[Measured], to: &[Measured]| {
                let ratios: Vec<_> = of
                    .iter()
                    .zip(to)
                    .map(|(one, other)| ratio(one, other))
                    .collect();
                let id = format!("{}/{}/{what}", rival.part(), scenario.name);
                Row::new(id, text, Unit::Times, &ratios)
            };
        let calls: Ratio = |one, other| one.per_second / other.per_second;
        match rival {
            Rival::Weirgate => {}
            Rival::Peer => {
                let what = scenario.what;
                let text = format!("{what}: calls/s beside zae-limiter");
                rows.push(
                    against("ratio", text, calls, ours, theirs).at_least(scenario.least_ratio),
                );
                let text = format!("{what}: write units beside zae-limiter");
                let units: Ratio = |one, other| part(one.units, other.units);
                rows.push(against("units-ratio", text, units, ours, theirs).at_most(0.5));
                let text = format!("{what}: p99 beside the p50 of zae-limiter");
                let tail: Ratio = |one, other| one.p99 / other.p50;
                rows.push(against("p99-ratio", text, tail, ours, theirs).at_most(1.0));
            }
            Rival::Prefetched => {
                let text = format!("{}, prefetched: calls/s beside zae-limiter", scenario.what);
                if let Some(peer) = of(Rival::Peer) {
                    let row = against("ratio", text, calls, theirs, peer);
                    rows.push(row.at_least(scenario.least_ratio));
                }
            }
            Rival::Redis | Rival::Governor => {
                let text = format!(
                    "{}: calls/s of {} beside Weirgate",
                    scenario.what,
                    rival.name()
                );
                rows.push(against("ratio", text, calls, theirs, ours));
            }
        }
        rows.extend(numbers(scenario, *rival, theirs));
    }
    rows
}

/// Two numbers of which both may be nothing.
fn part(one: f64, other: f64) -> f64 {
    if one == 0.0 { 0.0 } else { one / other }
}

/// What a rival did, as it is.
fn numbers(scenario: &Scenario, rival: Rival, rounds: &[Measured]) -> Vec<Row> {
    let row = |what: &str, text: &str, unit: Unit, of: fn(&Measured) -> f64| {
        let id = format!("{}/{}/{what}", rival.part(), scenario.name);
        let rounds: Vec<_> = rounds.iter().map(of).collect();
        let what = format!("{}, {}: {text}", rival.name(), scenario.what);
        Row::new(id, what, unit, &rounds)
    };
    let mut rows = vec![
        row("calls", "calls", Unit::PerSecond, |one| one.per_second).shown(),
        row("p50", "p50", Unit::Seconds, |one| one.p50).shown(),
        row("p99", "p99", Unit::Seconds, |one| one.p99).shown(),
    ];
    if matches!(rival, Rival::Weirgate | Rival::Prefetched | Rival::Peer) {
        let mut units = row("units", "write units a call", Unit::WriteUnits, |one| {
            one.units
        });
        let mut requests = row("requests", "requests a call", Unit::Requests, |one| {
            one.requests
        });
        if scenario.callers > 1 || rival != Rival::Weirgate || scenario.calls == Calls::Denied {
            // How many calls share a write, or come before a refresh, is a matter of time.
            (units, requests) = (units.by_range(), requests.by_range());
        }
        if let (Some(most), Rival::Weirgate) = (scenario.most_units, rival) {
            units = units.at_most(most);
        }
        if rival == Rival::Peer {
            (units, requests) = (units.shown(), requests.shown());
        }
        rows.extend([units, requests]);
    }
    rows
}

/// A rate limiter that is ready for the rounds of a scenario.
#[derive(Debug)]
enum Ready {
    Weirgate(weirgate::Caller),
    Peer(Box<peer::Process>),
    Redis(redis::Caller),
    Governor(governor::Caller),
}

/// Where those are that are not in this process.
#[derive(Debug)]
struct Endpoints {
    dynamodb: String,
    redis: Option<redis::Server>,
}

impl Ready {
    /// Connects a rival and makes its buckets.
    async fn new(rival: Rival, scenario: &Scenario, endpoints: &Endpoints) -> Self {
        match rival {
            Rival::Weirgate | Rival::Prefetched => {
                Self::Weirgate(weirgate::Caller::new(&endpoints.dynamodb, scenario, rival).await)
            }
            Rival::Peer => {
                let arguments = [&endpoints.dynamodb, scenario.name];
                Self::Peer(Box::new(peer::Process::start(&arguments).await))
            }
            Rival::Redis => {
                let server = endpoints.redis.as_ref().expect("the server was started");
                Self::Redis(redis::Caller::new(server, scenario).await)
            }
            Rival::Governor => Self::Governor(governor::Caller::new(scenario)),
        }
    }

    /// Makes calls for this long.
    async fn round(&mut self, callers: usize, lasts: Duration) -> Measured {
        match self {
            Self::Weirgate(caller) => caller.round(callers, lasts).await,
            Self::Peer(process) => process.ask(&lasts.as_secs_f64().to_string()).await,
            Self::Redis(caller) => Measured {
                requests: caller.requests(),
                ..call_for(caller, callers, lasts).await.measured()
            },
            Self::Governor(caller) => call_for(caller, callers, lasts).await.measured(),
        }
    }
}
