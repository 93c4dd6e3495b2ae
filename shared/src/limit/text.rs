//! The one text of a limit, and how it is read.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::class::CLASS;
use super::{Limit, LimitError, LimitKind, LimitMode, MAX_PERIOD_MS, RefillRule, window_error};
use crate::quota::{Every, QuotaWindow, SessionWindow, WindowCode};
use crate::{exact_span, parse_span};

/// What the text of a limit must be, and each of its parts: an error names the part that is wrong.
const TEXT: &str = "must be NAME=TOKENS/second, /minute, /hour, /day or a span such as /1h30m, \
                    NAME=SLOTS, NAME=quota:TOKENS/WINDOW or NAME=session:TOKENS/SPAN; write for example \
                    rpm=600/minute, slots=20 or tpm=quota:10000/month";
const TOKENS: &str = "its number must be whole and at most 10^12; correct it";
const PERIOD: &str = "its period must be /second, /minute, /hour, /day or a span from 1ms to 366d; \
                      write for example /minute or /1h30m";
const BURST: &str = "its burst must be whole tokens, at most 10^12; write for example ,burst=800";
const MODE: &str = "its mode must be enforced, shadow or soft; write for example ,mode=shadow";
const OPTION: &str = "what follows its comma must be burst=TOKENS, mode=enforced, shadow or soft, or \
                      class=NAME:AT_LEAST%:LEAVES%, without spaces, and schedule= last; correct it";
const QUOTA: &str = "a quota must be quota:TOKENS/hour, /day, /week, /month or /year; write for example \
                     quota:10000/month";
const QUOTA_OPTION: &str = "what follows the comma of a quota must be day=, month=, at=, tz= or mode=, without \
                            spaces, and schedule= last; write for example ,day=15,at=09:00,tz=Europe/Berlin";
const SCHEDULE: &str = ",schedule=";
const SESSION: &str = "a session must be session:TOKENS/SPAN; write for example session:200/5h";

/// Periods with a name, their abbreviations, and their lengths in ms.
const PERIODS: [(&str, &str, i64); 4] = [
    ("second", "s", 1_000),
    ("minute", "m", 60_000),
    ("hour", "h", 3_600_000),
    ("day", "d", 86_400_000),
];

impl Limit {
    /// Reads the text of a limit behind its name, as [`text`](Self::text) returns it:
    /// `600/minute`, `100_000/minute,burst=150_000`, `5/1h30m,mode=shadow`, a number of slots, `20`,
    /// a quota, `quota:10000/month,day=15,at=09:00,tz=Europe/Berlin`, or one from the first use,
    /// `session:200/5h`; a rate with a class of callers, `600/minute,class=batch:10%:30%`. Without a burst, the capacity of a rate is what refills in a period. A
    /// schedule is last: `600/minute,schedule=0 8 * * 1-5 for 10h scale 2/1 tz Europe/Berlin`.
    ///
    /// # Errors
    /// [`LimitError`] for another text, or as the constructors.
    pub fn parse(name: &str, text: &str) -> Result<Self, LimitError> {
        let wrong = |must| LimitError::Text { text: format!("{name}={text}"), must };
        let whole = |number: &str, must| {
            let number = number.replace('_', "").parse::<i64>();
            number.map_err(|_| wrong(must))
        };
        if let Some((limit, schedule)) = text.split_once(SCHEDULE) {
            let schedule = schedule.parse();
            let schedule = schedule.map_err(|error| window_error(name, error))?;
            return Self::parse(name, limit)?.with_schedule(schedule);
        }
        let (rule, options) = match text.split_once(',') {
            Some((rule, options)) => (rule, Some(options)),
            None => (text, None),
        };
        // The window of a quota on the calendar, which options make another one.
        let mut every = None;
        let mut limit = match rule.split_once(':') {
            Some(("quota", quota)) => {
                let (tokens, period) = quota.split_once('/').ok_or_else(|| wrong(QUOTA))?;
                let tokens = whole(tokens, TOKENS)?;
                let begun = Every::parse(period).map_err(|error| window_error(name, error))?;
                every = Some(begun);
                Self::quota(name, tokens, begun)?
            }
            Some(("session", session)) => {
                let (tokens, length) = session.split_once('/').ok_or_else(|| wrong(SESSION))?;
                let tokens = whole(tokens, TOKENS)?;
                let length = length.parse::<SessionWindow>();
                Self::quota(name, tokens, length.map_err(|error| window_error(name, error))?)?
            }
            _ => Self::parse_rule(name, rule, &wrong, &whole)?,
        };
        let (mut has_burst, mut has_mode, mut classes) = (false, false, vec![]);
        for part in options.into_iter().flat_map(|options| options.split(',')) {
            match part.split_once('=') {
                Some(("burst", _)) if has_burst => {
                    return Err(wrong("burst is given twice: give it once"));
                }
                Some(("mode", _)) if has_mode => {
                    return Err(wrong("mode is given twice: give it once"));
                }
                Some(("burst", burst)) => {
                    (limit, has_burst) = (limit.with_burst(whole(burst, BURST)?)?, true);
                }
                Some(("mode", mode)) => {
                    let mode = LimitMode::parse(mode).ok_or_else(|| wrong(MODE))?;
                    (limit, has_mode) = (limit.in_mode(mode), true);
                }
                Some(("class", class)) => {
                    classes.push(class.parse().map_err(|error| match error {
                        LimitError::Text { .. } => wrong(CLASS),
                        other => other,
                    })?)
                }
                Some((field @ ("day" | "month" | "at" | "tz"), value)) => {
                    let begun = every.ok_or_else(|| wrong(OPTION))?;
                    let set = begun.set(field, value);
                    every = Some(set.map_err(|error| window_error(name, error))?);
                }
                _ if every.is_some() => return Err(wrong(QUOTA_OPTION)),
                _ => return Err(wrong(OPTION)),
            }
        }
        if let Some(every) = every {
            let window = every.window().map_err(|error| window_error(name, error))?;
            limit.rule.refill_period_ms = QuotaWindow::Calendar(window).code().0;
        }
        limit.with_classes(classes)
    }

