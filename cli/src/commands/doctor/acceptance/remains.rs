//! Deletes what an acceptance wrote, which it finds by its keys, without a scan.

use std::collections::BTreeMap;
use std::time::Duration;

use weirgate_shared::write::{Action, AttributeUpdate, Path, Update, Value};
use weirgate_shared::{
    AuditKey, AuditSubject, EntityId, EntityKey, ItemKey, MAX_SHARDS, Namespace, docs,
};
use weirgate_store::{
    ErrorKind, Query, RetryPolicy, ReturnValues, SortKeys, StoreError, Table, random_id,
};

use super::super::permissions::unfulfilled;
use super::backend::Backend;
use super::checks::ENTITIES;
use super::contract::Contract;
use crate::failure::Failure;

/// Partition of the namespaces of acceptances that have not ended.
const RUNS: &str = "acceptance/RUNS#";
/// Actions of one transaction.
const DELETIONS: usize = 25;
/// Time for what the aggregator still writes of deleted buckets.
const LATE: Duration = Duration::from_secs(4);
const PASSES: u32 = 10;
/// Read units of a pass: a query of each partition.
pub const PASS_READS: u64 = 64 * 7 + 64;

/// Notes that this namespace is in use, until [`clean`] found nothing.
pub async fn note(table: &Table, namespace: &str) -> Result<(), Failure> {
    let update = Update {
        key: run(namespace),
        conditions: vec![],
        changes: vec![AttributeUpdate::Set(Path::of("is"), Value::text("an acceptance"))],
    };
    let retry = RetryPolicy::AlsoUnconfirmed;
    let noted = table.update_with(&update, ReturnValues::None, retry).await;
    noted.map(drop).map_err(|error| Failure::from(&error))
}

fn run(namespace: &str) -> ItemKey {
    ItemKey { pk: RUNS.to_owned(), sk: format!("#{namespace}") }
}

/// Returns the namespaces of acceptances that have not ended, or were interrupted.
pub async fn runs(table: &Table) -> Result<Vec<String>, Failure> {
    let keys = keys(table, RUNS).await.map_err(|error| Failure::from(&error))?;
    Ok(keys.into_iter().map(|key| key.sk.trim_start_matches('#').to_owned()).collect())
}

/// Requires, before anything is written, that it may be deleted: by a transaction that deletes
/// nothing, in a partition of each kind.
pub async fn may_delete(backend: &Backend) -> Result<(), Failure> {
    let runs = std::iter::once(RUNS.to_owned());
    let all = partitions(&backend.namespace)?.into_iter().chain(runs);
    let kind = |partition: &str| {
        let (_, rest) = partition.split_once('/').unwrap_or_default();
        rest.split('#').next().unwrap_or_default().to_owned()
    };
    let kinds: BTreeMap<_, _> = all.map(|partition| (kind(&partition), partition)).collect();
    let actions = kinds.into_values().map(|pk| {
        let sk = "#NONE".to_owned();
        Action::Delete(ItemKey { pk, sk }, unfulfilled())
    });
    let actions: Vec<_> = actions.collect();
    let retry = RetryPolicy::AlsoUnconfirmed;
    let tried = backend.table.transact_with(&actions, &random_id(), retry).await;
    tried.map(drop).map_err(|error| failure(&error))
}

/// Returns the error of a deletion, with the policies that allow all of them.
fn failure(error: &StoreError) -> Failure {
    if error.kind != ErrorKind::AccessDenied {
        return Failure::from(error);
    }
    Failure::Refused(format!(
        "an acceptance must be allowed to delete what it writes, got {}: {}; use a role with \
         AdminPolicy and PurgePolicy of the stack: {}",
        error.meaning(),
        error.reason,
        docs!("deployment", "acceptance")
    ))
}

/// Deletes all that an acceptance wrote, until a pass finds nothing. Returns how much.
pub async fn clean(backend: &Backend) -> Result<usize, Failure> {
    let (namespace, mut deleted, mut why) = (&backend.namespace, 0, String::new());
    let (partitions, noted) = (partitions(namespace)?, run(namespace.as_str()));
    for _ in 0..PASSES {
        let done = match pass(&backend.table, &partitions, &mut deleted).await {
            Ok(true) => delete(&backend.table, std::slice::from_ref(&noted)).await.map(|()| true),
            other => other,
        };
        match done {
            Ok(true) => return Ok(deleted),
            Ok(false) => {}
            // Functions write to the same items, and a full partition throttles.
            Err(error) if error.kind.is_transient() => {
                why = format!(" ({})", Failure::from(&error).text());
            }
            Err(error) => return Err(failure(&error)),
        }
        tokio::time::sleep(LATE).await;
    }
    Err(Failure::Failed(format!(
        "namespace {namespace} must be empty after {PASSES} passes, and still has items{why}; run \
         this again with --clean"
    )))
}

/// Deletes what is there now, and adds up how much. Returns whether nothing was there, the last error
/// after having tried all, or at once one that stays.
async fn pass(
    table: &Table,
    partitions: &[String],
    deleted: &mut usize,
) -> Result<bool, StoreError> {
    let mut found = vec![];
    for partition in partitions {
        found.extend(keys(table, partition).await?);
    }
    let mut done = Ok(found.is_empty());
    // Buckets first: the aggregator copies the usage of a deleted one.
    for some in found.chunks(DELETIONS) {
        match delete(table, some).await {
            Ok(()) => *deleted += some.len(),
            Err(error) if error.kind.is_transient() => done = Err(error),
            Err(error) => return Err(error),
        }
    }
    done
}

fn partitions(namespace: &Namespace) -> Result<Vec<String>, Failure> {
    let mut all = vec![];
    for entity in ENTITIES {
        let entity = EntityId::new(entity)?;
        for shard in 0..MAX_SHARDS {
            let key = weirgate_shared::BucketKey {
                namespace: namespace.clone(),
                entity: entity.clone(),
                resource: weirgate_shared::Resource::new(super::backend::RESOURCE)?,
                shard,
            };
            all.push(key.item_key().pk);
        }
        all.push(AuditKey::partition(namespace, &AuditSubject::Entity(entity.clone())));
        let key = EntityKey { namespace: namespace.clone(), entity };
        all.push(key.item_key().pk);
    }
    all.push(weirgate_shared::switches_key(namespace).pk);
    all.push(AuditKey::partition(namespace, &AuditSubject::System));
    all.extend(Contract::partitions(namespace.as_str()));
    Ok(all)
}

async fn keys(table: &Table, partition: &str) -> Result<Vec<ItemKey>, StoreError> {
    let (mut keys, mut after) = (vec![], None);
    loop {
        let query = Query::new(partition, SortKeys::StartingWith("#"));
        let page = table.query(query, after.as_ref()).await?;
        keys.extend(page.items.iter().filter_map(|item| item.key()));
        after = page.next;
        if after.is_none() {
            return Ok(keys);
        }
    }
}

async fn delete(table: &Table, keys: &[ItemKey]) -> Result<(), StoreError> {
    let actions = keys.iter().map(|key| Action::Delete(key.clone(), vec![]));
    let actions: Vec<_> = actions.collect();
    let retry = RetryPolicy::AlsoUnconfirmed;
    table.transact_with(&actions, &random_id(), retry).await.map(drop)
}
