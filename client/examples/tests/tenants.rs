//! Keys of a client that wants the limits of others, or new ones.

use weirgate::testing::TestTable;

use super::*;

#[tokio::test(start_paused = true)]
async fn only_a_known_key_names_a_user_and_all_users_stay_within_their_organization() {
    let limiter = TestTable::new().limiter().await;
    let users = ["acme-ann", "acme-bob"];
    organization(&limiter, "acme", 10, &users)
        .await
        .expect("the table is there");
    for key in [
        "",
        "acme",
        "acme-ann",
        "acme-eve",
        "key-of-ann ",
        "KEY-OF-ANN",
        "key-of-ann\0",
        "initech-tim",
    ] {
        assert_eq!(user_of(key), None, "{key:?}");
    }
    let mut granted = 0;
    for key in ["key-of-ann", "key-of-bob"].iter().cycle().take(40) {
        let user = user_of(key).expect("a known key");
        let decision = limiter.acquire(user, "api").take("calls", 1).send().await;
        granted += i64::from(decision.expect("a decision").is_granted());
    }
    assert_eq!(granted, 10, "the organization's");
}
