//! Lists of what the table has: buckets, leases, entities, namespaces.

use std::collections::{BTreeMap, BTreeSet};
use weirgate_tests::stored::set_entity;

use weirgate::{Entity, EntityId, Error, Limit, Page, PageToken, RateLimiter, StoredBucket};

use weirgate_tests::fleet::{Fleet, granted, leased, pass, secs, tokens};

fn rpm() -> [Limit; 1] {
    [Limit::per_minute("rpm", 60).unwrap()]
}

fn slots() -> [Limit; 2] {
    [Limit::concurrent("slots", 4).unwrap(), Limit::per_minute("rpm", 60).unwrap()]
}

async fn take(limiter: &RateLimiter, entity: &str, resource: &str, amount: i64) {
    let limits = rpm();
    let acquire = limiter.acquire(entity, resource).limits(&limits);
    let decision = acquire.take("rpm", amount).send().await.unwrap();
    assert!(decision.is_granted());
}

/// Reads all pages, each by the text of its token.
async fn all<T>(mut page: impl AsyncFnMut(Option<&PageToken>) -> Result<Page<T>, Error>) -> Vec<T> {
    let (mut items, mut after) = (vec![], None::<PageToken>);
    loop {
        let read = page(after.as_ref()).await.unwrap();
        items.extend(read.items);
        let Some(next) = read.next else { return items };
        after = Some(next.to_string().parse().unwrap());
    }
}

fn balances(buckets: &[StoredBucket]) -> BTreeMap<(String, String), i64> {
    let of = |bucket: &StoredBucket| {
        let rpm = bucket.limit("rpm").expect("each bucket has it");
        let name = (bucket.entity.to_string(), bucket.resource.to_string());
        (name, rpm.available.whole_tokens())
    };
    let balances: BTreeMap<_, _> = buckets.iter().map(of).collect();
    assert_eq!(balances.len(), buckets.len(), "each is listed once");
    balances
}

