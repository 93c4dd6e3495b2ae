//! `POST /v1/peek`.

use std::sync::Arc;

use weirgate::Limit;
use weirgate::http::{Policies, PolicyNames};

use super::acquire::Answer;
use super::fields::{Invalid, Object, limits, text, whole, whole_tokens};
use super::refusal::Refusal;
use super::response::json;
use crate::decide::Decider;

const ALLOWED: [&str; 5] = ["entity", "resource", "limits", "limits_version", "need"];

/// A request for balances.
#[derive(Debug)]
pub(super) struct Peek {
    entity: String,
    resource: String,
    limits: Option<Arc<[Limit]>>,
    need: Vec<(String, i64)>,
}

/// Reads a request.
pub(super) fn read(body: &[u8]) -> Result<Peek, Invalid> {
    let mut object = Object::parse(body)?;
    let peek = Peek {
        entity: object.required("entity", text)?,
        resource: object.required("resource", text)?,
        limits: object.optional("limits", limits)?,
        need: object
            .optional("need", |json| Object::of(json)?.each(whole_tokens))?
            .unwrap_or_default(),
    };
    // A bucket can be sent as it is acquired; a peek changes no limits, so none can be older.
    let _ = object.optional("limits_version", whole)?;
    object.end(&ALLOWED)?;
    Ok(peek)
}

/// Answers a request.
pub(super) fn answer<'a>(
    decider: &'a Decider,
    request: &'a Peek,
) -> impl Future<Output = Result<Answer, Refusal>> + Send + 'a {
    read_balances(decider, request)
}

async fn read_balances(decider: &Decider, request: &Peek) -> Result<Answer, Refusal> {
    let mut peek = decider.limiter.peek(&request.entity, &request.resource);
    if let Some(limits) = &request.limits {
        peek = peek.limits(limits);
    }
    for (limit, tokens) in &request.need {
        peek = peek.need(limit, *tokens);
    }
    let balances = peek.send().await;
    let balances = balances.map_err(|error| Refusal::no_decision(&error))?;
    let names = PolicyNames::default().own(&request.entity, &request.resource);
    let fields = Policies::granted(&balances.limits, &names).fields();
    Ok((fields, json(&balances)))
}
