//! Reads and changes the limits of the table.

use serde::Serialize;
use serde_json::value::RawValue;
use weirgate::{
    ClassName, Config, ConfigChange, ConfigLevel, ConfigPatch, ConfigReport, ConfigStatus,
    EntityId, PlanName, Resource,
};

use super::operations::{Answer, named};
use super::request_body::{Invalid, Object, bool, limits as read_list, text, word};
use super::responses::{Refusal, json};
use crate::gated::GatedLimiter;

/// A request for the limits in force.
#[derive(Debug)]
pub(super) struct ReadLimits {
    entity: EntityId,
    resource: Resource,
}

/// A change of one level.
#[derive(Debug)]
pub(super) struct ChangeLimits {
    level: ConfigLevel,
    change: ConfigChange,
    author: Option<String>,
}

/// The configuration of a level before and after a change.
#[derive(Serialize)]
struct ChangedBody<'a> {
    changed: bool,
    before: &'a Option<Config>,
    after: &'a Option<Config>,
}

/// Reads a request for the limits in force.
pub(super) fn read_limits(body: &[u8]) -> Result<ReadLimits, Invalid> {
    let mut object = Object::parse(body)?;
    let request = ReadLimits {
        entity: object.required("entity", |json| named(EntityId::new, json))?,
        resource: object.required("resource", |json| named(Resource::new, json))?,
    };
    object.end(&["entity", "resource"])?;
    Ok(request)
}

/// Answers a request for the limits in force.
pub(super) async fn limits(gated: &GatedLimiter, request: &ReadLimits) -> Result<Answer, Refusal> {
    let admin = gated.limiter.admin();
    let effective = admin.effective_limits(&request.entity, &request.resource);
    let effective = effective.await.map_err(|error| Refusal::no_decision(&error))?;
    Ok((vec![], json(&effective)))
}

/// Reads a request to set limits.
pub(super) fn read_set_limits(body: &[u8]) -> Result<ChangeLimits, Invalid> {
    let mut object = Object::parse(body)?;
    let level = object.required("level", level)?;
    let limits = object.optional("limits", read_list)?;
    let patch = ConfigPatch {
        limits: limits.unwrap_or_default().to_vec(),
        status: object.optional("status", status)?,
        is_shadow: object.optional("is_shadow", bool)?,
        class: object.optional("class", |json| named(ClassName::new, json))?,
    };
    let replaces = object.optional("replace", bool)?.unwrap_or_default();
    let author = object.optional("author", text)?;
    object.end(&["level", "limits", "status", "is_shadow", "class", "replace", "author"])?;
    if patch.is_empty() {
        return Err(Invalid::of(
            "",
            "sets nothing: add limits, status, is_shadow or class, or send it to /v1/limits/delete",
        ));
    }
    let change = match replaces {
        true => ConfigChange::Replace(patch.onto(None)),
        false => ConfigChange::Merge(patch),
    };
    Ok(ChangeLimits { level, change, author })
}

/// Reads a request to delete the configuration of a level.
pub(super) fn read_delete_limits(body: &[u8]) -> Result<ChangeLimits, Invalid> {
    let mut object = Object::parse(body)?;
    let request = ChangeLimits {
        level: object.required("level", level)?,
        change: ConfigChange::Delete,
        author: object.optional("author", text)?,
    };
    object.end(&["level", "author"])?;
    Ok(request)
}

/// Answers a request to change a level. A repeated one changes nothing more.
pub(super) async fn change_limits(
    gated: &GatedLimiter,
    request: &ChangeLimits,
) -> Result<Answer, Refusal> {
    let ChangeLimits { level, change, author } = request;
    let admin = gated.limiter.admin();
    let changed = admin.change_config(level, change, author.as_deref()).await;
    let ConfigReport { before, after } = &changed.map_err(|error| Refusal::no_decision(&error))?;
    let body = ChangedBody { changed: before != after, before, after };
    Ok((vec![], json(&body)))
}

/// Reads a level as JSON has it: `{"level": "resource", "resource": "gpt-4"}`.
fn level(json: &RawValue) -> Result<ConfigLevel, Invalid> {
    const WORDS: &str =
        "\"entity_resource\", \"entity\", \"plan_resource\", \"plan\", \"resource\" or \"system\"";
    let mut object = Object::of(json)?;
    // What it is of.
    let parts = object.required("level", |json| {
        word(json, WORDS, |text| match text {
            "entity_resource" => Some(&["entity", "resource"][..]),
            "entity" => Some(&["entity"][..]),
            "plan_resource" => Some(&["plan", "resource"][..]),
            "plan" => Some(&["plan"][..]),
            "resource" => Some(&["resource"][..]),
            "system" => Some(&[][..]),
            _ => None,
        })
    })?;
    let entity = || object.required("entity", |json| named(EntityId::new, json));
    let entity = parts.contains(&"entity").then(entity).transpose()?;
    let plan = || object.required("plan", |json| named(PlanName::new, json));
    let plan = parts.contains(&"plan").then(plan).transpose()?;
    let resource = || object.required("resource", |json| named(Resource::new, json));
    let resource = parts.contains(&"resource").then(resource).transpose()?;
    object.end(&["level", "entity", "plan", "resource"])?;
    Ok(ConfigLevel::of_names(entity, plan, resource))
}

fn status(json: &RawValue) -> Result<ConfigStatus, Invalid> {
    let words = "\"enforced\", \"disabled\" or \"unlimited\"";
    word(json, words, ConfigStatus::parse)
}
