//! Schedules: by how much a limit is scaled, and when that changes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;
use jiff::civil::DateTime;
use weirgate_shared::{EpochMillis, Millis, WindowError, exact_span};

use crate::{Cron, Zone, error};

/// Maximum rules of a schedule.
const MAX_RULES: usize = 16;
/// Maximum time for which a rule holds: 366 days, in minutes.
const MAX_MINUTES: i64 = 366 * 24 * 60;
const MINUTE_MS: i64 = 60_000;
/// Maximum number of a scale's ratio.
const MAX_SCALE: u32 = 1_000_000;

/// The times for which overlaps are looked up: after 28 years, days of the week and leap years
/// repeat.
const CHECKED_FROM: DateTime = DateTime::constant(2019, 12, 31, 23, 59, 0, 0);
const CHECKED_YEARS: i16 = 28;
/// Maximum begins of a rule that are compared with the other rules: those of a rule of each day in all
/// the years.
const MAX_CHECKED: usize = 10_300;

/// A ratio of two positive integers: `2/1` doubles a limit, `1/2` halves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scale {
    numerator: u32,
    denominator: u32,
}

impl Scale {
    /// The scale while no rule holds.
    pub const ONE: Self = Self {
        numerator: 1,
        denominator: 1,
    };

    /// Returns the ratio of two numbers.
    ///
    /// # Errors
    /// [`WindowError::Field`] for a number outside 1 to 1,000,000.
    pub fn new(numerator: u32, denominator: u32) -> Result<Self, WindowError> {
        let scale = Self {
            numerator,
            denominator,
        };
        let is_valid = |number| (1..=MAX_SCALE).contains(&number);
        match is_valid(numerator) && is_valid(denominator) {
            true => Ok(scale),
            false => Err(scale_error(&scale.to_string())),
        }
    }

    /// Returns the number by which a limit is multiplied.
    #[must_use]
    pub const fn numerator(self) -> u32 {
        self.numerator
    }

    /// Returns the number by which a limit is divided.
    #[must_use]
    pub const fn denominator(self) -> u32 {
        self.denominator
    }
}

fn scale_error(value: &str) -> WindowError {
    let takes = "a ratio of two numbers from 1 to 1000000";
    error::field("scale", value, takes, "write for example 2/1 or 1/2")
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.numerator, self.denominator)
    }
}

impl FromStr for Scale {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, WindowError> {
        let digits = |text: &str| {
            let is_number = text.bytes().all(|digit| digit.is_ascii_digit());
            text.parse().ok().filter(|_| is_number)
        };
        let ratio = text.split_once('/');
        let ratio = ratio.and_then(|(over, under)| Some((digits(over)?, digits(under)?)));
        let (numerator, denominator) = ratio.ok_or_else(|| scale_error(text))?;
        Self::new(numerator, denominator)
    }
}

/// A rule of a schedule: from each time of a [`Cron`], it holds for some time on the zone's clock.
///
/// Because the clock counts, a rule from 8:00 for 10 hours ends at 18:00 on every day, and rules
/// that meet on one day meet on all days. Begins and ends become instants as those of windows do: at
/// a gap the first instant after it, at an overlap the first of the two instants. A rule that lies
/// in a gap entirely does not hold on that day.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    cron: Cron,
    minutes: i64,
    scale: Scale,
    zone: Zone,
}

impl Rule {
    /// Returns a rule in UTC.
    ///
    /// # Errors
    /// [`WindowError::Field`] for another text than five fields of cron, a day that never occurs,
    /// or a length outside whole minutes from 1 minute to 366 days.
    pub fn new(cron: &str, length: Duration, scale: Scale) -> Result<Self, WindowError> {
        let cron = cron.parse()?;
        let ms = Millis::from(length).0;
        let minutes = ms / MINUTE_MS;
        if ms % MINUTE_MS != 0 || !(1..=MAX_MINUTES).contains(&minutes) {
            let takes = "whole minutes from 1m to 366d";
            let value = exact_span(length);
            return Err(error::field("for", value, takes, "write for example 10h"));
        }
        Ok(Self {
            cron,
            minutes,
            scale,
            zone: Zone::UTC,
        })
    }

    /// Reads the clock of a zone, by its IANA name.
    ///
    /// # Errors
    /// [`WindowError::UnknownZone`] for a name that the bundled database does not have.
    pub fn zone(mut self, name: &str) -> Result<Self, WindowError> {
        self.zone = Zone::new(name)?;
        Ok(self)
    }

    /// Returns the times at which the rule begins to hold.
    #[must_use]
    pub const fn cron(&self) -> &Cron {
        &self.cron
    }

    /// Returns the time for which the rule holds, on the zone's clock.
    #[must_use]
    pub fn length(&self) -> Duration {
        Millis(self.minutes * MINUTE_MS).into()
    }

    /// Returns the scale of the limit while the rule holds.
    #[must_use]
    pub const fn scale(&self) -> Scale {
        self.scale
    }

    /// Returns the name of the zone.
    #[must_use]
    pub fn zone_name(&self) -> &str {
        self.zone.name()
    }

    /// Returns the instants from which and until which the rule holds that begins at `civil`, by the
    /// clock of a zone.
    fn held(&self, civil: DateTime, clock: &Zone) -> (EpochMillis, EpochMillis) {
        let end = civil
            .checked_add(SignedDuration::from_mins(self.minutes))
            .ok();
        let end = end.map_or(EpochMillis(i64::MAX), |end| clock.first_instant(end));
        (clock.first_instant(civil), end)
    }
}

/// The rule and its length, as messages show it.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {}", self.cron, exact_span(self.length()))
    }
}

