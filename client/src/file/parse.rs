//! Parses the text of a limits file. It never guesses: an error for anything unknown has line and
//! column.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use saphyr::{MarkedYaml, Scalar, YamlData};
use weirgate_shared::{Config, ConfigLevel, ConfigStatus, EntityId, Limit, LimitMode, Resource};

use super::load::load;

/// An error in a limits file, and its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {message}", path.display(), place.map(|(line, column)| format!(":{line}:{column}")).unwrap_or_default())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// Line and column, both from 1; `None` if the file cannot be read at all.
    pub place: Option<(usize, usize)>,
    /// The error, and the accepted values.
    pub message: String,
}

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
        path,
        said: ParsedFile::default(),
        places: vec![],
    };
    match &documents[..] {
        [] => Err(reader.wrong(
            (1, 1),
            "the file is empty: it needs at least weirgate: 1".to_owned(),
        )),
        [document] => reader
            .file(Node {
                at: String::new(),
                yaml: document,
            })
            .and_then(|()| reader.parents())
            .map(|()| reader.said),
        [_, second, ..] => Err(reader.wrong(
            place(second),
            "a second document begins: the file must have one".to_owned(),
        )),
    }
}

struct Reader<'p> {
    path: &'p Path,
    said: ParsedFile,
    /// Place of each parent in the file.
    places: Vec<(EntityId, (usize, usize))>,
}

/// A part of the file, and its path in the tree: `resources.gpt-4.limits`.
#[derive(Clone)]
struct Node<'y> {
    at: String,
    yaml: &'y MarkedYaml<'y>,
}

fn place(yaml: &MarkedYaml<'_>) -> (usize, usize) {
    (yaml.span.start.line(), yaml.span.start.col() + 1)
}

