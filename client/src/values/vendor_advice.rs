//! What vendors say their limits are, beside the configured ones.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use weirgate_shared::{LimitKind, LimitName, MilliTokens, RefillRule, Resource, exact_span};

use super::gauges::set_vendor_limit;
use super::locked::Locked;
use super::vendor::VendorCount;

/// Most limits of vendors that a limiter keeps, 100: a resource has up to four.
const MOST: usize = 100;
/// Shortest period that is compared, 1 min: that of most vendors.
const MINUTE: Duration = Duration::from_secs(60);

/// A vendor's limit, by its last [report](crate::Grant::vendor_said), and the configured limit that
/// [follows](crate::Builder::follow_vendor) it. It displays as a sentence for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VendorAdvice {
    /// The resource. Of several vendor's accounts on it, the last one that reported counts.
    pub resource: Resource,
    /// What the vendor counts.
    pub counts: VendorCount,
    /// Amount of the vendor's limit.
    pub limit: u64,
    /// Rate of the limit that follows it; `None` if none does, or none of the bucket.
    pub configured: Option<ConfiguredRate>,
}

/// Rate of a configured limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredRate {
    /// Name of the limit.
    pub name: LimitName,
    /// Refill in `period`.
    pub tokens: MilliTokens,
    /// A minute, because most vendors count by it, or the limit's own period if that is longer.
    pub period: Duration,
}

impl ConfiguredRate {
    /// Returns the rate of a rule; `None` if it is no rate.
    pub(crate) fn of(name: &LimitName, rule: RefillRule) -> Option<Self> {
        let own = u64::try_from(rule.refill_period_ms).ok()?;
        let period = Duration::from_millis(own).max(MINUTE);
        let tokens =
            i128::from(rule.refill_amount.0).checked_mul(period.as_millis().try_into().ok()?)?;
        let tokens = tokens.checked_div(i128::from(own))?;
        (rule.kind() == LimitKind::Rate).then(|| Self {
            name: name.clone(),
            tokens: MilliTokens(i64::try_from(tokens).unwrap_or(i64::MAX)),
            period,
        })
    }
}

impl VendorAdvice {
    /// Returns whether the vendor's limit is another one than the configured rate, or none follows it.
    #[must_use]
    pub fn differs(&self) -> bool {
        let of = |rate: &ConfiguredRate| u64::try_from(rate.tokens.whole_tokens()).ok();
        self.configured.as_ref().and_then(of) != Some(self.limit)
    }
}

impl fmt::Display for VendorAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, counts, limit, configured } = self;
        let (limit, counts) = (grouped(*limit), counts.name().replace('_', " "));
        write!(f, "the vendor's limit of {resource} is {limit} {counts}")?;
        let Some(ConfiguredRate { name, tokens, period }) = configured else {
            return f.write_str(", and no limit follows it");
        };
        let tokens = grouped(u64::try_from(tokens.whole_tokens()).unwrap_or_default());
        let period = match period.as_secs() {
            60 => "a minute".to_owned(),
            3_600 => "an hour".to_owned(),
            86_400 => "a day".to_owned(),
            _ => format!("in {}", exact_span(*period)),
        };
        write!(f, " {period}, configured are {tokens} ({name})")
    }
}

/// Returns a number with its digits in groups of three: `2,000,000`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The limits that vendors reported to a limiter.
#[derive(Debug, Default)]
pub(crate) struct VendorAdvices(Locked<BTreeMap<(Resource, VendorCount), VendorAdvice>>);

impl VendorAdvices {
    /// Keeps what a vendor says, in place of what it said before, and in gauges by resource if that is
    /// wanted.
    pub(crate) fn record(&self, advice: VendorAdvice, has_gauges: bool) {
        let key = (advice.resource.clone(), advice.counts);
        let mut all = self.0.lock();
        if all.len() >= MOST && !all.contains_key(&key) {
            return;
        }
        if has_gauges {
            let configured = advice.configured.as_ref();
            let configured = configured.map(|rate| (&rate.name, rate.tokens));
            set_vendor_limit(&advice.resource, advice.counts, advice.limit, configured);
        }
        all.insert(key, advice);
    }

    pub(crate) fn all(&self) -> Vec<VendorAdvice> {
        self.0.lock().values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use weirgate_shared::Limit;

    use super::*;

    fn advice(limit: u64, configured: Option<&Limit>) -> VendorAdvice {
        VendorAdvice {
            resource: "gpt-4".try_into().unwrap(),
            counts: VendorCount::InputTokens,
            limit,
            configured: configured
                .and_then(|limit| ConfiguredRate::of(limit.name(), *limit.rule())),
        }
    }

    #[test]
    fn an_advice_compares_the_refill_of_a_minute_or_of_a_longer_period() {
        let day = 86_400_000;
        for (limit, text, differs) in [
            (Limit::per_minute("tpm", 1_500_000), "a minute, configured are 1,500,000 (tpm)", true),
            (Limit::per_second("tps", 2), "a minute, configured are 120 (tps)", true),
            (
                Limit::custom("t", 9, 4_000_000, 120_000),
                "in 2m, configured are 4,000,000 (t)",
                true,
            ),
            (Limit::per_hour("tph", 2_000_000), "an hour, configured are 2,000,000 (tph)", false),
            (Limit::custom("tpd", 1, 999, day), "a day, configured are 999 (tpd)", true),
        ] {
            let advice = advice(2_000_000, Some(&limit.unwrap()));
            let expected = format!("the vendor's limit of gpt-4 is 2,000,000 input tokens {text}");
            assert_eq!((advice.to_string(), advice.differs()), (expected, differs));
        }
        for other in [None, Some(Limit::concurrent("slots", 5).unwrap())] {
            let advice = advice(999, other.as_ref());
            let expected =
                "the vendor's limit of gpt-4 is 999 input tokens, and no limit follows it";
            assert_eq!((advice.to_string().as_str(), advice.differs()), (expected, true));
        }
    }

    #[test]
    fn no_more_limits_are_kept_than_the_most_and_the_last_report_of_each_counts() {
        let all = VendorAdvices::default();
        for round in [5, 7] {
            for resource in 0..MOST + 50 {
                let resource = Resource::new(format!("r-{resource:03}")).unwrap();
                all.record(VendorAdvice { resource, ..advice(round, None) }, false);
            }
        }
        let kept = all.all();
        assert_eq!(kept.len(), MOST);
        assert!(kept.iter().all(|advice| advice.limit == 7));
    }
}
