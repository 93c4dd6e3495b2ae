//! Runs planned writes to several items as one: all are applied, or none.

use aws_sdk_dynamodb::error::{BuildError, SdkError};
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::operation::transact_write_items::builders::TransactWriteItemsFluentBuilder;
use aws_sdk_dynamodb::types::{
    CancellationReason, ConditionCheck, Delete, ReturnValuesOnConditionCheckFailure,
    TransactWriteItem, Update as UpdateRequest,
};
use weirgate_shared::write::Action;
use weirgate_shared::{ItemKey, WriteId};

use crate::dynamo::DynamoTable;
use crate::error::CONDITION_FAILED;
use crate::request::key;
use crate::table::{Backend, boxed};
use crate::{
    ActionOutcome, ErrorKind, Item, RetryPolicy, StoreError, Table, TransactOutcome, attribute,
    expression,
};

/// Maximum number of actions in one transaction.
const MOST_ACTIONS: usize = 100;
/// Maximum number of items that an error names.
const NAMED: usize = 4;

impl Table {
    /// Runs 1 to 100 actions, each on another item, as one `TransactWriteItems`, without retries.
    ///
    /// `token` is its `ClientRequestToken`. For ten minutes after the transaction was applied, the
    /// same actions with the same token return [`TransactOutcome::Applied`] and change nothing, and
    /// other actions are rejected. A transaction that was not applied does not use up its token.
    ///
    /// # Errors
    /// [`StoreError`] if it could not be decided; its kind says whether the transaction may have
    /// been applied, its reason which item stood in the way.
    pub async fn transact(
        &self,
        actions: &[Action],
        token: &WriteId,
    ) -> Result<TransactOutcome, StoreError> {
        self.attempts(actions, token, |_| false).await
    }

    /// Runs a transaction, with at most four attempts and always the same token. Pauses before each
    /// retry that `retry` allows. With [`RetryPolicy::AlsoUnconfirmed`], an unconfirmed transaction
    /// is repeated, and applied once. Does not retry if the clock was off, as with
    /// [`Table::update_with`].
    ///
    /// # Errors
    /// [`StoreError`] of the last attempt.
    pub async fn transact_with(
        &self,
        actions: &[Action],
        token: &WriteId,
        retry: RetryPolicy,
    ) -> Result<TransactOutcome, StoreError> {
        self.attempts(actions, token, retry.of_plans()).await
    }

    async fn attempts(
        &self,
        actions: &[Action],
        token: &WriteId,
        may: impl Fn(ErrorKind) -> bool,
    ) -> Result<TransactOutcome, StoreError> {
        if actions.is_empty() || actions.len() > MOST_ACTIONS {
            let found = actions.len();
            let reason = format!(
                "a transaction must have 1 to {MOST_ACTIONS} actions, got {found}: split it"
            );
            return Err(invalid(&self.name, actions, reason));
        }
        match &self.backend {
            Backend::DynamoDb(table) => {
                let request = table.transaction(actions, token)?;
                self.again(may, || boxed(table.sent(actions, request.clone()))).await
            }
            #[cfg(feature = "memory")]
            Backend::Memory(table) => self.again(may, || boxed(table.transact(actions))).await,
            #[cfg(feature = "redis")]
            Backend::Redis(table) => {
                self.again(may, || boxed(table.transact(actions, token))).await
            }
        }
    }
}

impl DynamoTable {
    /// Returns the request for a transaction. Clones have the same text: DynamoDB Local treats
    /// another order of fields under the same token as other actions.
    fn transaction(
        &self,
        actions: &[Action],
        token: &WriteId,
    ) -> Result<TransactWriteItemsFluentBuilder, StoreError> {
        let parts =
            actions.iter().map(|action| self.part(action)).collect::<Result<Vec<_>, _>>()?;
        let request = self.client.transact_write_items().set_transact_items(Some(parts));
        Ok(request.client_request_token(token.as_str()).set_return_consumed_capacity(self.report()))
    }

    async fn sent(
        &self,
        actions: &[Action],
        request: TransactWriteItemsFluentBuilder,
    ) -> Result<TransactOutcome, StoreError> {
        match request.send().await {
            Ok(done) => {
                for consumed in done.consumed_capacity() {
                    self.count(Some(consumed));
                }
                Ok(TransactOutcome::Applied)
            }
            Err(error) => self.not_applied(actions, error),
        }
    }

