//! Parses the text of a limits file. It never guesses: an error for anything unknown has line and
//! column.

use std::collections::HashMap;
use std::path::Path;

use weirgate_shared::{Config, ConfigLevel, ConfigStatus, EntityId, Limit, LimitMode, Resource};

use super::load::load;
use super::nodes::{FileError, Node, Source, place};

/// Contents of a file.
#[derive(Debug, Default)]
pub(super) struct ParsedFile {
    pub(super) configs: Vec<(ConfigLevel, Config)>,
    pub(super) parents: HashMap<EntityId, EntityId>,
}

/// Version of the format, 1.
const VERSION: i64 = 1;

/// Parses the text of the file at `path`.
pub(super) fn parse(path: &Path, text: &str) -> Result<ParsedFile, FileError> {
    let documents = load(text).map_err(|error| {
        let at = error.marker();
        FileError {
            path: path.to_owned(),
            place: Some((at.line(), at.col() + 1)),
            message: error.info().to_owned(),
        }
    })?;
    let mut reader = Reader {
        source: Source(path),
        parsed: ParsedFile::default(),
        places: vec![],
    };
    match &documents[..] {
        [] => Err(reader.source.wrong(
            (1, 1),
            "the file is empty: it needs at least weirgate: 1".to_owned(),
        )),
        [document] => reader
            .file(Node {
                at: String::new(),
                yaml: document,
            })
            .and_then(|()| reader.parents())
            .map(|()| reader.parsed),
        [_, second, ..] => Err(reader.source.wrong(
            place(second),
            "a second document begins: the file must have one".to_owned(),
        )),
    }
}

struct Reader<'p> {
    source: Source<'p>,
    parsed: ParsedFile,
    /// Place of each parent in the file.
    places: Vec<(EntityId, (usize, usize))>,
}

