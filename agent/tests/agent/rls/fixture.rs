//! An agent in this process: rules, the service behind a real socket, an embedded DynamoDB.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as common;
use envoy_types::pb::envoy::service::ratelimit::v3 as rls;
use envoy_types::pb::google::protobuf::UInt64Value;
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use tokio::sync::oneshot;
use tonic::Status;
use tonic::client::GrpcService;
use tonic::codegen::StdError;
use tonic::codegen::http::Uri;
use tonic::transport::Channel;
use weirgate::{Builder, FakeClock, MilliTokens, OnUnavailable, RateLimiter};
use weirgate_agent::Token;
use weirgate_agent::gated::GatedLimiter;
use weirgate_agent::net::{Bounds, Clients};
use weirgate_agent::rls::{Grpc, Options, RateLimitService};
use weirgate_agent::rules::RulesSource;
use weirgate_testkit::Dynamo;

use crate::fixtures::{START, file};

pub use common::RateLimitDescriptor;
pub use common::rate_limit_descriptor::{Entry, RateLimitOverride};
pub use rls::rate_limit_response::{Code, DescriptorStatus, rate_limit};
pub use rls::rate_limit_service_client::RateLimitServiceClient;
pub use rls::{RateLimitRequest, RateLimitResponse};

/// Rules of most tests: an entity per tenant, a budget that is settled, a trial.
pub const RULES: &str = r#"
weirgate: 1
domains:
  edge:
    - match: [tenant]
      entity: "{tenant}"
      resource: api
      take: {rpd: hits}
      limits: {rpd: {per_day: 10}}
    - match: [tenant, model]
      entity: "{tenant}"
      resource: llm/{model}
      take: {tpd: hits}
      limits: {tpd: {per_day: 1000}}
    - match: [used, model]
      entity: "{used}"
      resource: llm/{model}
      take: {tpd: hits}
      limits: {tpd: {per_day: 1000}}
      settle: true
    - match: [trial]
      entity: "{trial}"
      resource: api
      take: {rpd: hits}
      limits: {rpd: {per_day: 10}}
      shadow: true
    - match: [plan: free, path: "/static/*"]
      unlimited: true
    - match: [plan: free, path]
      entity: plan:free
      resource: api
      take: {rpd: 2}
      limits: {rpd: {per_day: 10}}
    - match: [stored]
      entity: "{stored}"
      resource: stored
      take: {rpd: hits}
"#;

/// An agent, its time and its table.
pub struct Agent {
    pub clock: FakeClock,
    pub dynamo: Dynamo,
    /// Another process on the same table.
    pub other: RateLimiter,
    pub gated: Arc<GatedLimiter>,
    pub channel: Channel,
    origin: Uri,
    ready: Option<oneshot::Sender<()>>,
    stop: Option<oneshot::Sender<()>>,
    server: tokio::task::JoinHandle<()>,
}

impl Agent {
    /// An agent with these rules.
    pub async fn new(rules: &str) -> Self {
        Self::with(rules, Options::default(), |builder| builder).await
    }

    /// An agent with these rules, options and settings of its limiter.
    pub async fn with(
        rules: &str,
        options: Options,
        settings: impl FnOnce(Builder) -> Builder,
    ) -> Self {
        Self::on(Duration::ZERO, rules, options, settings, None).await
    }

    /// An agent whose callers must show a secret.
    pub async fn with_secret(secret: &str) -> Self {
        let token = Some(Token::new(secret).unwrap());
        Self::on(Duration::ZERO, RULES, Options::default(), |builder| builder, token).await
    }

    /// An agent whose table does not answer.
    pub async fn without_answers(options: Options, on_unavailable: OnUnavailable) -> Self {
        let settings = |builder: Builder| builder.on_unavailable(on_unavailable);
        Self::on(Duration::from_secs(3_600), RULES, options, settings, None).await
    }

    /// An agent whose table answers after this time.
    pub async fn slow(latency: Duration) -> Self {
        Self::on(latency, RULES, Options::default(), |builder| builder, None).await
    }

