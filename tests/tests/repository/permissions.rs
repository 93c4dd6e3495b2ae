//! The policies for callers allow what callers ask of DynamoDB, in their own namespace, and nothing
//! else; the README says the same. What each role and policy of the template allows stands in
//! `tests/data/permissions.txt`, whole.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use weirgate_tests::stored::stop;

use crate::fixtures::fleet::{Fleet, config, secs};
use crate::fixtures::stored::{child, entity, of_resource, on, resource, rpm, take_of};
use proptest::prelude::*;
use weirgate::{
    AuditSubject, Config, ConfigFilter, ConfigLevel, Error, Granularity, Limit, LiveLeases,
    Prefetch, RateLimiter, UsageScope, Window,
};
use weirgate_shared::{Namespace, due_shards};
use weirgate_testkit::policy::{Asked, Call, Policy, enforce, listed};
use weirgate_testkit::shape::require_listed;

const ACQUIRE: &str = "AcquirePolicy";
const ADMIN: &str = "AdminPolicy";
const ERASE: &str = "ErasePolicy";
const PURGE: &str = "PurgePolicy";
const READ: &str = "ReadPolicy";

fn fenced(policy: &str) -> String {
    format!("{policy}Fenced")
}

async fn limiter(fleet: &Fleet, namespace: &str) -> RateLimiter {
    let prefetch = Prefetch::default().max_outstanding_percent(50);
    fleet
        .limiter_with(|builder| builder.namespace(namespace).prefetch("api/search", prefetch))
        .await
}

/// All requests of a caller that takes tokens.
async fn takes(fleet: &Fleet, namespace: &str) -> Result<(), Error> {
    let limiter = limiter(fleet, namespace).await;
    limiter.check().await?;
    for _ in 0..2 {
        // By what is configured, of a child and its parent.
        assert!(take_of(&limiter, ["e-1", "gpt-4"], "rpm", 1).await?.is_granted());
    }
    let limits = [Limit::per_minute("rpm", 600).unwrap(), Limit::concurrent("slots", 64).unwrap()];
    let take =
        |entity| limiter.acquire(entity, "gpt-4").limits(&limits).take("rpm", 2).take("slots", 1);
    let mut grant = take("e-2").lease(secs(30)).send().await?.granted().unwrap();
    let _ = grant.adjust("rpm", 1).await?;
    let _ = grant.renew(secs(60)).await?;
    let _ = grant.release().await?;
    let _ = take("e-2").send().await?.granted().unwrap().roll_back().await?;
    let quota = [Limit::session("tpm", 10, secs(60)).unwrap()];
    let by_quota = limiter.acquire("e-9", "gpt-4").limits(&quota);
    assert!(by_quota.take("tpm", 1).send().await?.is_granted());
    let _ = limiter.acquire_all(["a", "b"].map(take)).send().await?.granted().unwrap();
    // More than the balance of one of the eight shards after a split.
    let whole = limiter.acquire("e-8", "gpt-4").limits(&limits).take("rpm", 500).send().await?;
    assert!(whole.is_granted());
    assert!(limiter.peek("e-2", "gpt-4").limits(&limits).send().await?.retry_after.is_some());
    for _ in 0..20 {
        let _ = limiter.acquire("e-1", "api/search").limits(&limits).take("rpm", 1).send().await?;
    }
    limiter.shutdown().await
}

