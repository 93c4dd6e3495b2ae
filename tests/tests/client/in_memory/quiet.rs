//! The embedded DynamoDB, reached without changing the thread's random numbers: the SDK draws one
//! for each request, and the table in memory draws none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_sdk_dynamodb::config::{HttpClient, RuntimeComponents};
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use weirgate::FakeClock;
use weirgate_store::Table;
use weirgate_testkit::Dynamo;

#[derive(Debug, Clone)]
struct Quiet {
    dynamo: Dynamo,
    /// What one request adds to the state of the thread's generator, which is a counter.
    drawn: Arc<AtomicU64>,
}

/// Returns the table, after the first request, which also draws for the credentials.
pub async fn quiet(dynamo: &Dynamo, clock: &FakeClock) -> Table {
    let drawn = Arc::default();
    let transport = Quiet {
        dynamo: dynamo.clone(),
        drawn: Arc::clone(&drawn),
    };
    let table = Dynamo::reached_by(transport, clock.clone()).await;
    table.warm().await.unwrap();
    let before = fastrand::get_seed();
    table.warm().await.unwrap();
    drawn.store(fastrand::get_seed().wrapping_sub(before), Ordering::Relaxed);
    table
}

impl HttpClient for Quiet {
    fn http_connector(
        &self,
        _: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

impl HttpConnector for Quiet {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let drawn = self.drawn.load(Ordering::Relaxed);
        fastrand::seed(fastrand::get_seed().wrapping_sub(drawn));
        self.dynamo.call(request)
    }
}
