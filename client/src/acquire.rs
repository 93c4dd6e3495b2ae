//! One request for tokens, checked before anything is sent.

use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::{EntityId, Limit, LimitName, MAX_TOKENS, MilliTokens, Millis, Mode, Resource};

use crate::decide::{Target, decide};
use crate::limits::Limits;
use crate::line::Needs;
use crate::shards::Request;
use crate::{Decision, Error, Grant, RateLimiter, decision};

/// How long a lease lasts if nothing else is said.
const LEASE: Duration = Duration::from_secs(60);
/// The longest lease: a day. Who holds longer renews.
const LONGEST_LEASE: Duration = Duration::from_secs(86_400);

/// A request for tokens of one bucket. Nothing happens until [`send`](Self::send) or [`scope`](Self::scope).
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until it is sent"]
pub struct Acquire<'a> {
    limiter: &'a RateLimiter,
    entity: String,
    resource: String,
    limits: Limits,
    takes: Vec<(String, Amount)>,
    wait: Duration,
    lease: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
enum Amount {
    Tokens(i64),
    Milli(MilliTokens),
}

impl<'a> Acquire<'a> {
    pub(crate) fn new(limiter: &'a RateLimiter, entity: &str, resource: &str) -> Self {
        Self {
            limiter,
            entity: entity.to_owned(),
            resource: resource.to_owned(),
            limits: Limits::default(),
            takes: vec![],
            wait: Duration::ZERO,
            lease: None,
        }
    }

    /// The limits of the bucket. They create it on first use, and change it where they differ from its own.
    pub fn limits(mut self, limits: &[Limit]) -> Self {
        self.limits = Limits::new(limits.into(), None);
        self
    }

    /// [`limits`](Self::limits) without copying them.
    pub fn shared_limits(mut self, limits: &Arc<[Limit]>) -> Self {
        self.limits = Limits::new(Arc::clone(limits), None);
        self
    }

    /// Takes `tokens` of a limit: 1 to 10^12. All that is taken is taken together or not at all.
    pub fn take(mut self, limit: &str, tokens: i64) -> Self {
        self.takes.push((limit.to_owned(), Amount::Tokens(tokens)));
        self
    }

    /// [`take`](Self::take) to the millitoken.
    pub fn take_milli(mut self, limit: &str, amount: MilliTokens) -> Self {
        self.takes.push((limit.to_owned(), Amount::Milli(amount)));
        self
    }

    /// Waits up to this long for the tokens instead of being denied at once. A wait that cannot succeed is not begun.
    pub const fn wait_up_to(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Holds the tokens under a durable lease: if this process dies, they go back when it expires. Slots always have
    /// one, of 60 s if nothing else is said here. 1 ms to a day.
    pub const fn lease(mut self, lasts: Duration) -> Self {
        self.lease = Some(lasts);
        self
    }

    /// Sends the request.
    ///
    /// # Errors
    /// [`Error::Invalid`] before anything is sent; the others if no decision could be made.
    pub async fn send(self) -> Result<Decision, Error> {
        let targets = self.targets()?;
        let decision = decide(&self.limiter.inner, targets, self.wait).await?;
        Ok(decision.map(|given| {
            let would_deny = given.would_deny.into_iter().flatten();
            let would_deny = would_deny.reduce(|one, other| decision::all([one, other]));
            Grant::new(given.holds.into_iter().flatten().collect(), would_deny)
        }))
    }

    /// The buckets that are asked.
    pub(crate) fn targets(&self) -> Result<Vec<Target>, Error> {
        let (entity, resource) = (EntityId::new(&*self.entity)?, Resource::new(&*self.resource)?);
        let (needs, soft) = self.needs(&self.limits)?;
        let inner = &self.limiter.inner;
        let shards = inner.bucket(entity, resource);
        let lease = self.lease_time(&self.limits).map(|lasts| (lasts, Arc::clone(&inner.settings.owner)));
        let request = Request { needs, soft, limits: self.limits.clone(), lease, takes: 1 };
        Ok(vec![Target { shards, request, is_shadow: inner.settings.is_shadow }])
    }

    fn lease_time(&self, limits: &[Limit]) -> Option<Duration> {
        let is_taken = |limit: &LimitName| self.takes.iter().any(|(taken, _)| taken == limit.as_str());
        let takes_slots = || limits.iter().any(|limit| limit.rule().is_concurrent() && is_taken(limit.name()));
        self.lease.or_else(|| takes_slots().then_some(LEASE))
    }

    /// What is asked of the limits: what must be there, and what is taken in any case.
    fn needs(&self, limits: &[Limit]) -> Result<(Needs, Needs), Error> {
        let invalid = |message: String| Err(Error::Invalid(message));
        if self.takes.is_empty() {
            return invalid("nothing is asked for: say what with take()".to_owned());
        }
        for (at, limit) in limits.iter().enumerate() {
            if limits[..at].iter().any(|earlier| earlier.name() == limit.name()) {
                return invalid(format!("limit {:?} is given twice: give it once", limit.name()));
            }
        }
        if let Some(lasts) = self.lease {
            check_lease(lasts)?;
        }
        let (mut needs, mut soft) = (Needs::new(), Needs::new());
        for (name, amount) in &self.takes {
            let Some(limit) = limits.iter().find(|limit| limit.name().as_str() == name) else {
                let known: Vec<_> = limits.iter().map(|limit| limit.name().as_str()).collect();
                return invalid(format!("limit {name:?} is not among the limits given: {known:?}"));
            };
            let amount = match *amount {
                Amount::Tokens(tokens) => self::amount(name, tokens, 1)?,
                Amount::Milli(milli) if milli.0 < 1 || milli > MilliTokens::from_tokens(MAX_TOKENS) => {
                    return invalid(format!("limit {name:?}: {milli} tokens are asked, it takes 0.001 to 10^12"));
                }
                Amount::Milli(milli) => milli,
            };
            let asked = if limit.mode() == Mode::Soft { &mut soft } else { &mut needs };
            if asked.insert(limit.name().clone(), amount).is_some() {
                return invalid(format!("limit {name:?} is taken twice: take the sum once"));
            }
        }
        Ok((needs, soft))
    }
}

/// Whole tokens from `least` to 10^12.
pub(crate) fn amount(limit: &str, tokens: i64, least: i64) -> Result<MilliTokens, Error> {
    if (least..=MAX_TOKENS).contains(&tokens) {
        Ok(MilliTokens::from_tokens(tokens))
    } else {
        Err(Error::Invalid(format!("limit {limit:?}: {tokens} tokens are asked, it takes {least} to 10^12")))
    }
}

pub(crate) fn check_lease(lasts: Duration) -> Result<(), Error> {
    if lasts > LONGEST_LEASE || Millis::from(lasts) < Millis(1) {
        return Err(Error::Invalid(format!(
            "a lease of {lasts:?} is asked, it takes 1 ms to a day: renew it to hold longer"
        )));
    }
    Ok(())
}
