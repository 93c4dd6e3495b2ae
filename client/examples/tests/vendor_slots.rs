//! A sender that wants more than a slot, and a table that fails while the vendor works.

use weirgate::testing::TestTable;

use super::*;

/// Whatever an event has, it takes one slot, and no error calls the vendor without one.
#[tokio::test(start_paused = true)]
async fn no_event_has_a_say_in_its_slots() {
    let table = TestTable::new();
    let limiter = table.limiter().await;
    let vendor = Arc::new(Vendor::default());
    let events = [
        json!(null),
        json!({"slots": 0, "calls": -1, "entity": "other", "lease_ms": 1}),
        json!({"vendor": "other", "resource": "other"}),
        json!([]),
        json!("x".repeat(100_000)),
    ];
    let mut all = tokio::task::JoinSet::new();
    for event in events.iter().cycle().take(20).cloned() {
        let (limiter, vendor) = (limiter.clone(), Arc::clone(&vendor));
        all.spawn(async move {
            handle(&limiter, &vendor, event)
                .await
                .map_err(|error| error.to_string())
        });
    }
    for answer in all.join_all().await {
        let answer = answer.expect("a decision");
        assert!(
            answer["status"] == 200 || answer["status"] == 429,
            "{answer}"
        );
    }
    assert_eq!(vendor.most_running(), 2);
    table.set_unavailable(true);
    assert!(
        handle(&limiter, &vendor, json!({})).await.is_err(),
        "no slot, no call"
    );
}

#[tokio::test(start_paused = true)]
async fn an_event_is_served_although_its_slot_cannot_be_released() {
    let table = TestTable::new();
    let limiter = table.limiter().await;
    let vendor = Vendor::default();
    let outage = async {
        while vendor.running.load(Ordering::Relaxed) == 0 {
            sleep(Duration::from_millis(1)).await; // in paused time
        }
        table.set_unavailable(true);
    };
    let (answer, ()) = tokio::join!(handle(&limiter, &vendor, json!({"event": 7})), outage);
    let answer = answer.expect("a retry of the event would call the vendor again");
    assert_eq!(answer["status"], 200);

    table.set_unavailable(false);
    let leases = limiter.leases("vendor", "search").await;
    let leases = leases.expect("the table is there");
    assert_eq!(leases.items.len(), 1, "the release has failed");
}