/// All requests of a caller that only reads.
async fn looks(fleet: &Fleet, namespace: &str) -> Result<(), Error> {
    let limiter = limiter(fleet, namespace).await;
    limiter.check().await?;
    let own = on("e-1", "gpt-4");
    assert!(
        limiter.admin().config(&own).await?.is_some()
            && limiter.admin().entity(&entity("e-1")).await?.is_some()
    );
    let all = [
        ConfigFilter::Entity(entity("e-1")),
        ConfigFilter::Plan("pro".try_into().unwrap()),
        ConfigFilter::Resource(resource("gpt-4")),
    ];
    for of in all.iter().chain(&[
        ConfigFilter::All,
        ConfigFilter::Entities,
        ConfigFilter::Plans,
        ConfigFilter::Resources,
    ]) {
        let _ = limiter.admin().configs(of, None).await?;
    }
    assert_eq!(limiter.admin().children(&entity("team"), None).await?.items, [entity("e-1")]);
    assert!(
        !limiter.admin().audit(&AuditSubject::Entity(entity("e-1")), None).await?.items.is_empty()
    );
    let _ = limiter.peek("e-1", "gpt-4").send().await?;
    // All shards of the bucket, and the snapshot.
    let _ = limiter.usage("e-8", "gpt-4", Window::Daily, fleet.now()).await?;
    for scope in [
        UsageScope::Bucket(entity("e-8"), resource("gpt-4")),
        UsageScope::Entity(entity("e-1")),
        UsageScope::Resource(resource("gpt-4")),
    ] {
        let day = Granularity::Daily.start(fleet.now())..fleet.now();
        let _ = limiter.admin().usage_report(scope, Granularity::Daily, day)?.total().await?;
    }
    let _ = limiter.admin().entities(None).await?;
    let _ = limiter.admin().entity_buckets(&entity("e-8"), None).await?;
    let _ = limiter.admin().resource_buckets(&resource("gpt-4"), None).await?;
    let _ = limiter.admin().leases("e-1", "gpt-4").await?;
    let _ = limiter.admin().switches().await?;
    Ok(())
}

/// All requests of an operator that sets limits: `looks` and `takes` find what they need
/// afterwards.
async fn changes(fleet: &Fleet, namespace: &str) -> Result<(), Error> {
    let limiter = limiter(fleet, namespace).await;
    limiter.check().await?;
    let own = on("e-1", "gpt-4");
    for rate in [5, 6] {
        limiter.admin().set_config(&own, &Config::of([rpm(rate)])).await?;
    }
    limiter.admin().set_config(&of_resource("gpt-4"), &Config::of([rpm(60)])).await?;
    let quota = Limit::session("tpm", 10, secs(60)).unwrap();
    let of_quota = on("e-9", "gpt-4");
    limiter.admin().set_config(&of_quota, &Config::of([quota])).await?;
    for child in [child("e-1", "team"), child("e-2", "team")] {
        limiter.admin().set_entity(&child).await?;
    }
    assert!(limiter.admin().delete_config(&of_resource("gpt-4")).await?);
    assert!(limiter.admin().delete_entity(&entity("e-2")).await?);
    assert!(limiter.admin().delete_config(&of_quota).await?);
    let limits = [Limit::per_minute("rpm", 600).unwrap(), Limit::concurrent("slots", 64).unwrap()];
    for shards in [16, 8] {
        limiter.admin().set_shards("e-8", "gpt-4", &limits, shards).await?;
    }
    let _ = limiter.admin().stop(&own).send().await?;
    let _ = limiter.admin().start(&own).send().await?;
    let edit = limiter.admin().edit_balances("e-8", "gpt-4").reset("rpm");
    let _ = edit.idempotency_key("ticket").send().await?;
    let _ = limiter.admin().apply_limits("e-1", "gpt-4").send().await?;
    Ok(())
}

/// Takes what was asked, of which the store's contract must have all shapes.
fn taken(asked: &Mutex<Asked>) -> Asked {
    let taken = std::mem::take(&mut *asked.lock().unwrap());
    require_listed(&taken.shapes);
    taken
}

fn allowed(policy: &str) -> BTreeSet<(String, String)> {
    Policy::of(policy, true).actions()
}

#[tokio::test(start_paused = true)]
async fn each_policy_allows_the_calls_of_its_callers_and_no_others() {
    let fleet = Fleet::new().await;
    let asked: Arc<Mutex<Asked>> = enforce(&fleet.dynamo, None, None);
    changes(&fleet, "acme").await.unwrap();
    let changing = taken(&asked).actions();
    looks(&fleet, "acme").await.unwrap();
    let looking = taken(&asked).actions();
    takes(&fleet, "acme").await.unwrap();
    let taking = taken(&asked).actions();
    let administering: BTreeSet<_> =
        changing.iter().chain(&looking).chain(&taking).cloned().collect();
    for (policy, asked) in [(ACQUIRE, taking), (READ, looking), (ADMIN, administering)] {
        assert_eq!(allowed(policy), asked, "{policy}");
        assert_eq!(allowed(&fenced(policy)), asked, "{policy}, fenced");
    }
}

