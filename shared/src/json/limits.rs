//! JSON of limits and configurations.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    Class, ClassName, Config, ConfigError, ConfigStatus, Limit, LimitError, LimitKind, LimitMode,
    LimitName, MilliTokens, Schedule, WindowCode,
};

/// What a limit is read from: its text, or its fields.
#[derive(Debug)]
pub(crate) enum LimitJson {
    Text(String),
    Fields(LimitFields),
}

/// A limit: a rate has a capacity and a refill, a concurrency limit has slots, a quota has tokens of a
/// window.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitFields {
    /// The limit as text, for people; it says the same as the other fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slots: Option<MilliTokens>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capacity_tokens: Option<MilliTokens>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refill_tokens: Option<MilliTokens>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refill_period_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    quota_tokens: Option<MilliTokens>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window: Option<WindowCode>,
    #[serde(default)]
    mode: LimitMode,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    classes: BTreeMap<String, ClassFields>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    schedule: Option<Schedule>,
}

/// A class of callers of a limit, by its name.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassFields {
    at_least_percent: u8,
    #[serde(default)]
    leaves_percent: u8,
}

/// Why the fields are no limit.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadLimit {
    #[error(transparent)]
    Limit(#[from] LimitError),
    #[error(
        "limit {0:?} must have either slots, or capacity_tokens, refill_tokens and refill_period_ms, or quota_tokens and window: give it those of one kind"
    )]
    Fields(String),
    #[error("limit {limit:?}: {field} must be a whole number, got {value}: round it")]
    Fraction { limit: String, field: &'static str, value: MilliTokens },
    #[error(
        "limit {limit:?}: text is {text:?}, but the other fields are {fields:?}: leave one out"
    )]
    Differing { limit: String, text: String, fields: String },
}

impl<'de> Deserialize<'de> for LimitJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Json;

        impl<'de> Visitor<'de> for Json {
            type Value = LimitJson;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a limit: a text such as \"rpm=600/minute\", or an object")
            }

            fn visit_str<E>(self, text: &str) -> Result<LimitJson, E> {
                Ok(LimitJson::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LimitJson, A::Error> {
                LimitFields::deserialize(MapAccessDeserializer::new(map)).map(LimitJson::Fields)
            }
        }

        deserializer.deserialize_any(Json)
    }
}

impl From<Limit> for LimitFields {
    fn from(limit: Limit) -> Self {
        let rule = *limit.rule();
        let (rate, slots, quota) = match rule.kind() {
            LimitKind::Rate => (Some(rule), None, None),
            LimitKind::Slots => (None, Some(rule.capacity), None),
            LimitKind::Quota => (None, None, Some(rule.capacity)),
        };
        let of_class = |class: &Class| {
            let fields = ClassFields {
                at_least_percent: class.at_least_percent(),
                leaves_percent: class.leaves_percent(),
            };
            (class.name().to_string(), fields)
        };
        Self {
            text: Some(limit.to_string()),
            name: limit.name().to_string(),
            slots,
            capacity_tokens: rate.map(|rate| rate.capacity),
            refill_tokens: rate.map(|rate| rate.refill_amount),
            refill_period_ms: rate.map(|rate| rate.refill_period_ms),
            quota_tokens: quota,
            window: rule.window_code(),
            mode: limit.mode(),
            classes: limit.classes().iter().map(of_class).collect(),
            schedule: limit.schedule().cloned(),
        }
    }
}

impl TryFrom<LimitJson> for Limit {
    type Error = BadLimit;

    fn try_from(json: LimitJson) -> Result<Self, BadLimit> {
        let fields = match json {
            LimitJson::Text(text) => return Ok(text.parse()?),
            LimitJson::Fields(fields) => fields,
        };
        let text = fields.text.clone();
        let limit = Self::try_from(fields)?;
        match text {
            Some(text) if text.parse::<Self>().ok().as_ref() != Some(&limit) => {
                Err(BadLimit::Differing {
                    limit: limit.name().to_string(),
                    text,
                    fields: limit.to_string(),
                })
            }
            _ => Ok(limit),
        }
    }
}

impl TryFrom<LimitFields> for Limit {
    type Error = BadLimit;

