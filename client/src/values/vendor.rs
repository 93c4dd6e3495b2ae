//! What a vendor's answer says about its limits: its status, and fields of its header.

use std::time::{Duration, SystemTime};

/// Longest field value that is read, 256 bytes.
const MAX_VALUE: usize = 256;

/// What a vendor's answer says about its limits.
///
/// ```
/// use std::time::Duration;
/// use weirgate::VendorReport;
///
/// let report = VendorReport::read(429, [("retry-after-ms", "1500"), ("x-ratelimit-remaining-tokens", "0")]);
/// assert_eq!(report.retry_after(), Some(Duration::from_millis(1_500)));
/// assert!(report.asks_to_pause());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VendorReport {
    status: u16,
    retry_after: Option<Duration>,
    limits: Vec<VendorLimit>,
    ignored: usize,
}

/// What a vendor says of one of its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VendorLimit {
    /// What it counts.
    pub counts: VendorCount,
    /// Its amount.
    pub limit: Option<u64>,
    /// What is left of it.
    pub remaining: Option<u64>,
    /// What the vendor rounds `remaining` to: 1,000 for tokens of Anthropic, otherwise 1.
    pub rounded_to: u64,
}

/// What a vendor's limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum VendorCount {
    /// Requests.
    Requests,
    /// Tokens of requests and answers.
    Tokens,
    /// Tokens of requests.
    InputTokens,
    /// Tokens of answers.
    OutputTokens,
}

impl VendorCount {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::Requests, Self::Tokens, Self::InputTokens, Self::OutputTokens];

    /// Returns the word of a label and an option: `requests`, `tokens`, `input_tokens` or
    /// `output_tokens`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::InputTokens => "input_tokens",
            Self::OutputTokens => "output_tokens",
        }
    }

    /// Returns what has this [name](Self::name).
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|counts| counts.name() == name)
    }
}

impl VendorReport {
    /// Returns the report of an answer without fields.
    #[must_use]
    pub const fn new(status: u16) -> Self {
        Self { status, retry_after: None, limits: vec![], ignored: 0 }
    }

    /// Reads an answer: `retry-after` and `retry-after-ms`; the fields of OpenAI
    /// (`x-ratelimit-remaining-tokens`), Anthropic (`anthropic-ratelimit-input-tokens-remaining`) and the
    /// IETF (`ratelimit`). Others are not looked at. One that cannot be read is
    /// [ignored](Self::ignored), because an answer of the vendor is no error of the caller.
    pub fn read(
        status: u16,
        fields: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<[u8]>)>,
    ) -> Self {
        let mut report = Self::new(status);
        let (mut seconds, mut millis) = (None, None);
        let fields: Vec<_> = fields.into_iter().collect();
        // A date counts from when the vendor answered, by its own clock.
        let mut dates =
            fields.iter().filter(|(name, _)| name.as_ref().eq_ignore_ascii_case("date"));
        let answered = dates.find_map(|(_, value)| {
            httpdate::parse_http_date(str::from_utf8(value.as_ref()).ok()?.trim()).ok()
        });
        let answered = answered.unwrap_or_else(SystemTime::now);
        for (name, value) in fields {
            let name = name.as_ref().to_ascii_lowercase();
            let value = value.as_ref().trim_ascii();
            let value = str::from_utf8(value).ok().filter(|value| value.len() <= MAX_VALUE);
            let is_read = match (name.as_str(), value) {
                ("retry-after", Some(value)) => {
                    seconds = seconds.or(retry_after(value, answered));
                    seconds.is_some()
                }
                ("retry-after-ms", Some(value)) => {
                    millis = millis.or(number(value).map(|millis| millis / 1_000));
                    millis.is_some()
                }
                ("ratelimit", Some(value)) => report.read_ietf(value),
                (name, value) => match (field(name), value) {
                    (Some(known), Some(value)) => report.read_field(known, value),
                    (known, _) => {
                        known.is_none()
                            && !matches!(name, "retry-after" | "retry-after-ms" | "ratelimit")
                    }
                },
            };
            report.ignored += usize::from(!is_read);
        }
        // The finer one.
        report.retry_after = millis.or(seconds).filter(|after| !after.is_zero());
        report
    }

    /// Sets the time after which the vendor takes requests again.
    #[must_use]
    pub fn with_retry_after(self, after: Duration) -> Self {
        Self { retry_after: Some(after), ..self }
    }

    /// Returns the time after which the vendor takes requests again, if it is said.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns whether the vendor denied the request for lack of capacity: by the status 429, 503 or 529.
    #[must_use]
    pub const fn asks_to_pause(&self) -> bool {
        matches!(self.status, 429 | 503 | 529)
    }

    /// Returns what is said of the vendor's limits, each once.
    #[must_use]
    pub fn limits(&self) -> &[VendorLimit] {
        &self.limits
    }

    /// Returns the number of fields of limits that could not be read.
    #[must_use]
    pub const fn ignored(&self) -> usize {
        self.ignored
    }

    fn read_field(
        &mut self,
        (counts, part, rounded_to): (VendorCount, Part, u64),
        value: &str,
    ) -> bool {
        // Azure says -1 where it does not know.
        let Some(number) = value.parse().ok() else {
            return value == "-1";
        };
        let limit = self.limit(counts);
        match part {
            Part::Limit => limit.limit = Some(number),
            Part::Remaining => limit.remaining = Some(number),
        }
        limit.rounded_to = limit.rounded_to.max(rounded_to);
        true
    }

    /// Reads `"default";r=50;t=30`, or `limit=100, remaining=50, reset=30` of earlier drafts: of several
    /// policies, the one with the least left.
    fn read_ietf(&mut self, value: &str) -> bool {
        let mut is_read = false;
        for part in value.split([',', ';']) {
            let Some((name, number)) = part.split_once('=') else {
                continue;
            };
            let Ok(number) = number.trim().parse::<u64>() else {
                continue;
            };
            let limit = self.limit(VendorCount::Requests);
            match name.trim() {
                "r" | "remaining" => {
                    limit.remaining = Some(limit.remaining.map_or(number, |left| left.min(number)));
                }
                "limit" => limit.limit = Some(number),
                _ => continue,
            }
            is_read = true;
        }
        is_read
    }

    fn limit(&mut self, counts: VendorCount) -> &mut VendorLimit {
        let place = |limits: &[VendorLimit]| limits.iter().position(|limit| limit.counts == counts);
        let at = place(&self.limits).unwrap_or_else(|| {
            self.limits.push(VendorLimit { counts, limit: None, remaining: None, rounded_to: 1 });
            self.limits.len() - 1
        });
        &mut self.limits[at]
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Limit,
    Remaining,
}

