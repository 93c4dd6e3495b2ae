//! A limit as `weirgate limits set` is given it: parts that the text does not name stay.

use weirgate::Limit;

use crate::amounts;

const SCHEDULE: &str = ",schedule=";
/// Value that removes a part.
const NONE: &str = "none";

/// A limit, and the parts that its text names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenLimit {
    /// The limit as if there were none before.
    pub limit: Limit,
    named: Vec<String>,
}

/// A given limit on top of the one before.
#[derive(Debug, PartialEq, Eq)]
pub struct Merged {
    pub limit: Limit,
    /// Parts of the limit before that it does not have, although its text does not name them.
    pub dropped: Vec<String>,
}

impl GivenLimit {
    /// Parses a limit of a level: `rpm=600/minute,burst=800,schedule=none`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (rule, parts) = split(text);
        let named = parts.iter().map(|part| key(part).to_owned()).collect();
        let is_given = |part: &&str| part.split_once('=').is_none_or(|(_, value)| value != NONE);
        let given = parts.into_iter().filter(is_given);
        let limit = amounts::level_limit(&join(rule, given))?;
        Ok(Self { limit, named })
    }

    /// Returns the limit with the parts of the one before that its text does not name. A limit of another
    /// kind or window has none of them.
    ///
    /// # Errors
    /// If it cannot have one of them.
    pub fn onto(&self, before: Option<&Limit>) -> Result<Merged, String> {
        let (own, before_text) = (self.limit.to_string(), before.map(Limit::to_string));
        let (rule, parts) = split(&own);
        let (rule_before, before_parts) = before_text.as_deref().map(split).unwrap_or_default();
        let others: Vec<_> = before_parts
            .into_iter()
            .filter(|part| !self.is_named(part))
            .collect();
        let texts = |parts: &[&str]| parts.iter().map(|part| (*part).to_owned()).collect();
        if kind(rule) != kind(rule_before) {
            return Ok(Merged {
                limit: self.limit.clone(),
                dropped: texts(&others),
            });
        }
        let text = join(rule, parts.into_iter().chain(others.iter().copied()));
        let limit = text.parse::<Limit>().map_err(|error| {
            let drops: Vec<_> = others
                .iter()
                .map(|part| format!("{}={NONE}", name(part)))
                .collect();
            format!(
                "{error}; or drop what the limit had, {}: add ,{}",
                others.join(","),
                drops.join(",")
            )
        });
        Ok(Merged {
            limit: limit?,
            dropped: vec![],
        })
    }

    /// Returns the parts of the limit before that the text does not name.
    pub fn unnamed(&self, before: &Limit) -> Vec<String> {
        let text = before.to_string();
        let parts = split(&text).1.into_iter();
        let parts = parts.filter(|part| !self.is_named(part));
        parts.map(str::to_owned).collect()
    }

    fn is_named(&self, part: &str) -> bool {
        let is = |named: &String| named == key(part) || named == name(part);
        self.named.iter().any(is)
    }
}

/// Returns what is before the first comma, and the parts behind it.
fn split(text: &str) -> (&str, Vec<&str>) {
    let (text, schedule) = match text.find(SCHEDULE) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let mut parts = text.split(',');
    let rule = parts.next().unwrap_or_default();
    (rule, parts.chain(schedule).collect())
}

/// Returns the text of these parts, a schedule last.
fn join<'t>(rule: &str, parts: impl Iterator<Item = &'t str>) -> String {
    let mut parts: Vec<_> = parts.collect();
    parts.sort_by_key(|part| name(part) == "schedule");
    [&[rule], &parts[..]].concat().join(",")
}

/// Returns what a part is: `burst`, `class`.
fn name(part: &str) -> &str {
    part.split('=').next().unwrap_or_default()
}

/// Returns what a part replaces: `burst`, `class=batch`. `class` is all classes.
fn key(part: &str) -> &str {
    match part.split_once(':') {
        Some((class, _)) if name(part) == "class" => class,
        _ => name(part),
    }
}

