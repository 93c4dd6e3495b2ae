//! Runs a planned write of one item.

use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{ReturnValue, ReturnValuesOnConditionCheckFailure};
use weirgate_shared::write::Update;

use super::on_backend;
use super::retry::RetryPolicy;
use crate::dynamo::DynamoTable;
use crate::{Item, ReturnValues, StoreError, Table, WriteOutcome, attribute, expression};

impl Table {
    /// Runs a planned write once.
    ///
    /// # Errors
    /// [`StoreError`] if it could not be decided; its kind says whether the write may have been
    /// applied.
    pub async fn update(
        &self,
        update: &Update,
        answer: ReturnValues,
    ) -> Result<WriteOutcome, StoreError> {
        on_backend!(self, table => table.update(update, answer))
    }

    /// Runs a planned write, with at most four attempts, and a pause before each retry that `retry`
    /// allows. Does not retry if the clock was off: the plan used that clock, so plan again.
    ///
    /// # Errors
    /// [`StoreError`] of the last attempt.
    pub async fn update_with(
        &self,
        update: &Update,
        answer: ReturnValues,
        retry: RetryPolicy,
    ) -> Result<WriteOutcome, StoreError> {
        self.again(retry.of_plans(), || self.update(update, answer)).await
    }
}

impl DynamoTable {
    pub(crate) async fn update(
        &self,
        update: &Update,
        answer: ReturnValues,
    ) -> Result<WriteOutcome, StoreError> {
        let rendered = expression::render(update);
        let request = self
            .client
            .update_item()
            .table_name(&self.name)
            .set_key(Some(attribute::key(&update.key)))
            .update_expression(rendered.update)
            .set_condition_expression(rendered.condition)
            .set_expression_attribute_names(Some(rendered.names))
            .set_expression_attribute_values(
                (!rendered.values.is_empty()).then_some(rendered.values),
            )
            .return_values(if answer == ReturnValues::AllNew {
                ReturnValue::AllNew
            } else {
                ReturnValue::None
            })
            .return_values_on_condition_check_failure(match answer {
                ReturnValues::AllNew | ReturnValues::None => {
                    ReturnValuesOnConditionCheckFailure::AllOld
                }
                ReturnValues::Never => ReturnValuesOnConditionCheckFailure::None,
            })
            .set_return_consumed_capacity(self.report());
        match request.send().await {
            Ok(done) => {
                self.count(done.consumed_capacity());
                Ok(WriteOutcome::Applied(done.attributes.map(Item)))
            }
            Err(SdkError::ServiceError(service))
                if service.err().is_conditional_check_failed_exception() =>
            {
                let UpdateItemError::ConditionalCheckFailedException(lost) = service.into_err()
                else {
                    unreachable!("the guard has seen that it is this one");
                };
                let old = lost.item.map(Item);
                if let Some(meter) = &self.meter {
                    meter.count_lost(old.as_ref());
                }
                Ok(WriteOutcome::ConditionFailed(old.filter(|item| !item.is_merged())))
            }
            Err(error) => {
                Err(self
                    .failed(format!("UpdateItem of {} {}", update.key.pk, update.key.sk), error))
            }
        }
    }
}
