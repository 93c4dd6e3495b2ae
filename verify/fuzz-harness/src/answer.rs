//! What DynamoDB answers, read by the real SDK: items, errors, cancelled transactions, dates.

use std::sync::Arc;

use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpClient, SharedHttpConnector, http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_types::body::SdkBody;
use weirgate_shared::write::{Action, Condition, Path, Update};
use weirgate_shared::{EpochMillis, ItemKey, WriteId};
use weirgate_store::{
    ActionOutcome, Clock, ConnectOptions, Item, Order, Query, RetryPolicy, ReturnValues, SortKeys,
    Table, TransactOutcome, WriteOutcome, connect,
};

/// Asks a DynamoDB that answers every request with these bytes: a line with the status, one with
/// the date, and the body.
pub fn answer(bytes: &[u8]) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime of one thread is made").block_on(ask(bytes));
}

async fn ask(bytes: &[u8]) {
    let mut lines = bytes.splitn(3, |byte| *byte == b'\n');
    let status = lines
        .next()
        .and_then(|line| std::str::from_utf8(line).ok())
        .and_then(|line| line.parse().ok());
    let date = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let body = lines.next().unwrap_or_default().to_vec();
    // What is no status, or is on its way to another answer, is the HTTP client's to refuse.
    let status: u16 = status.filter(|status| (200..600).contains(status)).unwrap_or(200);
    let http_client = Some(Says { status, date, body }.client());
    let local_endpoint = Some("http://dynamo.invalid".to_owned());
    let clock = Arc::new(Still);
    let connected =
        connect(ConnectOptions { http_client, local_endpoint, clock, ..ConnectOptions::default() })
            .await;
    let table = Table::new(connected, "t");

    let key = ItemKey { pk: "n/BUCKET#e#r#0".to_owned(), sk: "#STATE".to_owned() };
    if let Ok(items) = table.read(std::slice::from_ref(&key)).await {
        items.iter().for_each(read);
    }
    let conditions = vec![Condition::Present(Path::of("rf"))];
    let update = Update { key, conditions, changes: vec![] };
    match table.update_with(&update, ReturnValues::AllNew, RetryPolicy::AlsoUnconfirmed).await {
        Ok(WriteOutcome::Applied(item) | WriteOutcome::ConditionFailed(item)) => {
            item.iter().for_each(read)
        }
        Err(error) => drop(error.to_string()),
    }
    match table
        .transact_with(
            &[Action::Update(update)],
            &WriteId::from_bits(1),
            RetryPolicy::AlsoUnconfirmed,
        )
        .await
    {
        Ok(TransactOutcome::Applied) => {}
        Ok(TransactOutcome::ConditionFailed(parts)) => {
            let lost = |part: &ActionOutcome| {
                if let ActionOutcome::ConditionFailed(item) = part {
                    item.iter().for_each(read)
                }
            };
            parts.iter().for_each(lost);
        }
        Err(error) => drop(error.to_string()),
    }
    let listing = Query::new("n/ENTITY#e", SortKeys::StartingWith("#"));
    if let Ok(page) = table.query(listing, None).await {
        page.items.iter().for_each(read);
    }
    let _ = table.query_due("DUE#00", EpochMillis(0), Order::OldestFirst, 10, None).await;
}

fn read(item: &Item) {
    let _ = (item.bucket().is_ok(), item.live().is_ok(), item.snapshot().is_ok(), item.is_merged());
    let _ = (item.key(), item.pk(), item.attributes().count());
}

/// Gives one answer to everything.
#[derive(Debug, Clone)]
pub(crate) struct Says {
    pub(crate) status: u16,
    pub(crate) date: String,
    pub(crate) body: Vec<u8>,
}

impl Says {
    pub(crate) fn client(self) -> SharedHttpClient {
        let connector = SharedHttpConnector::new(self);
        http_client_fn(move |_, _| connector.clone())
    }
}

impl HttpConnector for Says {
    fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
        let status = self.status.try_into().expect("it is within the numbers of statuses");
        let mut response = HttpResponse::new(status, SdkBody::from(self.body.clone()));
        // What cannot stand in a header never comes in one.
        let _ = response.headers_mut().try_insert("date", self.date.clone());
        HttpConnectorFuture::ready(Ok(response))
    }
}

/// A machine whose clock stands still, in 2026.
#[derive(Debug)]
pub(crate) struct Still;

impl Clock for Still {
    fn now(&self) -> EpochMillis {
        EpochMillis(1_795_195_341_000)
    }
}
