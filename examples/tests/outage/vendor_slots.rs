//! The table fails while the vendor works.

use weirgate::testing::TestTable;

use super::*;

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
