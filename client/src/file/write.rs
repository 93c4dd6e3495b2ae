//! Writes the text of a limits file, of which equal contents have one.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use weirgate_shared::{Config, ConfigLevel, ConfigStatus, Entity, EntityId, PlanName, Resource};

use super::LimitsFileContents;

/// Configurations by resource.
type Resources<'c> = BTreeMap<&'c Resource, &'c Config>;

/// What a file has of one entity or plan.
#[derive(Default)]
struct Own<'c> {
    entity: Option<&'c Entity>,
    default: Option<&'c Config>,
    resources: Resources<'c>,
}

/// The text of the file. [`parse`](LimitsFileContents::parse) reads the same contents from it, but for
/// their order, and for entities without a parent, a plan and limits. Equal contents have equal texts.
impl Display for LimitsFileContents {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (mut system, mut resources) = (None, Resources::new());
        let mut plans = BTreeMap::<&PlanName, Own<'_>>::new();
        let mut entities = BTreeMap::<&EntityId, Own<'_>>::new();
        for (level, config) in &self.configs {
            match level {
                ConfigLevel::System => system = Some(config),
                ConfigLevel::Resource(resource) => drop(resources.insert(resource, config)),
                ConfigLevel::Plan(plan) => plans.entry(plan).or_default().default = Some(config),
                ConfigLevel::PlanResource(plan, resource) => {
                    let own = plans.entry(plan).or_default();
                    own.resources.insert(resource, config);
                }
                ConfigLevel::Entity(id) => entities.entry(id).or_default().default = Some(config),
                ConfigLevel::EntityResource(id, resource) => {
                    let own = entities.entry(id).or_default();
                    own.resources.insert(resource, config);
                }
            }
        }
        let is_set = |of: &&Entity| of.parent.is_some() || of.plan.is_some();
        for entity in self.entities.iter().filter(is_set) {
            entities.entry(&entity.id).or_default().entity = Some(entity);
        }
        writeln!(f, "weirgate: 1")?;
        if let Some(config) = system {
            writeln!(f, "system:")?;
            write_config(f, 2, config)?;
        }
        write_resources(f, 0, &resources)?;
        if !plans.is_empty() {
            writeln!(f, "plans:")?;
        }
        for (plan, own) in plans {
            writeln!(f, "  {}:", Quoted(plan.as_str()))?;
            own.write(f)?;
        }
        if !entities.is_empty() {
            writeln!(f, "entities:")?;
        }
        for (id, own) in entities {
            writeln!(f, "  {}:", Quoted(id.as_str()))?;
            if let Some(plan) = own.entity.and_then(|of| of.plan.as_ref()) {
                writeln!(f, "    plan: {}", Quoted(plan.as_str()))?;
            }
            if let Some((parent, entity)) =
                own.entity.and_then(|of| Some((of.parent.as_ref()?, of)))
            {
                writeln!(f, "    parent: {}", Quoted(parent.as_str()))?;
                if !entity.cascades {
                    writeln!(f, "    cascades: false")?;
                }
            }
            own.write(f)?;
        }
        Ok(())
    }
}

impl Own<'_> {
    /// Writes the configurations.
    fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(config) = self.default {
            write_config(f, 4, config)?;
        }
        write_resources(f, 4, &self.resources)
    }
}

fn write_resources(f: &mut Formatter<'_>, indent: usize, of: &Resources<'_>) -> fmt::Result {
    if !of.is_empty() {
        writeln!(f, "{:indent$}resources:", "")?;
    }
    for (name, config) in of {
        writeln!(f, "{:indent$}  {}:", "", Quoted(name.as_str()))?;
        write_config(f, indent + 4, config)?;
    }
    Ok(())
}

fn write_config(f: &mut Formatter<'_>, indent: usize, config: &Config) -> fmt::Result {
    if config.status != ConfigStatus::Enforced {
        writeln!(f, "{:indent$}status: {}", "", config.status.as_str())?;
    }
    if config.is_shadow {
        writeln!(f, "{:indent$}shadow: true", "")?;
    }
    if let Some(class) = &config.class {
        writeln!(f, "{:indent$}class: {}", "", Quoted(class.as_str()))?;
    }
    if !config.limits.is_empty() {
        writeln!(f, "{:indent$}limits:", "")?;
    }
    let mut limits: Vec<_> = config.limits.iter().collect();
    limits.sort_by(|one, other| one.name().cmp(other.name()));
    for limit in limits {
        writeln!(f, "{:indent$}  {}: {}", "", Quoted(limit.name().as_str()), limit.text())?;
    }
    Ok(())
}

/// A name, in quotes where some version of YAML would read something else.
struct Quoted<'n>(&'n str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const WORDS: [&str; 8] = ["y", "yes", "n", "no", "on", "off", "true", "false"];
        let name = self.0;
        let is_plain = name.starts_with(|first: char| first.is_ascii_alphabetic())
            && !name.contains(':')
            && !name.eq_ignore_ascii_case("null")
            && !WORDS.iter().any(|word| name.eq_ignore_ascii_case(word));
        match is_plain {
            true => f.write_str(name),
            // A name has no character that needs an escape.
            false => write!(f, "\"{name}\""),
        }
    }
}
