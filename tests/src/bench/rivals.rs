//! All rate limiters in one run, by the same scenarios, round by round in turn, so that what else the
//! machine does meets all of them.
//!
//! # Layout
//!
//! - [`weirgate`]: this project, with and without prefetched tokens
//! - [`peer`]: zae-limiter, in a process of its own: `tests/peer/drive.py`
//! - [`redis`]: `tests/peer/token_bucket.lua` on a redis-server
//! - [`limitador`]: the crate limitador on it, in a process of its own: `verify/rivals/limitador`
//! - [`governor`]: limiters in memory

pub mod governor;
pub mod limitador;
pub mod peer;
pub mod redis;
pub mod weirgate;

use std::time::Duration;

use weirgate_testkit::Dynamo;
use weirgate_testkit::server::serve;

use super::harness::{Measured, call_for};
use super::row::Rounds;
use super::scenario::{Rival, SCENARIOS, Scenario};

const OURS: [Rival; 2] = [Rival::Weirgate, Rival::Prefetched];
/// Those that share a redis-server.
const ON_REDIS: [Rival; 3] = [Rival::OnRedis, Rival::Redis, Rival::Limitador];
const ROUNDS: usize = 5;
const LASTS: Duration = Duration::from_secs(1);
/// In which connections are opened, and prefetched tokens get as many as are used.
const WARM_UP: Duration = Duration::from_millis(500);

/// Drives these rivals beside Weirgate, with and without prefetched tokens, and gives `take` the rows
/// of each scenario.
pub async fn run(
    rivals: &[Rival],
    take: &mut dyn FnMut(Vec<Rounds>) -> Result<(), String>,
) -> Result<(), String> {
    let endpoints = Endpoints {
        dynamodb: serve(&Dynamo::new().await),
        redis: if rivals.iter().any(|rival| ON_REDIS.contains(rival)) {
            Some(redis::Server::start().await)
        } else {
            None
        },
    };
    for scenario in &SCENARIOS {
        let driven = scenario.rivals.iter().copied();
        let driven: Vec<_> =
            driven.filter(|rival| OURS.contains(rival) || rivals.contains(rival)).collect();
        let rounds = rounds(scenario, &driven, &endpoints).await;
        take(rows(scenario, &driven, &rounds))?;
    }
    Ok(())
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

fn rows(scenario: &Scenario, rivals: &[Rival], rounds: &[Vec<Measured>]) -> Vec<Rounds> {
    let of = |rival: Rival| {
        let at = rivals.iter().position(|driven| *driven == rival)?;
        Some(&rounds[at])
    };
    let ours = of(Rival::Weirgate).expect("Weirgate is always driven");
    let mut rows = vec![];
    for (rival, theirs) in rivals.iter().zip(rounds) {
        let id = |name: &str| format!("{}/{}/{name}", rival.part(), scenario.name);
        // Of two rounds of the same turn.
        let mut beside = |name, of: &[Measured], to: &[Measured], ratio: Ratio| {
            let both = of.iter().zip(to);
            let ratios = both.map(|(one, other)| ratio(one, other)).collect();
            rows.push((id(name), ratios));
        };
        let calls: Ratio = |one, other| one.per_second / other.per_second;
        match (rival, of(Rival::Peer)) {
            (Rival::Weirgate, _) | (Rival::Prefetched, None) => {}
            (Rival::Prefetched, Some(peer)) => beside("ratio", theirs, peer, calls),
            (Rival::OnRedis | Rival::Redis | Rival::Governor, _) => {
                beside("ratio", theirs, ours, calls);
            }
            // Both are on Redis.
            (Rival::Limitador, _) => {
                let on_redis = of(Rival::OnRedis).expect("both are driven");
                beside("ratio", on_redis, theirs, calls);
                beside("p99-ratio", on_redis, theirs, |one, other| one.p99 / other.p99);
            }
            (Rival::Peer, _) => {
                beside("ratio", ours, theirs, calls);
                beside("units-ratio", ours, theirs, |one, other| match one.units {
                    0.0 => 0.0,
                    units => units / other.units,
                });
                beside("p99-ratio", ours, theirs, |one, other| one.p99 / other.p50);
            }
        }
        let mut row = |name, of: fn(&Measured) -> f64| {
            rows.push((id(name), theirs.iter().map(of).collect()));
        };
        row("calls", |one| one.per_second);
        row("p50", |one| one.p50);
        row("p99", |one| one.p99);
        if !ON_REDIS.contains(rival) && *rival != Rival::Governor {
            row("units", |one| one.units);
            row("requests", |one| one.requests);
        }
    }
    rows
}

type Ratio = fn(&Measured, &Measured) -> f64;

/// A rate limiter that is ready for the rounds of a scenario.
#[derive(Debug)]
enum Ready {
    Weirgate(weirgate::Caller),
    Peer(Box<peer::Process>),
    Redis(redis::Caller),
    Limitador(Box<peer::Process>),
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
            Rival::OnRedis => {
                let server = endpoints.redis.as_ref().expect("the server was started");
                Self::Weirgate(weirgate::Caller::on_redis(server.url(), scenario).await)
            }
            Rival::Limitador => {
                let server = endpoints.redis.as_ref().expect("the server was started");
                Self::Limitador(Box::new(limitador::start(server.url(), scenario).await))
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
            Self::Peer(process) | Self::Limitador(process) => {
                process.ask(&lasts.as_secs_f64().to_string()).await
            }
            Self::Redis(caller) => call_for(caller, callers, lasts).await.measured(),
            Self::Governor(caller) => call_for(caller, callers, lasts).await.measured(),
        }
    }
}