    fn try_from(fields: LimitFields) -> Result<Self, BadLimit> {
        let name = LimitName::new(fields.name).map_err(LimitError::from)?;
        let name = name.as_str();
        let whole = |field, value: MilliTokens| match value.0 % 1000 {
            0 => Ok(value.whole_tokens()),
            _ => Err(BadLimit::Fraction { limit: name.to_owned(), field, value }),
        };
        let numbers =
            (fields.slots, fields.capacity_tokens, fields.refill_tokens, fields.refill_period_ms);
        let quota = fields.quota_tokens.zip(fields.window.and_then(WindowCode::decode));
        let has_quota = fields.quota_tokens.is_some() || fields.window.is_some();
        let limit = match (numbers, quota) {
            ((None, None, None, None), Some((tokens, window))) => {
                Self::quota(name, whole("quota_tokens", tokens)?, window)?
            }
            _ if has_quota => return Err(BadLimit::Fields(name.to_owned())),
            ((Some(slots), None, None, None), _) => Self::concurrent(name, whole("slots", slots)?)?,
            ((None, Some(capacity), Some(refill), Some(period_ms)), _) => {
                let capacity = whole("capacity_tokens", capacity)?;
                Self::custom(name, capacity, whole("refill_tokens", refill)?, period_ms)?
            }
            _ => return Err(BadLimit::Fields(name.to_owned())),
        };
        let classes = fields.classes.iter().map(|(name, class)| {
            Class::new(name, class.at_least_percent)?.leaving(class.leaves_percent)
        });
        let classes = classes.collect::<Result<Vec<_>, _>>()?;
        let limit = limit.in_mode(fields.mode).with_classes(classes)?;
        match fields.schedule {
            Some(schedule) => Ok(limit.with_schedule(schedule)?),
            None => Ok(limit),
        }
    }
}

/// A configuration that is not checked yet.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConfigFields {
    #[serde(default)]
    limits: Vec<Limit>,
    #[serde(default)]
    status: ConfigStatus,
    #[serde(default)]
    is_shadow: bool,
    #[serde(default)]
    class: Option<ClassName>,
}

impl TryFrom<ConfigFields> for Config {
    type Error = ConfigError;

