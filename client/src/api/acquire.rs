//! One request for tokens, and its decision.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use weirgate_shared::{Limit, MilliTokens};

use super::limiter::RateLimiter;
use crate::config::Freshness;
use crate::decide::{Decision, Grant, Granted, count_decision, decide, instrumented};
use crate::session::deadline;
use crate::values::{AcquireOptions, Amount, Error, Limits, OnUnavailable, RequestSpec};

impl RateLimiter {
    /// Requests tokens of `entity` on `resource`.
    pub fn acquire(&self, entity: &str, resource: &str) -> Acquire<'_> {
        Acquire::new(self, entity, resource)
    }
}

/// A request for tokens of one bucket. Nothing happens until [`send`](Self::send) or
/// [`scope`](Self::scope).
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until it is sent"]
pub struct Acquire<'a> {
    limiter: &'a RateLimiter,
    request: RequestSpec,
}

impl<'a> Acquire<'a> {
    pub(crate) fn new(limiter: &'a RateLimiter, entity: &str, resource: &str) -> Self {
        let settings = &limiter.session.settings;
        let request = RequestSpec {
            entity: entity.to_owned(),
            resource: resource.to_owned(),
            limits: None,
            cascades: false,
            version: None,
            amounts: vec![],
            class: None,
            options: AcquireOptions::of(settings.on_unavailable),
            timeout: settings.timeout,
            lease: None,
            is_into_debt: false,
            queue: None,
            start_by: None,
        };
        Self { limiter, request }
    }

    /// Sets the limits of the bucket. They create it on first use, and change it where they differ.
    /// Then no configuration is read, and nothing is taken from the entity's parents, unless the
    /// request is [cascading](Self::cascading). Without this call, the configured limits apply.
    ///
    /// If two releases give different limits at the same time, the bucket keeps one release's
    /// limits for 30 s before it adopts the other's. With a [version](Self::limits_version), the
    /// newer limits stay.
    pub fn limits(mut self, limits: &[Limit]) -> Self {
        self.request.limits = Some(Limits::new(limits.into(), None));
        self
    }

    /// Sets the limits as [`limits`](Self::limits) does, without copying them.
    pub fn shared_limits(mut self, limits: &Arc<[Limit]>) -> Self {
        self.request.limits = Some(Limits::new(Arc::clone(limits), None));
        self
    }

    /// Takes from the entity's ancestors as well, with limits given in the call: from each as far as
    /// the chain cascades, or from none. An ancestor with configured limits is asked for those of
    /// them that are taken; one without is asked for the given limits. Configurations are read, and
    /// cached, as for a request without given limits; a level that is disabled stops the request.
    ///
    /// Without given limits a request follows the chain anyway.
    pub const fn cascading(mut self) -> Self {
        self.request.cascades = true;
        self
    }

    /// Sets the version of the given limits, from 0. The bucket adopts only limits of a newer
    /// version, so an older release cannot replace newer ones. To restore former limits, give them
    /// a newer version. Either all callers of a bucket give a version, or none does.
    pub const fn limits_version(mut self, version: i64) -> Self {
        self.request.version = Some(version);
        self
    }

    /// Sets the class of the caller: of limits with [classes](Limit::with_classes), it takes from the pool
    /// of its class, or from the shared one as far as the class leaves enough there. Without it, the
    /// request takes from the shared pool, or from that of a class above half of it. The class that a
    /// configuration of the entity has counts, whatever is set here.
    ///
    /// A class that no limit of the buckets has is an error.
    pub fn class(mut self, class: &str) -> Self {
        self.request.class = Some(class.to_owned());
        self
    }

    /// Takes `tokens` of a limit, 0 to 10^12. A request takes all its amounts, or none.
    ///
    /// An amount of 0 takes nothing, and requires that the limit is not in debt: for work whose
    /// amount is known only afterwards, and is then set with
    /// [`Grant::adjust`](crate::Grant::adjust). In a bucket of several shards, one that is not in
    /// debt suffices.
    pub fn take(mut self, limit: &str, tokens: i64) -> Self {
        self.request.amounts.push((limit.to_owned(), Amount::Tokens(tokens)));
        self
    }

    /// Takes an amount as [`take`](Self::take) does, in millitokens.
    pub fn take_milli(mut self, limit: &str, amount: MilliTokens) -> Self {
        self.request.amounts.push((limit.to_owned(), Amount::Milli(amount)));
        self
    }

