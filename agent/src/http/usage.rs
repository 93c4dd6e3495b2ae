//! `POST /v1/usage`.

use weirgate::{EntityId, EpochMillis, Granularity, PageToken, Resource, UsageScope};

use super::acquire::Answer;
use super::fields::{Invalid, Object, bool, text, whole, wrong};
use super::json::Json;
use super::refusal::Refusal;
use super::response::json;
use crate::decide::Decider;

const ALLOWED: [&str; 6] = ["scope", "by", "from_ms", "to_ms", "page", "total"];

/// A request for usage.
#[derive(Debug)]
pub(super) struct Usage {
    scope: UsageScope,
    by: Granularity,
    from: EpochMillis,
    to: EpochMillis,
    /// The total, or a page of rows.
    rows: Rows,
}

#[derive(Debug)]
enum Rows {
    Total,
    Page(Option<PageToken>),
}

/// Reads a request.
pub(super) fn read(body: &[u8]) -> Result<Usage, Invalid> {
    let mut object = Object::parse(body)?;
    let scope = object.required("scope", scope)?;
    let by = object.required("by", granularity)?;
    let from = object.required("from_ms", whole).map(EpochMillis)?;
    let to = object.required("to_ms", whole).map(EpochMillis)?;
    let rows = if object.optional("total", bool)?.unwrap_or_default() {
        Rows::Total
    } else {
        Rows::Page(object.optional("page", page)?)
    };
    object.end(&ALLOWED)?;
    Ok(Usage {
        scope,
        by,
        from,
        to,
        rows,
    })
}

fn scope(json: Json<'_>) -> Result<UsageScope, Invalid> {
    let mut object = Object::of(json)?;
    let entity = object.optional("entity", |json| {
        EntityId::new(text(json)?).map_err(|error| Invalid::of("", format!("is wrong: {error}")))
    })?;
    let resource = object.optional("resource", |json| {
        Resource::new(text(json)?).map_err(|error| Invalid::of("", format!("is wrong: {error}")))
    })?;
    object.end(&["entity", "resource"])?;
    match (entity, resource) {
        (Some(entity), Some(resource)) => Ok(UsageScope::Bucket(entity, resource)),
        (Some(entity), None) => Ok(UsageScope::Entity(entity)),
        (None, Some(resource)) => Ok(UsageScope::Resource(resource)),
        (None, None) => Err(Invalid::of(
            "",
            "must have entity, resource or both, got {}: add one",
        )),
    }
}

fn granularity(json: Json<'_>) -> Result<Granularity, Invalid> {
    match &json {
        Json::Text(text) if text == "hour" => Ok(Granularity::Hourly),
        Json::Text(text) if text == "day" => Ok(Granularity::Daily),
        Json::Text(text) if text == "month" => Ok(Granularity::Monthly),
        other => Err(wrong("\"hour\", \"day\" or \"month\"", other)),
    }
}

fn page(json: Json<'_>) -> Result<PageToken, Invalid> {
    let token = text(json)?.parse();
    token.map_err(|error: weirgate::Error| Invalid::of("", format!("is no page: {error}")))
}

/// Answers a request.
pub(super) fn answer(
    decider: &Decider,
    request: Usage,
) -> impl Future<Output = Result<Answer, Refusal>> + Send + '_ {
    read_usage(decider, request)
}

async fn read_usage(decider: &Decider, request: Usage) -> Result<Answer, Refusal> {
    let range = request.from..request.to;
    let limiter = &decider.limiter;
    let read = async {
        let report = limiter.usage_report(request.scope, request.by, range)?;
        match &request.rows {
            Rows::Total => report.total().await.map(|total| json(&total)),
            Rows::Page(after) => report.page(after.as_ref()).await.map(|page| json(&page)),
        }
    };
    let body = read.await;
    Ok((vec![], body.map_err(|error| Refusal::no_decision(&error))?))
}
