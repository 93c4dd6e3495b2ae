//! Which level the limits of buckets come from.

use std::collections::BTreeMap;

use weirgate::{Config, ConfigLevel, LimitStatus, PlanName};

use crate::why::is_of;

/// How many configured entities are read for a subject. Beyond them levels are unknown in the list.
pub(crate) const MAX_LEVELS: usize = 500;

/// Configured levels, as far as they are read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Levels {
    configs: BTreeMap<ConfigLevel, Config>,
    /// Whether all levels of entities, and all others, are among them.
    has_entities: bool,
    has_general: bool,
}

impl Levels {
    /// Returns levels of plans, of resources and of the system, which are all if nothing was cut.
    pub(crate) fn general(
        configs: impl IntoIterator<Item = (ConfigLevel, Config)>,
        is_whole: bool,
    ) -> Self {
        Self { configs: configs.into_iter().collect(), has_general: is_whole, has_entities: false }
    }

    /// Returns these levels with those of entities.
    pub(crate) fn with_entities(&self, of_entities: &OfEntities) -> Self {
        let mut all = self.clone();
        all.configs.extend(of_entities.configs.clone());
        all.has_entities = of_entities.is_whole;
        all
    }

    /// Returns whether a plan is among them, so that the plans of entities matter.
    pub(crate) fn have_plans(&self) -> bool {
        self.configs.keys().any(|level| level.plan().is_some())
    }

    /// Returns the kind of the level that a limit of a bucket comes from, as JSON has it; `caller`
    /// if the bucket has another limit than the table, and `None` if not all levels are known. `plan` is
    /// that of the bucket's entity.
    pub(crate) fn source(
        &self,
        status: &LimitStatus,
        plan: Option<&PlanName>,
    ) -> Option<&'static str> {
        for level in ConfigLevel::of_entity(&status.entity, plan, &status.resource) {
            if let Some(config) = self.configs.get(&level) {
                return Some(match is_of(status, config) {
                    true => kind(&level),
                    false => "caller",
                });
            }
            let is_known = match level.entity() {
                Some(_) => self.has_entities,
                None => self.has_general,
            };
            if !is_known {
                return None;
            }
        }
        Some("caller")
    }
}

/// Levels of entities, while they are read.
#[derive(Debug, Clone, Default)]
pub(crate) struct OfEntities {
    configs: BTreeMap<ConfigLevel, Config>,
    is_whole: bool,
}

impl OfEntities {
    /// Takes over a page of a list. Returns whether there is room for more.
    pub(crate) fn add(&mut self, page: Vec<(ConfigLevel, Config)>) -> bool {
        self.configs.extend(page);
        self.configs.len() < MAX_LEVELS
    }

    /// Marks that all lists were read to their ends.
    pub(crate) const fn complete(&mut self) {
        self.is_whole = true;
    }
}

const fn kind(level: &ConfigLevel) -> &'static str {
    match level {
        ConfigLevel::EntityResource(..) => "entity_resource",
        ConfigLevel::Entity(_) => "entity",
        ConfigLevel::PlanResource(..) => "plan_resource",
        ConfigLevel::Plan(_) => "plan",
        ConfigLevel::Resource(_) => "resource",
        ConfigLevel::System => "system",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weirgate::{EntityId, Limit, LimitMode, MilliTokens, Resource};

    use super::*;

    fn status(tokens: i64) -> LimitStatus {
        LimitStatus {
            entity: EntityId::new("user-1").unwrap(),
            resource: Resource::new("gpt-4").unwrap(),
            limit: "rpm".to_owned(),
            mode: LimitMode::Enforced,
            capacity: MilliTokens::from_tokens(tokens),
            refill_amount: MilliTokens::from_tokens(tokens),
            refill_period: Duration::from_mins(1),
            available: MilliTokens::ZERO,
            requested: MilliTokens::ZERO,
            is_requested: false,
            retry_after: None,
            paused_for: None,
            window: None,
            window_end: None,
            resets_in: None,
        }
    }

    fn rpm(tokens: i64) -> Config {
        Config::of([Limit::per_minute("rpm", tokens).unwrap()])
    }

    #[test]
    fn a_limit_comes_from_the_narrowest_level_and_is_unknown_while_a_narrower_one_may_be_there() {
        let resource = ConfigLevel::Resource(Resource::new("gpt-4").unwrap());
        let entity = ConfigLevel::Entity(EntityId::new("user-1").unwrap());
        let general = [(ConfigLevel::System, rpm(10)), (resource, rpm(20))];
        let general = Levels::general(general, true);
        assert_eq!(general.source(&status(20), None), None, "entities are not read");
        let mut none = OfEntities::default();
        assert!(none.add(vec![]));
        none.complete();
        let all = general.with_entities(&none);
        assert_eq!(all.source(&status(20), None), Some("resource"));
        assert_eq!(all.source(&status(10), None), Some("caller"), "the system's is wider");
        // Lists that were cut still have the levels that win.
        let mut some = OfEntities::default();
        some.add(vec![(entity, rpm(30))]);
        let cut = general.with_entities(&some);
        assert_eq!(cut.source(&status(30), None), None, "the entity may have one on gpt-4");
        let on_resource = ConfigLevel::EntityResource(
            EntityId::new("user-1").unwrap(),
            Resource::new("gpt-4").unwrap(),
        );
        some.add(vec![(on_resource, rpm(40))]);
        let cut = general.with_entities(&some);
        assert_eq!(cut.source(&status(40), None), Some("entity_resource"));
        let pro = PlanName::new("pro").unwrap();
        let plans = [(ConfigLevel::System, rpm(10)), (ConfigLevel::Plan(pro.clone()), rpm(50))];
        let plans = Levels::general(plans, true).with_entities(&none);
        assert!(plans.have_plans() && !all.have_plans());
        assert_eq!(plans.source(&status(50), Some(&pro)), Some("plan"));
        assert_eq!(plans.source(&status(10), None), Some("system"));
        // Many resources: a bucket's own may be among those that were not read.
        let cut = Levels::general([(ConfigLevel::System, rpm(10))], false);
        assert_eq!(cut.with_entities(&none).source(&status(10), None), None);
    }
}
