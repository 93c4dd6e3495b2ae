//! A limit as `weirgate limits set` is given it, with the parts that its text names.

use weirgate::Limit;

use crate::amounts;

const SCHEDULE: &str = ",schedule=";

/// A limit, and the parts that its text names, also those with the value that they have without it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenLimit {
    pub limit: Limit,
    named: Vec<String>,
}

impl GivenLimit {
    /// Parses a limit of a level: `rpm=600/minute,burst=800`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let limit = amounts::level_limit(text)?;
        let named = parts(text).into_iter().map(|part| key(part).to_owned());
        Ok(Self { limit, named: named.collect() })
    }

    /// Returns the parts of the limit before that the text does not name, so that they are lost.
    pub fn dropped(&self, before: &Limit) -> Vec<String> {
        let text = before.to_string();
        let parts = parts(&text).into_iter();
        let parts = parts.filter(|part| !self.named.iter().any(|named| named == key(part)));
        parts.map(str::to_owned).collect()
    }
}

/// Returns the parts of a limit, which are behind the first comma. A schedule is the last one, and may
/// have commas itself.
fn parts(text: &str) -> Vec<&str> {
    let (text, schedule) = match text.find(SCHEDULE) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    text.split(',').skip(1).chain(schedule).collect()
}

/// Returns what a part is: `burst`, `class=batch`.
fn key(part: &str) -> &str {
    match (part.split_once('='), part.split_once(':')) {
        (Some(("class", _)), Some((class, _))) => class,
        (Some((name, _)), _) => name,
        (None, _) => part,
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
        ("rpm=500/minute", "schedule=0 8 * * 1,5 for 10h scale 2/1"),
        ("rpm=20", "mode=shadow"),
        ("rpm=session:200/5h", "mode=soft"),
        ("rpm=quota:100/month", "day=15"),
        ("rpm=quota:100/year", "month=2"),
        ("rpm=quota:100/day", "at=09:00"),
        ("rpm=quota:100/day", "tz=Europe/Berlin"),
        ("rpm=quota:100/day", "mode=shadow"),
    ];

    fn dropped(before: &str, given: &str) -> Vec<String> {
        let given = GivenLimit::parse(given).unwrap();
        given.dropped(&before.parse().unwrap())
    }

    #[test]
    fn each_part_that_is_not_named_is_dropped() {
        for (rule, part) in PARTS {
            let whole = format!("{rule},{part}");
            assert_eq!(dropped(&whole, rule), [part]);
            assert_eq!(dropped(&whole, &whole), Vec::<String>::new(), "{whole}");
            assert_eq!(dropped(rule, &whole), Vec::<String>::new(), "{whole}");
            let other = if rule == "rpm=20" { "rpm=5/minute" } else { "rpm=5" };
            assert_eq!(dropped(&whole, other), [part]);
        }
    }

    #[test]
    fn classes_are_dropped_one_by_one() {
        let before = "rpm=600/minute,class=a:10%:30%,class=b:10%:30%";
        let given = "rpm=600/minute,class=a:20%:30%";
        assert_eq!(dropped(before, given), ["class=b:10%:30%"]);
    }

    /// Its text does not have them then.
    #[test]
    fn a_part_with_its_usual_value_is_named() {
        let before = "rpm=600/minute,burst=800,mode=shadow";
        let given = "rpm=900/minute,burst=900,mode=enforced";
        assert_eq!(dropped(before, given), Vec::<String>::new());
    }
}
