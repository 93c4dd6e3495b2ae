//! `weirgate audit`.

use std::collections::BTreeMap;

use clap::{ArgGroup, Args};
use weirgate::{
    AuditChange, AuditEvent, AuditSubject, Config, EntityDescription, EntityId, EpochMillis, Limit,
    LimitName, MilliTokens, OnUnavailable, Resource, Switch,
};

use super::limits::diff::{self, Fields};
use super::list::PageArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::instant;

/// Lists the changes of configurations and balances.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("of").required(true).args(["system", "entity", "resource"])))]
#[command(after_help = "Example: weirgate audit --entity customer-1 --from 1d")]
pub struct Audit {
    /// Changes of the system level
    #[arg(long)]
    system: bool,
    /// Changes of an entity
    #[arg(long, value_name = "ID")]
    entity: Option<String>,
    /// Changes of a resource
    #[arg(long, value_name = "NAME")]
    resource: Option<String>,
    /// All changes from this instant on: a date, an instant, or a span before now (36h)
    #[arg(long, value_name = "WHEN", value_parser = instant::instant)]
    from: Option<EpochMillis>,
    /// Changes before this instant
    #[arg(long, value_name = "WHEN", value_parser = instant::instant)]
    to: Option<EpochMillis>,
    #[command(flatten)]
    page: PageArgs,
}

impl Audit {
    pub async fn run(mut self, context: &Context) -> Result<Outcome, Failure> {
        let of = match (&self.entity, &self.resource) {
            (Some(entity), _) => AuditSubject::Entity(EntityId::new(&**entity)?),
            (None, Some(resource)) => AuditSubject::Resource(Resource::new(&**resource)?),
            (None, None) => AuditSubject::System,
        };
        let limiter = context.limiter().await?;
        let (from, to) = (self.from, self.to);
        // They are listed newest first, so `from` ends the list.
        self.page.all |= from.is_some();
        self.page
            .print(context, &COLUMNS, rows, async |page| {
                let mut page = limiter.admin().audit(&of, page).await?;
                let is_early = |event: &AuditEvent| from.is_some_and(|at| event.id.at() < at);
                let is_late = |event: &AuditEvent| to.is_some_and(|at| event.id.at() >= at);
                page.next = page
                    .next
                    .filter(|_| !page.items.last().is_some_and(is_early));
                page.items
                    .retain(|event| !is_early(event) && !is_late(event));
                Ok(page)
            })
            .await
    }
}

/// Columns of changed fields.
pub const COLUMNS: [&str; 5] = ["at", "author", "what", "before", "after"];

/// Returns a row of [`COLUMNS`] for each field that an event changed, and one if it changed none.
pub fn rows(event: &AuditEvent) -> Vec<Vec<String>> {
    let (what, fields) = change(&event.change);
    let mut rows = diff::rows(&what, fields);
    if rows.is_empty() {
        let none = || "-".to_owned();
        rows.push(vec![what, String::new(), none(), none()]);
    }
    let row = |row: Vec<String>| {
        let [of, field, before, after] = <[String; 4]>::try_from(row).unwrap_or_default();
        let what = format!("{of} {field}").trim_end().to_owned();
        let (at, principal) = (instant::text(event.id.at()), event.principal.clone());
        vec![at, principal, what, before, after]
    };
    rows.into_iter().map(row).collect()
}

/// Returns what an event changed, with its fields before and after.
fn change(change: &AuditChange) -> (String, [Fields; 2]) {
    let field = |name: &str, value: Option<String>| -> Fields {
        value
            .map(|value| (name.to_owned(), value))
            .into_iter()
            .collect()
    };
    let bucket = |entity, resource| format!("bucket of {entity} on {resource}");
    let amounts = |balances: &BTreeMap<LimitName, MilliTokens>| -> Fields {
        let balances = balances.iter();
        let texts = balances.map(|(name, amount)| (name.to_string(), amount.to_string()));
        texts.collect()
    };
    let limits = |limits: &[Limit]| {
        let config = Config {
            limits: limits.to_vec(),
            ..Config::default()
        };
        diff::config_fields(Some(&config))
    };
    match change {
        AuditChange::Config {
            level,
            before,
            after,
        } => {
            let fields = [before, after].map(|config| diff::config_fields(config.as_ref()));
            (level.to_string(), fields)
        }
        AuditChange::Entity { id, before, after } => {
            let fields = [before, after].map(|entity| diff::entity_fields(entity.as_ref()));
            (format!("entity {id}"), fields)
        }
        AuditChange::EntityDescription { id, before, after } => {
            let labels = |description: &EntityDescription| -> Fields {
                let name = field("name", description.display_name().map(ToOwned::to_owned));
                let labels = description.labels().iter();
                let labels = labels.map(|(name, value)| (format!("label {name}"), value.clone()));
                labels.chain(name).collect()
            };
            (format!("entity {id}"), [before, after].map(labels))
        }
        AuditChange::Switch {
            level,
            before,
            after,
        } => {
            let switch = |switch: &Option<Switch>| {
                field("switch", switch.map(|switch| switch.as_str().to_owned()))
            };
            (level.to_string(), [before, after].map(switch))
        }
        AuditChange::OnUnavailable { before, after } => {
            let decision = |decision: &Option<OnUnavailable>| {
                let text = decision.as_ref().map(ToString::to_string);
                field("while DynamoDB is unavailable", text)
            };
            ("system".to_owned(), [before, after].map(decision))
        }
        AuditChange::Balances {
            entity,
            resource,
            before,
            after,
        } => (bucket(entity, resource), [before, after].map(amounts)),
        AuditChange::Limits {
            entity,
            resource,
            before,
            after,
        } => {
            let fields = [before, after].map(|given| limits(given));
            (bucket(entity, resource), fields)
        }
        AuditChange::LeaseEnded {
            entity,
            resource,
            lease,
            held,
        } => {
            let what = format!("{} lease {lease}", bucket(entity, resource));
            (what, [amounts(held), Fields::new()])
        }
        AuditChange::Shards {
            entity,
            resource,
            before,
            after,
        } => {
            let count = |count: &u32| field("shards", Some(count.to_string()));
            (bucket(entity, resource), [before, after].map(count))
        }
        AuditChange::Erased { id } => {
            let after = field("", Some("erased".to_owned()));
            (format!("entity {id}"), [Fields::new(), after])
        }
        AuditChange::Purged => {
            let after = field("", Some("purged".to_owned()));
            ("namespace".to_owned(), [Fields::new(), after])
        }
    }
}
