//! Parses the text of a limits file. It never guesses: an error for anything unknown has line and
//! column.

use std::collections::{BTreeSet, HashMap, HashSet};

use weirgate_shared::files::{
    FileError, Format, Node, Source, TextFile, read_limit, with_document,
};
use weirgate_shared::{
    ClassName, Config, ConfigLevel, ConfigStatus, EntityId, NameError, PlanName, Resource,
};

/// Contents of a file.
#[derive(Debug, Default)]
pub(super) struct ParsedFile {
    pub(super) configs: Vec<(ConfigLevel, Config)>,
    pub(super) entities: BTreeSet<EntityId>,
    pub(super) parents: HashMap<EntityId, EntityId>,
    /// Entities with a parent to which they do not cascade.
    pub(super) apart: HashSet<EntityId>,
    pub(super) plans: HashMap<EntityId, PlanName>,
}

/// Version of the format, 1.
const VERSION: i64 = 1;
/// A valid file nests seven deep.
const FORMAT: Format = Format { needs: "at least weirgate: 1", depth: 16 };

/// Parses a file.
pub(super) fn parse(file: &TextFile) -> Result<ParsedFile, FileError> {
    with_document(FORMAT, &file.path, &file.text, |source, node| {
        let mut reader = Reader { source, parsed: ParsedFile::default(), places: vec![] };
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
            .entries(&file, "a map with weirgate, system, resources, plans and entities")?
        {
            match key.as_str() {
                "weirgate" => version = Some((self.source.integer(&node)?, node)),
                "system" => self.config(ConfigLevel::System, &node, &[])?,
                "resources" => self.resources(&node, ConfigLevel::Resource)?,
                "plans" => {
                    for (name, node) in self.source.entries(&node, "a map of plans")? {
                        let plan = self.named(&name, &node, PlanName::new)?;
                        self.plan(&plan, &node)?;
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
                        "weirgate, system, resources, plans, entities",
                    ));
                }
            }
        }
        match version {
            Some((VERSION, _)) => Ok(()),
            Some((_, node)) => Err(self.source.refuse(&node, "1, the version of this format")),
            None => {
                Err(self.source.error(&file, "weirgate: 1 is missing, the version of this format"))
            }
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

    fn plan(&mut self, plan: &PlanName, node: &Node<'_>) -> Result<(), FileError> {
        let takes = "a map with limits, status, shadow and resources";
        let mut has_default = false;
        for (key, part) in self.source.entries(node, takes)? {
            match key.as_str() {
                "plan" => {
                    let why = format!("plan {plan} cannot have a plan: give one to entities");
                    return Err(self.source.error(&part, &why));
                }
                "resources" => self.resources(&part, |resource| {
                    ConfigLevel::PlanResource(plan.clone(), resource)
                })?,
                _ => has_default = true,
            }
        }
        if has_default {
            self.config(ConfigLevel::Plan(plan.clone()), node, &["resources"])?;
        }
        Ok(())
    }

    /// Reads the configurations for the resources of an entity or a plan.
    fn resources(
        &mut self,
        node: &Node<'_>,
        level: impl Fn(Resource) -> ConfigLevel,
    ) -> Result<(), FileError> {
        for (name, node) in self.source.entries(node, "a map of resources")? {
            let resource = self.named(&name, &node, Resource::new)?;
            self.config(level(resource), &node, &[])?;
        }
        Ok(())
    }

    fn entity(&mut self, entity: &EntityId, node: &Node<'_>) -> Result<(), FileError> {
        self.parsed.entities.insert(entity.clone());
        let (mut has_default, mut cascades) = (false, None);
        for (key, part) in self.source.entries(
            node,
            "a map with limits, status, shadow, plan, parent, cascades and resources",
        )? {
            match key.as_str() {
                "parent" => {
                    let parent = self.source.text(&part)?;
                    let parent = self.named(&parent, &part, EntityId::new)?;
                    self.parsed.parents.insert(entity.clone(), parent);
                    self.places.push((entity.clone(), part.place()));
                }
                "cascades" => {
                    cascades = Some(part.place());
                    if !self.source.boolean(&part)? {
                        self.parsed.apart.insert(entity.clone());
                    }
                }
                "plan" => {
                    let plan = self.source.text(&part)?;
                    let plan = self.named(&plan, &part, PlanName::new)?;
                    self.parsed.plans.insert(entity.clone(), plan);
                }
                "resources" => self.resources(&part, |resource| {
                    ConfigLevel::EntityResource(entity.clone(), resource)
                })?,
                _ => has_default = true,
            }
        }
        if let Some(place) = cascades.filter(|_| !self.parsed.parents.contains_key(entity)) {
            let why = format!(
                "entity {entity} has cascades without a parent in this file: give its parent, or leave cascades out"
            );
            return Err(self.source.wrong(place, why));
        }
        if has_default {
            self.config(
                ConfigLevel::Entity(entity.clone()),
                node,
                &["plan", "parent", "cascades", "resources"],
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
        for (key, part) in
            self.source.entries(node, "a map with limits, status, shadow and class")?
        {
            match key.as_str() {
                "limits" => {
                    for (name, limit) in self.source.entries(&part, "a map of limits")? {
                        config.limits.push(read_limit(&self.source, &name, &limit)?);
                    }
                }
                "status" => {
                    let status = ConfigStatus::parse(&self.source.text(&part)?);
                    config.status = status.ok_or_else(|| {
                        self.source.refuse(&part, "enforced, disabled or unlimited")
                    })?;
                }
                "shadow" => config.is_shadow = self.source.boolean(&part)?,
                "class" => {
                    let name = self.source.text(&part)?;
                    config.class = Some(self.named(&name, &part, ClassName::new)?);
                }
                known if besides.contains(&known) => {}
                _ => {
                    let known = [&["limits", "status", "shadow", "class"], besides].concat();
                    return Err(self.source.unknown(node, &key, &known.join(", ")));
                }
            }
        }
        config.check().map_err(|error| self.source.error(node, &error.to_string()))?;
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
}
