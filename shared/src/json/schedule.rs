//! JSON of schedules: a list of rules.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Scale, Schedule, ScheduleRule, ZoneName};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFields {
    cron: String,
    #[serde(rename = "for")]
    length: String,
    scale: String,
    tz: Option<String>,
}

/// A scale as its text, `2/1`.
impl Serialize for Scale {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Scale {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// A zone as its name.
impl Serialize for ZoneName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ZoneName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::new(&name).map_err(D::Error::custom)
    }
}

impl Serialize for ScheduleRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.fields())
    }
}

impl Serialize for Schedule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.rules())
    }
}

impl<'de> Deserialize<'de> for Schedule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rules = Vec::<RuleFields>::deserialize(deserializer)?;
        let rules = rules.iter().map(|rule| {
            ScheduleRule::of(&rule.cron, &rule.length, &rule.scale, rule.tz.as_deref())
        });
        let rules: Result<Vec<_>, _> = rules.collect();
        rules.and_then(Self::new).map_err(D::Error::custom)
    }
}
