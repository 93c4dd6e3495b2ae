//! Limits: the capacity and the refill of a bucket.
//!
//! - `class`: classes of callers, and the pools that a limit is divided into for them
//! - `text`: their one text

mod class;
mod text;

use std::fmt;
use std::time::Duration;

use crate::quota::{QuotaWindow, SessionWindow, WindowCode, WindowError};
use crate::{LimitName, MilliTokens, NameError, Scale, Schedule};

pub use class::{Class, PoolChoice};
pub use text::rate_text;

/// Why a limit cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// The name breaks its rule.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A number is out of its range.
    #[error("limit {limit:?}: {field} must be {takes}, got {value}: correct it")]
    OutOfRange {
        /// The limit's name.
        limit: String,
        /// Which number: `capacity`, `refill_amount`, `refill_period_ms` or `burst`.
        field: &'static str,
        /// Rejected value.
        value: i64,
        /// Permitted range.
        takes: &'static str,
    },
    /// The window of a quota, or the schedule, cannot be built.
    #[error("limit {limit:?}: {error}")]
    Window {
        /// The limit's name.
        limit: String,
        /// What is wrong.
        error: WindowError,
    },
    /// A class of callers cannot be built, or the limit cannot have it.
    #[error("class {class:?}: {error}")]
    Class {
        /// The class's name.
        class: String,
        /// What is wrong, and the remedy.
        error: String,
    },
    /// A text is no limit.
    #[error("{text:?}: {must}")]
    Text {
        /// Rejected text.
        text: String,
        /// What it must be.
        must: &'static str,
    },
}

/// Maximum tokens that a limit can hold or refill: 10^12.
pub const MAX_TOKENS: i64 = 1_000_000_000_000;
/// Maximum refill period: 366 days, in milliseconds.
pub const MAX_PERIOD_MS: i64 = 366 * 86_400_000;

/// A named rule on a resource: a rate, a number of slots held at the same time, or a quota of a
/// window.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "crate::json::LimitJson", into = "crate::json::LimitFields")
)]
pub struct Limit {
    name: LimitName,
    rule: RefillRule,
    mode: LimitMode,
    schedule: Option<Schedule>,
    classes: Vec<Class>,
}

/// What happens to a request that a limit cannot cover.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum LimitMode {
    /// Denies the request.
    #[default]
    Enforced,
    /// Grants the request without taking from this limit, and reports that it would have been
    /// denied.
    Shadow,
    /// Grants the request, and the limit goes into debt.
    Soft,
}

/// What kind of limit a rule is: [`RefillRule::kind`] says it. Whatever differs by kind asks one of
/// these questions, or matches without a wildcard, so that a further kind does not compile until each
/// match decides about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitKind {
    /// A rate: what is taken is used up, and refills with time.
    Rate,
    /// Slots, a concurrency limit: what is taken returns when its lease is released or expires.
    Slots,
    /// A quota: what is taken is used up, until the window ends and the next one begins full.
    Quota,
}

impl LimitKind {
    /// Returns whether the balance grows with time, up to the shard's share.
    #[must_use]
    pub const fn refills(self) -> bool {
        match self {
            Self::Rate => true,
            Self::Slots | Self::Quota => false,
        }
    }

    /// Returns whether each token is either free or held by a lease: only the end of the lease
    /// brings it back, none is cut, and it stays consumed.
    #[must_use]
    pub const fn is_held(self) -> bool {
        match self {
            Self::Rate | Self::Quota => false,
            Self::Slots => true,
        }
    }

    /// Returns whether a limit of this kind can become one of another kind while a bucket has it:
    /// slots stay slots, because what is held would be lost.
    #[must_use]
    pub const fn may_become(self, other: Self) -> bool {
        self.is_held() == other.is_held()
    }

    /// Returns whether the balance is of a window, which an item names by its end.
    #[must_use]
    pub const fn has_window(self) -> bool {
        match self {
            Self::Rate | Self::Slots => false,
            Self::Quota => true,
        }
    }
}

/// The noun of messages: `a rate`, `slots`, `a quota`.
impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rate => "a rate",
            Self::Slots => "slots",
            Self::Quota => "a quota",
        })
    }
}

/// Capacity and refill of a limit, for the whole bucket, undivided by shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RefillRule {
    /// Maximum balance: the burst of a rate, the slots of a concurrency limit.
    pub capacity: MilliTokens,
    /// Refill in every `refill_period_ms`; zero for a concurrency limit and a quota.
    pub refill_amount: MilliTokens,
    /// Refill period in milliseconds, at least 1; for a quota its [`WindowCode`], which is negative.
    pub refill_period_ms: i64,
}