#[tokio::test(start_paused = true)]
async fn each_policy_permits_its_own_namespace_and_no_other() {
    let fleet = Fleet::new().await;
    for (policy, tag) in [(ADMIN.to_owned(), None), (fenced(ADMIN), Some("acme"))] {
        let asked = enforce(&fleet.dynamo, Some(Policy::of(&policy, false)), tag);
        changes(&fleet, "acme").await.unwrap();
        assert_eq!(taken(&asked).refused, [], "{policy}");
    }
    for (policy, tag) in
        [(READ.to_owned(), None), (fenced(READ), Some("acme")), (fenced(ADMIN), Some("acme"))]
    {
        let asked = enforce(&fleet.dynamo, Some(Policy::of(&policy, false)), tag);
        looks(&fleet, "acme").await.unwrap();
        assert_eq!(taken(&asked).refused, [], "{policy}");
    }
    for (policy, tag) in
        [(ACQUIRE.to_owned(), None), (fenced(ACQUIRE), Some("acme")), (fenced(ADMIN), Some("acme"))]
    {
        let asked = enforce(&fleet.dynamo, Some(Policy::of(&policy, false)), tag);
        takes(&fleet, "acme").await.unwrap();
        assert_eq!(taken(&asked).refused, [], "{policy}");
        fleet.dynamo.items().iter().filter_map(|item| item["PK"]["S"].as_str()).for_each(|key| {
            if key.contains("/BUCKET#") {
                fleet.dynamo.delete(key, "#STATE");
            }
        });
        let _ = enforce(&fleet.dynamo, None, None);
        changes(&fleet, "acme").await.unwrap();
    }

    let before = fleet.dynamo.items();
    for tag in
        [None, Some("acme2"), Some("acm"), Some("ACME"), Some(""), Some("acme/BUCKET"), Some("DUE")]
    {
        for policy in [ACQUIRE, ADMIN, READ].map(fenced) {
            let asked = enforce(&fleet.dynamo, Some(Policy::of(&policy, false)), tag);
            assert!(takes(&fleet, "acme").await.is_err(), "{policy} {tag:?}");
            assert!(looks(&fleet, "acme").await.is_err(), "{policy} {tag:?}");
            assert!(changes(&fleet, "acme").await.is_err(), "{policy} {tag:?}");
            let asked = taken(&asked);
            assert_eq!(asked.refused, asked.calls, "{policy} {tag:?}");
        }
    }
    assert!(fleet.dynamo.items() == before, "nothing was written");
}

#[tokio::test(start_paused = true)]
async fn an_acquire_policy_changes_no_limit_and_a_read_policy_nothing() {
    let fleet = Fleet::new().await;
    changes(&fleet, "acme").await.unwrap();
    let before = fleet.dynamo.items();
    for (policy, tag) in [(READ.to_owned(), None), (fenced(READ), Some("acme"))] {
        let _ = enforce(&fleet.dynamo, Some(Policy::of(&policy, false)), tag);
        let error = takes(&fleet, "acme").await.unwrap_err();
        assert!(error.to_string().contains("AccessDenied"), "{error}");
        assert!(changes(&fleet, "acme").await.is_err());
    }
    for (policy, tag) in [(ACQUIRE.to_owned(), None), (fenced(ACQUIRE), Some("acme"))] {
        let _ = enforce(&fleet.dynamo, Some(Policy::of(&policy, false)), tag);
        assert!(changes(&fleet, "acme").await.is_err(), "{policy}");
        assert!(looks(&fleet, "acme").await.is_err(), "{policy}");
        // Not by manual requests either: the client asks in a transaction, others need not.
        let of = Policy::of(&policy, false);
        for key in ["acme/SYSTEM#", "acme/RESOURCE#gpt-4", "acme/ENTITY#e-1", "acme/AUDIT#e-1"] {
            assert!(!of.allows(&Call::of("UpdateItem", "table", &[key]), tag), "{policy} {key}");
        }
    }
    assert!(fleet.dynamo.items() == before, "nothing was written");
    for policy in [ADMIN.to_owned(), fenced(ADMIN)] {
        let delete = |key| Call { in_transaction: true, ..Call::of("DeleteItem", "table", &[key]) };
        let of = Policy::of(&policy, false);
        assert!(of.allows(&delete("acme/ENTITY#e-1"), Some("acme")));
        assert!(!of.allows(&delete("acme/AUDIT#e-1"), Some("acme")), "audit events stay");
        assert!(
            !of.allows(&delete("acme/BUCKET#e-1#gpt-4#0"), Some("acme")),
            "a merged shard keeps its usage"
        );
        assert!(
            !of.allows(&Call { in_transaction: false, ..delete("acme/ENTITY#e-1") }, Some("acme"))
        );
    }
}