    /// Takes as much of a limit as there is: at least `least` and at most `most` tokens, each 0 to
    /// 10^12. The grant has the [amount](crate::Grant::amount). It is denied if fewer than `least`
    /// are available; its retry-after is for `least`.
    ///
    /// It costs one write. In a bucket of several shards it takes what the shard has that is asked,
    /// or exactly `least` from several.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), weirgate::Error> {
    /// let decision = limiter.acquire("openai", "gpt-4").take_up_to("rpm", 1, 10).send().await?;
    /// if let Some(grant) = decision.granted() {
    ///     println!("a batch of {}", grant.amount("rpm").whole_tokens());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn take_up_to(mut self, limit: &str, least: i64, most: i64) -> Self {
        self.request.amounts.push((limit.to_owned(), Amount::UpTo(least, most)));
        self
    }

    /// Bypasses the limits: the request is granted whatever the balances are, debits none of them,
    /// and its amounts count as consumed, so usage has them. For an internal job, or an emergency.
    ///
    /// It is neither denied nor made to wait, also where a limit is in debt, and an amount may exceed
    /// the capacity. Only a level that is [stopped](crate::Admin::stop) or disabled stops it.
    /// The parents that it cascades to are bypassed too. Soft and shadow limits are not debited
    /// either, [`take_up_to`](Self::take_up_to) counts the maximum, and slots are counted without
    /// being held: a [`lease`](Self::lease) is an error. The write is shared with the process's
    /// other requests for the bucket. Prefetched tokens are left alone.
    ///
    /// [`Grant::adjust`](crate::Grant::adjust) and [`Grant::take_more`](crate::Grant::take_more)
    /// change only what is counted, and [`Grant::roll_back`](crate::Grant::roll_back) subtracts it.
    /// What is not a rate stays counted.
    ///
    /// If the write is not confirmed within the [`timeout`](Self::timeout), because DynamoDB is
    /// unavailable, throttles, or the bucket is contended, the request is granted anyway, whatever
    /// [`on_unavailable`](Self::on_unavailable) says: the grant is
    /// [degraded](crate::Grant::degraded), and usage may lack it. Of several requests in one
    /// decision, this holds if all of them bypass; otherwise the others decide.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), weirgate::Error> {
    /// let request = limiter.acquire("customer-1", "gpt-4").take("tpm", 1_500).bypass();
    /// let grant = request.send().await?.granted(); // `None` only if stopped or disabled
    /// # Ok(())
    /// # }
    /// ```
    pub const fn bypass(mut self) -> Self {
        self.request.options.is_bypass = true;
        self
    }

    /// Takes the amounts even into debt, as from [soft](weirgate_shared::LimitMode::Soft) limits, in
    /// whatever mode they are: for usage that has already happened. The request is not denied,
    /// unless a level is [stopped](crate::Admin::stop) or disabled. It counts as no acquire of
    /// its own, and its amounts count as consumed.
    ///
    /// While DynamoDB is unavailable it fails, whatever [`on_unavailable`](Self::on_unavailable) or
    /// the table says: there is nothing to decide, and its amounts would be lost. Of several requests
    /// in one decision, this holds if all of them are into debt; otherwise the others decide.
    ///
    /// Rates only: slots are left out, because usage that has happened holds none. Prefetched tokens are
    /// left alone. With [`bypass`](Self::bypass) it is an error.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), weirgate::Error> {
    /// let _ = limiter.acquire("customer-1", "gpt-4").take("tpm", 1_213).into_debt().send().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub const fn into_debt(mut self) -> Self {
        self.request.is_into_debt = true;
        self.request.options.needs_table = true;
        self
    }

    /// Grants the request also where it would be denied, as a limiter in
    /// [shadow mode](crate::Builder::shadow) does: for the trial of one rule among others. The grant
    /// has the [denial](crate::Grant::would_deny). Of several requests in one decision, this one
    /// denies none of the others.
    pub const fn shadow(mut self) -> Self {
        self.request.options.is_shadow = true;
        self
    }

    /// Waits up to this long for the tokens before it denies. A wait that cannot succeed does not
    /// begin.
    pub const fn wait_up_to(mut self, wait: Duration) -> Self {
        self.request.options.wait = wait;
        self
    }

    /// Queues for the tokens for up to this long, 1 ms to 1 h from [`send`](Self::send) on.
    ///
    /// One write takes the tokens at once, also if the balance is short, as far as they refill within
    /// the wait. The request starts once its amounts and all that was taken before are repaid. So
    /// callers of all processes are served in the order of their writes, and nothing polls. The grant
    /// has the [start](crate::Grant::starts_at); `send` returns it then, and
    /// [`send_now`](Self::send_now) at once. A request whose start would be later is denied, with the
    /// time until [that start](crate::Denied::starts_in).
    ///
    /// The debt and the amount behind it are at most the capacity, of a split bucket the shard's
    /// share. A larger amount does not queue, and neither does one of a soft or shadow limit. Of
    /// several limits and parents, the latest start counts; each of them counts the tokens from the
    /// write on. Callers that do not queue are denied while there is a line, so either all callers
    /// of a bucket queue or none does.
    ///
    /// A [pause](crate::Grant::vendor_said) denies what comes after it; what is in line keeps its start.
    ///
    /// Dropping the future before the start returns the tokens, as
    /// [`Grant::roll_back`](crate::Grant::roll_back) does; a process that ends before leaves them
    /// taken. A lease lasts from the latest start on. While DynamoDB is unavailable, a request that is
    /// granted [without it](Self::on_unavailable) starts at once.
    ///
    /// [`Error::Invalid`] if the request takes slots or a quota, if it waits, bypasses, or takes into
    /// debt or up to an amount, or if the resource has prefetch.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), weirgate::Error> {
    /// # use std::time::Duration;
    /// let request = limiter.acquire("openai", "gpt-4").take("tpm", 1_500);
    /// let grant = request.queue_up_to(Duration::from_secs(30)).send().await?.granted();
    /// # Ok(())
    /// # }
    /// ```
    pub const fn queue_up_to(mut self, wait: Duration) -> Self {
        self.request.queue = Some(wait);
        self
    }

    /// Sets the time allowed for the decision, after which it fails or is made without DynamoDB.
    /// Waiting for tokens is not included. Default: the [limiter's](crate::Builder::timeout).
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.request.timeout = timeout;
        self
    }

    /// Sets the decision if DynamoDB is unavailable. Default: the
    /// [limiter's](crate::Builder::on_unavailable).
    pub const fn on_unavailable(mut self, on_unavailable: OnUnavailable) -> Self {
        self.request.options.on_unavailable = on_unavailable;
        self
    }

    /// Holds the tokens under a durable lease of 1 ms to a day: if this process dies, they return
    /// when it expires. Slots always have a lease, 60 s by default.
    pub const fn lease(mut self, lasts: Duration) -> Self {
        self.request.lease = Some(lasts);
        self
    }

    /// Sends the request.
    ///
    /// # Errors
    /// [`Error::Invalid`] before anything is written; the other errors if no decision could be
    /// made.
    pub async fn send(mut self) -> Result<Decision, Error> {
        self.request.start_by = self.request.queue.map(deadline);
        self.limiter.session.at_home(self.decide()).await
    }

    /// Sends the request, and returns its grant at once, also if it starts later: for callers that
    /// schedule by themselves. Until the [start](crate::Grant::starts_at), nothing may be done with
    /// it but to roll it back. Without [`queue_up_to`](Self::queue_up_to) this is
    /// [`send`](Self::send).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_now(mut self) -> Result<Decision, Error> {
        self.request.options.is_now = true;
        self.send().await
    }

    async fn decide(&self) -> Result<Decision, Error> {
        let (session, request) = (&self.limiter.session, &self.request);
        let decision = pin!(self.decision());
        let decision = instrumented(session, &request.entity, &request.resource, decision).await?;
        count_decision(session, &decision);
        Ok(decision.map(|granted| Grant::of(granted, &self.limiter.session)))
    }

    async fn decision(&self) -> Result<Decision<Granted>, Error> {
        let (limiter, request) = (self.limiter, &self.request);
        let mut give_up = None;
        loop {
            let answer_by = deadline(request.timeout);
            let targets = |age| request.targets(&limiter.buckets, age, answer_by);
            let mut decide_by = async |targets| {
                let (session, local_buckets) = (&limiter.session, &limiter.local_buckets);
                let (options, give_up) = (request.options, &mut give_up);
                decide(session, local_buckets, targets, options, give_up, answer_by).await
            };
            let targets_now = targets(Freshness::AnyAge).await;
            let is_old = targets_now.as_ref().is_ok_and(|all| all.limits_may_be_stale);
            let mut decided = decide_by(targets_now).await?;
            if is_old && matches!(decided, Some(Decision::NeverFits(_))) {
                // A permanent denial must not rest on limits that may have been raised since.
                decided = decide_by(targets(Freshness::Recent).await).await?;
            }
            if let Some(decision) = decided {
                return Ok(decision);
            }
        }
    }

    /// Lets the request queue for up to this long, if at all. Returns whether it has no queue of its
    /// own.
    pub(crate) fn queue_with(&mut self, wait: Option<Duration>) -> bool {
        let has_own = self.request.queue.is_some();
        self.request.queue = wait;
        self.request.start_by = wait.map(deadline);
        !has_own
    }

    pub(crate) const fn limiter(&self) -> &'a RateLimiter {
        self.limiter
    }

    /// Returns the request, unchecked.
    pub(crate) const fn request(&self) -> &RequestSpec {
        &self.request
    }
}