/// Returns the kind of a rule with its name, and the window of a quota, but no amounts.
fn kind(rule: &str) -> (&str, &str) {
    let rule = rule.split_once('=').map_or(rule, |(_, rule)| rule);
    match (rule.split_once(':'), rule.split_once('/')) {
        (Some(("quota", _)), Some((_, window))) => ("quota", window),
        (Some((kind, _)), _) => (kind, ""),
        (None, Some(_)) => ("rate", ""),
        (None, None) => ("slots", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of one limit, without a part and with it.
    const PARTS: [(&str, &str); 12] = [
        ("rpm=500/minute", "burst=800"),
        ("rpm=500/minute", "mode=shadow"),
        ("rpm=500/minute", "mode=soft"),
        ("rpm=500/minute", "class=batch:10%:30%"),
        ("rpm=500/minute", "schedule=0 8 * * 1-5 for 10h scale 2/1"),
        ("rpm=20", "mode=shadow"),
        ("rpm=session:200/5h", "mode=soft"),
        ("rpm=quota:100/month", "day=15"),
        ("rpm=quota:100/year", "month=2"),
        ("rpm=quota:100/day", "at=09:00"),
        ("rpm=quota:100/day", "tz=Europe/Berlin"),
        ("rpm=quota:100/day", "mode=shadow"),
    ];

    fn merged(before: &str, given: &str) -> Merged {
        let before: Limit = before.parse().unwrap();
        let given = GivenLimit::parse(given).unwrap();
        given.onto(Some(&before)).unwrap()
    }

    #[test]
    fn each_part_stays_unless_it_is_named() {
        for (rule, part) in PARTS {
            let before = format!("{rule},{part}");
            let all: Limit = before.parse().unwrap();
            let none = format!("{rule},{}=none", name(part));
            for (given, expected) in [(rule, &*before), (&before, &before), (&none, rule)] {
                let merged = merged(&before, given);
                assert_eq!(merged.limit, expected.parse().unwrap(), "{before} {given}");
                assert_eq!(merged.dropped, Vec::<String>::new(), "{before} {given}");
            }
            let given = GivenLimit::parse(rule).unwrap();
            assert_eq!(given.unnamed(&all).len(), 1, "{before}");
            assert_eq!(given.onto(None).unwrap().limit, rule.parse().unwrap());
        }
    }

    #[test]
    fn a_part_that_another_kind_cannot_have_counts_as_dropped() {
        for (rule, part) in PARTS {
            let before = format!("{rule},{part}");
            let other = match kind(rule).0 {
                "slots" => "rpm=5/minute",
                _ => "rpm=5",
            };
            let merged = merged(&before, other);
            assert_eq!(merged.limit.to_string(), other, "{before}");
            assert_eq!(merged.dropped.len(), 1, "{before}");
        }
        let other = merged("rpm=quota:9/month,day=15", "rpm=quota:9/week");
        assert_eq!(other.dropped, ["day=15"]);
    }

    #[test]
    fn classes_stay_one_by_one() {
        let before = "rpm=600/minute,class=a:10%:30%,class=b:10%:30%";
        let one = merged(before, "rpm=600/minute,class=a:20%:30%").limit;
        assert_eq!(
            one,
            "rpm=600/minute,class=a:20%:30%,class=b:10%:30%"
                .parse()
                .unwrap()
        );
        let none = merged(before, "rpm=600/minute,class=none").limit;
        assert_eq!(none, "rpm=600/minute".parse().unwrap());
    }

    #[test]
    fn a_part_that_does_not_fit_any_more_is_named_with_how_to_drop_it() {
        let before: Limit = "rpm=600/minute,class=a:1%:0%".parse().unwrap();
        let given = GivenLimit::parse("rpm=9/minute").unwrap();
        let error = given.onto(Some(&before)).unwrap_err();
        assert!(
            error.contains("had, class=a:1%") && error.ends_with("add ,class=none"),
            "{error}"
        );
    }
}
