//! Parses the text of a limits file. It never guesses: an error for anything unknown has line and
//! column.

use std::collections::{BTreeSet, HashMap};

use weirgate_shared::files::{FileError, Format, Node, Source, TextFile, with_document};
use weirgate_shared::{
    Config, ConfigLevel, ConfigStatus, EntityId, Limit, LimitMode, NameError, Resource,
};

/// Contents of a file.
#[derive(Debug, Default)]
pub(super) struct ParsedFile {
    pub(super) configs: Vec<(ConfigLevel, Config)>,
    pub(super) entities: BTreeSet<EntityId>,
    pub(super) parents: HashMap<EntityId, EntityId>,
}

/// Version of the format, 1.
const VERSION: i64 = 1;
/// A valid file nests seven deep.
const FORMAT: Format = Format {
    needs: "at least weirgate: 1",
    depth: 16,
};

/// Parses a file.
pub(super) fn parse(file: &TextFile) -> Result<ParsedFile, FileError> {
    with_document(FORMAT, &file.path, &file.text, |source, node| {
        let mut reader = Reader {
            source,
            parsed: ParsedFile::default(),
            places: vec![],
        };
        reader.file(node)?;
        reader.parents()?;
        Ok(reader.parsed)
    })
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
                        let resource = self.named(&name, &node, Resource::new)?;
                        self.config(ConfigLevel::Resource(resource), &node, &[])?;
                    }
                }
                "entities" => {
                    for (name, node) in self.source.entries(&node, "a map of entities")? {
                        let entity = self.named(&name, &node, EntityId::new)?;
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
            None => Err(self
                .source
                .error(&file, "weirgate: 1 is missing, the version of this format")),
        }
    }

    /// Requires that no entity is its own ancestor.
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
        }
        Ok(())
    }

    fn entity(&mut self, entity: &EntityId, node: &Node<'_>) -> Result<(), FileError> {
        self.parsed.entities.insert(entity.clone());
        let mut has_default = false;
        for (key, part) in self.source.entries(
            node,
            "a map with limits, status, shadow, parent and resources",
        )? {
            match key.as_str() {
                "parent" => {
                    let parent = self.source.text(&part)?;
                    let parent = self.named(&parent, &part, EntityId::new)?;
                    self.parsed.parents.insert(entity.clone(), parent);
                    self.places.push((entity.clone(), part.place()));
                }
                "resources" => {
                    for (name, node) in self.source.entries(&part, "a map of resources")? {
                        let resource = self.named(&name, &node, Resource::new)?;
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
        config
            .check()
            .map_err(|error| self.source.error(node, &error.to_string()))?;
        self.parsed.configs.push((level, config));
        Ok(())
    }

    fn named<T>(
        &self,
        name: &str,
        node: &Node<'_>,
        check: impl Fn(Box<str>) -> Result<T, NameError>,
    ) -> Result<T, FileError> {
        check(name.into()).map_err(|error| self.source.error(node, &error.to_string()))
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
                return Err(self.source.error(node, &format!("takes {TAKES}")));
            }
        };
        let limit = limit
            .and_then(|limit| burst.map_or(Ok(limit.clone()), |burst| limit.with_burst(burst)));
        let limit = limit.map_err(|error| self.source.error(node, &error.to_string()))?;
        Ok(limit.in_mode(mode))
    }
}