    async fn on(
        latency: Duration,
        rules: &str,
        options: Options,
        settings: impl FnOnce(Builder) -> Builder,
        token: Option<Token>,
    ) -> Self {
        let clock = FakeClock::at(START);
        let dynamo = Dynamo::new().await.with_clock(clock.clone());
        let table = dynamo.clone().with_latency(latency).table().await;
        let builder = |table| RateLimiter::builder("weirgate").table(table);
        let limiter = settings(builder(table)).build().await.unwrap();
        let other = builder(dynamo.table().await).build().await.unwrap();
        let gated = Arc::new(GatedLimiter::new(limiter, 100));
        let rules = file(rules);
        let rules = RulesSource::open(vec![rules.to_path_buf()]).unwrap();
        let service = RateLimitService::new(Arc::clone(&gated), rules, options).with_token(token);
        let listener = Grpc::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.address().unwrap();
        let clients =
            Clients::new(Bounds { max_connections: 10_000, grace: Duration::from_secs(10) });
        let (ready, is_ready) = oneshot::channel();
        let (stop, is_stopped) = oneshot::channel();
        let ended = |signal: oneshot::Receiver<()>| async move {
            let _ = signal.await;
        };
        let server =
            tokio::spawn(listener.serve(service, clients, ended(is_ready), ended(is_stopped)));
        let origin: Uri = format!("http://{address}").parse().unwrap();
        let channel = Channel::builder(origin.clone());
        Self {
            origin,
            clock,
            dynamo,
            other,
            gated,
            channel: channel.connect().await.unwrap(),
            ready: Some(ready),
            stop: Some(stop),
            server,
        }
    }

    /// The limits were reached.
    pub fn ready(&mut self) {
        self.ready.take().unwrap().send(()).unwrap();
    }

    /// Ends the server.
    pub async fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.channel = Channel::from_static("http://127.0.0.1:1").connect_lazy();
        (&mut self.server).await.unwrap();
    }

    /// Calls Envoy's method. No answer is ever UNKNOWN.
    pub async fn call(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let client = RateLimitServiceClient::new(self.channel.clone());
        Self::send(client, tonic::Request::new(request)).await
    }

    /// Calls with a deadline, which goes along as `grpc-timeout`.
    pub async fn call_within(
        &self,
        request: RateLimitRequest,
        timeout: Duration,
    ) -> Result<RateLimitResponse, Status> {
        let mut request = tonic::Request::new(request);
        request.set_timeout(timeout);
        // Unlike a channel, this client does not watch the deadline itself.
        let client = legacy::Client::builder(TokioExecutor::new())
            .http2_only(true)
            .build_http::<tonic::body::Body>();
        let client = RateLimitServiceClient::with_origin(client, self.origin.clone());
        Self::send(client, request).await
    }

    async fn send<C>(
        mut client: RateLimitServiceClient<C>,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<RateLimitResponse, Status>
    where
        C: GrpcService<tonic::body::Body>,
        C::Error: Into<StdError>,
        C::ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        <C::ResponseBody as http_body::Body>::Error: Into<StdError> + Send,
    {
        let sent = request.get_ref().descriptors.len();
        let response = client.should_rate_limit(request).await?.into_inner();
        assert_ne!(response.overall_code(), Code::Unknown, "it would pass");
        assert_eq!(response.statuses.len(), sent, "one status per descriptor");
        Ok(response)
    }

    /// The tokens that a limit has now, as another process sees them.
    pub async fn left(&self, entity: &str, resource: &str, limit: &str) -> i64 {
        let limits = match limit {
            "tpd" => weirgate::Limit::per_day("tpd", 1_000),
            _ => weirgate::Limit::per_day(limit, 10),
        };
        let peek = self.other.peek(entity, resource).limits(&[limits.unwrap()]);
        let balances = peek.send().await.unwrap();
        balances.limit(limit).unwrap().available.whole_tokens()
    }

    /// Consumption of a limit, and the acquires, as the item counts them.
    pub fn counted(&self, entity: &str, resource: &str, limit: &str) -> (i64, i64) {
        let pk = format!("default/BUCKET#{entity}#{resource}#0");
        let item = self.dynamo.item(&pk, "#STATE");
        let number = |name: &str| -> i64 {
            let text = item[name]["N"].as_str().unwrap_or("0");
            text.parse().unwrap()
        };
        let consumed = MilliTokens(number(&format!("b_{limit}_tc")));
        (consumed.whole_tokens(), number("takes"))
    }
}

/// A request of the domain `edge`.
pub fn request(descriptors: impl IntoIterator<Item = RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors: descriptors.into_iter().collect(),
        hits_addend: 0,
    }
}

/// A descriptor of these entries.
pub fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry =
        |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    }
}

/// A descriptor with hits of its own.
pub fn hits(entries: &[(&str, &str)], hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value: hits }), ..descriptor(entries) }
}

/// A descriptor that gives hits back.
pub fn refund(entries: &[(&str, &str)], tokens: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..hits(entries, tokens) }
}

/// A header of the answer.
pub fn header<'a>(response: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    let mut headers = response.response_headers_to_add.iter();
    let found = headers.find(|header| header.key == name)?;
    Some(&found.value)
}

/// The codes of the statuses.
pub fn codes(response: &RateLimitResponse) -> Vec<Code> {
    response.statuses.iter().map(DescriptorStatus::code).collect()
}
