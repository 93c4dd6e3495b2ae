//! Deletes what an acceptance wrote, which it finds by its keys, without a scan.

use std::time::Duration;

use weirgate_shared::write::{Action, AttributeUpdate, Path, Update, Value};
use weirgate_shared::{
    AuditKey, AuditSubject, EntityId, EntityKey, ItemKey, MAX_SHARDS, Namespace,
};
use weirgate_store::{Query, RetryPolicy, ReturnValues, SortKeys, Table, random_id};

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
pub const PASS_READS: u64 = 64 * 6 + 64;

/// Notes that this namespace is in use, until [`forget`].
pub async fn note(table: &Table, namespace: &str) -> Result<(), Failure> {
    let update = Update {
        key: run(namespace),
        conditions: vec![],
        changes: vec![AttributeUpdate::Set(
            Path::of("is"),
            Value::text("an acceptance"),
        )],
    };
    let retry = RetryPolicy::AlsoUnconfirmed;
    let noted = table.update_with(&update, ReturnValues::None, retry).await;
    noted.map(drop).map_err(|error| Failure::from(&error))
}

async fn forget(table: &Table, namespace: &str) -> Result<(), Failure> {
    delete(table, &[run(namespace)]).await
}

fn run(namespace: &str) -> ItemKey {
    ItemKey {
        pk: RUNS.to_owned(),
        sk: format!("#{namespace}"),
    }
}

/// Returns the namespaces of acceptances that have not ended, or were interrupted.
pub async fn runs(table: &Table) -> Result<Vec<String>, Failure> {
    let keys = keys(table, RUNS).await?.into_iter();
    Ok(keys
        .map(|key| key.sk.trim_start_matches('#').to_owned())
        .collect())
}

/// Deletes all that an acceptance wrote, until a pass finds nothing. Returns how much.
pub async fn clean(backend: &Backend) -> Result<usize, Failure> {
    let (namespace, mut deleted, mut why) = (&backend.namespace, 0, String::new());
    for _ in 0..PASSES {
        match pass(&backend.table, namespace, &mut deleted).await {
            Ok(true) => {
                forget(&backend.table, namespace.as_str()).await?;
                return Ok(deleted);
            }
            Ok(false) => {}
            // Functions write to the same items, and a full partition throttles.
            Err(failure) => why = format!(" ({})", failure.text()),
        }
        tokio::time::sleep(LATE).await;
    }
    Err(Failure::Failed(format!(
        "namespace {namespace} must be empty after {PASSES} passes, and still has items{why}; run \
         this again with --clean"
    )))
}

/// Deletes what is there now, and adds up how much. Returns whether nothing was there, or the last error
/// after having tried all.
async fn pass(table: &Table, namespace: &Namespace, deleted: &mut usize) -> Result<bool, Failure> {
    let mut found = vec![];
    for partition in partitions(namespace)? {
        found.extend(keys(table, &partition).await?);
    }
    let mut done = Ok(found.is_empty());
    // Buckets first: the aggregator copies the usage of a deleted one.
    for some in found.chunks(DELETIONS) {
        match delete(table, some).await {
            Ok(()) => *deleted += some.len(),
            Err(failure) => done = Err(failure),
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
        all.push(AuditKey::partition(
            namespace,
            &AuditSubject::Entity(entity.clone()),
        ));
        let key = EntityKey {
            namespace: namespace.clone(),
            entity,
        };
        all.push(key.item_key().pk);
    }
    all.push(weirgate_shared::switches_key(namespace).pk);
    all.push(AuditKey::partition(namespace, &AuditSubject::System));
    all.extend(Contract::partitions(namespace.as_str()));
    Ok(all)
}

async fn keys(table: &Table, partition: &str) -> Result<Vec<ItemKey>, Failure> {
    let (mut keys, mut after) = (vec![], None);
    loop {
        let query = Query::new(partition, SortKeys::StartingWith("#"));
        let page = table.query(query, after.as_ref()).await;
        let page = page.map_err(|error| Failure::from(&error))?;
        keys.extend(page.items.iter().filter_map(|item| item.key()));
        after = page.next;
        if after.is_none() {
            return Ok(keys);
        }
    }
}

async fn delete(table: &Table, keys: &[ItemKey]) -> Result<(), Failure> {
    let actions = keys.iter().map(|key| Action::Delete(key.clone(), vec![]));
    let actions: Vec<_> = actions.collect();
    let retry = RetryPolicy::AlsoUnconfirmed;
    let deleted = table.transact_with(&actions, &random_id(), retry).await;
    deleted.map(drop).map_err(|error| Failure::from(&error))
}
