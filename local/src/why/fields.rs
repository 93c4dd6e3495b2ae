//! Changes as fields, with their text before and after.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use weirgate::{
    AuditChange, Config, Entity, EntityDescription, EpochMillis, Limit, LimitName, MilliTokens,
    OnUnavailable, Switch,
};
use weirgate_shared::Iso8601;

/// A field that a change changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Field {
    /// What has the field: a level, an entity, a bucket.
    pub of: String,
    /// Name of the field; empty if the whole changed.
    pub field: String,
    /// Text before the change, `-` for none.
    pub before: String,
    /// Text after it, `-` for none.
    pub after: String,
}

/// Names and texts of fields.
pub type Fields = BTreeMap<String, String>;

/// Returns the fields that differ.
#[must_use]
pub fn differing(of: &str, [before, after]: [Fields; 2]) -> Vec<Field> {
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let names = names.into_iter().filter(|name| before.get(*name) != after.get(*name));
    let value =
        |fields: &Fields, name: &str| fields.get(name).map_or("-", String::as_str).to_owned();
    let field = |name: &String| Field {
        of: of.to_owned(),
        field: name.clone(),
        before: value(&before, name),
        after: value(&after, name),
    };
    names.map(field).collect()
}

/// Returns the fields of two configurations, without what is as usual in both.
#[must_use]
pub fn config_fields(configs: [Option<&Config>; 2]) -> [Fields; 2] {
    let mut both = configs.map(all_config_fields);
    for (name, usual) in [("shadow", "no"), ("status", "enforced")] {
        let is_usual = |fields: &Fields| fields.get(name).is_none_or(|value| value == usual);
        if both.iter().all(is_usual) {
            both.iter_mut().for_each(|fields| drop(fields.remove(name)));
        }
    }
    both
}

fn all_config_fields(config: Option<&Config>) -> Fields {
    let Some(config) = config else {
        return Fields::new();
    };
    let mut fields = Fields::from([
        ("shadow".to_owned(), yes_or_no(config.is_shadow)),
        ("status".to_owned(), config.status.as_str().to_owned()),
    ]);
    let class = config.class.as_ref();
    fields.extend(class.map(|class| ("class".to_owned(), class.to_string())));
    for limit in &config.limits {
        fields.insert(format!("limit {}", limit.name()), limit.text());
    }
    fields
}

/// Returns the fields of an entity.
#[must_use]
pub fn entity_fields(entity: Option<&Entity>) -> Fields {
    let Some(entity) = entity else {
        return Fields::new();
    };
    let parent = entity.parent.as_ref().map_or("-", |parent| parent.as_str());
    Fields::from([
        ("cascades".to_owned(), yes_or_no(entity.cascades)),
        ("parent".to_owned(), parent.to_owned()),
        ("plan".to_owned(), (entity.plan.as_ref()).map_or("-", |plan| plan.as_str()).to_owned()),
    ])
}

fn yes_or_no(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}

/// Returns the fields that a change changed: one without a name if there is none.
#[must_use]
pub fn change_fields(change: &AuditChange) -> Vec<Field> {
    let (of, fields) = fields_of(change);
    let mut fields = differing(&of, fields);
    if fields.is_empty() {
        let none = || "-".to_owned();
        fields.push(Field { of, field: String::new(), before: none(), after: none() });
    }
    fields
}

/// Returns what changed, with its fields before and after.
fn fields_of(change: &AuditChange) -> (String, [Fields; 2]) {
    let field = |name: &str, value: Option<String>| -> Fields {
        value.map(|value| (name.to_owned(), value)).into_iter().collect()
    };
    let bucket = |entity, resource| format!("bucket of {entity} on {resource}");
    let amounts = |balances: &BTreeMap<LimitName, MilliTokens>| -> Fields {
        let balances = balances.iter();
        let texts = balances.map(|(name, amount)| (name.to_string(), amount.to_string()));
        texts.collect()
    };
    let limits = |limits: &[Limit]| Config { limits: limits.to_vec(), ..Config::default() };
    match change {
        AuditChange::Config { level, before, after } => {
            let fields = config_fields([before.as_ref(), after.as_ref()]);
            (level.to_string(), fields)
        }
        AuditChange::Entity { id, before, after } => {
            let fields = [before, after].map(|entity| entity_fields(entity.as_ref()));
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
        AuditChange::Switch { level, before, after } => {
            let switch = |switch: &Option<Switch>| {
                field("switch", switch.map(|switch| switch.as_str().to_owned()))
            };
            (level.to_string(), [before, after].map(switch))
        }
        AuditChange::OnUnavailable { before, after } => {
            let decision = |decision: &Option<OnUnavailable>| {
                let text = decision.as_ref().map(ToString::to_string);
                field("while the table is unavailable", text)
            };
            ("system".to_owned(), [before, after].map(decision))
        }
        AuditChange::Balances { entity, resource, before, after } => {
            (bucket(entity, resource), [before, after].map(amounts))
        }
        AuditChange::Limits { entity, resource, before, after } => {
            let [before, after] = [before, after].map(|given| limits(given));
            let fields = config_fields([Some(&before), Some(&after)]);
            (bucket(entity, resource), fields)
        }
        AuditChange::Pause { entity, resource, before, after } => {
            let end = |of: &Option<EpochMillis>| {
                field("paused until", of.map(|until| Iso8601(until).to_string()))
            };
            (bucket(entity, resource), [before, after].map(end))
        }
        AuditChange::LeaseEnded { entity, resource, lease, held } => {
            let what = format!("{} lease {lease}", bucket(entity, resource));
            (what, [amounts(held), Fields::new()])
        }
        AuditChange::Shards { entity, resource, before, after } => {
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
