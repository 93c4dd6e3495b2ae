//! Values of options with a syntax of their own.

use std::time::Duration;

use weirgate::{OnUnavailable, Prefetch};

/// Parses a decision for outages.
pub(super) fn on_unavailable(text: &str) -> Result<OnUnavailable, String> {
    OnUnavailable::parse(text).ok_or_else(|| {
        "must be error, deny, allow, or local with 1 to 100: \"local 25\"".to_owned()
    })
}

/// Parses a resource with the bounds of its prefetch.
pub(super) fn prefetch(text: &str) -> Result<(String, Prefetch), String> {
    let (resource, numbers) = text.rsplit_once('=').unwrap_or((text, ""));
    let (percent, age) = numbers.split_once('@').unwrap_or((numbers, ""));
    let mut prefetch = Prefetch::default();
    let number = |text: &str| text.parse::<u32>().ok();
    if !percent.is_empty() {
        let rule = "the part of a capacity must be 1 to 100 percent: gpt-4=10";
        let percent = number(percent).filter(|percent| (1..=100).contains(percent));
        prefetch = prefetch.max_outstanding_percent(percent.ok_or(rule)?);
    }
    if !age.is_empty() {
        let rule = "the longest time must be 100 to 60000 ms: gpt-4=10@2000";
        let age = number(age).filter(|age| (100..=60_000).contains(age));
        prefetch = prefetch.max_age(Duration::from_millis(age.ok_or(rule)?.into()));
    }
    Ok((resource.to_owned(), prefetch))
}

/// Parses a number of seconds, from a millisecond to an hour.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    if (0.001..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("must be from 0.001 to 3600".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefetch_names_the_resource_and_its_bounds() {
        let all = ["gpt-4", "search=20", "a=b=5@300"].map(|text| prefetch(text).unwrap());
        let default = Prefetch::default();
        let five = default.max_outstanding_percent(5);
        let expected = [
            ("gpt-4".to_owned(), default),
            ("search".to_owned(), default.max_outstanding_percent(20)),
            ("a=b".to_owned(), five.max_age(Duration::from_millis(300))),
        ];
        assert_eq!(all, expected);
        for wrong in ["gpt-4=0", "gpt-4=101", "gpt-4=x", "gpt-4=5@99", "gpt-4=5@x"] {
            let error = prefetch(wrong).unwrap_err();
            assert!(error.contains("must be"), "{error}");
        }
    }
}
