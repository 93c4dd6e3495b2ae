//! The processes that call: started, skewed, killed, started again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use weirgate::RateLimiter;

use crate::caller::Caller;
use crate::clock::ProcessClock;
use crate::fault::Kind;
use crate::hostile;
use crate::ledger::{ClaimIds, SharedLedger};
use crate::limiter::limiter;
use crate::network::Network;
use crate::operator::{Operator, configure};
use crate::world::World;

/// A process and its callers.
#[derive(Debug)]
pub struct Process {
    world: World,
    name: String,
    network: Network,
    clock: ProcessClock,
    limiter: RateLimiter,
    callers: JoinSet<()>,
    held: Arc<Mutex<ClaimIds>>,
}

impl Process {
    async fn start(world: &World, ledger: &SharedLedger, number: u32, prefetches: bool) -> Self {
        let name = format!("client-{number}");
        let is_of_release = world.scenario().is_rolling && number % 2 == 1 || world.has_moved();
        let network = Network::new(world, &name);
        let clock = world.clock();
        let limiter = limiter(&network, &clock, prefetches).await;
        let held = Arc::default();
        let mut process = Self {
            world: world.clone(),
            name,
            network,
            clock,
            limiter,
            callers: JoinSet::new(),
            held,
        };
        if world.strikes(Kind::ClockSkewed) {
            process.set_clock();
        }
        for _ in 0..world.scenario().callers {
            let (world, limiter, ledger) = (world.clone(), process.limiter.clone(), ledger.clone());
            let (held, takes_ahead) = (Arc::clone(&process.held), prefetches);
            process
                .callers
                .spawn(Caller { world, limiter, ledger, held, takes_ahead, is_of_release }.run());
        }
        process
    }

    fn set_clock(&self) {
        // Signatures allow five minutes. A request with a larger offset is refused, and the clock
        // corrected.
        let by = self.world.rng().i64(-400_000..400_000);
        let by = if self.world.rng().bool() { by } else { by / 100 };
        self.clock.skew(by);
        self.world.note(|| format!("{} clock off by {by}", self.name));
    }

    /// Returns the process's limiter.
    pub fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// Shuts the limiter down, which returns its prefetched tokens.
    pub async fn shut_down(&self) {
        let done = self.limiter.shutdown().await;
        self.world.note(|| format!("{} shut down: {done:?}", self.name));
    }

    /// Kills the process: it sends nothing more, and its holds have no owner.
    async fn kill(&mut self, ledger: &SharedLedger) {
        self.network.kill();
        self.callers.shutdown().await;
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ledger.lock().ends(&held, self.world.now().0);
        self.world.note(|| format!("{} killed", self.name));
    }
}

/// Runs the fleet until faults are over and its last calls have ended. Returns the processes that
/// are left, without callers.
pub async fn run(world: &World, ledger: &SharedLedger) -> Vec<Process> {
    let scenario = world.scenario().clone();
    configure(world).await;
    let mut operator = Operator::start(world).await;
    let mut born = 0;
    let mut processes = vec![];
    for at in 0..scenario.processes {
        processes.push(Process::start(world, ledger, born, at < scenario.prefetching).await);
        born += 1;
    }
    let mut left = scenario.lasts;
    while !left.is_zero() {
        let step = Duration::from_millis(250).min(left);
        world.pass(step).await;
        left -= step;
        for (at, process) in processes.iter_mut().enumerate() {
            if world.strikes(Kind::ClockJumped) {
                process.set_clock();
            }
            if world.strikes(Kind::ClientKilled) {
                process.kill(ledger).await;
                let prefetches = u32::try_from(at).is_ok_and(|at| at < scenario.prefetching);
                *process = Process::start(world, ledger, born, prefetches).await;
                born += 1;
            }
        }
        let is_over = left < scenario.lasts / 2;
        if is_over && scenario.moves() && !world.has_moved() {
            world.move_limits();
            configure(world).await;
            for (at, process) in (0..).zip(&mut processes) {
                process.kill(ledger).await;
                *process = Process::start(world, ledger, born, at < scenario.prefetching).await;
                born += 1;
            }
        }
        operator.act(ledger, is_over).await;
        hostile::act(world);
        if world.strikes(Kind::Frozen) {
            world.freeze();
        }
    }
    operator.end().await;
    world.end_faults();
    for process in &mut processes {
        while process.callers.join_next().await.is_some() {}
    }
    processes
}