impl Reader<'_> {
    fn wrong(&self, place: (usize, usize), message: String) -> FileError {
        FileError {
            path: self.path.to_owned(),
            place: Some(place),
            message,
        }
    }

    /// Returns the error of a node that is not as expected.
    fn refuse(&self, node: &Node<'_>, takes: &str) -> FileError {
        let name = if node.at.is_empty() {
            "the file"
        } else {
            &node.at
        };
        self.wrong(
            place(node.yaml),
            format!("{name} is {}, must be {takes}", shown(node.yaml)),
        )
    }

    fn file(&mut self, file: Node<'_>) -> Result<(), FileError> {
        let mut version = None;
        for (key, node) in
            self.entries(&file, "a map with weirgate, system, resources and entities")?
        {
            match key.as_str() {
                "weirgate" => version = Some((self.integer(&node)?, node)),
                "system" => self.config(ConfigLevel::System, &node, &[])?,
                "resources" => {
                    for (name, node) in self.entries(&node, "a map of resources")? {
                        let resource = self.name(&name, &node, Resource::new)?;
                        self.config(ConfigLevel::Resource(resource), &node, &[])?;
                    }
                }
                "entities" => {
                    for (name, node) in self.entries(&node, "a map of entities")? {
                        let entity = self.name(&name, &node, EntityId::new)?;
                        self.entity(&entity, &node)?;
                    }
                }
                _ => {
                    return Err(self.unknown(&file, &key, "weirgate, system, resources, entities"));
                }
            }
        }
        match version {
            Some((VERSION, _)) => Ok(()),
            Some((_, node)) => Err(self.refuse(&node, "1, the version of this format")),
            None => Err(self.wrong(
                place(file.yaml),
                "weirgate: 1 is missing, the version of this format".to_owned(),
            )),
        }
    }

    /// Requires that no entity is its own ancestor, and that the file has limits for each entity
    /// with a parent: without limits here, the parent has no effect.
    fn parents(&self) -> Result<(), FileError> {
        for (entity, place) in &self.places {
            let above = |entity: &&EntityId| self.said.parents.get(*entity);
            let ancestors = std::iter::successors(self.said.parents.get(entity), above)
                .take(self.said.parents.len());
            if ancestors.into_iter().any(|ancestor| ancestor == entity) {
                return Err(self.wrong(
                    *place,
                    format!("entity {entity} would be its own ancestor: give another parent"),
                ));
            }
            let is_for = |level: &ConfigLevel| match level {
                ConfigLevel::EntityResource(of, _) | ConfigLevel::Entity(of) => of == entity,
                ConfigLevel::Resource(_) | ConfigLevel::System => true,
            };
            if !self.said.configs.iter().any(|(level, _)| is_for(level)) {
                let text = "has a parent here and no limits, which has no effect: give it limits, or its parent by set_entity()";
                return Err(self.wrong(*place, format!("entity {entity} {text}")));
            }
        }
        Ok(())
    }

    fn entity(&mut self, entity: &EntityId, node: &Node<'_>) -> Result<(), FileError> {
        let mut has_default = false;
        for (key, part) in self.entries(
            node,
            "a map with limits, status, shadow, parent and resources",
        )? {
            match key.as_str() {
                "parent" => {
                    let parent = self.text(&part)?;
                    let parent = self.name(&parent, &part, EntityId::new)?;
                    self.said.parents.insert(entity.clone(), parent);
                    self.places.push((entity.clone(), place(part.yaml)));
                }
                "resources" => {
                    for (name, node) in self.entries(&part, "a map of resources")? {
                        let resource = self.name(&name, &node, Resource::new)?;
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
        for (key, part) in self.entries(node, "a map with limits, status and shadow")? {
            match key.as_str() {
                "limits" => {
                    for (name, limit) in self.entries(&part, "a map of limits")? {
                        config.limits.push(self.limit(&name, &limit)?);
                    }
                }
                "status" => {
                    let status = ConfigStatus::parse(&self.text(&part)?);
                    config.status = status
                        .ok_or_else(|| self.refuse(&part, "enforced, disabled or unlimited"))?;
                }
                "shadow" => config.is_shadow = self.boolean(&part)?,
                known if besides.contains(&known) => {}
                _ => return Err(self.unknown(node, &key, "limits, status, shadow")),
            }
        }
        config
            .check()
            .map_err(|error| self.wrong(place(node.yaml), format!("{}: {error}", node.at)))?;
        self.said.configs.push((level, config));
        Ok(())
    }

    fn limit(&self, name: &str, node: &Node<'_>) -> Result<Limit, FileError> {
        const TAKES: &str = "one of per_second, per_minute, per_hour, per_day, concurrent, or capacity with refill_amount \
            and refill_period_ms; beside it burst and mode";
        let (mut rules, mut numbers, mut mode) = (vec![], HashMap::new(), LimitMode::default());
        for (key, part) in self.entries(node, TAKES)? {
            match key.as_str() {
                "per_second" | "per_minute" | "per_hour" | "per_day" | "concurrent" => {
                    rules.push((key.clone(), self.integer(&part)?));
                }
                "capacity" | "refill_amount" | "refill_period_ms" | "burst" => {
                    numbers.insert(key.clone(), self.integer(&part)?);
                }
                "mode" => {
                    let parsed = LimitMode::parse(&self.text(&part)?);
                    mode = parsed.ok_or_else(|| self.refuse(&part, "enforced, shadow or soft"))?;
                }
                _ => return Err(self.unknown(node, &key, TAKES)),
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
            _ => return Err(self.wrong(place(node.yaml), format!("{} takes {TAKES}", node.at))),
        };
        let limit = limit
            .and_then(|limit| burst.map_or(Ok(limit.clone()), |burst| limit.with_burst(burst)));
        let limit =
            limit.map_err(|error| self.wrong(place(node.yaml), format!("{}: {error}", node.at)))?;
        Ok(limit.in_mode(mode))
    }

    /// Returns the entries of a map, with their keys.
    fn entries<'y>(
        &self,
        node: &Node<'y>,
        takes: &str,
    ) -> Result<Vec<(String, Node<'y>)>, FileError> {
        let YamlData::Mapping(map) = &node.yaml.data else {
            return Err(self.refuse(node, takes));
        };
        let entry = |(key, value): (&'y MarkedYaml<'y>, &'y MarkedYaml<'y>)| {
            let YamlData::Value(Scalar::String(name)) = &key.data else {
                let message = format!("a key is {}, must be a name: put it in quotes", shown(key));
                return Err(self.wrong(place(key), message));
            };
            let at = if node.at.is_empty() {
                name.to_string()
            } else {
                format!("{}.{name}", node.at)
            };
            Ok((name.to_string(), Node { at, yaml: value }))
        };
        map.iter().map(entry).collect()
    }

    fn unknown(&self, node: &Node<'_>, key: &str, takes: &str) -> FileError {
        let YamlData::Mapping(map) = &node.yaml.data else {
            return self.refuse(node, takes);
        };
        let named = |yaml: &&MarkedYaml<'_>| matches!(&yaml.data, YamlData::Value(Scalar::String(name)) if name == key);
        let at = map
            .keys()
            .find(named)
            .map_or_else(|| place(node.yaml), place);
        let of = if node.at.is_empty() {
            String::new()
        } else {
            format!("{}: ", node.at)
        };
        self.wrong(at, format!("{of}{key:?} is unknown, must be {takes}"))
    }

    fn name<T>(
        &self,
        name: &str,
        node: &Node<'_>,
        check: impl Fn(Box<str>) -> Result<T, weirgate_shared::NameError>,
    ) -> Result<T, FileError> {
        check(name.into())
            .map_err(|error| self.wrong(place(node.yaml), format!("{}: {error}", node.at)))
    }

    fn integer(&self, node: &Node<'_>) -> Result<i64, FileError> {
        match &node.yaml.data {
            YamlData::Value(Scalar::Integer(number)) => Ok(*number),
            _ => Err(self.refuse(node, "a whole number")),
        }
    }

    fn boolean(&self, node: &Node<'_>) -> Result<bool, FileError> {
        match &node.yaml.data {
            YamlData::Value(Scalar::Boolean(is)) => Ok(*is),
            _ => Err(self.refuse(node, "true or false")),
        }
    }

    fn text(&self, node: &Node<'_>) -> Result<String, FileError> {
        match &node.yaml.data {
            YamlData::Value(Scalar::String(text)) => Ok(text.to_string()),
            _ => Err(self.refuse(node, "a word")),
        }
    }
}

/// Returns a value as an error shows it.
fn shown(yaml: &MarkedYaml<'_>) -> String {
    match &yaml.data {
        YamlData::Value(Scalar::Null) => "nothing".to_owned(),
        YamlData::Value(Scalar::Boolean(is)) => is.to_string(),
        YamlData::Value(Scalar::Integer(number)) => number.to_string(),
        YamlData::Value(Scalar::FloatingPoint(number)) => number.to_string(),
        YamlData::Value(Scalar::String(text)) => format!("{text:?}"),
        YamlData::Sequence(_) => "a list".to_owned(),
        YamlData::Mapping(_) => "a map".to_owned(),
        _ => "something else".to_owned(),
    }
}
