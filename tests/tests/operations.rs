//! What `docs/operations.md` is read on.

use std::time::Duration;

use lambda_runtime::tracing::subscriber::util::SubscriberInitExt;
use serde_json::json;
use weirgate_reconciler::{Config, Deadline, reconcile};
use weirgate_shared::{EpochMillis, Millis};
use weirgate_testkit::leased::{NOW, full, holding, key, limits, store};
use weirgate_testkit::template::properties;
use weirgate_testkit::{Dynamo, Lines};

#[tokio::test]
async fn an_undecodable_bucket_is_logged_once_an_hour_and_delays_no_other() {
    let dynamo = Dynamo::new().await;
    let table = dynamo.table().await;
    let lines = Lines::default();
    let writer = lines.clone();
    let count = || lines.of("undecodable bucket").len();
    let _guard = weirgate_runtime::subscriber("", move || writer.clone()).set_default();
    let config = Config {
        table_name: "weirgate".to_owned(),
        page: 100,
    };
    let run = async |now| {
        reconcile(
            &table,
            &config,
            &|| now,
            Deadline::after(Duration::from_secs(50)),
        )
        .await
        .unwrap()
    };

    for name in ["e-1", "e-2"] {
        store(
            &table,
            &holding(
                full(name, &limits()),
                "a",
                EpochMillis(NOW.0 - 1),
                &[("slots", 1)],
            ),
        )
        .await;
    }
    let broken = key("e-1").item_key();
    let mut item = dynamo.item(&broken.pk, &broken.sk);
    item["b_slots_cp"] = json!({"S": "many"});
    dynamo.put(&item);
    assert_eq!(
        (run(NOW).await.leases_restored, count()),
        (1, 1),
        "one line for one bucket, and the other is served"
    );
    assert_eq!(
        (run(NOW).await.undecodable, count()),
        (0, 1),
        "an unreadable item is left alone for an hour"
    );
    let hour = NOW.plus(Millis(3_600_000));
    assert_eq!(
        (run(hour).await.undecodable, count()),
        (1, 2),
        "and named again, until it is mended"
    );
}

/// AWS documents no pause between attempts, so a number of them is no time.
#[test]
fn only_age_ends_the_retries_of_a_batch() {
    let mapping = properties("Aggregator")["Events"]["Stream"]["Properties"].take();
    assert_eq!(mapping["MaximumRetryAttempts"], -1);
    let age = &mapping["MaximumRecordAgeInSeconds"];
    let page = include_str!("../../docs/operations.md");
    assert!(page.contains(&format!(
        "--maximum-retry-attempts -1 --maximum-record-age-in-seconds {age} "
    )));
    // Lambda discards every record that is older, also one that was never tried. So no less than
    // the stream keeps.
    assert_eq!(*age, 86_400);
}
