//! Decides a request, passes it on, and settles its grant.

use std::fmt;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body;
use tower_service::Service;
use weirgate_shared::{EntityId, NameError, Resource};

use crate::http::{DEGRADED, Policies, Problem, seconds};
use crate::tower::answer::{Protocol, insert_headers};
use crate::tower::options::{OnError, Options};
use crate::tower::upgrade::Upgrade;
use crate::tower::{GrantHandle, LimitedBody};
use crate::values::DEFAULT_LEASE;
use crate::{Acquire, Decision, Error, RateLimiter};

/// A service with limited requests, made by [`RateLimitLayer`](crate::tower::RateLimitLayer).
pub struct RateLimit<S, F> {
    inner: S,
    limiter: RateLimiter,
    charge: Arc<F>,
    options: Options,
}

impl<S, F> RateLimit<S, F> {
    pub(crate) const fn new(
        inner: S,
        limiter: RateLimiter,
        charge: Arc<F>,
        options: Options,
    ) -> Self {
        Self { inner, limiter, charge, options }
    }
}

impl<S, F, B, R> Service<Request<B>> for RateLimit<S, F>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Send,
    S::Future: Send,
    F: for<'a> Fn(&'a RateLimiter, &Parts) -> Option<Acquire<'a>> + Send + Sync + 'static,
    B: Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<LimitedBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // `poll_ready` was called on this service, not on its clone.
        let clone = self.clone();
        let ready = std::mem::replace(self, clone);
        Box::pin(ready.run(request))
    }
}

impl<S, F> RateLimit<S, F> {
    async fn run<B, R>(self, request: Request<B>) -> Result<Response<LimitedBody<R>>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>>,
        F: for<'a> Fn(&'a RateLimiter, &Parts) -> Option<Acquire<'a>>,
    {
        let Self { mut inner, limiter, charge, options } = self;
        let (parts, body) = request.into_parts();
        let Some(acquire) = charge(&limiter, &parts) else {
            let response = inner.call(Request::from_parts(parts, body)).await?;
            return Ok(response.map(LimitedBody::free));
        };
        let kind = Protocol::of(&parts.headers);
        let mut request = Request::from_parts(parts, body);
        let lease = acquire.request().lease.unwrap_or(DEFAULT_LEASE);
        let is_shadow = limiter.is_shadow() || acquire.request().options.is_shadow;
        let names = {
            let request = acquire.request();
            if let Err(error) = check_names(&request.entity, &request.resource)
                && !is_shadow
            {
                return Ok(kind.answer(&Problem::invalid_name(&error), vec![], None));
            }
            options.names.own(&request.entity, &request.resource)
        };
        let decision = match acquire.send().await {
            Ok(decision) => decision,
            // In shadow mode no request is refused, and no field says that one could have been.
            Err(error) if is_shadow => {
                tracing::error!(%error, "no decision: request passed on, uncounted");
                return pass_on(inner, request, GrantHandle::new(None), options.refund_if).await;
            }
            Err(error) if (options.on_error)(&error) == OnError::Pass => {
                tracing::error!(%error, "no decision: request passed on, uncounted");
                let handle = GrantHandle::new(None);
                let mut response = pass_on(inner, request, handle, options.refund_if).await?;
                let (name, value) = DEGRADED;
                insert_headers(response.headers_mut(), [(name, value.to_owned())]);
                return Ok(response);
            }
            Err(error) => {
                tracing::error!(%error, "no decision: request refused");
                let retry_after = known_wait(&error);
                let fields = retry_after.map(|after| ("retry-after", seconds(after).to_string()));
                return Ok(kind.answer(
                    &Problem::unavailable(&error),
                    fields.into_iter().collect(),
                    retry_after,
                ));
            }
        };
        Ok(match decision {
            Decision::Granted(grant) => {
                // In shadow mode no request is limited, so no decision is degraded either.
                let is_degraded = grant.degraded().is_some() && !is_shadow;
                let fields = Policies::granted(&grant.limits(), &names)
                    .with_degraded(is_degraded)
                    .with_x_rate_limit(options.has_x_rate_limit)
                    .fields();
                // What is held under a lease stays so until an upgraded connection ends.
                let upgrade = match grant.lease_id() {
                    Some(_) => Upgrade::intercept(&mut request).await,
                    None => None,
                };
                let handle = GrantHandle::new(Some(grant));
                let held = handle.clone();
                let mut response = pass_on(inner, request, handle, options.refund_if).await?;
                if let Some(upgrade) = upgrade {
                    upgrade.hold(response.status(), held, lease);
                }
                insert_headers(response.headers_mut(), fields);
                response
            }
            Decision::Denied(denied) => {
                let policies =
                    Policies::denied(&denied, &names).with_x_rate_limit(options.has_x_rate_limit);
                kind.answer(
                    &Problem::denied(&denied, &names),
                    policies.fields(),
                    denied.retry_after,
                )
            }
            Decision::NeverFits(never) => {
                kind.answer(&Problem::never_fits(&never, &names), vec![], None)
            }
            Decision::Disabled(disabled) => {
                kind.answer(&Problem::disabled(&disabled), vec![], None)
            }
        })
    }
}

/// Checks what may come from the client.
fn check_names(entity: &str, resource: &str) -> Result<(), NameError> {
    EntityId::new(entity)?;
    Resource::new(resource)?;
    Ok(())
}

/// Returns the time until the next attempt can succeed. Only an open circuit breaker knows it.
const fn known_wait(error: &Error) -> Option<Duration> {
    match error {
        Error::Unavailable { retry_after, .. } => Some(*retry_after),
        _ => None,
    }
}

/// Passes the request on, and rolls its grant back if that fails.
async fn pass_on<S, B, R>(
    mut inner: S,
    mut request: Request<B>,
    handle: GrantHandle,
    refund_if: fn(StatusCode) -> bool,
) -> Result<Response<LimitedBody<R>>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    request.extensions_mut().insert(handle.clone());
    // After a panic only the handle's grant is used, not the service.
    let done = AssertUnwindSafe(async { inner.call(request).await }).catch_unwind().await;
    let is_refunded = match &done {
        Ok(Ok(response)) => refund_if(response.status()),
        Ok(Err(_)) | Err(_) => true,
    };
    if is_refunded && let Err(error) = handle.roll_back().await {
        tracing::warn!(%error, "tokens of a failed request could not be returned");
    }
    match done {
        Ok(result) => Ok(result?.map(|body| LimitedBody::holding(body, handle))),
        Err(panic) => resume_unwind(panic),
    }
}

impl<S: Clone, F> Clone for RateLimit<S, F> {
    fn clone(&self) -> Self {
        let (limiter, charge) = (self.limiter.clone(), Arc::clone(&self.charge));
        Self { inner: self.inner.clone(), limiter, charge, options: self.options.clone() }
    }
}

impl<S: fmt::Debug, F> fmt::Debug for RateLimit<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
