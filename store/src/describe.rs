//! What AWS says of the table itself: for an operator, no request of a caller needs it.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndexDescription, KeySchemaElement, KeyType,
    PointInTimeRecoveryStatus, ProjectionType, StreamViewType, TableDescription, TimeToLiveStatus,
};
use weirgate_shared::attr;

use crate::{Index, StoreError, Table, indexes};

/// A table as it is, against the one that [`create_table`](crate::create_table) creates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFacts {
    /// Status of the table: `ACTIVE` if it can be used.
    pub status: String,
    /// Whether DynamoDB bills requests, and not provisioned capacity.
    pub is_on_demand: bool,
    /// Whether the table has the right keys.
    pub has_right_keys: bool,
    /// State of each index that the table should have, by name.
    pub indexes: BTreeMap<&'static str, IndexState>,
    /// ARN of the stream, if it is on.
    pub stream_arn: Option<String>,
    /// Whether the stream's records have new and old images.
    pub has_images: bool,
    /// Regions of the replicas, if this is a global table.
    pub replicas: Vec<String>,
}

/// The state of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexState {
    /// It can be used.
    Active,
    /// It has this other status: it is created or deleted now.
    Other(String),
    /// It has other keys or another projection.
    Different,
    /// There is none of that name.
    Missing,
}

impl Table {
    /// Returns the state of the table, its indexes and its stream. Costs no read unit; needs
    /// `dynamodb:DescribeTable`.
    ///
    /// # Errors
    /// [`StoreError`] of the request.
    pub async fn describe(&self) -> Result<TableFacts, StoreError> {
        let table = self.in_dynamodb()?;
        let request = table.client.describe_table().table_name(&table.name);
        let described = request.send().await;
        let described =
            described.map_err(|error| table.failed("DescribeTable".to_owned(), error))?;
        Ok(TableFacts::from(described.table.unwrap_or_else(|| TableDescription::builder().build())))
    }

    /// Returns whether DynamoDB deletes expired items. Needs `dynamodb:DescribeTimeToLive`.
    ///
    /// # Errors
    /// [`StoreError`] of the request.
    pub async fn expires_items(&self) -> Result<bool, StoreError> {
        let table = self.in_dynamodb()?;
        let request = table.client.describe_time_to_live().table_name(&table.name);
        let described = request.send().await;
        let described =
            described.map_err(|error| table.failed("DescribeTimeToLive".to_owned(), error))?;
        let ttl = described.time_to_live_description;
        Ok(ttl.is_some_and(|ttl| {
            let is_on = matches!(
                ttl.time_to_live_status,
                Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)
            );
            is_on && ttl.attribute_name.as_deref() == Some(attr::TTL)
        }))
    }

    /// Returns whether the table can be restored to any point in time. Needs
    /// `dynamodb:DescribeContinuousBackups`.
    ///
    /// # Errors
    /// [`StoreError`] of the request.
    pub async fn is_recoverable(&self) -> Result<bool, StoreError> {
        let table = self.in_dynamodb()?;
        let request = table.client.describe_continuous_backups();
        let described = request.table_name(&table.name).send().await;
        let described = described
            .map_err(|error| table.failed("DescribeContinuousBackups".to_owned(), error))?;
        let status = described
            .continuous_backups_description
            .and_then(|backups| backups.point_in_time_recovery_description)
            .and_then(|recovery| recovery.point_in_time_recovery_status);
        Ok(status == Some(PointInTimeRecoveryStatus::Enabled))
    }
}

impl From<TableDescription> for TableFacts {
    fn from(table: TableDescription) -> Self {
        let types = table.attribute_definitions.unwrap_or_default();
        let found = table.global_secondary_indexes.unwrap_or_default();
        let state = |index: Index| {
            let named = |found: &&GlobalSecondaryIndexDescription| {
                found.index_name.as_deref() == Some(index.name)
            };
            let state = found.iter().find(named);
            (index.name, state.map_or(IndexState::Missing, |found| state_of(index, found, &types)))
        };
        let replicas = table.replicas.unwrap_or_default().into_iter();
        let replicas = replicas.map(|replica| replica.region_name.unwrap_or_default());
        let stream = table.stream_specification;
        let is_on = stream.as_ref().is_some_and(|stream| stream.stream_enabled);
        let view = stream.and_then(|stream| stream.stream_view_type);
        Self {
            status: table
                .table_status
                .map_or_else(String::new, |status| status.as_str().to_owned()),
            is_on_demand: table.billing_mode_summary.and_then(|billing| billing.billing_mode)
                == Some(BillingMode::PayPerRequest),
            has_right_keys: has_keys(
                &table.key_schema.unwrap_or_default(),
                attr::PK,
                (attr::SK, "S"),
                &types,
            ),
            indexes: indexes().map(state).into(),
            stream_arn: table.latest_stream_arn.filter(|_| is_on),
            has_images: view == Some(StreamViewType::NewAndOldImages),
            replicas: replicas.collect(),
        }
    }
}

fn state_of(
    index: Index,
    found: &GlobalSecondaryIndexDescription,
    types: &[AttributeDefinition],
) -> IndexState {
    let keys = found.key_schema();
    let projection = found.projection().and_then(|found| found.projection_type());
    // AWS always has one.
    let status = found.index_status().map_or("ACTIVE", |status| status.as_str());
    if !has_keys(keys, index.hash, index.range, types)
        || projection != Some(&ProjectionType::KeysOnly)
    {
        IndexState::Different
    } else if status == "ACTIVE" {
        IndexState::Active
    } else {
        IndexState::Other(status.to_owned())
    }
}

/// Returns whether these are the keys: a partition key, a string, and a sort key of this type.
fn has_keys(
    keys: &[KeySchemaElement],
    hash: &str,
    (range, kind): (&str, &str),
    types: &[AttributeDefinition],
) -> bool {
    let is = |element: &KeySchemaElement, name: &str, key: KeyType, kind: &str| {
        let has_type = |defined: &AttributeDefinition| {
            defined.attribute_name == name && defined.attribute_type.as_str() == kind
        };
        element.attribute_name == name && element.key_type == key && types.iter().any(has_type)
    };
    match keys {
        [first, second] => {
            is(first, hash, KeyType::Hash, "S") && is(second, range, KeyType::Range, kind)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::types::ReplicaDescription;

    use super::*;

    #[test]
    fn replicas_are_named_by_their_regions() {
        let table = TableDescription::builder();
        assert!(TableFacts::from(table.clone().build()).replicas.is_empty());
        let replica = ReplicaDescription::builder().region_name("eu-west-1");
        let global = table.replicas(replica.build()).build();
        assert_eq!(TableFacts::from(global).replicas, ["eu-west-1"]);
    }
}
