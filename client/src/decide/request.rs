//! A request as the application made it, and its checks.

use std::time::Duration;

use tokio::time::Instant;
use weirgate_shared::{EntityId, MilliTokens, Resource, exact_span};

use crate::session::deadline;
use crate::values::{
    Error, Limits, OnUnavailable, check_amount, check_lease, check_on_unavailable, check_queue,
    check_whole, parse_amount,
};

/// A request as the application made it, unchecked.
#[derive(Debug, Clone)]
pub(crate) struct RequestSpec {
    pub(crate) entity: String,
    pub(crate) resource: String,
    /// Limits given with the call; `None` for the configured ones.
    pub(crate) limits: Option<Limits>,
    /// Whether a request with given limits takes from the entity's ancestors too.
    pub(crate) cascades: bool,
    /// Version of the given limits.
    pub(crate) version: Option<i64>,
    pub(crate) amounts: Vec<(String, Amount)>,
    /// Class of the caller, unless the configuration of the entity says it.
    pub(crate) class: Option<String>,
    pub(crate) options: AcquireOptions,
    pub(crate) timeout: Duration,
    pub(crate) lease: Option<Duration>,
    /// Whether the amounts are taken even into debt.
    pub(crate) is_into_debt: bool,
    /// Longest wait until it starts, if it queues.
    pub(crate) queue: Option<Duration>,
    /// End of that wait, which begins as the request is sent.
    pub(crate) start_by: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Amount {
    Tokens(i64),
    Milli(MilliTokens),
    /// At least, and at most.
    UpTo(i64, i64),
}

/// Options of a decision.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AcquireOptions {
    /// Longest wait for tokens.
    pub(crate) wait: Duration,
    pub(crate) on_unavailable: OnUnavailable,
    /// Whether only the table can do what is requested, of all of several: then nothing decides in
    /// its place.
    pub(crate) needs_table: bool,
    /// Whether the request bypasses the limits, or all of several do.
    pub(crate) is_bypass: bool,
    /// Whether a denial of the request is only reported, or all of several are in shadow mode.
    pub(crate) is_shadow: bool,
    /// Whether a grant that starts later is returned at once.
    pub(crate) is_now: bool,
}

/// Amounts by limit name: at least, and at most.
pub(super) type NamedAmounts<'a> = Vec<(&'a str, MilliTokens, MilliTokens)>;

impl RequestSpec {
    /// Lets the wait of a request that queues begin.
    pub(crate) fn begin_wait(&mut self) {
        self.start_by = self.queue.map(deadline);
    }

    /// Checks the request without sending anything.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let (_, _) = (
            EntityId::new(&*self.entity)?,
            Resource::new(&*self.resource)?,
        );
        if self.amounts.is_empty() {
            return invalid("empty request: take tokens of at least one limit".to_owned());
        }
        self.amounts().map(drop)
    }

    /// Iterates over the limits of which it takes as much as there is.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = &str> {
        let ranges = self.amounts.iter();
        let ranges = ranges.filter(|(_, amount)| matches!(amount, Amount::UpTo(..)));
        ranges.map(|(limit, _)| limit.as_str())
    }

    /// Returns the validated amounts, without looking at limits.
    pub(super) fn amounts(&self) -> Result<NamedAmounts<'_>, Error> {
        if let Some(lasts) = self.lease {
            check_lease(lasts)?;
            if self.options.is_bypass {
                return invalid(format!(
                    "a lease of {} is requested with bypass, which takes nothing that a lease could hold: leave out the lease or bypass",
                    exact_span(lasts)
                ));
            }
        }
        if self.is_into_debt && self.options.is_bypass {
            return invalid(
                "into_debt is requested with bypass, which debits nothing: leave out into_debt or bypass"
                    .to_owned(),
            );
        }
        self.check_queue()?;
        check_on_unavailable(self.options.on_unavailable)?;
        let mut amounts = NamedAmounts::with_capacity(self.amounts.len());
        for (name, amount) in &self.amounts {
            check_whole(name)?;
            let mut most = None;
            let amount = match *amount {
                Amount::Tokens(tokens) => parse_amount(name, tokens)?,
                Amount::UpTo(least, most_tokens) => {
                    let (least, highest) =
                        (parse_amount(name, least)?, parse_amount(name, most_tokens)?);
                    if least > highest {
                        return invalid(format!(
                            "limit {name:?}: at least {least} tokens are requested, and at most {highest}: swap them"
                        ));
                    }
                    most = Some(highest);
                    least
                }
                Amount::Milli(milli) => {
                    check_amount(name, milli)?;
                    milli
                }
            };
            if amounts.iter().any(|(known, ..)| known == name) {
                return invalid(format!(
                    "limit {name:?} is taken twice: take the sum at once"
                ));
            }
            let most = most.unwrap_or(amount);
            amounts.push((name.as_str(), amount, most));
        }
        Ok(amounts)
    }
}

impl RequestSpec {
    /// Checks that a request that queues asks for nothing else that makes it wait, or that grants it
    /// in another way.
    fn check_queue(&self) -> Result<(), Error> {
        let Some(wait) = self.queue else {
            return Ok(());
        };
        check_queue(wait)?;
        let is_up_to = |(_, amount): &(String, Amount)| matches!(amount, Amount::UpTo(..));
        let other = match self.options {
            AcquireOptions {
                is_bypass: true, ..
            } => "bypass, which waits for nothing",
            _ if !self.options.wait.is_zero() => "wait_up_to, which has no place in the line",
            _ if self.is_into_debt => "into_debt, which waits for nothing",
            _ if self.amounts.iter().any(is_up_to) => {
                "a range (take_up_to), whose amount is what there is"
            }
            _ => return Ok(()),
        };
        invalid(format!(
            "a queue of {} is requested with {other}: leave one of them out",
            exact_span(wait)
        ))
    }
}

/// Returns the error of an invalid request.
pub(super) fn invalid<T>(message: String) -> Result<T, Error> {
    Err(Error::Invalid(message))
}
