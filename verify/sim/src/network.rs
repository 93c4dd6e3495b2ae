//! The network between one process and the table.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use weirgate::EpochMillis;
use weirgate_testkit::{Fault, Request};

use crate::fault::Kind;
use crate::resharding::Resharding;
use crate::stream_check::Sender;
use crate::world::{World, lock};

/// Network of a process; it ends with the process. Clones share it.
#[derive(Debug, Clone)]
pub struct Network {
    world: World,
    name: Arc<str>,
    /// One-way latency, in ms.
    latency: RangeInclusive<u64>,
    /// Loses the response to its next write.
    loses_next: Arc<AtomicBool>,
    /// The server fails each of its requests until then.
    down_until: Arc<Mutex<Option<Instant>>>,
    is_dead: Arc<AtomicBool>,
    /// Number of freezes when the connection was made.
    connected: Arc<AtomicU64>,
}

/// Name of an operator's network.
pub const OPERATOR: &str = "operator";

/// The fate of a request.
struct Fate {
    /// When it was first sent.
    sent: EpochMillis,
    there: Duration,
    back: Duration,
    fault: Option<Fault>,
    /// Its sender gets no response.
    is_hung: bool,
    /// Its sender may have given up before it arrives.
    is_delayed: bool,
}

impl Network {
    /// Returns the world around it.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Returns the network of a process with this name.
    pub fn new(world: &World, name: &str) -> Self {
        let latency = world.scenario().latency.clone();
        let connected = Arc::new(world.freezes().into());
        let (loses_next, is_dead, down_until) = Default::default();
        Self {
            world: world.clone(),
            name: name.into(),
            latency,
            loses_next,
            down_until,
            is_dead,
            connected,
        }
    }

    /// Returns the network of a process without latency to the table.
    pub fn beside(world: &World, name: &str) -> Self {
        Self { latency: 0..=0, ..Self::new(world, name) }
    }

    /// Loses the response to the next write, also without other faults.
    pub fn lose_next(&self) {
        self.loses_next.store(true, Ordering::Relaxed);
    }

    /// Ends the process: it sends nothing more, and no response arrives. Requests in flight go on.
    pub fn kill(&self) {
        self.is_dead.store(true, Ordering::Relaxed);
    }

    fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed)
    }

    fn fate(&self, request: &Request) -> Fate {
        let world = &self.world;
        let latency = || Duration::from_millis(world.rng().u64(self.latency.clone()));
        let (mut there, back) = (latency(), latency());
        let late = Duration::from_millis(world.rng().u64(500..12_000));
        let is_delayed = world.strikes(Kind::Delayed);
        if is_delayed {
            there += late;
        }
        let is_hung = world.threatens(Kind::AnswerHung);
        let parts = request.written_keys();
        let is_read = parts.is_empty();
        let is_next = !is_read && self.loses_next.swap(false, Ordering::Relaxed);
        let mut fault = is_next.then_some(Fault::LoseAnswer);
        let mut may = |kind: Kind, met: Fault| {
            if fault.is_none() && world.strikes(kind) {
                fault = Some(met);
            }
        };
        may(Kind::RequestLost, Fault::LoseRequest);
        may(Kind::ServerError, Fault::ServerError);
        if fault == Some(Fault::ServerError) && world.rng().u32(..4) == 0 {
            // Longer than all attempts of one write take.
            let lasts = Duration::from_millis(world.rng().u64(100..2_000));
            *lock(&self.down_until) = Some(Instant::now() + lasts);
        }
        if fault.is_none() && lock(&self.down_until).is_some_and(|until| Instant::now() < until) {
            world.count(Kind::ServerError);
            fault = Some(Fault::ServerError);
        }
        let mut may = |kind: Kind, met: Fault| {
            if fault.is_none() && world.strikes(kind) {
                fault = Some(met);
            }
        };
        if !is_read {
            may(Kind::AnswerLost, Fault::LoseAnswer);
            may(Kind::ServerErrorApplied, Fault::ServerErrorApplied);
            may(Kind::Conflict, Fault::Conflict);
            may(Kind::Repeated, Fault::Repeat);
        }
        if fault.is_none() && parts.iter().any(|(pk, _)| world.is_throttled(pk)) {
            fault = Some(Fault::Throttle { key_range: true });
        }
        Fate { sent: world.first_sent(&request.body), there, back, fault, is_hung, is_delayed }
    }

    /// Delivers the request to the table. Returns the response.
    fn arrive(&self, request: &Request, fate: &Fate) -> Result<HttpResponse, ConnectorError> {
        let (world, fault) = (&self.world, fate.fault);
        let parts = request.written_keys();
        let before = Resharding::read(world, request, &parts);
        let counted = world.partitions().counts();
        let answer = world.partitions().meet(request, fault);
        let counted = world.partitions().counts() - counted;
        for (kind, times) in [
            (Kind::WriteSpent, counted.throttled),
            (Kind::ReadSpent, counted.reads_throttled),
            (Kind::KeysKeptBack, counted.kept_back),
            (Kind::Met, counted.conflicts),
        ] {
            (0..times).for_each(|_| world.count(kind));
        }
        if !parts.is_empty() {
            world.wrote();
            let is_lost = matches!(
                fault,
                Some(Fault::LoseAnswer | Fault::ServerErrorApplied | Fault::Repeat)
            );
            let is_told = !is_lost && !fate.is_hung && !fate.is_delayed;
            world.check_stream(&Sender {
                name: &self.name,
                is_told,
                sent: fate.sent,
                is_alone: world.scenario().has_single_minds(),
            });
        }
        let status = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
        let told =
            answer.as_ref().ok().and_then(|answer| answer.body().bytes()).unwrap_or_default();
        let told: Value = serde_json::from_slice(told).unwrap_or_default();
        // The order of names differs from process to process, and does not change the hash.
        world.note_with(&[&request.body, &told], || {
            let of = parts.first().map_or_else(String::new, |(pk, sk)| format!("{pk} {sk}"));
            format!("{} {} {of} {fault:?} {status}", self.name, request.operation)
        });
        if let Some(before) = before {
            before.compare(world, &parts, &*self.name == OPERATOR);
        }
        answer
    }
}

/// Waits. A zero span returns at once, without the millisecond that a timer takes.
async fn pass(span: Duration) {
    if !span.is_zero() {
        sleep(span).await;
    }
}

impl HttpConnector for Network {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let (network, request) = (self.clone(), Request::read(&request));
        HttpConnectorFuture::new(async move {
            if network.is_dead() {
                return std::future::pending().await;
            }
            if network.world.is_flooded() {
                sleep(Duration::from_millis(100)).await;
            }
            let freezes = network.world.freezes();
            if network.connected.swap(freezes, Ordering::Relaxed) != freezes {
                network.world.count(Kind::ConnectionDied);
                network.world.note(|| {
                    format!("{} {} on a dead connection", network.name, request.operation)
                });
                if network.world.aws_rng().bool() {
                    return std::future::pending().await;
                }
                return Err(ConnectorError::io("the connection was reset".into()));
            }
            let mut fate = network.fate(&request);
            fate.back += network.world.partitions().runs_for(&request);
            let (answer, answered) = oneshot::channel();
            let there = network.clone();
            // A sent request arrives even if its sender drops it.
            tokio::spawn(async move {
                pass(fate.there).await;
                let met = there.arrive(&request, &fate);
                pass(fate.back).await;
                if fate.is_hung {
                    there.world.count(Kind::AnswerHung);
                    std::future::pending::<()>().await;
                }
                drop(answer.send(met));
            });
            let met = answered.await;
            match met {
                Ok(_) if !network.is_dead() && network.world.freezes() != freezes => {
                    Err(ConnectorError::io("the connection was reset".into()))
                }
                Ok(met) if !network.is_dead() => met,
                _ => std::future::pending().await,
            }
        })
    }
}
