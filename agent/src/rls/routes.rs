//! Path to method.

use std::convert::Infallible;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tonic::body::Body;
use tonic::codegen::{Service, StdError, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::messages::MAX_MESSAGE_BYTES;
use super::service::RateLimitService;

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

/// The methods of both services, under the name of `S`.
#[derive(Debug)]
pub(super) struct Methods<S> {
    service: Arc<RateLimitService>,
    name: PhantomData<fn() -> S>,
}

/// Envoy's `RateLimitService`.
#[derive(Debug)]
pub(super) enum Envoy {}

/// Kuadrant's `RateLimitService`.
#[derive(Debug)]
pub(super) enum Kuadrant {}

impl NamedService for Methods<Envoy> {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl NamedService for Methods<Kuadrant> {
    const NAME: &'static str = "kuadrant.service.ratelimit.v1.RateLimitService";
}

impl<S> Methods<S> {
    pub(super) const fn new(service: Arc<RateLimitService>) -> Self {
        Self {
            service,
            name: PhantomData,
        }
    }
}

impl<S> Clone for Methods<S> {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.service))
    }
}

impl<S, B> Service<http::Request<B>> for Methods<S>
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Answer {
        let service = Arc::clone(&self.service);
        // Before anything of the message is read.
        if let Err(status) = service.authenticate(request.headers()) {
            return Box::pin(async move { Ok(status.into_http()) });
        }
        match request.uri().path() {
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => {
                unary(request, move |request| async move {
                    service.should_rate_limit(request).await
                })
            }
            "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit" => {
                unary(request, move |request| async move {
                    service.check(request).await
                })
            }
            "/kuadrant.service.ratelimit.v1.RateLimitService/Report" => {
                unary(request, move |request| async move {
                    service.report(request).await
                })
            }
            "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve" => {
                unary(request, move |request| async move {
                    service.reserve(request).await
                })
            }
            "/kuadrant.service.ratelimit.v1.RateLimitService/Commit" => {
                unary(request, move |request| async move {
                    service.commit(request).await
                })
            }
            _ => unimplemented(),
        }
    }
}

/// Decodes the message, calls `method` with it, and encodes its answer.
fn unary<B, M, R, F>(
    request: http::Request<B>,
    method: impl FnOnce(Request<M>) -> F + Send + 'static,
) -> Answer
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
    M: prost::Message + Default + Send + Sync + 'static,
    R: prost::Message + Default + Send + Sync + 'static,
    F: Future<Output = Result<Response<R>, Status>> + Send + 'static,
{
    Box::pin(async move {
        let mut grpc =
            Grpc::new(ProstCodec::<R, M>::default()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        Ok(grpc.unary(Once(Some(method)), request).await)
    })
}

fn unimplemented() -> Answer {
    let status = Status::unimplemented("this service has no such method: see docs/guide/envoy.md");
    Box::pin(async move { Ok(status.into_http()) })
}

/// A method that is called once.
struct Once<F>(Option<F>);

impl<M, R, F, A> UnaryService<M> for Once<F>
where
    F: FnOnce(Request<M>) -> A,
    A: Future<Output = Result<Response<R>, Status>>,
{
    type Response = R;
    type Future = Called<A>;

    fn call(&mut self, request: Request<M>) -> Called<A> {
        Called(self.0.take().map(|method| Box::pin(method(request))))
    }
}

/// The answer of a method.
struct Called<A>(Option<Pin<Box<A>>>);

impl<A, R> Future for Called<A>
where
    A: Future<Output = Result<R, Status>>,
{
    type Output = Result<R, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Some(answer) => answer.as_mut().poll(context),
            None => Poll::Ready(Err(Status::internal("the method was called before"))),
        }
    }
}