    fn try_from(fields: ConfigFields) -> Result<Self, ConfigError> {
        let config = Self {
            limits: fields.limits,
            status: fields.status,
            is_shadow: fields.is_shadow,
            class: fields.class,
        };
        config.check()?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<T: for<'de> Deserialize<'de> + std::fmt::Debug>(json: &str) -> String {
        serde_json::from_str::<T>(json).unwrap_err().to_string()
    }

    #[test]
    fn a_bad_limit_is_refused_as_by_its_constructor() {
        let rate = |capacity: &str| {
            format!(
                r#"{{"name":"rpm","capacity_tokens":{capacity},"refill_tokens":5,"refill_period_ms":1000}}"#
            )
        };
        for (json, error) in [
            (rate("0"), Limit::custom("rpm", 0, 5, 1_000).unwrap_err()),
            (rate("1000000000001"), Limit::custom("rpm", 1_000_000_000_001, 5, 1_000).unwrap_err()),
            (
                r#"{"name":"slots","slots":0}"#.to_owned(),
                Limit::concurrent("slots", 0).unwrap_err(),
            ),
            (r#"{"name":"r#m","slots":1}"#.to_owned(), Limit::concurrent("r#m", 1).unwrap_err()),
        ] {
            assert!(refused::<Limit>(&json).starts_with(&error.to_string()), "{json}");
        }
        assert!(refused::<Limit>(&rate("1.5")).contains("whole number, got 1.5"));
        for fields in [
            r#"{"name":"a"}"#,
            r#"{"name":"a","quota_tokens":1}"#,
            r#"{"name":"a","window":{"every":"month"}}"#,
            r#"{"name":"a","slots":1,"quota_tokens":1,"window":{"every":"month"}}"#,
        ] {
            assert!(refused::<Limit>(fields).contains("either slots, or capacity_tokens"));
        }
        assert!(refused::<Limit>(r#"{"name":"a","slots":1,"moed":"soft"}"#).contains("moed"));
    }

    #[test]
    fn a_limit_is_also_read_from_its_text() {
        let limit = Limit::per_minute("rpm", 600).unwrap();
        for json in [
            r#""rpm=600/minute""#,
            r#"{"name":"rpm","capacity_tokens":600,"refill_tokens":600,"refill_period_ms":60000}"#,
            r#"{"text":"rpm=600/60s","name":"rpm","capacity_tokens":600,"refill_tokens":600,"refill_period_ms":60000}"#,
        ] {
            assert_eq!(serde_json::from_str::<Limit>(json).unwrap(), limit, "{json}");
        }
        let month = r#"{"every":"month","day":15,"at":"09:00","tz":"Europe/Berlin"}"#;
        for (text, fields) in [
            (
                "tpm=quota:10000/month,day=15,at=09:00,tz=Europe/Berlin",
                format!(r#""quota_tokens":10000,"window":{month},"mode":"enforced""#),
            ),
            (
                "tpm=quota:10/week,day=sunday,mode=soft",
                r#""quota_tokens":10,"window":{"every":"week","day":"sunday"},"mode":"soft""#
                    .to_owned(),
            ),
            (
                "tpm=session:200/5h",
                r#""quota_tokens":200,"window":{"session_ms":18000000},"mode":"enforced""#
                    .to_owned(),
            ),
            (
                "tpm=5,schedule=0 8 * * 1-5 for 10h scale 2/1; 0 0 * * 6 for 2d scale 1/2",
                r#""slots":5,"mode":"enforced","schedule":[{"cron":"0 8 * * 1-5","for":"10h","scale":"2/1"},{"cron":"0 0 * * 6","for":"2d","scale":"1/2"}]"#
                    .to_owned(),
            ),
        ] {
            let limit: Limit = text.parse().unwrap();
            let json = format!(r#"{{"text":"{text}","name":"tpm",{fields}}}"#);
            assert_eq!(serde_json::to_string(&limit).unwrap(), json);
            assert_eq!(serde_json::from_str::<Limit>(&json).unwrap(), limit);
        }
        let differing = r#"{"text":"slots=2","name":"slots","slots":1}"#;
        assert!(refused::<Limit>(differing).contains(r#"text is "slots=2", but"#));
        assert!(refused::<Limit>(r#""rpm=600/week""#).contains("its period must be /second"));
        assert!(refused::<Limit>("600").contains(r#"a text such as "rpm=600/minute""#));
    }

    #[test]
    fn a_bad_window_is_refused_with_its_field() {
        for (window, part) in [
            ("{}", "window must be a map with every, or with session_ms"),
            (r#"{"day":1}"#, "window must be a map with every, or with session_ms"),
            (r#"{"every":"fortnight"}"#, "every must be hour, day, week, month or year"),
            (r#"{"every":"month","day":32}"#, "day must be 1 to 31, got \"32\""),
            (r#"{"every":"month","day":-1}"#, "day must be 1 to 31, got \"-1\""),
            (r#"{"every":"month","tz":"Europe/Berln"}"#, "tz must be a zone of the IANA"),
            (r#"{"every":"month","session_ms":5000}"#, "session_ms must be left out beside every"),
            (r#"{"session_ms":999}"#, "session must be a span from 1s to 366d, got \"999ms\""),
            (r#"{"session_ms":5000,"at":"09:00"}"#, "at must be left out of a session"),
            (r#"{"evry":"month"}"#, "unknown field `evry`"),
            (r#"{"code":-1}"#, "unknown field `code`"),
        ] {
            let json = format!(r#"{{"name":"tpm","quota_tokens":1,"window":{window}}}"#);
            let error = refused::<Limit>(&json);
            assert!(error.starts_with(part), "{json}: {error}");
        }
    }

    #[test]
    fn a_bad_schedule_is_refused_with_its_field() {
        for (rule, part) in [
            (r#""cron":"0 8 * *","for":"1h","scale":"2/1""#, "cron must be five fields"),
            (r#""cron":"0 8 * * *","for":"1","scale":"2/1""#, "for must be whole minutes"),
            (r#""cron":"0 8 * * *","for":"1h","scale":"2""#, "scale must be a ratio"),
            (
                r#""cron":"0 8 * * *","for":"1h","scale":"2/1","tz":"Europe/Berln""#,
                "tz must be a zone",
            ),
            (r#""cron":"0 8 * * *","for":"1h""#, "missing field `scale`"),
            (r#""cron":"0 8 * * *","for":"1h","scale":"2/1","at":1"#, "unknown field `at`"),
            (
                r#""cron":"0 8 * * *","for":"1h","scale":"1/2""#,
                r#"limit "a": scale must be a ratio that leaves"#,
            ),
        ] {
            let json = format!(r#"{{"name":"a","slots":1,"schedule":[{{{rule}}}]}}"#);
            let error = refused::<Limit>(&json);
            assert!(error.starts_with(part), "{json}: {error}");
        }
        let none = refused::<Limit>(r#"{"name":"a","slots":1,"schedule":[]}"#);
        assert!(none.starts_with("schedule must be 1 to 16 rules"), "{none}");
    }

    #[test]
    fn a_bad_configuration_is_refused_as_by_its_check() {
        let slots = r#"{"name":"a","slots":1}"#;
        for (json, error) in [
            ("{}".to_owned(), ConfigError::NoLimits),
            (format!(r#"{{"limits":[{slots},{slots}]}}"#), ConfigError::Twice("a".to_owned())),
        ] {
            assert!(refused::<Config>(&json).starts_with(&error.to_string()), "{json}");
        }
        let disabled: Config = serde_json::from_str(r#"{"status":"disabled"}"#).unwrap();
        assert_eq!(disabled.status, ConfigStatus::Disabled);
    }
}
