//! Events of a sender that wants more than a slot.

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