impl RefillRule {
    /// Returns the time in which an empty bucket is full; `None` for slots and quotas.
    #[must_use]
    pub fn time_to_fill(&self) -> Option<Duration> {
        let full = i128::from(self.capacity.0) * i128::from(self.refill_period_ms);
        let ms = full.checked_div(i128::from(self.refill_amount.0))?;
        Some(Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX)))
    }

    /// Returns the kind, which follows from the refill.
    #[must_use]
    pub const fn kind(&self) -> LimitKind {
        match (self.refill_amount.0, self.refill_period_ms) {
            (0, ..0) => LimitKind::Quota,
            (0, _) => LimitKind::Slots,
            _ => LimitKind::Rate,
        }
    }

    /// Returns whether it is a quota whose windows begin with the first use.
    #[must_use]
    pub const fn is_session(&self) -> bool {
        match self.window_code() {
            Some(code) => code.session().is_some(),
            None => false,
        }
    }

    /// Returns the code of a quota's window; `None` for other kinds.
    #[must_use]
    pub const fn window_code(&self) -> Option<WindowCode> {
        match self.kind() {
            LimitKind::Quota => Some(WindowCode(self.refill_period_ms)),
            LimitKind::Rate | LimitKind::Slots => None,
        }
    }
}

macro_rules! per {
    ($name:ident, $ms:literal, $span:literal) => {
        #[doc = concat!("`rate` tokens per ", $span, ", with a capacity of the same size.")]
        ///
        /// # Errors
        /// [`LimitError`] for a bad name or a rate outside 1 to 10^12 tokens.
        pub fn $name(name: &str, rate: i64) -> Result<Self, LimitError> {
            Self::custom(name, rate, rate, $ms)
        }
    };
}

impl Limit {
    per!(per_second, 1_000, "second");
    per!(per_minute, 60_000, "minute");
    per!(per_hour, 3_600_000, "hour");
    per!(per_day, 86_400_000, "day");

    /// Returns a limit of at most `capacity` tokens, with a refill of `refill_amount` tokens every
    /// `refill_period_ms`.
    ///
    /// # Errors
    /// [`LimitError`] for a bad name, amounts outside 1 to 10^12 tokens, or a period outside 1 ms
    /// to 366 days.
    pub fn custom(
        name: &str,
        capacity: i64,
        refill_amount: i64,
        refill_period_ms: i64,
    ) -> Result<Self, LimitError> {
        let name = LimitName::of_limit(name)?;
        check(&name, "capacity", capacity, MAX_TOKENS, "1 to 10^12 tokens")?;
        check(&name, "refill_amount", refill_amount, MAX_TOKENS, "1 to 10^12 tokens")?;
        check(&name, "refill_period_ms", refill_period_ms, MAX_PERIOD_MS, "1 ms to 366 days")?;
        let capacity = MilliTokens::from_tokens(capacity);
        let refill_amount = MilliTokens::from_tokens(refill_amount);
        Ok(Self::of(name, RefillRule { capacity, refill_amount, refill_period_ms }))
    }

    /// Returns a limit of `slots` that can be held at the same time. A slot is free again when its
    /// lease is released or expires.
    ///
    /// # Errors
    /// [`LimitError`] for a bad name or slots outside 1 to 10^12.
    pub fn concurrent(name: &str, slots: i64) -> Result<Self, LimitError> {
        let name = LimitName::of_limit(name)?;
        check(&name, "capacity", slots, MAX_TOKENS, "1 to 10^12 tokens")?;
        let rule = RefillRule {
            capacity: MilliTokens::from_tokens(slots),
            refill_amount: MilliTokens::ZERO,
            refill_period_ms: 1,
        };
        Ok(Self::of(name, rule))
    }

    /// Returns a quota of `tokens` in each window, by the window's code.
    ///
    /// # Errors
    /// [`LimitError`] for a bad name or tokens outside 1 to 10^12.
    pub fn quota_of(name: &str, tokens: i64, window: WindowCode) -> Result<Self, LimitError> {
        let name = LimitName::of_limit(name)?;
        check(&name, "capacity", tokens, MAX_TOKENS, "1 to 10^12 tokens")?;
        let rule = RefillRule {
            capacity: MilliTokens::from_tokens(tokens),
            refill_amount: MilliTokens::ZERO,
            refill_period_ms: window.0,
        };
        Ok(Self::of(name, rule))
    }

