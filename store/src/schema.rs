//! The table's definition, for local use. A test compares it with `template.yaml`.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::BuildError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType, Projection,
    ProjectionType, ScalarAttributeType, StreamSpecification, StreamViewType,
    TimeToLiveSpecification,
};
use weirgate_shared::attr;
use weirgate_shared::write::mark_functions;

use crate::dynamo::DynamoTable;
use crate::table::on_backend;
use crate::{ReturnValues, StoreError, Table, indexes};

impl Table {
    /// Creates the table: see [`create_table`]. Marks it for the functions of this release.
    ///
    /// # Errors
    /// [`StoreError`] if it exists already, or DynamoDB refuses.
    pub async fn create(&self) -> Result<(), StoreError> {
        on_backend!(self, table => table.create())?;
        self.mark_functions().await
    }

    /// Marks what the functions of this release know, if it is not marked yet: see [`mark_functions`].
    ///
    /// # Errors
    /// [`StoreError`] if it could not be decided.
    pub async fn mark_functions(&self) -> Result<(), StoreError> {
        self.update(&mark_functions(), ReturnValues::Never).await.map(drop)
    }
}

impl DynamoTable {
    pub(crate) async fn create(&self) -> Result<(), StoreError> {
        create_table(&self.client, &self.name).await
    }
}

/// Creates the table as the template does, without features that only AWS has (recovery,
/// retention).
///
/// # Errors
/// [`StoreError`] if it exists already, or DynamoDB refuses.
pub async fn create_table(client: &Client, name: &str) -> Result<(), StoreError> {
    let request = definition(client, name).map_err(|error| StoreError {
        kind: crate::ErrorKind::Invalid,
        request: "CreateTable".to_owned(),
        table: name.to_owned(),
        reason: error.to_string(),
        source: Some(Box::new(error)),
    })?;
    request
        .send()
        .await
        .map_err(|error| StoreError::new(name, "", "CreateTable".to_owned(), error))?;
    let ttl = TimeToLiveSpecification::builder().enabled(true).attribute_name(attr::TTL).build();
    let request =
        client.update_time_to_live().table_name(name).set_time_to_live_specification(ttl.ok());
    request
        .send()
        .await
        .map_err(|error| StoreError::new(name, "", "UpdateTimeToLive".to_owned(), error))?;
    Ok(())
}

fn definition(
    client: &Client,
    name: &str,
) -> Result<aws_sdk_dynamodb::operation::create_table::builders::CreateTableFluentBuilder, BuildError>
{
    let mut request = client
        .create_table()
        .table_name(name)
        .billing_mode(BillingMode::PayPerRequest)
        .stream_specification(
            StreamSpecification::builder()
                .stream_enabled(true)
                .stream_view_type(StreamViewType::NewAndOldImages)
                .build()?,
        )
        .attribute_definitions(attribute(attr::PK, "S")?)
        .attribute_definitions(attribute(attr::SK, "S")?)
        .key_schema(key(attr::PK, KeyType::Hash)?)
        .key_schema(key(attr::SK, KeyType::Range)?);
    for index in indexes() {
        let (range, kind) = index.range;
        request = request
            .attribute_definitions(attribute(index.hash, "S")?)
            .attribute_definitions(attribute(range, kind)?)
            .global_secondary_indexes(
                GlobalSecondaryIndex::builder()
                    .index_name(index.name)
                    .key_schema(key(index.hash, KeyType::Hash)?)
                    .key_schema(key(range, KeyType::Range)?)
                    .projection(
                        Projection::builder().projection_type(ProjectionType::KeysOnly).build(),
                    )
                    .build()?,
            );
    }
    Ok(request)
}

fn attribute(name: &str, kind: &str) -> Result<AttributeDefinition, BuildError> {
    AttributeDefinition::builder()
        .attribute_name(name)
        .attribute_type(ScalarAttributeType::from(kind))
        .build()
}

fn key(name: &str, kind: KeyType) -> Result<KeySchemaElement, BuildError> {
    KeySchemaElement::builder().attribute_name(name).key_type(kind).build()
}