    /// Reads a rate without its options, or a number of slots.
    fn parse_rule(
        name: &str,
        rule: &str,
        wrong: &impl Fn(&'static str) -> LimitError,
        whole: &impl Fn(&str, &'static str) -> Result<i64, LimitError>,
    ) -> Result<Self, LimitError> {
        let is_number = |text: &str| {
            let mut characters = text.strip_prefix('-').unwrap_or(text).chars();
            !text.is_empty() && characters.all(|c| c.is_ascii_digit() || "_.,".contains(c))
        };
        match rule.split_once('/') {
            None if !is_number(rule) => Err(wrong(TEXT)),
            None => Self::concurrent(name, whole(rule, TOKENS)?),
            Some((rate, period)) => {
                let rate = whole(rate, TOKENS)?;
                let period = parse_period(period).filter(|ms| (1..=MAX_PERIOD_MS).contains(ms));
                let period = period.ok_or_else(|| wrong(PERIOD))?;
                Self::custom(name, rate, rate, period)
            }
        }
    }

    /// Returns the text of the limit behind its name, which [`parse`](Self::parse) reads.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { rule, mode, schedule, classes, .. } = self;
        let mut text = match rule.kind() {
            LimitKind::Slots => rule.capacity.to_string(),
            LimitKind::Quota => quota_text(rule),
            LimitKind::Rate => {
                let period = Duration::from_millis(rule.refill_period_ms.unsigned_abs());
                rate_text(rule.refill_amount, period)
            }
        };
        if rule.kind() == LimitKind::Rate && rule.capacity != rule.refill_amount {
            text += &format!(",burst={}", rule.capacity);
        }
        if *mode != LimitMode::Enforced {
            text += &format!(",mode={}", mode.as_str());
        }
        for class in classes {
            text += &format!(",class={class}");
        }
        if let Some(schedule) = schedule {
            text += &format!("{SCHEDULE}{schedule}");
        }
        text
    }
}

/// The one text of a limit, wherever it is written: `rpm=600/minute,burst=800`, `slots=20`,
/// `tpm=quota:10000/month`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.text())
    }
}