impl Reader<'_> {
    fn file(&mut self, file: Node<'_>) -> Result<(), FileError> {
        let mut version = None;
        for (key, node) in self
            .source
            .entries(&file, "a map with weirgate, system, resources and entities")?
        {
            match key.as_str() {
                "weirgate" => version = Some((self.source.integer(&node)?, node)),
                "system" => self.config(ConfigLevel::System, &node, &[])?,
                "resources" => {
                    for (name, node) in self.source.entries(&node, "a map of resources")? {
                        let resource = self.source.name(&name, &node, Resource::new)?;
                        self.config(ConfigLevel::Resource(resource), &node, &[])?;
                    }
                }
                "entities" => {
                    for (name, node) in self.source.entries(&node, "a map of entities")? {
                        let entity = self.source.name(&name, &node, EntityId::new)?;
                        self.entity(&entity, &node)?;
                    }
                }
                _ => {
                    return Err(self.source.unknown(
                        &file,
                        &key,
                        "weirgate, system, resources, entities",
                    ));
                }
            }
        }
        match version {
            Some((VERSION, _)) => Ok(()),
            Some((_, node)) => Err(self.source.refuse(&node, "1, the version of this format")),
            None => Err(self.source.wrong(
                place(file.yaml),
                "weirgate: 1 is missing, the version of this format".to_owned(),
            )),
        }
    }

    /// Requires that no entity is its own ancestor, and that the file has limits for each entity
    /// with a parent: without limits here, the parent has no effect.
    fn parents(&self) -> Result<(), FileError> {
        for (entity, place) in &self.places {
            let above = |entity: &&EntityId| self.parsed.parents.get(*entity);
            let ancestors = std::iter::successors(self.parsed.parents.get(entity), above)
                .take(self.parsed.parents.len());
            if ancestors.into_iter().any(|ancestor| ancestor == entity) {
                return Err(self.source.wrong(
                    *place,
                    format!("entity {entity} would be its own ancestor: give another parent"),
                ));
            }
            let is_for = |level: &ConfigLevel| match level {
                ConfigLevel::EntityResource(of, _) | ConfigLevel::Entity(of) => of == entity,
                ConfigLevel::Resource(_) | ConfigLevel::System => true,
            };
            if !self.parsed.configs.iter().any(|(level, _)| is_for(level)) {
                let text = "has a parent here and no limits, which has no effect: give it limits, or its parent by set_entity()";
                return Err(self.source.wrong(*place, format!("entity {entity} {text}")));
            }
        }
        Ok(())
    }

    fn entity(&mut self, entity: &EntityId, node: &Node<'_>) -> Result<(), FileError> {
        let mut has_default = false;
        for (key, part) in self.source.entries(
            node,
            "a map with limits, status, shadow, parent and resources",
        )? {
            match key.as_str() {
                "parent" => {
                    let parent = self.source.text(&part)?;
                    let parent = self.source.name(&parent, &part, EntityId::new)?;
                    self.parsed.parents.insert(entity.clone(), parent);
                    self.places.push((entity.clone(), place(part.yaml)));
                }
                "resources" => {
                    for (name, node) in self.source.entries(&part, "a map of resources")? {
                        let resource = self.source.name(&name, &node, Resource::new)?;
                        self.config(
                            ConfigLevel::EntityResource(entity.clone(), resource),
                            &node,
                            &[],
                        )?;
                    }
                }
                _ => has_default = true,
            }
        }
        if has_default {
            self.config(
                ConfigLevel::Entity(entity.clone()),
                node,
                &["parent", "resources"],
            )?;
        }
        Ok(())
    }

    /// Reads the configuration of one level. Skips the `besides` keys, which are read elsewhere.
    fn config(
        &mut self,
        level: ConfigLevel,
        node: &Node<'_>,
        besides: &[&str],
    ) -> Result<(), FileError> {
        let mut config = Config::default();
        for (key, part) in self
            .source
            .entries(node, "a map with limits, status and shadow")?
        {
            match key.as_str() {
                "limits" => {
                    for (name, limit) in self.source.entries(&part, "a map of limits")? {
                        config.limits.push(self.limit(&name, &limit)?);
                    }
                }
                "status" => {
                    let status = ConfigStatus::parse(&self.source.text(&part)?);
                    config.status = status.ok_or_else(|| {
                        self.source.refuse(&part, "enforced, disabled or unlimited")
                    })?;
                }
                "shadow" => config.is_shadow = self.source.boolean(&part)?,
                known if besides.contains(&known) => {}
                _ => return Err(self.source.unknown(node, &key, "limits, status, shadow")),
            }
        }
        config.check().map_err(|error| {
            self.source
                .wrong(place(node.yaml), format!("{}: {error}", node.at))
        })?;
        self.parsed.configs.push((level, config));
        Ok(())
    }

    fn limit(&self, name: &str, node: &Node<'_>) -> Result<Limit, FileError> {
        const TAKES: &str = "one of per_second, per_minute, per_hour, per_day, concurrent, or capacity with refill_amount \
            and refill_period_ms; beside it burst and mode";
        let (mut rules, mut numbers, mut mode) = (vec![], HashMap::new(), LimitMode::default());
        for (key, part) in self.source.entries(node, TAKES)? {
            match key.as_str() {
                "per_second" | "per_minute" | "per_hour" | "per_day" | "concurrent" => {
                    rules.push((key.clone(), self.source.integer(&part)?));
                }
                "capacity" | "refill_amount" | "refill_period_ms" | "burst" => {
                    numbers.insert(key.clone(), self.source.integer(&part)?);
                }
                "mode" => {
                    let parsed = LimitMode::parse(&self.source.text(&part)?);
                    mode = parsed
                        .ok_or_else(|| self.source.refuse(&part, "enforced, shadow or soft"))?;
                }
                _ => return Err(self.source.unknown(node, &key, TAKES)),
            }
        }
        let burst = numbers.remove("burst");
        let custom = [
            numbers.get("capacity"),
            numbers.get("refill_amount"),
            numbers.get("refill_period_ms"),
        ];
        let limit = match (&rules[..], custom) {
            ([(rule, number)], [None, None, None]) => match rule.as_str() {
                "per_second" => Limit::per_second(name, *number),
                "per_minute" => Limit::per_minute(name, *number),
                "per_hour" => Limit::per_hour(name, *number),
                "per_day" => Limit::per_day(name, *number),
                _ => Limit::concurrent(name, *number),
            },
            ([], [Some(capacity), Some(amount), Some(period)]) => {
                Limit::custom(name, *capacity, *amount, *period)
            }
            _ => {
                return Err(self
                    .source
                    .wrong(place(node.yaml), format!("{} takes {TAKES}", node.at)));
            }
        };
        let limit = limit
            .and_then(|limit| burst.map_or(Ok(limit.clone()), |burst| limit.with_burst(burst)));
        let limit = limit.map_err(|error| {
            self.source
                .wrong(place(node.yaml), format!("{}: {error}", node.at))
        })?;
        Ok(limit.in_mode(mode))
    }
}
