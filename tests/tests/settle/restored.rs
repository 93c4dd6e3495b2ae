//! Grants restored from tokens, in another process than the one that acquired.

use weirgate::{Decision, Error, Limit, Settlement};

use crate::fixtures::fleet::{Fleet, granted, leased, secs, tokens};

fn limits() -> [Limit; 2] {
    [
        Limit::per_day("tpd", 1_000).unwrap(),
        Limit::concurrent("slots", 4).unwrap(),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_restored_grant_adjusts_and_rolls_back_in_another_process() {
    let fleet = Fleet::new().await;
    let (one, other) = (fleet.limiter().await, fleet.limiter().await);
    let token = granted(&one, &limits(), &[("tpd", 500)]).await.into_token();
    drop(one);
    let mut grant = other.restore_grant(&token).unwrap();
    assert_eq!(grant.amount("tpd"), tokens(500));
    assert_eq!(grant.adjust("tpd", 200).await.unwrap(), Settlement::Applied);
    assert_eq!(fleet.tk_tc("tpd").await, (800_000, 200_000));
    // The next token has the new amount.
    let token = grant.into_token();
    let grant = other.restore_grant(&token).unwrap();
    assert_eq!(grant.amount("tpd"), tokens(200));
    assert_eq!(grant.roll_back().await.unwrap(), Settlement::Applied);
    assert_eq!(fleet.tk_tc("tpd").await, (1_000_000, 0));
}

/// I4: neither the token's origin nor a restored grant that is dropped releases the lease, and it
/// ends once.
#[tokio::test(start_paused = true)]
async fn i4_only_a_release_ends_a_restored_lease_and_only_once() {
    let fleet = Fleet::new().await;
    let (one, other) = (fleet.limiter().await, fleet.limiter().await);
    let grant = leased(&one, &limits(), &[("slots", 3)], secs(60)).await;
    let (id, until) = (grant.lease_id().unwrap().to_owned(), grant.expires_at());
    let token = grant.into_token();
    drop(other.restore_grant(&token).unwrap());
    tokio::time::sleep(secs(1)).await;
    assert_eq!(fleet.tk_tc("slots").await.0, 1_000, "still held");

    let mut grant = other.restore_grant(&token).unwrap();
    assert_eq!((grant.lease_id(), grant.expires_at()), (Some(&*id), until));
    assert_eq!(grant.renew(secs(120)).await.unwrap(), Settlement::Applied);
    assert!(grant.expires_at() > until);
    assert_eq!(grant.release().await.unwrap(), Settlement::Applied);
    assert_eq!(fleet.tk_tc("slots").await.0, 4_000);
    let again = other.restore_grant(&token).unwrap();
    assert_eq!(again.release().await.unwrap(), Settlement::LeaseGone);
    assert_eq!(fleet.tk_tc("slots").await.0, 4_000);
}

#[tokio::test(start_paused = true)]
async fn a_restored_grant_takes_more_by_the_limits_of_its_acquire() {
    let fleet = Fleet::new().await;
    let (one, other) = (fleet.limiter().await, fleet.limiter().await);
    let token = granted(&one, &limits(), &[("tpd", 500)]).await.into_token();
    let mut grant = other.restore_grant(&token).unwrap();
    assert!(grant.take_more("tpd", 300).await.unwrap().is_granted());
    let Decision::Denied(_) = grant.take_more("tpd", 300).await.unwrap() else {
        panic!("200 are left");
    };
    let grant = other.restore_grant(&grant.into_token()).unwrap();
    assert_eq!(grant.amount("tpd"), tokens(800));
    assert_eq!(grant.roll_back().await.unwrap(), Settlement::Applied);
    assert_eq!(fleet.tk_tc("tpd").await, (1_000_000, 0));
    assert_eq!(fleet.bucket().await.acquires.total, 1, "one acquire");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_no_token_or_out_of_range_is_refused() {
    use weirgate_store::base64;
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter().await;
    let token = leased(&limiter, &limits(), &[("tpd", 5), ("slots", 1)], secs(60))
        .await
        .into_token();
    let json = String::from_utf8(base64::decode(&token).unwrap()).unwrap();
    let refused = |token: &str| match limiter.restore_grant(token) {
        Err(Error::Invalid(text)) => text,
        other => panic!("{token}: {other:?}"),
    };
    for text in ["", "a token", "AAAA", "e30="] {
        assert!(refused(text).contains("not a grant token"), "{text}");
    }
    for (from, to, because) in [
        ("\"format\":1", "\"format\":2", "not a grant token"),
        ("\"namespace\":\"", "\"namespace\":\"x", "namespace"),
        ("\"tpd\":5000", "\"tpd\":-1", "amount"),
        ("\"tpd\":5000", "\"tpd\":9000000000000000000", "amount"),
        ("\"shards\":1", "\"shards\":65", "shard"),
        ("\"shard\":0", "\"shard\":1", "shard"),
        ("\"period_ms\":86400000", "\"period_ms\":0", "limit"),
        ("\"lease\":[\"", "\"lease\":[\"#", "lease"),
        ("]}]}]", "0]}]}]", "expiry"),
    ] {
        let changed = json.replacen(from, to, 1);
        assert_ne!(changed, json, "{json} has no {from}");
        let text = refused(&base64::encode(changed));
        assert!(text.contains(because), "{from} to {to}: {text}");
    }
    let _ = limiter.restore_grant(&token).unwrap();
}