/// Reads the text of a limit.
///
/// ```
/// # use weirgate_shared::Limit;
/// let limit: Limit = "tpm=100_000/minute,burst=150_000".parse()?;
/// assert_eq!(limit, Limit::per_minute("tpm", 100_000)?.with_burst(150_000)?);
/// assert_eq!(limit.to_string(), "tpm=100000/minute,burst=150000");
/// # Ok::<(), weirgate_shared::LimitError>(())
/// ```
impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let wrong = || LimitError::Text { text: text.to_owned(), must: TEXT };
        let (name, text) = text.split_once('=').ok_or_else(wrong)?;
        Self::parse(name, text)
    }
}

/// Returns a rate as text: `600/minute`, `600/1h30m`.
#[must_use]
pub fn rate_text(tokens: impl fmt::Display, period: Duration) -> String {
    let known = |(_, _, ms): &&(_, _, i64)| period.as_millis() == u128::from(ms.unsigned_abs());
    match PERIODS.iter().find(known) {
        Some((name, ..)) => format!("{tokens}/{name}"),
        None => format!("{tokens}/{}", exact_span(period)),
    }
}

/// Returns a quota as text: `quota:10000/month`, `session:200/5h`.
fn quota_text(rule: &RefillRule) -> String {
    let (tokens, code) = (rule.capacity, WindowCode(rule.refill_period_ms));
    match code.decode() {
        Some(QuotaWindow::Calendar(window)) => format!("quota:{tokens}/{window}"),
        Some(QuotaWindow::Session(session)) => format!("session:{tokens}/{session}"),
        None => format!("quota:{tokens}/{code}"),
    }
}

