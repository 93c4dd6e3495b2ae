//! What these credentials may do on the table, found by requests that change nothing.

use weirgate_shared::write::{Action, AttributeUpdate, Condition, Path, Update, Value};
use weirgate_shared::{
    AuditKey, AuditSubject, BucketKey, EntityId, ItemKey, Namespace, Resource, attr, docs,
};
use weirgate_store::{
    CHILDREN, Consistency, ErrorKind, Query, RetryPolicy, ReturnValues, SortKeys, StoreError, Table,
};

use super::finding::Finding;

/// Name of the entity and resource that the requests name; no caller uses it.
const PROBE: &str = "weirgate-doctor";
/// Sort key of the item that describes an entity.
const META: &str = "#META";

/// Returns the finding about the permissions. A deed is allowed if each kind of request that it
/// needs is. Writes have a condition that fails, so they cost a write unit, or two in a transaction,
/// and change nothing.
pub async fn finding(table: &Table, namespace: &str) -> Finding {
    let check = "permissions";
    let Some(keys) = Keys::of(namespace) else {
        return Finding::unknown(
            check,
            format!("not checked: {namespace:?} is no namespace"),
            "check --namespace",
        );
    };
    let read = table.read(std::slice::from_ref(&keys.entity)).await.map(drop);
    let list = Query {
        index: Some(CHILDREN),
        partition: &format!("{namespace}/PARENT#{PROBE}"),
        keys: SortKeys::StartingWith("CHILD#"),
        is_descending: false,
        limit: Some(1),
        consistency: Consistency::Eventual,
    };
    let list = table.query(list, None).await.map(drop);
    let acquire = never(table, &keys.bucket).await;
    let configure = never(table, &keys.entity).await;
    let check_bucket = Action::Check(keys.bucket.clone(), unfulfilled());
    let remove = none_of(table, &[check_bucket, delete(&keys.entity)]).await;
    let forget = none_of(table, &[delete(&keys.bucket), delete(&keys.audit)]).await;
    let scan = table.scan(namespace, 1, None).await.map(drop);

    let deeds: [(&str, &[_]); 6] = [
        ("read", &[&read]),
        ("list", &[&list]),
        ("acquire", &[&acquire]),
        ("administer", &[&configure, &remove]),
        ("erase", &[&configure, &remove, &forget]),
        ("purge", &[&configure, &remove, &forget, &scan]),
    ];
    let (mut may, mut may_not) = (vec![], vec![]);
    for (deed, answers) in deeds {
        let errors: Vec<_> = answers.iter().filter_map(|of| of.as_ref().err()).collect();
        let is_denied = |error: &&StoreError| error.kind == ErrorKind::AccessDenied;
        match errors.iter().find(|error| !is_denied(error)) {
            _ if errors.iter().any(is_denied) => may_not.push(deed),
            None => may.push(deed),
            Some(error) => {
                let text = format!("not checked: {error}");
                return Finding::unknown(check, text, "run this again");
            }
        }
    }
    let text = match (may.is_empty(), may_not.is_empty()) {
        (true, _) => "nothing is allowed in this namespace".to_owned(),
        (_, true) => format!("allowed: {}", may.join(", ")),
        _ => format!("allowed: {}; not allowed: {}", may.join(", "), may_not.join(", ")),
    };
    match may.contains(&"read") {
        true => Finding::fine(check, text),
        false => Finding::problem(
            check,
            text,
            concat!("use a role with one of ", docs!("security", "policies-for-callers")),
        ),
    }
}

/// Keys of items that need not exist.
struct Keys {
    bucket: ItemKey,
    entity: ItemKey,
    audit: ItemKey,
}

impl Keys {
    fn of(namespace: &str) -> Option<Self> {
        let name = Namespace::new(namespace).ok()?;
        let subject = AuditSubject::Entity(EntityId::new(PROBE).ok()?);
        let audit = ItemKey { pk: AuditKey::partition(&name, &subject), sk: META.to_owned() };
        let bucket = BucketKey {
            namespace: name,
            entity: EntityId::new(PROBE).ok()?,
            resource: Resource::new(PROBE).ok()?,
            shard: 0,
        };
        let entity = ItemKey { pk: format!("{namespace}/ENTITY#{PROBE}"), sk: META.to_owned() };
        Some(Self { bucket: bucket.item_key(), entity, audit })
    }
}

/// Returns conditions that no item fulfils.
pub fn unfulfilled() -> Vec<Condition> {
    vec![Condition::Present(Path::of(PROBE)), Condition::Absent(Path::of(PROBE))]
}

async fn never(table: &Table, key: &ItemKey) -> Result<(), StoreError> {
    let update = Update {
        key: key.clone(),
        conditions: unfulfilled(),
        changes: vec![AttributeUpdate::Add(Path::of(attr::WRITE_SEQ), Value::Int(1))],
    };
    table.update_with(&update, ReturnValues::Never, RetryPolicy::AlsoUnconfirmed).await.map(drop)
}

fn delete(key: &ItemKey) -> Action {
    Action::Delete(key.clone(), unfulfilled())
}

/// Sends a transaction whose conditions no item fulfils.
async fn none_of(table: &Table, actions: &[Action]) -> Result<(), StoreError> {
    let id = weirgate_store::random_id();
    table.transact(actions, &id).await.map(drop)
}

#[cfg(test)]
mod tests {
    use weirgate_testkit::Dynamo;
    use weirgate_testkit::policy::{Policy, enforce};

    use super::*;

    /// Returns what the finding says to a role with these policies.
    async fn found(policy: Policy) -> String {
        let dynamo = Dynamo::new().await;
        let _ = enforce(&dynamo, Some(policy), None);
        finding(&dynamo.table().await, "default").await.found
    }

    #[tokio::test]
    async fn a_deed_is_allowed_if_all_that_it_needs_is() {
        let of = |name| Policy::of(name, false);
        for (policy, expected) in [
            (
                of("ReadPolicy").and(Policy::action("dynamodb:Scan")),
                "allowed: read, list; not allowed: acquire, administer, erase, purge",
            ),
            (
                of("ReadPolicy").and(of("PurgePolicy")),
                "allowed: read, list; not allowed: acquire, administer, erase, purge",
            ),
            (
                of("ReadPolicy").and(of("ErasePolicy")),
                "allowed: read, list; not allowed: acquire, administer, erase, purge",
            ),
            (
                Policy::action("dynamodb:UpdateItem").and(of("ReadPolicy")),
                "allowed: read, list, acquire; not allowed: administer, erase, purge",
            ),
            (
                of("AdminPolicy"),
                "allowed: read, list, acquire, administer; not allowed: erase, purge",
            ),
            (
                of("AdminPolicy").and(of("ErasePolicy")),
                "allowed: read, list, acquire, administer, erase; not allowed: purge",
            ),
            (
                of("AdminPolicy").and(of("PurgePolicy")),
                "allowed: read, list, acquire, administer, erase, purge",
            ),
        ] {
            assert_eq!(found(policy).await, expected);
        }
    }
}
