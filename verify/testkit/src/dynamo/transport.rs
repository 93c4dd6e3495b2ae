//! Requests and responses as the SDK sends and reads them.

use std::sync::Arc;

use aws_smithy_runtime_api::client::http::{HttpConnector, SharedHttpConnector, http_client_fn};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_types::DateTime;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::date_time::Format;
use serde_json::Value;
use weirgate_shared::EpochMillis;
use weirgate_store::{Clock, ConnectOptions, Connection, Table, connect};

/// The table every test uses.
pub(crate) const TABLE: &str = "weirgate";

/// The table, reached through a transport, by the one constructor of SDK clients.
pub(crate) async fn table(transport: impl HttpConnector + 'static, clock: Arc<dyn Clock>) -> Table {
    Table::new(connected(transport, clock).await, TABLE)
}

pub(crate) async fn connected(
    transport: impl HttpConnector + 'static,
    clock: Arc<dyn Clock>,
) -> Connection {
    let connector = SharedHttpConnector::new(transport);
    let http_client = Some(http_client_fn(move |_, _| connector.clone()));
    let local_endpoint = Some("http://dynamo.invalid".to_owned());
    connect(ConnectOptions { http_client, local_endpoint, clock, ..ConnectOptions::default() })
        .await
}

/// A request as it arrives.
#[derive(Debug, Clone)]
pub struct Request {
    /// The operation.
    pub operation: String,
    /// Its fields.
    pub body: Value,
    /// When, as its signature says.
    pub(super) signed: String,
}

impl Request {
    /// Reads what the SDK sends.
    pub fn read(request: &HttpRequest) -> Self {
        let header = |name| request.headers().get(name).unwrap_or_default();
        let operation = header("x-amz-target").rsplit('.').next().unwrap_or_default().to_owned();
        let body = serde_json::from_slice(request.body().bytes().unwrap_or_default())
            .expect("the SDK sends JSON");
        Self { operation, body, signed: header("x-amz-date").to_owned() }
    }
}

/// An answer as the SDK reads it, dated if there is a clock to date it by.
pub(super) fn response((status, body): (u16, String), now: Option<EpochMillis>) -> HttpResponse {
    let mut response =
        HttpResponse::new(status.try_into().expect("a status is a status"), SdkBody::from(body));
    if let Some(now) = now {
        let date = DateTime::from_secs(now.0.div_euclid(1000))
            .fmt(Format::HttpDate)
            .expect("a date of our time");
        response.headers_mut().insert("date", date);
    }
    response
}
