//! A client that wants answers without a limit, and a table that fails while the vendor works.

use tokio::time::sleep;
use weirgate::testing::TestTable;

use super::*;

/// Initech has 10,000 tokens an hour. Whatever its prompts are, it gets no more.
#[tokio::test(start_paused = true)]
async fn no_prompt_is_cheaper_than_it_is() {
    let limiter = TestTable::new().limiter().await;
    configure(&limiter).await.expect("the table is there");
    let vendor = Vendor::default();
    let prompts = [
        "".to_owned(),
        "-1".to_owned(),
        "tokens=0".to_owned(),
        "\u{0}".to_owned(),
        "w".repeat(4_000),
        "\u{1F980}".repeat(9_000),
        "w".repeat(10_000_000),
    ];
    let mut served = 0;
    for prompt in prompts.iter().cycle().take(70) {
        let answer = complete(&limiter, &vendor, "key-of-initech", prompt).await;
        served += i64::from(answer.expect("a decision").starts_with("200"));
    }
    let usage = limiter
        .usage("initech", "gpt-4", Window::Daily, weirgate::testing::START)
        .await;
    let used = usage.expect("it can be read").usage.tokens["tokens"].whole_tokens();
    assert!(
        (1..=70).contains(&served) && used <= 12_250,
        "{served} answers, {used} tokens"
    );
}

#[tokio::test(start_paused = true)]
async fn no_key_but_a_known_one_reaches_the_vendor() {
    let limiter = TestTable::new().limiter().await;
    configure(&limiter).await.expect("the table is there");
    let vendor = Vendor::default();
    for key in [
        "",
        "acme",
        "key-of-acme ",
        "KEY-OF-ACME",
        "key-of-openai",
        "openai",
        "key-of-\u{0}",
        "made-up",
    ] {
        let answer = complete(&limiter, &vendor, key, "a prompt").await;
        assert_eq!(answer.expect("a decision"), "401, unknown key", "{key:?}");
    }
    assert_eq!(vendor.most_running.load(Ordering::Relaxed), 0);
}

/// Without limits in the table, and without a table, no request passes.
#[tokio::test(start_paused = true)]
async fn no_error_passes_a_request() {
    let table = TestTable::new();
    let (limiter, vendor) = (table.limiter().await, Vendor::default());
    assert!(
        complete(&limiter, &vendor, "key-of-acme", "a prompt")
            .await
            .is_err()
    );
    configure(&limiter).await.expect("the table is there");
    table.set_unavailable(true);
    assert!(
        complete(&limiter, &vendor, "key-of-acme", "a prompt")
            .await
            .is_err()
    );
    assert_eq!(vendor.most_running.load(Ordering::Relaxed), 0);
}

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