/// What a schedule says at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Active {
    /// Scale of the limit.
    pub scale: Scale,
    /// The next instant at which a rule begins or ends to hold: until then nothing changes.
    pub until: EpochMillis,
}

/// Rules by which a limit is scaled at certain times, at most one at a time.
///
/// ```
/// # use std::time::Duration;
/// # use weirgate_calendar::{Rule, Scale, Schedule};
/// # use weirgate_shared::EpochMillis;
/// let office_hours = Rule::new("0 8 * * 1-5", Duration::from_hours(10), "2/1".parse()?)?;
/// let schedule = Schedule::new(vec![office_hours.zone("Europe/Berlin")?])?;
/// let monday_at_noon = EpochMillis(1_772_449_200_000); // 2 March 2026, 12:00 in Berlin
/// let active = schedule.at(monday_at_noon);
/// assert_eq!(active.scale, Scale::new(2, 1)?);
/// assert_eq!(active.until.since(monday_at_noon).0, 6 * 3_600_000);
/// # Ok::<(), weirgate_shared::WindowError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Schedule(Vec<Rule>);

impl Schedule {
    /// Returns the schedule of some rules, of which no two hold at the same time.
    ///
    /// Overlaps are looked up from 2020 on, for 28 years or the first 10,300 begins of each rule. Rules
    /// of one zone are compared by its clock, so that no change of it matters. If rules overlap later,
    /// the first of them holds.
    ///
    /// # Errors
    /// [`WindowError::Field`] for no rule, more than 16, a rule that holds for longer than until
    /// its next begin, or two rules that overlap.
    pub fn new(rules: Vec<Rule>) -> Result<Self, WindowError> {
        if !(1..=MAX_RULES).contains(&rules.len()) {
            let takes = "1 to 16 rules";
            let value = format!("{} rules", rules.len());
            let remedy = "leave the schedule out, or join rules of one scale";
            return Err(error::field("schedule", value, takes, remedy));
        }
        match overlap(&rules) {
            Some(error) => Err(error),
            None => Ok(Self(rules)),
        }
    }

    /// Returns the rules.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.0
    }

    /// Returns the scale at `now`, and the next boundary: `i64::MAX` if that is after the year 9999.
    #[must_use]
    pub fn at(&self, now: EpochMillis) -> Active {
        let none = Active {
            scale: Scale::ONE,
            until: EpochMillis(i64::MAX),
        };
        // Backwards, so that the first rule that holds decides.
        self.0.iter().rev().fold(none, |active, rule| {
            let (end, next) = rule.around(now).1;
            match end {
                Some(end) if end > now => Active {
                    scale: rule.scale,
                    until: active.until.min(end).min(next),
                },
                _ => Active {
                    until: active.until.min(next),
                    ..active
                },
            }
        })
    }

    /// Returns the last instant, at or before `now`, at which a rule began or ended to hold:
    /// `i64::MIN` if that was before the year -9999.
    #[must_use]
    pub fn last_boundary(&self, now: EpochMillis) -> EpochMillis {
        let boundaries = self.0.iter().flat_map(|rule| {
            let (start, (end, _)) = rule.around(now);
            [start, end.filter(|end| *end <= now)].into_iter().flatten()
        });
        boundaries.max().unwrap_or(EpochMillis(i64::MIN))
    }
}

impl Rule {
    /// Returns the last begin at or before `now`, the end that belongs to it, and the next begin.
    fn around(
        &self,
        now: EpochMillis,
    ) -> (Option<EpochMillis>, (Option<EpochMillis>, EpochMillis)) {
        let (last, next) = self
            .zone
            .around(now, |at| self.cron.floor(at), |at| self.cron.next(at));
        let next = next.map_or(EpochMillis(i64::MAX), |next| self.zone.first_instant(next));
        let (start, end) = last.map(|last| self.held(last, &self.zone)).unzip();
        (start, (end, next))
    }
}

/// Returns the error for the first overlap of rules, or of a rule with itself.
fn overlap(rules: &[Rule]) -> Option<WindowError> {
    let is_one_zone = rules.iter().all(|rule| rule.zone == rules[0].zone);
    // On a clock without changes, times that do not overlap do so in no zone.
    let clock = |rule: &Rule| match is_one_zone {
        true => Zone::UTC,
        false => rule.zone.clone(),
    };
    let last = CHECKED_FROM.year() + CHECKED_YEARS;
    for rule in rules {
        let mut at = CHECKED_FROM;
        for _ in 0..MAX_CHECKED {
            let Some(next) = rule.cron.next(at).filter(|next| next.year() < last) else {
                break;
            };
            at = next;
            let (start, end) = rule.held(at, &clock(rule));
            if start == end {
                // It lies in a gap, and never holds.
                continue;
            }
            for other in rules {
                let (zone, is_same) = (clock(other), std::ptr::eq(rule, other));
                let around =
                    zone.around(start, |at| other.cron.floor(at), |at| other.cron.next(at));
                let before = around.0.filter(|_| !is_same);
                if before.is_some_and(|before| other.held(before, &zone).1 > start) {
                    return Some(overlap_error(other, rule, at));
                }
                if let Some(after) = around.1 {
                    let (begins, ends) = other.held(after, &zone);
                    if begins < ends && begins < end {
                        return Some(overlap_error(rule, other, after));
                    }
                }
            }
        }
    }
    None
}

fn overlap_error(one: &Rule, other: &Rule, at: DateTime) -> WindowError {
    if std::ptr::eq(one, other) {
        let takes = "no longer than until the next time of its cron";
        let value = format!("{one} at {at}");
        return error::field("for", value, takes, "shorten it");
    }
    let takes = "rules of which one holds at a time";
    let value = format!("{one}, and {other}, both at {at} in {}", other.zone);
    error::field("schedule", value, takes, "shorten or move one of them")
}
