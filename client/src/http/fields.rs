//! Policies as field values: the draft's structured fields (RFC 9651), and the older fields.

use crate::http::{Policies, Policy};

/// Quota unit of slots.
const CONCURRENT: &str = "concurrent-requests";

/// Largest value of a field in bytes, 8 KiB. Clients and proxies refuse heads that are too large, and an
/// answer that cannot be read keeps what it granted.
const MAX_FIELD: usize = 8 * 1024;
/// Most bytes of a policy besides its name and unit: two numbers of 15 digits, their keys, and `, `.
const PARAMETERS: usize = 38;

/// Field of a decision without DynamoDB.
pub(crate) const DEGRADED: (&str, &str) = ("x-ratelimit-degraded", "true");

impl Policies {
    /// Returns the lowercase names and the values of all fields: `ratelimit-policy` and
    /// `ratelimit`, `retry-after` after a denial, and if [enabled](Self::with_x_rate_limit)
    /// `x-ratelimit-limit`, `x-ratelimit-remaining` and `x-ratelimit-reset` of the
    /// [strictest](Self::strictest) limit, the last in seconds from now. `x-ratelimit-degraded: true`
    /// if the decision was made [without DynamoDB](Self::with_degraded). Of more limits than 8 KiB of a
    /// field have room for, the strictest are named, in their order.
    ///
    /// If a response already has `ratelimit` fields of another limiter, append these: the fields
    /// are lists.
    #[must_use]
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![];
        if !self.policies.is_empty() {
            fields.push(("ratelimit-policy", self.rate_limit_policy()));
            fields.push(("ratelimit", self.rate_limit()));
        }
        fields.extend(self.retry_after.map(|seconds| ("retry-after", seconds.to_string())));
        if self.is_degraded {
            let (name, value) = DEGRADED;
            fields.push((name, value.to_owned()));
        }
        if let Some(strictest) = self.strictest().filter(|_| self.has_x_rate_limit) {
            fields.push(("x-ratelimit-limit", strictest.quota.to_string()));
            fields.push(("x-ratelimit-remaining", strictest.remaining.to_string()));
            fields.extend(
                strictest.seconds.map(|seconds| ("x-ratelimit-reset", seconds.to_string())),
            );
        }
        fields
    }

    /// Returns the value of `RateLimit-Policy`: `"rpm";q=600;w=60,
    /// "slots";q=20;qu="concurrent-requests"`. Empty without limits; then no field is sent.
    #[must_use]
    pub fn rate_limit_policy(&self) -> String {
        list(&self.bounded(), |policy| {
            let unit = unit(policy);
            let unit = unit.map_or_else(String::new, |unit| format!(";qu={}", quoted(unit)));
            let window = policy.window_seconds;
            let window = window.map_or_else(String::new, |window| format!(";w={window}"));
            format!("q={}{unit}{window}", policy.quota)
        })
    }

    /// Returns the value of `RateLimit`: `"rpm";r=0;t=1, "slots";r=17`. Empty without limits; then
    /// no field is sent.
    #[must_use]
    pub fn rate_limit(&self) -> String {
        list(&self.bounded(), |policy| match policy.seconds {
            Some(seconds) => format!("r={};t={seconds}", policy.remaining),
            None => format!("r={}", policy.remaining),
        })
    }
}

impl Policies {
    /// Returns the policies that a field names: all, or the strictest ones that surely fit.
    fn bounded(&self) -> Vec<&Policy> {
        let mut policies: Vec<_> = self.policies.iter().collect();
        let size = |policy: &Policy| {
            let unit = unit(policy).map_or(0, |unit| ";qu=".len() + quoted(unit).len());
            quoted(&policy.name).len() + unit + PARAMETERS
        };
        if policies.iter().map(|policy| size(policy)).sum::<usize>() <= MAX_FIELD {
            return policies;
        }
        policies.sort_by_key(|policy| policy.leniency());
        let mut left = MAX_FIELD;
        let fits = |policy: &&Policy| {
            left = left.saturating_sub(size(policy));
            left > 0
        };
        policies.into_iter().take_while(fits).collect()
    }
}

/// Returns the quota unit of a policy.
const fn unit(policy: &Policy) -> Option<&'static str> {
    match policy.window_seconds {
        Some(_) => policy.unit,
        None => Some(CONCURRENT),
    }
}

/// Returns a list of the policies' names, with parameters.
fn list(policies: &[&Policy], parameters: fn(&Policy) -> String) -> String {
    let member = |policy: &&Policy| format!("{};{}", quoted(&policy.name), parameters(policy));
    policies.iter().map(member).collect::<Vec<_>>().join(", ")
}

/// Returns text as a string of a structured field, which has printable ASCII alone.
fn quoted(text: &str) -> String {
    let escaped = text.chars().map(|c| match c {
        '\\' | '"' => format!("\\{c}"),
        ' '..='~' => c.to_string(),
        _ => "_".to_owned(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}