#[tokio::test(start_paused = true)]
async fn the_buckets_of_an_entity_have_balances_refilled_up_to_now() {
    let (fleet, [limiter]) = Fleet::of().await;
    let resources: Vec<_> = (0..120).map(|at| format!("model-{at:03}")).collect();
    for (resource, amount) in resources.iter().zip(1..) {
        take(&limiter, "e-1", resource, 1 + amount % 49).await;
    }
    take(&limiter, "e-10", "model-000", 60).await;
    pass(secs(5)).await;
    // A process that has seen none of them.
    let reader = fleet.limiter().await;
    let id = "e-1".try_into().unwrap();
    let buckets = all(async |after| reader.admin().entity_buckets(&id, after).await).await;
    let expected = resources.iter().zip(1..).map(|(resource, amount)| {
        let name = ("e-1".to_owned(), resource.clone());
        (name, (60 - (1 + amount % 49) + 5).min(60))
    });
    assert_eq!(balances(&buckets), expected.collect());
    let none = reader.admin().entity_buckets(&"e-2".try_into().unwrap(), None).await;
    assert!(none.unwrap().items.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_buckets_of_a_resource_are_listed_once_each_with_all_their_shards() {
    let (fleet, [limiter]) = Fleet::of().await;
    for user in 0..150 {
        take(&limiter, &format!("user-{user}"), "gpt-4", 1 + user % 50).await;
        take(&limiter, &format!("user-{user}"), "gpt-40", 1).await;
    }
    for (user, shards) in [(7, 16), (77, 32), (148, 4)] {
        let limits = rpm();
        let name = format!("user-{user}");
        let done = limiter.admin().set_shards(&name, "gpt-4", &limits, shards);
        assert_eq!(done.await.unwrap(), shards);
    }
    let reader = fleet.limiter().await;
    let resource = "gpt-4".try_into().unwrap();
    let buckets = all(async |after| reader.admin().resource_buckets(&resource, after).await).await;
    let expected = (0..150).map(|user| {
        let name = (format!("user-{user}"), "gpt-4".to_owned());
        (name, 60 - (1 + user % 50))
    });
    assert_eq!(balances(&buckets), expected.collect());
    let shards = |user: &str| {
        let of = |bucket: &&StoredBucket| bucket.entity.as_str() == user;
        buckets.iter().find(of).map(|bucket| bucket.shards)
    };
    assert_eq!(
        ["user-7", "user-77", "user-148", "user-1"].map(shards),
        [Some(16), Some(32), Some(4), Some(1)]
    );
    let entity = "user-77".try_into().unwrap();
    let of_entity = reader.admin().entity_buckets(&entity, None).await.unwrap().items;
    assert_eq!(of_entity.len(), 2, "{of_entity:?}");
}

#[tokio::test(start_paused = true)]
async fn buckets_of_a_resource_are_found_by_the_start_of_the_entitys_id() {
    let (fleet, [limiter]) = Fleet::of().await;
    for user in 0..120 {
        take(&limiter, &format!("user-{user}"), "gpt-4", 1 + user % 50).await;
    }
    take(&limiter, "user-1", "gpt-40", 1).await;
    let reader = fleet.limiter().await;
    let resource = "gpt-4".try_into().unwrap();
    let found = async |prefix: &str| {
        let page = async |after: Option<&PageToken>| {
            let admin = reader.admin();
            admin.resource_buckets_starting_with(&resource, prefix, after).await
        };
        balances(&all(page).await)
    };
    let expected = (0..120).filter(|user| user.to_string().starts_with("11")).map(|user| {
        let name = (format!("user-{user}"), "gpt-4".to_owned());
        (name, 60 - (1 + user % 50))
    });
    assert_eq!(found("user-11").await, expected.collect());
    assert!(found("user-1#").await.is_empty(), "a key is no id");
    assert_eq!(found("").await.len(), 120);

    let one = async |name: &str| {
        let id = name.try_into().unwrap();
        reader.admin().bucket(&id, &resource).await.unwrap()
    };
    let bucket = one("user-11").await.expect("it was used");
    assert_eq!((bucket.entity.as_str(), bucket.counted.acquires), ("user-11", 1));
    assert!(one("user-200").await.is_none());
}

/// Slots come back at once, and only once, although the holder releases the lease too.
#[tokio::test(start_paused = true)]
async fn i4_a_lease_is_released_by_its_id() {
    let (fleet, [holder, operator]) = Fleet::of().await;
    let grant = leased(&holder, &slots(), &[("slots", 3), ("rpm", 20)], secs(600)).await;
    let _short = leased(&holder, &slots(), &[("slots", 1)], secs(60)).await;
    let leases = operator.admin().leases("e-1", "gpt-4").await.unwrap().items;
    let [short, long] = &leases[..] else {
        panic!("two leases, not {leases:?}");
    };
    assert!(short.expires_at < long.expires_at, "the first to expire first");
    assert_eq!(grant.lease_id(), Some(long.id.as_str()));
    assert_eq!(grant.expires_at(), Some(long.expires_at));
    assert_eq!((long.owner.as_str(), long.shard), ("test", 0));
    assert_eq!(
        long.tokens,
        [("rpm".try_into().unwrap(), tokens(20)), ("slots".try_into().unwrap(), tokens(3))].into()
    );
    let entity = "e-1".try_into().unwrap();
    let stored = operator.admin().entity_buckets(&entity, None).await.unwrap();
    assert_eq!(stored.items[0].leases, 2);

    let release =
        async |id: &str| operator.admin().release_lease("e-1", "gpt-4", id).await.unwrap();
    assert!(!release("no-lease").await);
    assert!(release(&long.id).await && !release(&long.id).await);
    let (free, consumed) = fleet.tk_tc("slots").await;
    assert_eq!((free, consumed), (3_000, 4_000));
    let (rpm, _) = fleet.tk_tc("rpm").await;
    assert_eq!(rpm, 40_000, "rate tokens were used");
    assert_eq!(grant.release().await.unwrap(), weirgate::Settlement::LeaseGone);
    assert_eq!(fleet.tk_tc("slots").await.0, 3_000);
    assert_eq!(operator.admin().leases("e-1", "gpt-4").await.unwrap().items.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn entities_and_namespaces_are_listed_over_all_pages() {
    let (fleet, [limiter]) = Fleet::of().await;
    let entity = |name: &str| Entity::new(name.try_into().unwrap());
    let mut names: BTreeSet<_> = (0..140).map(|at| format!("team-{at}")).collect();
    for name in &names {
        set_entity(&limiter, &entity(name)).await;
    }
    let child = Entity { parent: Some("team-1".try_into().unwrap()), ..entity("child") };
    set_entity(&limiter, &child).await;
    names.insert("child".to_owned());
    assert!(limiter.admin().delete_entity(&"team-9".try_into().unwrap()).await.unwrap());
    names.remove("team-9");
    // Those of other namespaces, and buckets, are not in it.
    let other = fleet.limiter_with(|builder| builder.namespace("other")).await;
    set_entity(&other, &entity("foreign")).await;
    let _ = granted(&limiter, &rpm(), &[("rpm", 1)]).await;

    let found = all(async |after| limiter.admin().entities(after).await).await;
    assert_eq!(found.len(), names.len());
    let found: BTreeSet<_> = found.iter().map(EntityId::to_string).collect();
    assert_eq!(found, names);

    let namespaces = all(async |after| limiter.admin().namespaces(after).await).await;
    assert_eq!(namespaces, ["default", "other"]);
    // An item that only claims to be a namespace's.
    let mut forged = fleet.dynamo.item("other/SYSTEM#", "#VERSION");
    forged["SK"] = serde_json::json!({"S": "#FORGED"});
    forged["GSI3SK"] = serde_json::json!({"S": "NAMESPACE#zzz"});
    fleet.dynamo.put(&forged);
    let namespaces = all(async |after| limiter.admin().namespaces(after).await).await;
    assert_eq!(namespaces, ["default", "other"]);
}

#[tokio::test]
async fn a_table_is_created_with_all_that_lists_need() {
    let dynamo = weirgate_testkit::Dynamo::empty();
    let builder = RateLimiter::builder("weirgate").table(dynamo.table().await);
    let limiter = builder.build().await.unwrap();
    limiter.admin().create_table().await.unwrap();
    take(&limiter, "e-1", "gpt-4", 1).await;
    let id = "e-1".try_into().unwrap();
    let buckets = limiter.admin().entity_buckets(&id, None).await.unwrap().items;
    assert_eq!(balances(&buckets)[&("e-1".to_owned(), "gpt-4".to_owned())], 59);
    let error = limiter.admin().create_table().await.unwrap_err();
    assert!(matches!(error, Error::Store(_)), "{error}");
}
