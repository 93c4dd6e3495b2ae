//! `weirgate load`.

mod report;
mod run;

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use clap::Args;
use weirgate::{ClassName, Limit, LimitKind};

use self::report::{Report, Tally};
use super::balances::BucketArgs;
use crate::amounts::{self, Amount};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::instant::{self, DAY};
use crate::stop::Signals;

/// Durations of a lease on slots.
const SHORTEST_LEASE: Duration = Duration::from_secs(60);
const LONGEST_LEASE: Duration = Duration::from_secs(86_400);

/// Acquires at a steady rate, and reports decisions and times.
///
/// It takes tokens as any caller does.
///
/// Acquires begin when they are due, whether or not earlier ones were answered (an open loop),
/// and their times count from then. So a slow table shows as long times, not as a low rate.
#[derive(Debug, Args)]
#[command(
    override_usage = "weirgate load <ENTITY> <RESOURCE> <NAME=TOKENS>... --rate <NUMBER>",
    after_help = "Examples:\n  weirgate load user-1 gpt-4 rpm=1 --rate 500 --for 1m\n  \
                  weirgate load user api rps=1 --rate 2000 --entities 100 --processes 8"
)]
pub struct Load {
    #[command(flatten)]
    bucket: BucketArgs,
    /// Amounts to take with each acquire
    #[arg(required = true, value_name = "NAME=TOKENS", value_parser = amounts::amount)]
    takes: Vec<Amount>,
    /// Limits instead of the configured ones: rpm=500/minute
    #[arg(long = "limit", value_name = "LIMIT", value_parser = amounts::limit)]
    limits: Vec<Limit>,
    /// Class of the callers, of limits with classes, unless the entity's configuration has one
    #[arg(long, value_name = "NAME", value_parser = |text: &str| ClassName::new(text))]
    class: Option<ClassName>,
    /// Acquires that begin in a second, 1 to 1,000,000
    #[arg(long, value_name = "NUMBER", value_parser = amounts::within::<1, 1_000_000, u32>)]
    rate: u32,
    /// How long acquires begin
    #[arg(long = "for", value_name = "SPAN", default_value = "10s", value_parser = instant::span_within::<1, DAY>)]
    duration: Duration,
    /// Spreads the acquires over so many entities: user-0, user-1, ...
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = amounts::within::<1, 1_000_000, NonZeroU32>)]
    entities: NonZeroU32,
    /// Limiters without anything in common, as processes of a fleet: 1 to 1,000
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = amounts::within::<1, 1_000, u32>)]
    processes: u32,
    /// Acquires that may be without an answer at a time; one that is due then does not begin
    #[arg(long, value_name = "NUMBER", default_value = "10_000", value_parser = amounts::within::<1, 1_000_000, NonZeroUsize>)]
    in_flight: NonZeroUsize,
    /// Waits for the tokens, at most so long
    #[arg(long, value_name = "SPAN", value_parser = instant::span_within::<0, DAY>)]
    wait: Option<Duration>,
    /// Holds what was granted for so long, then releases its slots
    #[arg(long, value_name = "SPAN", default_value = "0s", value_parser = instant::span_within::<0, DAY>)]
    hold: Duration,
}

impl Load {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let mut limiters = Vec::new();
        for _ in 0..self.processes {
            limiters.push(context.limiter().await?);
        }
        // What keeps every acquire from its answer is an error of the command, not of the load.
        let entity = self.entity(0);
        let mut peek = limiters[0].peek(&entity, self.bucket.resource.as_str());
        if !self.limits.is_empty() {
            peek = peek.limits(&self.limits);
        }
        for take in &self.takes {
            peek = peek.need(take.limit.as_str(), take.tokens);
        }
        if let Some(class) = &self.class {
            peek = peek.class(class.as_str());
        }
        let balances = peek.send().await?;
        // Slots are leased for longer than they are held: a lease that expires lets others have them.
        let has_slots = |take: &Amount| {
            let limit = balances.limit(take.limit.as_str());
            limit.is_some_and(|limit| limit.kind() == LimitKind::Slots)
        };
        let lasts = self.hold.saturating_add(context.options().timeout);
        let lasts = lasts.clamp(SHORTEST_LEASE, LONGEST_LEASE);
        let lease = self.takes.iter().any(has_slots).then_some(lasts);
        // Before the first acquire, so that no signal leaves slots behind.
        let signals = Signals::new()?;
        let output = context.output();
        let shows_rates = output.is_watched();
        let rate = self.rate;
        let show = |tally: &mut Tally, second, in_flight| {
            if shows_rates {
                output.note(tally.rates(second, in_flight));
            }
        };
        let (tally, began_for) = run::run(self, lease, limiters, signals, show).await;
        let report = Report::new(tally, rate, began_for);
        output.print(&report, |report| report.text(output))?;
        Ok(match report.is_incomplete() {
            true => Outcome::Incomplete,
            false => Outcome::Done,
        })
    }

    /// Returns the entity of an acquire. Acquires take turns.
    fn entity(&self, number: u64) -> String {
        match self.entities.get() {
            1 => self.bucket.entity.to_string(),
            entities => format!("{}-{}", self.bucket.entity, number % u64::from(entities)),
        }
    }
}
