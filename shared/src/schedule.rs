//! Schedules: rules by which a limit is scaled at certain times. Pure, without zone data: which rule
//! is in force at an instant is computed by the feature `calendar`.
//!
//! - `cron`: [`Cron`], five fields, and the minutes of a clock that they name
//! - `scale`: [`Scale`], a ratio
//! - `rule`: [`ScheduleRule`]: from each minute of a cron, a scale for some time
//! - `active`: [`ActiveScale`], what a schedule says at an instant

mod active;
mod cron;
mod rule;
mod scale;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

pub use active::ActiveScale;
pub use cron::{ClockMinute, Cron};
pub use rule::ScheduleRule;
pub use scale::Scale;

use crate::{WindowError, ZoneName};

/// Maximum rules of a schedule.
const MAX_RULES: usize = 16;

/// The minutes for which overlaps are looked up, of the years 2020 to 2047: after 28 years, days of
/// the week and leap years repeat.
const CHECKED: std::ops::Range<i64> = 26_297_279..41_024_160;
/// Maximum begins of a rule that are compared with the other rules: those of a rule of each day in all
/// the years.
const MAX_CHECKED: usize = 10_300;

/// Rules by which a limit is scaled at certain times, at most one at a time, by the clock of one
/// zone.
///
/// ```
/// # use weirgate_shared::{Limit, Schedule};
/// let schedule: Schedule = "0 8 * * 1-5 for 10h scale 2/1 tz Europe/Berlin".parse()?;
/// let limit = Limit::per_minute("tpm", 10_000)?.with_schedule(schedule)?;
/// assert_eq!(limit.to_string(), "tpm=10000/minute,schedule=0 8 * * 1-5 for 10h scale 2/1 tz Europe/Berlin");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Schedule(Arc<[ScheduleRule]>);

impl Schedule {
    /// Returns the schedule of some rules, of which no two hold at the same time.
    ///
    /// Overlaps are looked up on the clock from 2020 on, for 28 years or the first 10,300 begins of each
    /// rule: rules that do not overlap there do so on no day of their zone. If rules overlap later, the
    /// first of them holds.
    ///
    /// # Errors
    /// [`WindowError::Field`] for no rule, more than 16, rules of two zones, a rule that holds for longer
    /// than until its next begin, or two rules that overlap.
    pub fn new(rules: impl Into<Arc<[ScheduleRule]>>) -> Result<Self, WindowError> {
        let schedule = Self::of_one_zone(rules.into())?;
        match overlap(schedule.rules()) {
            Some(error) => Err(error),
            None => Ok(schedule),
        }
    }

    /// Reads the text of a schedule that was checked when it was written: overlaps are not looked up
    /// again, which takes milliseconds.
    pub(crate) fn stored(text: &str) -> Result<Self, WindowError> {
        Self::of_one_zone(rules(text)?)
    }

    fn of_one_zone(rules: Arc<[ScheduleRule]>) -> Result<Self, WindowError> {
        if !(1..=MAX_RULES).contains(&rules.len()) {
            let takes = "1 to 16 rules";
            let value = format!("{} rules", rules.len());
            let remedy = "leave the schedule out, or join rules of one scale";
            return Err(WindowError::field("schedule", value, takes, remedy));
        }
        let zone = rules[0].zone_name();
        if let Some(other) = rules.iter().find(|rule| rule.zone_name() != zone) {
            let takes = "one zone for all rules of a limit";
            let value = format!("{zone} and {}", other.zone_name());
            let remedy = "write the times of one of them by the clock of the other";
            return Err(WindowError::field("tz", value, takes, remedy));
        }
        Ok(Self(rules))
    }

    /// Returns the rules.
    #[must_use]
    pub fn rules(&self) -> &[ScheduleRule] {
        &self.0
    }

    /// Returns the zone by whose clock the rules hold.
    #[must_use]
    pub fn zone_name(&self) -> ZoneName {
        self.0[0].zone_name()
    }
}

/// Returns the error for the first overlap of rules, or of a rule with itself.
fn overlap(rules: &[ScheduleRule]) -> Option<WindowError> {
    let all: Vec<_> = rules.iter().map(Begins::of).collect();
    for Begins { rule, known } in &all {
        let mut passed = vec![0; rules.len()];
        let begins = known.iter().filter(|at| CHECKED.contains(&at.0));
        for at in begins.take(MAX_CHECKED) {
            for (other, passed) in all.iter().zip(&mut passed) {
                let (before, after) = other.around(passed, *at);
                let before = before.filter(|_| !std::ptr::eq(*rule, other.rule));
                if before.is_some_and(|before| other.rule.end(before) > *at) {
                    return Some(overlap_error(other.rule, rule, *at));
                }
                if after < rule.end(*at) {
                    return Some(overlap_error(rule, other.rule, after));
                }
            }
        }
    }
    None
}

/// The begins of a rule, each computed once for all rules that it is compared with.
struct Begins<'r> {
    rule: &'r ScheduleRule,
    /// Those from the last one before the checked time on, and one after it or after [`MAX_CHECKED`].
    known: Vec<ClockMinute>,
}

impl<'r> Begins<'r> {
    fn of(rule: &'r ScheduleRule) -> Self {
        let (cron, start) = (rule.cron(), ClockMinute(CHECKED.start));
        let mut known: Vec<_> = cron.floor(start).into_iter().collect();
        let mut at = start;
        while let Some(next) = cron.next(at).filter(|_| known.len() < MAX_CHECKED + 2) {
            known.push(next);
            at = next;
            if !CHECKED.contains(&next.0) {
                break;
            }
        }
        Self { rule, known }
    }

    /// Returns the last begin at or before `at`, and the next one. `passed` is the number of known ones up to
    /// an earlier `at`.
    fn around(&self, passed: &mut usize, at: ClockMinute) -> (Option<ClockMinute>, ClockMinute) {
        while self.known.get(*passed).is_some_and(|begin| *begin <= at) {
            *passed += 1;
        }
        match self.known.get(*passed) {
            Some(after) => {
                let before = passed.checked_sub(1).map(|before| self.known[before]);
                (before, *after)
            }
            None => {
                let cron = self.rule.cron();
                let after = cron.next(at).unwrap_or(ClockMinute(i64::MAX));
                (cron.floor(at), after)
            }
        }
    }
}

fn overlap_error(one: &ScheduleRule, other: &ScheduleRule, at: ClockMinute) -> WindowError {
    if std::ptr::eq(one, other) {
        let takes = "no longer than until the next time of its cron";
        let value = format!("{one} at {at}");
        return WindowError::field("for", value, takes, "shorten it");
    }
    let takes = "rules of which one holds at a time";
    let value = format!("{one}, and {other}, both at {at}");
    WindowError::field("schedule", value, takes, "shorten or move one of them")
}

/// The one text of a schedule: its rules, separated by `; `.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, rule) in self.0.iter().enumerate() {
            write!(f, "{}{rule}", if at == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl FromStr for Schedule {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, WindowError> {
        Self::new(rules(text)?)
    }
}

fn rules(text: &str) -> Result<Arc<[ScheduleRule]>, WindowError> {
    text.split(';').map(str::parse).collect()
}