    /// Returns a quota: `tokens` in each window, of which the next one begins full. Unlike a rate of
    /// 30 days, which admits up to twice its tokens within them, no window admits more.
    ///
    /// ```
    /// # use weirgate_shared::{Every, Limit};
    /// # fn limits() -> Result<(), Box<dyn std::error::Error>> {
    /// let month = Every::month().on_day(15).at(9, 0).zone("Europe/Berlin")?;
    /// let limit = Limit::quota("tpm", 10_000, month)?;
    /// assert_eq!(limit.to_string(), "tpm=quota:10000/month,day=15,at=09:00,tz=Europe/Berlin");
    /// # Ok(())
    /// # }
    /// # limits().unwrap();
    /// ```
    ///
    /// # Errors
    /// [`LimitError`] for a bad name, tokens outside 1 to 10^12, or a window that cannot be built.
    pub fn quota<W>(name: &str, tokens: i64, window: W) -> Result<Self, LimitError>
    where
        W: TryInto<QuotaWindow, Error: Into<WindowError>>,
    {
        let window = window.try_into();
        let window = window.map_err(|error| window_error(name, error.into()))?;
        Self::quota_of(name, tokens, window.code())
    }

    /// Returns a quota whose window begins with the first use, and lasts `length`.
    ///
    /// # Errors
    /// [`LimitError`] for a bad name, tokens outside 1 to 10^12, or a length outside 1 second to 366
    /// days.
    pub fn session(name: &str, tokens: i64, length: Duration) -> Result<Self, LimitError> {
        let session = SessionWindow::new(length).map_err(|error| window_error(name, error))?;
        Self::quota(name, tokens, session)
    }

    /// Returns the same rate with another capacity: the amount that can be taken at once after idle
    /// time.
    ///
    /// # Errors
    /// [`LimitError::OutOfRange`] outside 1 to 10^12 tokens, or for a concurrency limit or a quota,
    /// which have no burst.
    pub fn with_burst(mut self, burst: i64) -> Result<Self, LimitError> {
        check(&self.name, "burst", burst, MAX_TOKENS, "1 to 10^12 tokens")?;
        let refused = |takes| {
            Err(LimitError::OutOfRange {
                limit: self.name.to_string(),
                field: "burst",
                value: burst,
                takes,
            })
        };
        match self.rule.kind() {
            LimitKind::Rate => self.rule.capacity = MilliTokens::from_tokens(burst),
            LimitKind::Slots => return refused("left out of a concurrency limit"),
            LimitKind::Quota => {
                return refused("left out of a quota, of which all can be taken at once");
            }
        }
        let classes = std::mem::take(&mut self.classes);
        self.with_classes(classes)
    }

    /// Returns the same limit, scaled by a schedule: see [`scaled`](Self::scaled). Only limits in a
    /// configuration have one, because the version of the configuration orders what is in force.
    ///
    /// # Errors
    /// [`LimitError::Window`] if a scale leaves no limit: less than 1 token, of a class too, more than 10^12,
    /// or a refill period above 366 days.
    pub fn with_schedule(mut self, schedule: Schedule) -> Result<Self, LimitError> {
        for rule in schedule.rules() {
            if self.scaled(rule.scale()).is_none() {
                let takes = "a ratio that leaves the limit 1 to 10^12 tokens, each of its classes 1, and a period of at most 366 days";
                let value = format!("{} of {}", rule.scale(), self.text());
                let remedy = "write another ratio, or the rate with a longer period";
                let error = WindowError::field("scale", value, takes, remedy);
                return Err(window_error(self.name.as_str(), error));
            }
        }
        self.schedule = Some(schedule);
        Ok(self)
    }

    /// Returns the limit with a rule, enforced, as an item stores it: perhaps one of a pool.
    #[must_use]
    pub const fn of(name: LimitName, rule: RefillRule) -> Self {
        Self { name, rule, mode: LimitMode::Enforced, schedule: None, classes: vec![] }
    }

    /// The same limit in another mode: enforced if nothing is said.
    ///
    /// ```
    /// # use weirgate_shared::{Limit, LimitMode};
    /// let limit = Limit::per_minute("tpm", 100_000)?.in_mode(LimitMode::Shadow); // counts what it would deny
    /// assert_eq!(limit.mode(), LimitMode::Shadow);
    /// # Ok::<(), weirgate_shared::LimitError>(())
    /// ```
    #[must_use]
    pub const fn in_mode(mut self, mode: LimitMode) -> Self {
        self.mode = mode;
        self
    }

    /// Returns the limit's name.
    #[must_use]
    pub const fn name(&self) -> &LimitName {
        &self.name
    }

    /// Returns the mode: what happens to a request that the limit cannot cover.
    #[must_use]
    pub const fn mode(&self) -> LimitMode {
        self.mode
    }

    /// Returns the window of a quota; `None` for other kinds, and for a window that this release does
    /// not know, in a bucket of a newer one.
    #[must_use]
    pub fn window(&self) -> Option<QuotaWindow> {
        self.rule.window_code()?.decode()
    }

