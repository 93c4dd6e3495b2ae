//! Quotas in the table: their windows, and their names.

use serde_json::json;
use weirgate::{Config, ConfigLevel, Error, Every, Limit};
use weirgate_shared::ZONE_DATA;

use crate::fixtures::fleet::Fleet;
use crate::fixtures::stored::{configure, take_of};

fn month() -> Limit {
    let month = Every::month().on_day(15).zone("Europe/Berlin").unwrap();
    Limit::quota("tpm", 10_000, month).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_window_of_a_newer_release_is_an_error_that_names_both_releases() {
    let (fleet, [writer, reader]) = Fleet::of().await;
    configure(&writer, &ConfigLevel::System, [month()]).await;
    let mut item = fleet.dynamo.item("default/SYSTEM#", "#CONFIG");
    let tpm = &mut item["limits"]["M"]["tpm"]["M"];
    assert_eq!(tpm["w"]["S"], "month,day=15,tz=Europe/Berlin");
    assert_eq!(tpm["zd"]["S"], ZONE_DATA);
    tpm["rp"] = json!({"N": "-20127780943453397"});
    tpm["w"] = json!({"S": "month,day=15,tz=Mars/Base"});
    tpm["zd"] = json!({"S": "2041a"});
    fleet.dynamo.put(&item);
    for _ in 0..2 {
        let error = reader.acquire("e-1", "gpt-4").take("tpm", 1).send().await;
        let error = error.unwrap_err();
        assert!(matches!(error, Error::UnreadableItem { .. }), "{error}");
        for part in [
            "limits.tpm.rp",
            "\"month,day=15,tz=Mars/Base\"",
            "2041a",
            ZONE_DATA,
            "update Weirgate",
        ] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_name_of_a_rate_is_given_to_a_quota_and_to_no_slots() {
    let (_fleet, [limiter]) = Fleet::of().await;
    let level = ConfigLevel::Resource("gpt-4".try_into().unwrap());
    let rate = Limit::per_minute("tpm", 1_000).unwrap();
    configure(&limiter, &level, [rate.clone()]).await;
    assert!(take_of(&limiter, ["e-1", "gpt-4"], "tpm", 1).await.unwrap().is_granted());
    configure(&limiter, &level, [month()]).await;
    configure(&limiter, &level, [rate]).await;
    configure(&limiter, &level, [month()]).await;
    let slots = Config::of([Limit::concurrent("tpm", 5).unwrap()]);
    let error = limiter.admin().set_config(&level, &slots).await.unwrap_err();
    let must = "limit \"tpm\" of resource gpt-4 must stay a rate as in the bucket of e-1 on gpt-4, got slots";
    assert!(error.to_string().starts_with(must), "{error}");
}
