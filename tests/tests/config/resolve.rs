//! Which limits are in force for an acquire that brings none.

use crate::fixtures::fleet;
use crate::fixtures::fleet::{Fleet, millis, pass, secs, tokens};
use crate::fixtures::stored::{
    configure, configured, entity, of_entity, resource, rpm, take, take_of,
};
use weirgate::{Config, ConfigLevel, ConfigStatus, Decision, Error, Limit};
use weirgate_tests::assert_has;
use weirgate_tests::stored::set_config;

/// Every level that an entity and a resource have, the one that wins first.
fn levels() -> [ConfigLevel; 4] {
    ConfigLevel::of(&entity("e-1"), &resource("gpt-4"))
}

#[tokio::test(start_paused = true)]
async fn other_entities_and_resources_are_none_of_its_business() {
    let (_fleet, [limiter]) = Fleet::of().await;
    let [own, of_entity, of_resource, _] = levels();
    for level in [own, of_entity, of_resource] {
        configure(&limiter, &level, [rpm(5)]).await;
    }
    let error = take_of(&limiter, ["e-2", "gpt-5"], "rpm", 1).await.unwrap_err();
    assert!(matches!(&error, Error::NotConfigured { entity, resource, missing_plan: None }
        if entity.as_str() == "e-2" && resource.as_str() == "gpt-5"));
    assert_eq!(
        error.to_string(),
        "no limits are configured for entity e-2 on resource gpt-5: run `weirgate limits set \
         --resource gpt-5 rpm=600/minute`, or give limits with the call"
    );
    assert!(!error.is_transient() && !error.is_unknown());
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_not_configured_is_refused_by_the_name_of_its_level() {
    let fleet = Fleet::new().await;
    let limiter = configured(&fleet, &of_entity("e-1"), [rpm(5)]).await;
    let _ = take(&limiter, 1).await.unwrap();
    let _ = fleet.writes();
    let error = take_of(&limiter, ["e-1", "gpt-4"], "tpm", 1).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "limit \"tpm\" is not among those configured for entity e-1: rpm; take one of them, or configure it"
    );
    assert_eq!(fleet.writes(), 0);
}

/// Otherwise a limit that was just added could not be taken for a minute.
#[tokio::test(start_paused = true)]
async fn a_limit_that_is_new_is_found_before_it_is_refused() {
    let fleet = Fleet::new().await;
    let admin = configured(&fleet, &ConfigLevel::System, [rpm(5)]).await;
    let limiter = fleet.limiter().await;
    let _ = take(&limiter, 1).await.unwrap();
    set_config(
        &admin,
        &ConfigLevel::System,
        &Config::of([rpm(5), Limit::per_minute("tpm", 9).unwrap()]),
    )
    .await;
    pass(secs(1)).await;
    assert!(take_of(&limiter, ["e-1", "gpt-4"], "tpm", 9).await.unwrap().is_granted());
}

#[tokio::test(start_paused = true)]
async fn what_is_disabled_gives_nothing_and_what_is_unlimited_is_not_asked() {
    let fleet = Fleet::new().await;
    let limiter = configured(&fleet, &ConfigLevel::System, [rpm(5)]).await;
    let _ = take(&limiter, 1).await.unwrap();
    let of_entity = of_entity("e-1");
    for limits in [vec![], vec![rpm(1)]] {
        let config =
            Config { class: None, limits, status: ConfigStatus::Disabled, is_shadow: false };
        set_config(&limiter, &of_entity, &config).await;
        let _ = fleet.writes();
        let Decision::Disabled(disabled) = take(&limiter, 1).await.unwrap() else {
            panic!("it is disabled")
        };
        assert_has!(disabled, entity: entity("e-1"), resource: resource("gpt-4"));
        set_config(&limiter, &of_entity, &Config { status: ConfigStatus::Unlimited, ..config })
            .await;
        let grant = limiter
            .acquire("e-1", "gpt-4")
            .take("anything", 1_000)
            .wait_up_to(secs(9))
            .send()
            .await
            .unwrap();
        let grant = grant.granted().unwrap();
        assert!(grant.limits().is_empty() && grant.lease_id().is_none());
        let _ = grant.roll_back().await.unwrap();
        assert_eq!(fleet.writes(), 0);
    }
    assert_eq!(fleet.tk_tc("rpm").await.1, 1_000);
}

#[tokio::test(start_paused = true)]
async fn a_configuration_in_shadow_mode_denies_no_request() {
    let (_fleet, [limiter]) = Fleet::of().await;
    let config = Config {
        class: None,
        limits: vec![rpm(2)],
        status: ConfigStatus::Enforced,
        is_shadow: true,
    };
    set_config(&limiter, &ConfigLevel::System, &config).await;
    for (need, would_deny) in [(2, false), (1, true), (99, true)] {
        let grant = take(&limiter, need).await.unwrap().granted().unwrap();
        assert_eq!(grant.would_deny().is_some(), would_deny, "{need}");
    }
    assert_eq!(limiter.stats().shadow_denied, 2);
}

/// "Never fits" is a permanent answer: a caller would not come again.
#[tokio::test(start_paused = true)]
async fn never_is_not_told_by_limits_that_may_have_been_raised() {
    let fleet = Fleet::new().await;
    let admin = configured(&fleet, &ConfigLevel::System, [rpm(5)]).await;
    let limiter = fleet.limiter().await;
    assert!(matches!(take(&limiter, 6).await.unwrap(), Decision::NeverFits(_)));
    let _ = fleet.dynamo.take_requests();
    pass(millis(900)).await;
    assert!(matches!(take(&limiter, 6).await.unwrap(), Decision::NeverFits(_)));
    assert_eq!(
        fleet.dynamo.take_requests(),
        0,
        "what is told again and again is not read again and again"
    );
    configure(&admin, &ConfigLevel::System, [rpm(6)]).await;
    pass(millis(100)).await;
    assert!(take(&limiter, 6).await.unwrap().is_granted());
}

/// With limits given no configuration is read, and what is configured does not count.
#[tokio::test(start_paused = true)]
async fn limits_that_are_given_overrule_what_is_configured_which_is_not_read() {
    let fleet = Fleet::new().await;
    configured(&fleet, &ConfigLevel::System, [rpm(5)]).await;
    let limiter = fleet.limiter().await;
    let read = fleet::keys_read(&fleet);
    let grant = fleet::granted(&limiter, &[rpm(50)], &[("rpm", 40)]).await;
    assert_eq!(grant.amount("rpm"), tokens(40));
    assert_eq!(
        *read.lock().unwrap(),
        ["default/SYSTEM#", fleet::PK],
        "only the switches and the bucket"
    );
}
