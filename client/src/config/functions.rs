//! Checks that the deployed functions know what is written: older ones skip items that are too new.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use weirgate_shared::{Limit, LimitKind, functions_key, know_quotas};
use weirgate_store::{Consistency, ErrorKind};

use super::stored::read_items;
use crate::session::Session;
use crate::values::Error;

/// Time for which functions without the mark are remembered, 5 s.
const REMEMBERED: Duration = Duration::from_secs(5);

/// Requires that the functions of the table know quotas and classes, if one of these limits is or has
/// one: the same release brought both. It is read until it is so, and never again.
pub(crate) async fn check_functions<'a>(
    session: &Arc<Session>,
    mut limits: impl Iterator<Item = &'a Limit>,
    until: Instant,
) -> Result<(), Error> {
    let functions = &session.config_cache.functions;
    let is_new = |limit: &Limit| {
        let has_pools = limit.name().is_pool() || !limit.classes().is_empty();
        has_pools || limit.rule().kind() == LimitKind::Quota
    };
    // No functions of Redis are older than quotas.
    let is_known = functions.know_quotas.load(Ordering::Relaxed) || session.table.is_in_redis();
    if is_known || !limits.any(is_new) {
        return Ok(());
    }
    // Boxed, as every rare part of an acquire: its future is smaller.
    Box::pin(read_mark(session, until)).await
}

async fn read_mark(session: &Arc<Session>, until: Instant) -> Result<(), Error> {
    const WHAT: &str = "what the functions know";
    let functions = &session.config_cache.functions;
    let too_old = || {
        let namespace = session.namespace.to_string();
        Err(Error::FunctionsTooOld { namespace })
    };
    let asked = Instant::now();
    let Ok(mut missing_at) = timeout_at(until, functions.missing_at.lock()).await else {
        let request = format!("BatchGetItem of {WHAT}");
        let within = until.saturating_duration_since(asked);
        return Err(session.env.no_answer(&request, within).into());
    };
    if functions.know_quotas.load(Ordering::Relaxed) {
        return Ok(());
    }
    let now = session.env.ages.now();
    if missing_at.is_some_and(|at| now.since(at) < REMEMBERED) {
        return too_old();
    }
    let keys = [functions_key()];
    let read = read_items(session, &keys, Consistency::Strong, until, Some(until), WHAT);
    let know_quotas = match read.await {
        Ok(items) => items.iter().any(|item| know_quotas(item.attributes())),
        // The policies of older stacks do not allow this read.
        Err(Error::Store(error)) if error.kind == ErrorKind::AccessDenied => false,
        Err(error) => return Err(error),
    };
    if !know_quotas {
        *missing_at = Some(now);
        return too_old();
    }
    functions.know_quotas.store(true, Ordering::Relaxed);
    Ok(())
}