    fn part(&self, action: &Action) -> Result<TransactWriteItem, StoreError> {
        let all_old = ReturnValuesOnConditionCheckFailure::AllOld;
        let part = TransactWriteItem::builder();
        let part = match action {
            Action::Update(update) => {
                let rendered = expression::render(update);
                UpdateRequest::builder()
                    .table_name(&self.name)
                    .set_key(Some(attribute::key(&update.key)))
                    .update_expression(rendered.update)
                    .set_condition_expression(rendered.condition)
                    .set_expression_attribute_names(sent(rendered.names))
                    .set_expression_attribute_values(sent(rendered.values))
                    .return_values_on_condition_check_failure(all_old)
                    .build()
                    .map(|update| part.update(update))
            }
            Action::Delete(key, conditions) => {
                let rendered = expression::conditions(conditions);
                Delete::builder()
                    .table_name(&self.name)
                    .set_key(Some(attribute::key(key)))
                    .set_condition_expression(rendered.condition)
                    .set_expression_attribute_names(sent(rendered.names))
                    .set_expression_attribute_values(sent(rendered.values))
                    .return_values_on_condition_check_failure(all_old)
                    .build()
                    .map(|delete| part.delete(delete))
            }
            Action::Check(key, conditions) => {
                let rendered = expression::conditions(conditions);
                ConditionCheck::builder()
                    .table_name(&self.name)
                    .set_key(Some(attribute::key(key)))
                    .set_condition_expression(rendered.condition)
                    .set_expression_attribute_names(sent(rendered.names))
                    .set_expression_attribute_values(sent(rendered.values))
                    .return_values_on_condition_check_failure(all_old)
                    .build()
                    .map(|check| part.condition_check(check))
            }
        };
        let part = part.map_err(|error: BuildError| {
            // The only optional part is missing: a check has no condition.
            invalid(
                &self.name,
                std::slice::from_ref(action),
                format!("{error}; give the check a condition, or leave it out"),
            )
        })?;
        Ok(part.build())
    }

    fn not_applied(
        &self,
        actions: &[Action],
        error: SdkError<TransactWriteItemsError>,
    ) -> Result<TransactOutcome, StoreError> {
        let reasons = match error.as_service_error() {
            Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                cancelled.cancellation_reasons().to_vec()
            }
            _ => vec![],
        };
        if reasons.iter().any(|reason| reason.code() == Some(CONDITION_FAILED)) {
            let mut reasons = reasons.into_iter();
            let parts: Vec<_> = actions
                .iter()
                .map(|_| reasons.next().map_or(ActionOutcome::NotReported, part_of))
                .collect();
            if let Some(meter) = &self.meter {
                meter.count_cancelled(parts.iter().map(|part| match part {
                    ActionOutcome::ConditionFailed(old) => old.as_ref(),
                    ActionOutcome::NotReported => None,
                }));
            }
            return Ok(TransactOutcome::ConditionFailed(
                parts.into_iter().map(ActionOutcome::without_merged).collect(),
            ));
        }
        let mut error = self.failed(request(actions), error);
        if !reasons.is_empty() {
            error.reason = why(actions, &reasons);
            if let (Some(meter), false) = (&self.meter, error.kind.is_throttle()) {
                meter.count_cancelled(actions.iter().map(|_| None));
            }
        }
        Err(error)
    }
}

fn invalid(table: &str, actions: &[Action], reason: String) -> StoreError {
    StoreError {
        kind: ErrorKind::Invalid,
        request: request(actions),
        table: table.to_owned(),
        reason,
        source: None,
    }
}

fn part_of(reason: CancellationReason) -> ActionOutcome {
    match reason.code() {
        Some(CONDITION_FAILED) => ActionOutcome::ConditionFailed(reason.item.map(Item)),
        _ => ActionOutcome::NotReported,
    }
}

/// Returns `None` for an empty map, because DynamoDB rejects empty maps of names or values.
fn sent<T>(
    map: std::collections::HashMap<String, T>,
) -> Option<std::collections::HashMap<String, T>> {
    (!map.is_empty()).then_some(map)
}

fn request(actions: &[Action]) -> String {
    let named: Vec<_> = actions.iter().take(NAMED).map(|action| key(action).pk.as_str()).collect();
    let more = actions.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("TransactWriteItems of {}{more}", named.join(", "))
}

/// Returns the items that prevented the transaction, with the reasons.
fn why(actions: &[Action], reasons: &[CancellationReason]) -> String {
    let parts = actions.iter().zip(reasons).filter_map(|(action, reason)| {
        let code = reason.code().filter(|code| *code != "None")?;
        let ItemKey { pk, sk } = key(action);
        Some(format!("{code} at {pk} {sk}: {}", reason.message().unwrap_or("no message")))
    });
    parts.collect::<Vec<_>>().join("; ")
}
