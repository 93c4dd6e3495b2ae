//! The layer and its options.

use std::fmt;
use std::sync::Arc;

use http::StatusCode;
use http::request::Parts;
use tower_layer::Layer;

use crate::http::{PolicyName, PolicyNames, PolicyUnit};
use crate::tower::RateLimit;
use crate::tower::options::{OnError, Options};
use crate::{Acquire, Error, RateLimiter};

/// Limits the requests of the service that it wraps: see [`crate::tower`]. Clones are cheap and
/// share everything.
pub struct RateLimitLayer<F> {
    limiter: RateLimiter,
    charge: Arc<F>,
    options: Options,
}

impl<F> RateLimitLayer<F>
where
    F: for<'a> Fn(&'a RateLimiter, &Parts) -> Option<Acquire<'a>>,
{
    /// Limits each request by the acquire that `charge` returns; `None` lets the request pass,
    /// uncounted.
    ///
    /// `charge` sees all of a request but its body. A request whose entity or resource is no valid
    /// name is answered with 400, whatever [`on_error`](Self::on_error) says: a client's key is its
    /// own fault, and must be no way around the limit. So return an acquire for a request without a
    /// readable key too, with an empty name. Verify a key that clients send before it names an entity.
    pub fn new(limiter: RateLimiter, charge: F) -> Self {
        let options = Options {
            names: PolicyNames::default(),
            has_x_rate_limit: false,
            refund_if: |_| false,
            on_error: |_| OnError::Refuse,
        };
        Self { limiter, charge: Arc::new(charge), options }
    }

    /// Also sends the strictest limit as `X-RateLimit-Limit`, `-Remaining` and `-Reset` (seconds
    /// from now).
    #[must_use]
    pub const fn with_x_rate_limit(mut self, is_wanted: bool) -> Self {
        self.options.has_x_rate_limit = is_wanted;
        self
    }

    /// Names the limits in responses. Default: the rule of [`PolicyNames`].
    #[must_use]
    pub fn names(mut self, name: PolicyName) -> Self {
        self.options.names = self.options.names.named(name);
        self
    }

    /// Sets the quota unit of each limit, by its name. Default: the rule of [`PolicyNames::units`].
    #[must_use]
    pub fn units(mut self, units: PolicyUnit) -> Self {
        self.options.names = self.options.names.units(units);
        self
    }

    /// Returns the tokens of a response with such a status. Default: none, because a failed request
    /// has caused work, and a request that can be made to fail would otherwise be free. gRPC sends
    /// failures after the body, so these are not seen here.
    #[must_use]
    pub const fn refund_if(mut self, is_refunded: fn(StatusCode) -> bool) -> Self {
        self.options.refund_if = is_refunded;
        self
    }

    /// Sets what to do without a decision. Default: refuse.
    ///
    /// ```
    /// # use weirgate::tower::{OnError, RateLimitLayer};
    /// # fn example(limiter: weirgate::RateLimiter) {
    /// // While DynamoDB is unavailable, requests pass. A request with an invalid key is refused: it would bypass the limit.
    /// let layer = RateLimitLayer::new(limiter, |_, _| None)
    ///     .on_error(|error| if error.is_transient() { OnError::Pass } else { OnError::Refuse });
    /// # }
    /// ```
    #[must_use]
    pub const fn on_error(mut self, decide: fn(&Error) -> OnError) -> Self {
        self.options.on_error = decide;
        self
    }
}

impl<S, F> Layer<S> for RateLimitLayer<F> {
    type Service = RateLimit<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, self.limiter.clone(), Arc::clone(&self.charge), self.options.clone())
    }
}

impl<F> Clone for RateLimitLayer<F> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            charge: Arc::clone(&self.charge),
            options: self.options.clone(),
        }
    }
}

impl<F> fmt::Debug for RateLimitLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("options", &self.options).finish_non_exhaustive()
    }
}
