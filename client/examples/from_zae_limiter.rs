//! Converts a limits manifest of zae-limiter into a limits file, which `weirgate limits apply` puts
//! into the table. What has no counterpart is left out, and named on standard error.
//!
//! ```sh
//! cargo run -p weirgate --all-features --example from_zae_limiter -- manifest.yaml > limits.yaml
//! ```

mod place;
#[path = "zae_limiter/quota.rs"]
mod quota;

use std::process::ExitCode;

use place::{Outcome, exit};
use saphyr::{LoadableYamlNode, Yaml};

const SAMPLE: &str = include_str!("zae_limiter/zae-limits.yaml");

fn main() -> ExitCode {
    let converted = match std::env::args().nth(1) {
        Some(path) => std::fs::read_to_string(path).map_err(Into::into),
        None => Ok(SAMPLE.to_owned()),
    };
    exit(converted.and_then(|manifest| {
        let mut converted = Converted::default();
        converted.manifest(&manifest)?;
        println!("{}", converted.limits.join("\n"));
        for line in converted.left_out {
            eprintln!("left out: {line}");
        }
        Ok(())
    }))
}

/// Lines of the limits file, and what it lacks.
#[derive(Default)]
struct Converted {
    limits: Vec<String>,
    left_out: Vec<String>,
}

impl Converted {
    fn manifest(&mut self, text: &str) -> Outcome {
        let documents = Yaml::load_from_str(text)?;
        let manifest = documents.first().ok_or("the manifest is empty")?;
        self.limits.push("weirgate: 1".to_owned());
        if let Some(system) = manifest.as_mapping_get("system") {
            self.under("system:", |this| this.level("system", system, "  "))?;
        }
        for section in ["resources", "entities"] {
            let levels = entries(manifest.as_mapping_get(section))?;
            self.under(&format!("{section}:"), |this| {
                levels.into_iter().try_for_each(|(name, level)| {
                    let at = format!("{section}.{name}");
                    this.under(&format!("  {name:?}:"), |this| match section {
                        "resources" => this.level(&at, level, "    "),
                        _ => this.entity(&at, level),
                    })
                })
            })?;
        }
        Ok(())
    }

    /// Writes a line and those under it, or nothing if there are none under it.
    fn under(&mut self, line: &str, lines: impl FnOnce(&mut Self) -> Outcome) -> Outcome {
        let before = self.limits.len();
        self.limits.push(line.to_owned());
        lines(self)?;
        if self.limits.len() == before + 1 {
            self.limits.truncate(before);
        }
        Ok(())
    }

    /// Converts an entity. Its resource `_default_` stands for all others.
    fn entity(&mut self, at: &str, entity: &Yaml<'_>) -> Outcome {
        let resources = entries(entity.as_mapping_get("resources"))?;
        let (all, each): (Vec<_>, _) = resources.iter().partition(|(name, _)| *name == "_default_");
        all.into_iter().try_for_each(|(_, level)| self.level(at, level, "    "))?;
        self.under("    resources:", |this| {
            Vec::into_iter(each).try_for_each(|(name, level)| {
                let at = format!("{at}.{name}");
                this.under(&format!("      {name:?}:"), |this| this.level(&at, level, "        "))
            })
        })
    }

    fn level(&mut self, at: &str, level: &Yaml<'_>, indent: &str) -> Outcome {
        for key in ["on_unavailable", "cascade"] {
            let is_there = level.as_mapping_get(key).is_some();
            self.left_out.extend(is_there.then(|| format!("{at}.{key}")));
        }
        match level.as_mapping_get("disabled").map(Yaml::as_bool) {
            Some(Some(true)) => self.limits.push(format!("{indent}status: disabled")),
            Some(None) => self.left_out.push(format!("{at}.disabled: bypass")),
            _ => {}
        }
        let limits = entries(level.as_mapping_get("limits"))?;
        self.under(&format!("{indent}limits:"), |this| {
            limits.into_iter().try_for_each(|(name, limit)| {
                this.limit(&format!("{at}.{name}"), limit, &format!("{indent}  {name}"))
            })
        })
    }

    fn limit(&mut self, at: &str, limit: &Yaml<'_>, begin: &str) -> Outcome {
        let number = |key| limit.as_mapping_get(key).and_then(Yaml::as_integer);
        let capacity = number("burst").or(number("capacity"));
        let capacity = capacity.ok_or_else(|| format!("{at} has no capacity"))?;
        let schedule = limit.as_mapping_get("schedule");
        self.left_out.extend(schedule.map(|_| format!("{at}.schedule")));
        let is_soft = limit.as_mapping_get("soft").and_then(Yaml::as_bool) == Some(true);
        match quota::text(limit, capacity, is_soft) {
            Some(Ok(quota)) => self.limits.push(format!("{begin}: {quota}")),
            Some(Err(key)) => self.left_out.push(format!("{at}, a quota: {key}")),
            None => {
                let amount = number("refill_amount").unwrap_or(capacity);
                let period_ms = number("refill_period").unwrap_or(60) * 1_000;
                let mode = if is_soft { ", mode: soft" } else { "" };
                self.limits.push(format!(
                    "{begin}: {{capacity: {capacity}, refill_amount: {amount}, refill_period_ms: {period_ms}{mode}}}"
                ));
            }
        }
        Ok(())
    }
}

/// Returns the entries of a map, whose keys must be text.
fn entries<'y>(map: Option<&'y Yaml<'y>>) -> Outcome<Vec<(&'y str, &'y Yaml<'y>)>> {
    let entries = map.and_then(Yaml::as_mapping).into_iter().flatten();
    let named = entries.map(|(name, value)| match name.as_str() {
        Some(name) => Ok((name, value)),
        None => Err(format!("the key {name:?} must be text: put it in quotes").into()),
    });
    named.collect()
}
