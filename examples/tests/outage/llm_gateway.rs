//! The table fails while the vendor works.

#[path = "../attack/llm_gateway.rs"]
mod attack;

use tokio::time::sleep;
use weirgate::testing::TestTable;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_customer_gets_its_answer_although_the_settlement_fails() {
    let table = TestTable::new();
    let limiter = table.limiter().await;
    configure(&limiter).await.expect("the table is there");
    let vendor = Vendor::default();
    let prompt = "word".repeat(900);
    let outage = async {
        while vendor.running.load(Ordering::Relaxed) == 0 {
            sleep(Duration::from_millis(1)).await; // in paused time
        }
        table.set_unavailable(true);
    };
    let (answer, ()) = tokio::join!(complete(&limiter, &vendor, "key-of-acme", &prompt), outage);
    let answer = answer.expect("the vendor has answered");
    assert_eq!(answer, "200, estimated 1900, used 1125");

    table.set_unavailable(false);
    let leases = limiter.leases("openai", "gpt-4").await;
    let leases = leases.expect("the table is there").items.len();
    assert_eq!(leases, 1, "the settlement has failed");
    sleep(Duration::from_secs(30)).await;
    let after = complete(&limiter, &vendor, "key-of-acme", &prompt).await;
    assert!(after.is_ok_and(|after| after.starts_with("200, ")));
}