/// Returns what a field of OpenAI or Anthropic says, and to what it is rounded.
fn field(name: &str) -> Option<(VendorCount, Part, u64)> {
    let part = |word: &str| match word {
        "limit" => Some(Part::Limit),
        "remaining" => Some(Part::Remaining),
        _ => None,
    };
    let counts = |word: &str| match word {
        "requests" => Some(VendorCount::Requests),
        "tokens" => Some(VendorCount::Tokens),
        "input-tokens" => Some(VendorCount::InputTokens),
        "output-tokens" => Some(VendorCount::OutputTokens),
        _ => None,
    };
    if let Some(rest) = name.strip_prefix("x-ratelimit-") {
        let (first, second) = rest.split_once('-')?;
        return Some((counts(second)?, part(first)?, 1));
    }
    let (first, second) = name.strip_prefix("anthropic-ratelimit-")?.rsplit_once('-')?;
    let counts = counts(first)?;
    let rounded_to = match counts {
        VendorCount::Requests => 1,
        _ => 1_000,
    };
    Some((counts, part(second)?, rounded_to))
}

/// Returns a time of seconds, or from `answered` until a date of HTTP.
fn retry_after(value: &str, answered: SystemTime) -> Option<Duration> {
    let until = || httpdate::parse_http_date(value).ok()?.duration_since(answered).ok();
    number(value).or_else(until)
}

