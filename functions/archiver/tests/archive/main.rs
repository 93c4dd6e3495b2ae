//! The archiver on events of a stream, with S3 on a local port that fails as S3 can.

mod expired;
mod s3;

use std::time::{Duration, SystemTime};

use s3::{Fault, serve};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::Instant;
use weirgate_archiver::{Bucket, Config, Handled, Invocation, handle};

/// An event with the deletions of these audit events of the system; numbers below 100.
fn event(ids: &[u32]) -> String {
    let record = |id: &u32| {
        let (pk, sk) = (
            "prod/AUDIT##SYSTEM",
            format!("#AUDIT#01JDGPAWQR00000000000000{id:02}"),
        );
        json!({
            "eventName": "REMOVE",
            "userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"},
            "dynamodb": {
                "Keys": {"PK": {"S": pk}, "SK": {"S": sk}},
                "OldImage": {
                    "PK": {"S": pk}, "SK": {"S": sk}, "action": {"S": "purge"}, "principal": {"S": "ops"},
                },
                "SequenceNumber": format!("1000000000000000000{id:02}"),
            },
        })
    };
    json!({"Records": ids.iter().map(record).collect::<Vec<_>>()}).to_string()
}

async fn deliver(event: &str, config: &Config) -> Handled {
    let invocation = Invocation {
        time: SystemTime::now(),
        deadline: Instant::now() + Duration::from_secs(60),
    };
    handle(event, &Bucket::new(config), invocation)
        .await
        .unwrap()
}

fn failed(handled: &Handled) -> Value {
    serde_json::to_value(&handled.response).unwrap()
}

#[tokio::test]
async fn a_batch_that_comes_again_writes_nothing_twice() {
    let (stored, config) = serve().await;
    let first = deliver(&event(&[1, 2, 3]), &config).await;
    assert_eq!(
        (first.summary.archived, first.summary.already_there),
        (3, 0)
    );
    let paths: Vec<_> = stored.lock().unwrap().objects.keys().cloned().collect();
    assert_eq!(
        paths[0],
        "/archive/audit/prod/system/01JDGPAWQR0000000000000001.json"
    );
    // Cut differently, with one more.
    let again = deliver(&event(&[2, 3, 4]), &config).await;
    assert_eq!(
        (again.summary.archived, again.summary.already_there),
        (1, 2)
    );
    assert_eq!(failed(&again), json!({"batchItemFailures": []}));
    let stored = stored.lock().unwrap();
    assert_eq!((stored.objects.len(), stored.writes), (4, 4));
    let body: Value = serde_json::from_str(&stored.objects[&paths[0]]).unwrap();
    assert_eq!(body["event"]["change"]["kind"], "purged");
}

#[tokio::test]
async fn each_event_that_is_not_archived_is_named_and_comes_again() {
    for status in [403, 404, 409, 500, 503] {
        let (stored, config) = serve().await;
        stored.lock().unwrap().faults = vec![Fault::Status(status)];
        let first = deliver(&event(&[1]), &config).await;
        assert_eq!(
            (first.summary.failed, first.summary.archived),
            (1, 0),
            "{status}"
        );
        let named = json!({"batchItemFailures": [{"itemIdentifier": "100000000000000000001"}]});
        assert_eq!(failed(&first), named);
        assert!(stored.lock().unwrap().objects.is_empty());
        let again = deliver(&event(&[1]), &config).await;
        assert_eq!(
            (again.summary.failed, again.summary.archived),
            (0, 1),
            "{status}"
        );
    }
}

#[tokio::test]
async fn an_object_whose_response_is_lost_is_there_when_its_event_comes_again() {
    let (stored, config) = serve().await;
    stored.lock().unwrap().faults = vec![Fault::LoseAnswer];
    let first = deliver(&event(&[1]), &config).await;
    assert_eq!(
        (first.summary.failed, stored.lock().unwrap().writes),
        (1, 1)
    );
    let again = deliver(&event(&[1]), &config).await;
    assert_eq!(
        (again.summary.already_there, stored.lock().unwrap().writes),
        (1, 1)
    );
    assert_eq!(failed(&again), json!({"batchItemFailures": []}));
}

#[tokio::test]
async fn nothing_that_listens_is_a_failure_of_each_event() {
    let (_, mut config) = serve().await;
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
    config.endpoint = Some(format!("http://{}", unused.local_addr().unwrap()));
    drop(unused);
    let handled = deliver(&event(&[1, 2]), &config).await;
    assert_eq!(
        (
            handled.summary.failed,
            handled.response.batch_item_failures.len()
        ),
        (2, 2)
    );
}

#[tokio::test]
async fn what_does_not_answer_before_the_deadline_comes_again() {
    let (_, mut config) = serve().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    config.endpoint = Some(format!("http://{}", silent.local_addr().unwrap()));
    let invocation = Invocation {
        time: SystemTime::now(),
        deadline: Instant::now() + Duration::from_millis(100),
    };
    let handled = handle(&event(&[1]), &Bucket::new(&config), invocation)
        .await
        .unwrap();
    assert_eq!(handled.summary.failed, 1);
}

#[tokio::test]
async fn the_sample_event_is_archived() {
    let (stored, config) = serve().await;
    let event = include_str!("../../../../events/archiver-expired.json");
    let summary = deliver(event, &config).await.summary;
    assert_eq!((summary.archived, summary.unreadable), (1, 0));
    let stored = stored.lock().unwrap();
    let path = "/archive/audit/default/resource/gpt-4/01KAGXEDE80000000000000007.json";
    let body: Value = serde_json::from_str(&stored.objects[path]).unwrap();
    assert_eq!(body["event"]["principal"], "ops@example.com");
}
