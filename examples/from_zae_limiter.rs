//! Converts a limits manifest of zae-limiter into a limits file, which `weirgate limits apply` puts
//! into the table. What has no counterpart is left out, and named on standard error.
//!
//! ```sh
//! cargo run -p weirgate-examples --bin from_zae_limiter -- manifest.yaml > limits.yaml
//! ```

use std::fmt::Write;
use std::process::ExitCode;

use saphyr::{LoadableYamlNode, Yaml};
use weirgate_examples::Outcome;

const SAMPLE: &str = include_str!("data/zae-limits.yaml");

fn main() -> ExitCode {
    let manifest = match std::env::args().nth(1) {
        Some(path) => std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}")),
        None => Ok(SAMPLE.to_owned()),
    };
    match manifest.map_err(Into::into).and_then(|text| convert(&text)) {
        Ok(Converted { limits, left_out }) => {
            print!("{limits}");
            for line in left_out {
                eprintln!("left out: {line}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Default)]
struct Converted {
    limits: String,
    left_out: Vec<String>,
}

fn convert(text: &str) -> Outcome<Converted> {
    let documents = Yaml::load_from_str(text)?;
    let manifest = documents.first().ok_or("the manifest is empty")?;
    let mut converted = Converted::default();
    writeln!(converted.limits, "weirgate: 1")?;
    if let Some(system) = manifest.as_mapping_get("system") {
        writeln!(converted.limits, "system:")?;
        converted.level("system", system, "  ")?;
    }
    for (section, is_of_entities) in [("resources", false), ("entities", true)] {
        let Some(levels) = manifest.as_mapping_get(section) else {
            continue;
        };
        writeln!(converted.limits, "{section}:")?;
        for (name, level) in entries(levels)? {
            writeln!(converted.limits, "  {name:?}:")?;
            match level.as_mapping_get("resources").filter(|_| is_of_entities) {
                Some(resources) => converted.entity(name, resources)?,
                None => converted.level(&format!("{section}.{name}"), level, "    ")?,
            }
        }
    }
    Ok(converted)
}

impl Converted {
    /// Writes an entity. Its resource `_default_` stands for all others.
    fn entity(&mut self, name: &str, resources: &Yaml<'_>) -> Outcome {
        if let Some(all) = resources.as_mapping_get("_default_") {
            self.level(&format!("entities.{name}"), all, "    ")?;
        }
        writeln!(self.limits, "    resources:")?;
        for (resource, level) in entries(resources)? {
            if resource != "_default_" {
                writeln!(self.limits, "      {resource:?}:")?;
                self.level(&format!("entities.{name}.{resource}"), level, "        ")?;
            }
        }
        Ok(())
    }

    fn level(&mut self, at: &str, level: &Yaml<'_>, indent: &str) -> Outcome {
        for key in ["on_unavailable", "cascade"] {
            if level.as_mapping_get(key).is_some() {
                self.left_out
                    .push(format!("{at}.{key}: set it as the guide says"));
            }
        }
        let disabled = level.as_mapping_get("disabled");
        match disabled.and_then(Yaml::as_bool) {
            Some(true) => writeln!(self.limits, "{indent}status: disabled")?,
            None if disabled.is_some() => self.left_out.push(format!("{at}.disabled: bypass")),
            _ => {}
        }
        if let Some(limits) = level.as_mapping_get("limits") {
            writeln!(self.limits, "{indent}limits:")?;
            for (name, limit) in entries(limits)? {
                self.limit(&format!("{at}.limits.{name}"), name, limit, indent)?;
            }
        }
        Ok(())
    }

    fn limit(&mut self, at: &str, name: &str, limit: &Yaml<'_>, indent: &str) -> Outcome {
        let number = |key| limit.as_mapping_get(key).and_then(Yaml::as_integer);
        let capacity = number("burst")
            .or(number("capacity"))
            .ok_or("a limit has no capacity")?;
        if let Some(key) = ["reset_schedule", "reset_after_seconds"]
            .into_iter()
            .find(|key| limit.as_mapping_get(key).is_some())
        {
            self.left_out.push(format!("{at}: {key}, a quota"));
            return Ok(());
        }
        if limit.as_mapping_get("schedule").is_some() {
            self.left_out
                .push(format!("{at}.schedule: the base limit stays"));
        }
        let amount = number("refill_amount").unwrap_or(capacity);
        let period_ms = number("refill_period").unwrap_or(60) * 1_000;
        let is_soft = limit.as_mapping_get("soft").and_then(Yaml::as_bool) == Some(true);
        let mode = if is_soft { ", mode: soft" } else { "" };
        writeln!(
            self.limits,
            "{indent}  {name}: {{capacity: {capacity}, refill_amount: {amount}, refill_period_ms: {period_ms}{mode}}}"
        )?;
        Ok(())
    }
}

/// Returns the entries of a map, whose keys must be text.
fn entries<'y>(map: &'y Yaml<'y>) -> Outcome<Vec<(&'y str, &'y Yaml<'y>)>> {
    let entries = map.as_mapping().into_iter().flatten();
    let named = entries.map(|(name, value)| match name.as_str() {
        Some(name) => Ok((name, value)),
        None => Err(format!("the key {name:?} must be text: put it in quotes").into()),
    });
    named.collect()
}