/// Returns so many seconds.
fn number(value: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(value.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fields: &[(&str, &str)]) -> VendorReport {
        VendorReport::read(429, fields.iter().copied())
    }

    #[test]
    fn a_retry_after_is_seconds_milliseconds_or_a_date_and_anything_else_is_ignored() {
        let seconds = |value: f64| Some(Duration::from_secs_f64(value));
        for (fields, expected, ignored) in [
            (vec![("Retry-After", "20")], seconds(20.0), 0),
            (vec![("retry-after", " 0.5 ")], seconds(0.5), 0),
            (vec![("retry-after-ms", "1500"), ("retry-after", "2")], seconds(1.5), 0),
            (vec![("retry-after", "2"), ("retry-after-ms", "1500")], seconds(1.5), 0),
            (vec![("retry-after", "2"), ("retry-after-ms", "soon")], seconds(2.0), 1),
            (vec![("retry-after", "0")], None, 0),
            (vec![("retry-after", "-1")], None, 1),
            (vec![("retry-after", "NaN")], None, 1),
            (vec![("retry-after", "inf")], None, 1),
            (vec![("retry-after", "1e40")], None, 1),
            (vec![("retry-after", "")], None, 1),
            (vec![("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT")], None, 1),
            (vec![("retry-after", "Wed, 21 Oct 2115 07:28:00 CEST")], None, 1),
            (vec![("retry-after", "2115-10-21T07:28:00Z")], None, 1),
            (vec![("content-type", "\u{7f}")], None, 0),
            (
                vec![
                    ("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT"),
                    ("Date", "Wed, 21 Oct 2015 07:27:30 GMT"),
                ],
                seconds(30.0),
                0,
            ),
        ] {
            let report = read(&fields);
            assert_eq!((report.retry_after(), report.ignored()), (expected, ignored), "{fields:?}");
        }
        let at = |text: &str| httpdate::parse_http_date(text).unwrap();
        let now = at("Wed, 21 Oct 2015 07:27:30 GMT");
        let after = retry_after("Wed, 21 Oct 2015 07:28:00 GMT", now);
        assert_eq!(after, Some(Duration::from_secs(30)));
        let long = "9".repeat(MAX_VALUE + 1);
        assert_eq!(read(&[("retry-after", &long)]).ignored(), 1);
        let bytes: [(&str, &[u8]); 1] = [("retry-after", &[0xff])];
        assert_eq!(VendorReport::read(503, bytes).ignored(), 1);
    }

    #[test]
    fn the_limits_of_each_vendor_are_read() {
        use VendorCount::{InputTokens, OutputTokens, Requests, Tokens};
        let limits = |fields: &[(&str, &str)]| {
            let report = read(fields);
            assert_eq!(report.ignored(), 0, "{fields:?}");
            let limits = report.limits().iter();
            let of = |limit: &VendorLimit| (limit.counts, limit.limit, limit.remaining);
            limits.map(of).collect::<Vec<_>>()
        };
        assert_eq!(
            limits(&[
                ("x-ratelimit-limit-requests", "60"),
                ("x-ratelimit-limit-tokens", "150000"),
                ("X-RateLimit-Remaining-Requests", "59"),
                ("x-ratelimit-remaining-tokens", "149984"),
                ("x-ratelimit-reset-requests", "6m0s"),
                ("x-ratelimit-reset-tokens", "12ms"),
            ]),
            [(Requests, Some(60), Some(59)), (Tokens, Some(150_000), Some(149_984))]
        );
        assert_eq!(limits(&[("x-ratelimit-remaining-requests", "-1")]), []);
        assert_eq!(
            limits(&[
                ("anthropic-ratelimit-requests-limit", "1000"),
                ("anthropic-ratelimit-input-tokens-remaining", "80000"),
                ("anthropic-ratelimit-output-tokens-remaining", "16000"),
                ("anthropic-ratelimit-tokens-reset", "2026-03-01T10:00:00Z"),
            ]),
            [
                (Requests, Some(1_000), None),
                (InputTokens, None, Some(80_000)),
                (OutputTokens, None, Some(16_000))
            ]
        );
        for (value, expected) in [
            (r#""default";r=50;t=30"#, (None, Some(50))),
            (r#""hour";r=900;t=30, "minute";r=7"#, (None, Some(7))),
            ("limit=100, remaining=50, reset=5", (Some(100), Some(50))),
        ] {
            assert_eq!(limits(&[("RateLimit", value)]), [(Requests, expected.0, expected.1)]);
        }
        for (name, value) in [
            ("x-ratelimit-remaining-tokens", "many"),
            ("x-ratelimit-remaining-tokens", "-2"),
            ("anthropic-ratelimit-requests-limit", "1e3"),
            ("ratelimit", "none"),
            ("ratelimit", r#""default";r=-1"#),
        ] {
            let report = read(&[(name, value)]);
            let said = report.limits().iter().filter(|limit| limit.remaining.is_some());
            assert_eq!((said.count(), report.ignored()), (0, 1), "{name}: {value}");
        }
    }

    #[test]
    fn a_vendor_asks_to_pause_by_three_statuses() {
        let asking = (100..600).filter(|status| VendorReport::new(*status).asks_to_pause());
        assert_eq!(asking.collect::<Vec<_>>(), [429, 503, 529]);
    }
}
