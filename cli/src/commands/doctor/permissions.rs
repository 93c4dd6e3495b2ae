//! What these credentials may do on the table, found by requests that change nothing.

use weirgate_shared::write::{Action, AttributeUpdate, Condition, Path, Update, Value};
use weirgate_shared::{BucketKey, EntityId, ItemKey, Namespace, Resource, attr, docs};
use weirgate_store::{
    CHILDREN, Consistency, ErrorKind, Query, RetryPolicy, ReturnValues, SortKeys, StoreError, Table,
};

use super::finding::Finding;

/// Name of the entity and resource that the requests name; no caller uses it.
const PROBE: &str = "weirgate-doctor";
/// Sort key of the item that describes an entity.
const META: &str = "#META";

/// Returns the finding about the permissions, each by one request. Writes have a condition that
/// fails, so they cost a write unit and change nothing.
pub async fn finding(table: &Table, namespace: &str) -> Finding {
    let check = "permissions";
    let Some(keys) = Keys::of(namespace) else {
        return Finding::unknown(
            check,
            format!("not checked: {namespace:?} is no namespace"),
            "check --namespace",
        );
    };
    let read = table
        .read(std::slice::from_ref(&keys.entity))
        .await
        .map(drop);
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
    let administer = never(table, &keys.entity).await;
    let erase = delete(table, &keys.bucket).await;
    let purge = table.scan(namespace, 1, None).await.map(drop);

    let answers = [
        ("read", read),
        ("list", list),
        ("acquire", acquire),
        ("administer", administer),
        ("erase", erase),
        ("purge", purge),
    ];
    let (mut may, mut may_not) = (vec![], vec![]);
    for (deed, answer) in &answers {
        match answer {
            Ok(()) => may.push(*deed),
            Err(error) if error.kind == ErrorKind::AccessDenied => may_not.push(*deed),
            Err(error) => {
                let text = format!("not checked: {error}");
                return Finding::unknown(check, text, "run this again");
            }
        }
    }
    let text = match (may.is_empty(), may_not.is_empty()) {
        (true, _) => "nothing is allowed in this namespace".to_owned(),
        (_, true) => format!("allowed: {}", may.join(", ")),
        _ => format!(
            "allowed: {}; not allowed: {}",
            may.join(", "),
            may_not.join(", ")
        ),
    };
    match may.contains(&"read") {
        true => Finding::fine(check, text),
        false => Finding::problem(
            check,
            text,
            concat!(
                "use a role with one of ",
                docs!("security", "policies-for-callers")
            ),
        ),
    }
}

/// Keys of items that need not exist.
struct Keys {
    bucket: ItemKey,
    entity: ItemKey,
}

impl Keys {
    fn of(namespace: &str) -> Option<Self> {
        let bucket = BucketKey {
            namespace: Namespace::new(namespace).ok()?,
            entity: EntityId::new(PROBE).ok()?,
            resource: Resource::new(PROBE).ok()?,
            shard: 0,
        };
        let entity = ItemKey {
            pk: format!("{namespace}/ENTITY#{PROBE}"),
            sk: META.to_owned(),
        };
        Some(Self {
            bucket: bucket.item_key(),
            entity,
        })
    }
}

/// Returns conditions that no item fulfils.
pub fn unfulfilled() -> Vec<Condition> {
    vec![
        Condition::Present(Path::of(PROBE)),
        Condition::Absent(Path::of(PROBE)),
    ]
}

async fn never(table: &Table, key: &ItemKey) -> Result<(), StoreError> {
    let update = Update {
        key: key.clone(),
        conditions: unfulfilled(),
        changes: vec![AttributeUpdate::Add(
            Path::of(attr::WRITE_SEQ),
            Value::Int(1),
        )],
    };
    table
        .update_with(&update, ReturnValues::Never, RetryPolicy::AlsoUnconfirmed)
        .await
        .map(drop)
}

async fn delete(table: &Table, key: &ItemKey) -> Result<(), StoreError> {
    let action = Action::Delete(key.clone(), unfulfilled());
    table
        .transact(&[action], &weirgate_store::random_id())
        .await
        .map(drop)
}