/// Reads a period, in ms.
fn parse_period(text: &str) -> Option<i64> {
    let known = |(name, short, _): &&(&str, &str, i64)| *name == text || *short == text;
    match PERIODS.iter().find(known) {
        Some((.., ms)) => Some(*ms),
        None => i64::try_from(parse_span(text)?.as_millis()).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LimitName, MilliTokens};

    #[test]
    fn a_quota_of_an_unknown_window_is_shown_and_has_no_window() {
        let rule = RefillRule {
            capacity: MilliTokens::from_tokens(10_000),
            refill_amount: MilliTokens::ZERO,
            refill_period_ms: i64::MIN,
        };
        let limit = Limit::of(LimitName::new("tpm").unwrap(), rule);
        assert_eq!(
            limit.in_mode(LimitMode::Soft).to_string(),
            "tpm=quota:10000/unknown window (-9223372036854775808),mode=soft"
        );
        assert_eq!(Limit::of(LimitName::new("tpm").unwrap(), rule).window(), None);
    }

    #[test]
    fn a_limit_has_one_text() {
        for (text, expected, canonical) in [
            ("rpm=100/minute", Limit::per_minute("rpm", 100), None),
            ("rps=5/s", Limit::per_second("rps", 5), Some("rps=5/second")),
            ("slots=20", Limit::concurrent("slots", 20), None),
            ("rpm=9/1m30s", Limit::custom("rpm", 9, 9, 90_000), None),
            ("rpm=9/60s", Limit::per_minute("rpm", 9), Some("rpm=9/minute")),
            (
                "tpm=100_000/m,mode=enforced,burst=200_000",
                Limit::per_minute("tpm", 100_000).and_then(|limit| limit.with_burst(200_000)),
                Some("tpm=100000/minute,burst=200000"),
            ),
            (
                "rpm=5/day,burst=5,mode=soft",
                Limit::per_day("rpm", 5).map(|limit| limit.in_mode(LimitMode::Soft)),
                Some("rpm=5/day,mode=soft"),
            ),
            ("tpm=quota:10000/month", Limit::quota("tpm", 10_000, Every::month()), None),
            (
                "tpm=quota:10_000/month,mode=shadow,tz=europe/berlin,at=09:00,day=15",
                Every::month()
                    .on_day(15)
                    .at(9, 0)
                    .zone("Europe/Berlin")
                    .map_err(|error| window_error("tpm", error))
                    .and_then(|month| Limit::quota("tpm", 10_000, month))
                    .map(|limit| limit.in_mode(LimitMode::Shadow)),
                Some("tpm=quota:10000/month,day=15,at=09:00,tz=Europe/Berlin,mode=shadow"),
            ),
            (
                "tpm=session:200/300m",
                Limit::session("tpm", 200, Duration::from_hours(5)),
                Some("tpm=session:200/5h"),
            ),
        ] {
            let read: Limit = text.parse().unwrap();
            assert_eq!(Ok(&read), expected.as_ref(), "{text}");
            assert_eq!(read.to_string(), canonical.unwrap_or(text));
        }
    }

    #[test]
    fn a_text_that_is_no_limit_is_refused_with_the_part_that_is_wrong() {
        let refused = |text: &str| text.parse::<Limit>().unwrap_err().to_string();
        let parts = [TEXT, TOKENS, PERIOD, BURST, MODE, OPTION, QUOTA, QUOTA_OPTION, SESSION];
        for (text, part) in [
            ("", TEXT),
            ("rpm", TEXT),
            ("rpm=", TEXT),
            ("rpm=many", TEXT),
            ("rpm=1.5", TOKENS),
            ("rpm=99999999999999999999", TOKENS),
            ("rpm=x/minute", TOKENS),
            ("rpm=1.5/minute", TOKENS),
            ("rpm=99999999999999999999/minute", TOKENS),
            ("rpm=1/week", PERIOD),
            ("rpm=1/min", PERIOD),
            ("rpm=1/", PERIOD),
            ("rpm=1/0s", PERIOD),
            ("rpm=1/400d", PERIOD),
            ("rpm=1/minute/minute", PERIOD),
            ("rpm=1/minute,mode=off", MODE),
            ("rpm=1/minute,mode=", MODE),
            ("rpm=1/minute,burst=x", BURST),
            ("rpm=1/minute,burst=99999999999999999999", BURST),
            ("rpm=1/minute,", OPTION),
            ("rpm=1/minute,burst", OPTION),
            ("rpm=1/minute, burst=2", OPTION),
            ("rpm=1/minute,day=2", OPTION),
            ("slots=1,tz=UTC", OPTION),
            ("tpm=quota:1", QUOTA),
            ("tpm=quota:x/month", TOKENS),
            ("tpm=quota:1/month,", QUOTA_OPTION),
            ("tpm=quota:1/month,hour=3", QUOTA_OPTION),
            ("tpm=quota:1/month,mode=", MODE),
            ("tpm=session:1", SESSION),
            ("tpm=session:1.5/5h", TOKENS),
            ("tpm=session:1/5h,day=3", OPTION),
            ("tpm=quot:1/month", TOKENS),
        ] {
            let error = refused(text);
            assert_eq!(error, format!("{text:?}: {part}"));
            let named = parts.iter().filter(|part| error.contains(**part));
            assert_eq!(named.count(), 1, "{error}");
        }
        assert!(refused("rpm=1/m,burst=2,burst=3").ends_with("burst is given twice: give it once"));
        assert!(refused("r=1/m,mode=soft,burst=2,mode=soft").contains("mode is given twice"));
        assert!(refused("rpm=0/minute").contains("capacity must be 1 to 10^12 tokens, got 0"));
        assert!(refused("slots=2,burst=3").contains("concurrency"));
        assert!(refused("1st=2").contains("1st"));
        for (text, part) in [
            (
                "quota:1/fortnight",
                r#"every must be hour, day, week, month or year, got "fortnight""#,
            ),
            ("quota:1/month,tz=Europe/Berln", "tz must be a zone of the IANA time zone database"),
            ("quota:1/month,day=0", r#"day must be 1 to 31, got "0""#),
            ("quota:1/month,day=32", r#"day must be 1 to 31, got "32""#),
            ("quota:1/day,at=24:00", r#"at must be a time from 00:00 to 23:59, got "24:00""#),
            ("quota:1/year,month=2,day=30", "day must be a day that the month has in some year"),
            ("quota:1/month,burst=2", "burst must be left out of a quota"),
            ("session:1/999ms", r#"session must be a span from 1s to 366d, got "999ms""#),
            ("session:1/367d", r#"session must be a span from 1s to 366d, got "367d""#),
            ("session:1/5h,burst=2", "burst must be left out of a quota"),
            ("quota:0/month", "capacity must be 1 to 10^12 tokens, got 0"),
        ] {
            let error = refused(&format!("tpm={text}"));
            assert!(error.starts_with(&format!("limit \"tpm\": {part}")), "{error}");
        }
    }
}