    /// Returns the capacity and the refill; of a limit with a schedule, while none of its rules holds.
    #[must_use]
    pub const fn rule(&self) -> &RefillRule {
        &self.rule
    }

    /// Returns the rules by which the limit is scaled at certain times.
    #[must_use]
    pub const fn schedule(&self) -> Option<&Schedule> {
        self.schedule.as_ref()
    }

    /// Returns the limit as it is in force at a scale, without its schedule; `None` if that is no limit.
    ///
    /// The capacity is rounded down to whole tokens. A refill is exact: what no whole amount has in the
    /// period, `1/second` halved, gets a longer period, `1/2s`.
    #[must_use]
    pub fn scaled(&self, scale: Scale) -> Option<Self> {
        let [over, under] = [scale.numerator(), scale.denominator()].map(i64::from);
        let tokens = |scaled: i64| {
            let is_amount = (1..=MAX_TOKENS).contains(&scaled);
            is_amount.then(|| MilliTokens::from_tokens(scaled))
        };
        // At most 10^12 * 10^6.
        let capacity = tokens(self.rule.capacity.whole_tokens() * over / under)?;
        let mut rule = RefillRule { capacity, ..self.rule };
        if rule.kind().refills() {
            let amount = rule.refill_amount.whole_tokens() * over;
            let divisor = gcd(amount, under);
            rule.refill_amount = tokens(amount / divisor)?;
            rule.refill_period_ms *= under / divisor;
            (rule.refill_period_ms <= MAX_PERIOD_MS).then_some(())?;
        }
        let scaled = Self { rule, schedule: None, ..self.clone() };
        let is_too_small = scaled.pools().iter().any(Self::is_too_small);
        (!is_too_small).then_some(scaled)
    }
}

/// Returns the greatest common divisor of two positive numbers.
const fn gcd(one: i64, other: i64) -> i64 {
    match one % other {
        0 => other,
        rest => gcd(other, rest),
    }
}

fn window_error(limit: &str, error: WindowError) -> LimitError {
    LimitError::Window { limit: limit.to_owned(), error }
}

fn check(
    limit: &LimitName,
    field: &'static str,
    value: i64,
    max: i64,
    takes: &'static str,
) -> Result<(), LimitError> {
    if (1..=max).contains(&value) {
        Ok(())
    } else {
        Err(LimitError::OutOfRange { limit: limit.to_string(), field, value, takes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Every;

    #[test]
    fn a_limit_out_of_range_is_refused_with_its_field_and_value() {
        let refused = |result: Result<Limit, LimitError>| result.unwrap_err().to_string();
        assert_eq!(
            refused(Limit::per_minute("rpm", 0)),
            "limit \"rpm\": capacity must be 1 to 10^12 tokens, got 0: correct it"
        );
        assert!(refused(Limit::custom("rpm", 5, -1, 1000)).contains("refill_amount must be 1"));
        assert!(refused(Limit::custom("rpm", 5, 5, 0)).contains("refill_period_ms must be 1 ms"));
        assert!(refused(Limit::per_day("rpm", i64::MAX)).contains("10^12"));
        assert!(refused(Limit::concurrent("slots", 0)).contains("tokens, got 0"));
        assert!(
            refused(Limit::per_day("rpm", 1).unwrap().with_burst(0)).contains("burst must be 1")
        );
        assert!(refused(Limit::concurrent("s", 2).unwrap().with_burst(3)).contains("concurrency"));
        assert!(refused(Limit::per_day("r#m", 1)).contains("r#m"));
        let quota = Limit::quota("tpm", 10, Every::month());
        assert_eq!(
            refused(quota.unwrap().with_burst(20)),
            "limit \"tpm\": burst must be left out of a quota, of which all can be taken at once, got 20: correct it"
        );
        assert!(refused(Limit::quota("tpm", 0, Every::month())).contains("capacity must be 1 to"));
        assert_eq!(
            refused(Limit::quota("tpm", 1, Every::month().on_day(32))),
            "limit \"tpm\": day must be 1 to 31, got \"32\"; write for example 15"
        );
        assert_eq!(
            refused(Limit::session("tpm", 1, Duration::from_millis(999))),
            "limit \"tpm\": session must be a span from 1s to 366d, got \"999ms\"; write for example 5h"
        );
    }

    #[test]
    fn burst_changes_the_capacity_and_not_the_rate() {
        let limit = Limit::per_second("rps", 10).unwrap().with_burst(50).unwrap();
        assert_eq!(limit.rule().capacity, MilliTokens::from_tokens(50));
        assert_eq!(limit.rule().refill_amount, MilliTokens::from_tokens(10));
        assert_eq!(limit.rule().refill_period_ms, 1000);
    }
}
