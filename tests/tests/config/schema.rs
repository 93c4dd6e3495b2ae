//! A namespace stores the version of its schema, and processes with another version do not write to
//! it.

use crate::fixtures::fleet;
use crate::fixtures::fleet::Fleet;
use crate::fixtures::stored::{child, configure, configured, rpm, take};
use serde_json::json;
use weirgate::{Config, ConfigLevel, Error};
use weirgate_shared::SCHEMA_VERSION;
use weirgate_store::ErrorKind;
use weirgate_testkit::{Dynamo, Fault};
use weirgate_tests::stored::set_entity;

const PK: &str = "default/SYSTEM#";
const SK: &str = "#VERSION";

fn other_version(error: &Error) -> bool {
    let text = error.to_string();
    matches!(error, Error::UnsupportedSchema { found: 1, supported: SCHEMA_VERSION, .. })
        && text.contains("default")
        && text.contains('1')
}

#[tokio::test(start_paused = true)]
async fn the_first_change_says_the_version_and_no_other_touches_it() {
    let (fleet, [limiter]) = Fleet::of().await;
    limiter.check().await.unwrap();
    let _ = take(&limiter, 1).await.unwrap_err();
    assert!(fleet.dynamo.item(PK, SK).is_null(), "looking changes nothing");
    set_entity(&limiter, &child("e-1", "team")).await;
    let item = fleet.dynamo.item(PK, SK);
    assert_eq!(item["schema"]["N"], SCHEMA_VERSION.to_string());
    // Changes that all touch one item would stand in each other's way.
    fleet.dynamo.fail_transactions(|request| {
        assert!(!request.to_string().contains(SK), "{request}");
        None
    });
    configured(&fleet, &ConfigLevel::System, [rpm(5)]).await;
    configure(&limiter, &ConfigLevel::System, [rpm(6)]).await;
    limiter.check().await.unwrap();
    assert_eq!(fleet.dynamo.item(PK, SK), item);
}

#[tokio::test(start_paused = true)]
async fn another_version_is_an_error_before_any_write() {
    let fleet = Fleet::new().await;
    configured(&fleet, &ConfigLevel::System, [rpm(5)]).await;
    fleet.dynamo.put(&json!({"PK": {"S": PK}, "SK": {"S": SK}, "schema": {"N": "1"}}));
    let limiter = fleet.limiter().await;
    let before = fleet.dynamo.items();
    let _ = fleet.dynamo.take_operations();
    for _ in 0..2 {
        assert!(other_version(&take(&limiter, 1).await.unwrap_err()));
    }
    assert!(other_version(
        &limiter.admin().set_config(&ConfigLevel::System, &Config::of([rpm(6)])).await.unwrap_err()
    ));
    assert!(other_version(&limiter.admin().delete_config(&ConfigLevel::System).await.unwrap_err()));
    assert!(other_version(&limiter.admin().set_entity(&child("e-1", "team")).await.unwrap_err()));
    assert!(other_version(&limiter.check().await.unwrap_err()));
    assert!(fleet.dynamo.take_operations().keys().all(|operation| operation == "BatchGetItem"));
    assert_eq!(fleet.dynamo.items(), before);
}

#[tokio::test(start_paused = true)]
async fn of_two_first_changes_at_once_both_happen() {
    let fleet = Fleet::slow(fleet::millis(3)).await;
    let (one, other) = (fleet.limiter().await, fleet.limiter().await);
    let parent = child("e-1", "team");
    let config = Config::of([rpm(5)]);
    let (set, made) = tokio::join!(
        one.admin().set_config(&ConfigLevel::System, &config),
        other.admin().set_entity(&parent)
    );
    assert!(set.is_ok() && made.is_ok());
    assert_eq!(one.admin().config(&ConfigLevel::System).await.unwrap(), Some(config));
    assert_eq!(other.admin().entity(&parent.id).await.unwrap(), Some(parent));
}

#[tokio::test(start_paused = true)]
async fn a_check_is_one_read_and_says_what_is_wrong() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = fleet.dynamo.take_requests();
    limiter.check().await.unwrap();
    assert_eq!(fleet.dynamo.take_requests(), 1);
    let kind = |error: Error| match error {
        Error::Store(error) => error.kind,
        other => panic!("{other}"),
    };
    fleet.fail_reads(Fault::Forbidden);
    assert_eq!(kind(limiter.check().await.unwrap_err()), ErrorKind::AccessDenied);
    let nowhere = Dynamo::empty().table().await;
    let limiter = fleet.limiter_with(|builder| builder.table(nowhere)).await;
    assert_eq!(kind(limiter.check().await.unwrap_err()), ErrorKind::TableNotFound);
}