/// What the table's own policy allows other accounts is what AcquirePolicy allows this one, whether
/// the stack made the table or adopted a restored one.
#[tokio::test(start_paused = true)]
async fn callers_of_other_accounts_acquire_and_do_nothing_else() {
    let acquire = Policy::of(ACQUIRE, false);
    let [of_table, of_adopted] =
        ["weirgate-Table-1A2B3C4D5E6F", "weirgate-restored"].map(Policy::of_table);
    assert_eq!(of_table.grants(), acquire.grants());
    assert_eq!(of_adopted.grants(), acquire.grants());
    let fleet = Fleet::new().await;
    let _ = enforce(&fleet.dynamo, None, None);
    changes(&fleet, "acme").await.unwrap();
    let asked = enforce(&fleet.dynamo, Some(of_table.clone()), None);
    takes(&fleet, "acme").await.unwrap();
    assert_eq!(taken(&asked).refused, vec![]);
    let before = fleet.dynamo.items();
    assert!(looks(&fleet, "acme").await.is_err());
    assert!(changes(&fleet, "acme").await.is_err());
    assert!(fleet.dynamo.items() == before, "nothing was written");
    let of = |keys: &[&str]| {
        let calls = every_call(keys).into_iter();
        let allowed = calls.filter(|call| of_table.allows(call, None));
        let names: BTreeSet<_> = allowed.map(|call| (call.action, call.resource)).collect();
        names
    };
    let on_table = |action: &str| (format!("dynamodb:{action}"), "table".to_owned());
    let both = BTreeSet::from(["BatchGetItem", "UpdateItem"].map(on_table));
    assert_eq!(of(&["acme/BUCKET#e-1#gpt-4#0"]), both);
    let reads = BTreeSet::from([on_table("BatchGetItem")]);
    for key in ["acme/SYSTEM#", "acme/ENTITY#e-1", "acme/AUDIT#e-1"] {
        assert_eq!(of(&[key]), reads, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn erasing_takes_the_erase_policy_beside_the_admin_policy() {
    let fleet = Fleet::new().await;
    for (admin, erase, tag) in
        [(ADMIN.to_owned(), ERASE.to_owned(), None), (fenced(ADMIN), fenced(ERASE), Some("acme"))]
    {
        let _ = enforce(&fleet.dynamo, None, None);
        changes(&fleet, "acme").await.unwrap();
        let erased = async |policy, tag| {
            let asked = enforce(&fleet.dynamo, Some(policy), tag);
            let limiter = limiter(&fleet, "acme").await;
            let name = entity("e-8");
            let erased = limiter.admin().erase_entity(&name, LiveLeases::Refuse).await;
            (erased, taken(&asked).refused)
        };
        let [admin, erase] = [admin, erase].map(|name| Policy::of(&name, false));
        let before = fleet.dynamo.items();
        let (refused, _) = erased(admin.clone(), tag).await;
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("AccessDenied"), "{error}");
        assert!(fleet.dynamo.items() == before, "nothing was written");
        let both = admin.and(erase.clone());
        if tag.is_some() {
            assert!(erased(both.clone(), Some("acm")).await.0.is_err());
            assert!(fleet.dynamo.items() == before, "nothing was written");
        }
        let (done, refused) = erased(both, tag).await;
        assert_eq!((done.unwrap().shards > 0, refused), (true, vec![]));
        // Alone it allows deletions of these two kinds, and those only in a transaction.
        let delete = |key, in_transaction| {
            let call = Call::of("DeleteItem", "table", &[key]);
            erase.allows(&Call { in_transaction, ..call }, tag)
        };
        assert!(delete("acme/AUDIT#e-1", true) && delete("acme/BUCKET#e-1#gpt-4#0", true));
        assert!(!delete("acme/AUDIT#e-1", false) && !delete("acme/ENTITY#e-1", true));
    }
    let deletes = BTreeSet::from([("table".to_owned(), "dynamodb:DeleteItem".to_owned())]);
    assert_eq!(allowed(ERASE), deletes.clone());
    assert_eq!(allowed(&fenced(ERASE)), deletes);
}

#[tokio::test]
async fn purging_takes_the_purge_policy_beside_the_admin_policy() {
    let fleet = Fleet::new().await;
    let _ = enforce(&fleet.dynamo, None, None);
    changes(&fleet, "acme").await.unwrap();
    let limiter = limiter(&fleet, "acme").await;
    stop(&limiter, &ConfigLevel::System).await;
    let [admin, purge] = [ADMIN, PURGE].map(|name| Policy::of(name, false));
    let before = fleet.dynamo.items();
    let _ = enforce(&fleet.dynamo, Some(admin.clone()), None);
    let refused = limiter.admin().purge_namespace("acme").dry_run().send().await;
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("AccessDenied"), "{error}");
    assert!(fleet.dynamo.items() == before, "nothing was written");
    let asked = enforce(&fleet.dynamo, Some(admin.and(purge.clone())), None);
    let report = limiter.admin().purge_namespace("acme").send().await.unwrap();
    assert!(report.deleted() > 0, "{report:?}");
    assert_eq!(taken(&asked).refused, vec![]);
    // Alone it deletes in transactions only.
    let delete = Call::of("DeleteItem", "table", &["acme/ENTITY#e-1"]);
    assert!(!purge.allows(&delete, None));
    let asked = ["dynamodb:DeleteItem", "dynamodb:Scan"];
    let asked = asked.map(|action| ("table".to_owned(), action.to_owned()));
    assert_eq!(allowed(PURGE), BTreeSet::from(asked));
}

/// What there is to ask for, of the actions in any policy and some that are in none.
fn every_call(keys: &[&str]) -> Vec<Call> {
    let actions = [
        "BatchGetItem",
        "BatchWriteItem",
        "ConditionCheckItem",
        "DeleteItem",
        "DescribeTable",
        "GetItem",
        "PartiQLSelect",
        "PutItem",
        "Query",
        "Scan",
        "UpdateItem",
        "UpdateTable",
    ];
    let resources = ["table", "GSI1", "GSI2", "GSI3", "DueIndex"];
    let pairs = actions
        .iter()
        .flat_map(|action| resources.map(|resource| Call::of(action, resource, keys)));
    pairs.flat_map(|call| [call.clone(), Call { in_transaction: true, ..call }]).collect()
}

fn assert_nothing(keys: &[&str], tag: Option<&str>) {
    for policy in [ACQUIRE, ADMIN, ERASE, READ].map(fenced) {
        let of = Policy::of(&policy, true);
        let got: Vec<_> =
            every_call(keys).into_iter().filter(|call| of.allows(call, tag)).collect();
        assert_eq!(got, [], "{policy} with {tag:?}");
    }
}

#[test]
fn a_fenced_policy_allows_nothing_without_a_key_or_tag_and_no_due_shard() {
    assert_nothing(&[], Some("acme"));
    assert_nothing(&[], None);
    assert_nothing(&["acme/BUCKET#e-1#gpt-4#0"], None);
    assert_nothing(&["acme/BUCKET#e-1#gpt-4#0"], Some(""));
    for shard in due_shards() {
        for tag in [Some("acme"), Some("DUE"), Some(""), Some("DUE#03"), None] {
            assert_nothing(&[&shard], tag);
        }
    }
    for beside in [
        "acme",
        "acme2/BUCKET#e#r#0",
        "acm/BUCKET#e#r#0",
        "ACME/SYSTEM#",
        "/acme/SYSTEM#",
        "NAMESPACES",
        "x/acme/BUCKET#",
        "",
    ] {
        assert_nothing(&[beside], Some("acme"));
        assert_nothing(&["acme/BUCKET#e-1#gpt-4#0", beside], Some("acme"));
    }
    // No policy for callers lists what the reconciler lists, fenced or not.
    for policy in [ACQUIRE, ADMIN, READ] {
        assert!(
            !Policy::of(policy, true)
                .allows(&Call::of("Query", "DueIndex", &["DUE#03"]), Some("acme"))
        );
    }
}

proptest! {
    #![proptest_config(config(64))]

    /// Whatever two tenants are called, and whatever stands behind the slash: any two, and one that
    /// begins like the other.
    #[test]
    fn no_namespace_reaches_another(
        own in "[A-Za-z0-9][A-Za-z0-9_\\-]{0,7}",
        unlike in "[A-Za-z0-9][A-Za-z0-9_\\-]{0,7}",
        tail in "[A-Za-z0-9_\\-]{1,4}",
        rest in "(BUCKET|ENTITY|RESOURCE|PARENT|AUDIT|SYSTEM)#[a-z/#*?]{0,6}",
    ) {
        let longer = format!("{own}{tail}");
        for (own, other) in [(&own, &unlike), (&own, &longer), (&longer, &own)] {
            if own == other {
                continue;
            }
            prop_assert!(Namespace::new(&**own).is_ok() && Namespace::new(&**other).is_ok());
            let key = format!("{other}/{rest}");
            assert_nothing(&[&key], Some(own));
            assert_nothing(&[&format!("{own}/{rest}"), &key], Some(own));
        }
    }

    /// A tag cannot hold `*`, `?` or `$`, so none is a pattern; nor is any longer tag a way into a
    /// namespace.
    #[test]
    fn no_tag_but_the_namespace_itself_reaches_it(tag in "[A-Za-z0-9 _.:/=+@\\-]{0,9}", rest in "(BUCKET|ENTITY|SYSTEM)#[a-z]{0,3}") {
        prop_assume!(tag != "acme");
        assert_nothing(&[&format!("acme/{rest}")], Some(&tag));
    }
}

#[test]
fn what_every_role_and_policy_allows_is_listed() {
    let mut lines = String::new();
    let (without, with_key) = (listed(&[]), listed(&["HasKey"]));
    for (name, grants) in listed(&["HasKey", "Traces"]) {
        lines += &format!("{name}\n");
        for grant in grants {
            let only = if without[&name].contains(&grant) {
                ""
            } else if with_key[&name].contains(&grant) {
                "with KmsKeyArn: "
            } else {
                "with Tracing: "
            };
            lines += &format!("  {only}{grant}\n");
        }
    }
    let (found, kept): (BTreeSet<_>, BTreeSet<_>) =
        (lines.lines().collect(), include_str!("../../data/permissions.txt").lines().collect());
    let news: Vec<_> = found.difference(&kept).map(|line| format!("+ {line}")).collect();
    let gone: Vec<_> = kept.difference(&found).map(|line| format!("- {line}")).collect();
    assert!(
        news.is_empty() && gone.is_empty(),
        "in the template, but not listed, or the other way round: {news:#?} {gone:#?}"
    );
    assert_eq!(lines, include_str!("../../data/permissions.txt"));
}

/// The actions and indexes in the last column of the table in docs/security.md, in the row of a
/// policy.
fn documented(policy: &str) -> BTreeSet<String> {
    let page = include_str!("../../../docs/security.md");
    let row = page
        .lines()
        .find(|line| line.starts_with(&format!("| `{policy}` |")))
        .expect("the page has the row");
    row.split('|')
        .nth(3)
        .expect("a third column")
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_security_page_lists_what_each_policy_allows() {
    for policy in [ACQUIRE, ADMIN, READ] {
        let of: BTreeSet<_> = allowed(policy)
            .into_iter()
            .flat_map(|(resource, action)| {
                [resource, action.trim_start_matches("dynamodb:").to_owned()]
            })
            .filter(|word| word != "table")
            .collect();
        assert_eq!(documented(policy), of, "{policy}");
    }
}
