//! Rules of a schedule.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{ClockMinute, Cron, Scale};
use crate::{Millis, WindowError, ZoneName, exact_span, parse_span};

/// Maximum time for which a rule holds: 366 days, in minutes.
const MAX_MINUTES: i64 = 366 * 24 * 60;
const MINUTE_MS: i64 = 60_000;

/// A rule of a schedule: from each time of a [`Cron`], it holds for some time on the zone's clock.
///
/// Because the clock counts, a rule from 8:00 for 10 hours ends at 18:00 on every day, and rules
/// that meet on one day meet on all days. Begins and ends become instants as those of windows do: at
/// a gap the first instant after it, at an overlap the first of the two instants. A rule that lies
/// in a gap entirely does not hold on that day.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScheduleRule {
    cron: Cron,
    minutes: i64,
    scale: Scale,
    zone: ZoneName,
}

impl ScheduleRule {
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
            return Err(length_error(&exact_span(length)));
        }
        Ok(Self { cron, minutes, scale, zone: ZoneName::UTC })
    }

    /// Returns the rule of four texts, as files and JSON have them; without a zone in UTC.
    pub(crate) fn of(
        cron: &str,
        length: &str,
        scale: &str,
        zone: Option<&str>,
    ) -> Result<Self, WindowError> {
        let span = parse_span(length).ok_or_else(|| length_error(length))?;
        let rule = Self::new(cron, span, scale.parse()?)?;
        match zone {
            Some(zone) => rule.zone(zone),
            None => Ok(rule),
        }
    }

    /// Reads the clock of a zone, by its IANA name.
    ///
    /// # Errors
    /// [`WindowError::UnknownZone`] for a name that the zone data of this release does not have.
    pub fn zone(mut self, name: &str) -> Result<Self, WindowError> {
        self.zone = ZoneName::new(name)?;
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

    /// Returns the zone.
    #[must_use]
    pub const fn zone_name(&self) -> ZoneName {
        self.zone
    }

    /// Returns the minute of the clock until which the rule holds that begins at `begin`.
    #[must_use]
    pub const fn end(&self, begin: ClockMinute) -> ClockMinute {
        ClockMinute(begin.0.saturating_add(self.minutes))
    }

    /// Returns the fields with their texts, as files and JSON have them: the zone unless it is UTC.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&'static str, String)> {
        let zone = (self.zone != ZoneName::UTC).then(|| ("tz", self.zone.to_string()));
        [
            ("cron", self.cron.to_string()),
            ("for", exact_span(self.length())),
            ("scale", self.scale.to_string()),
        ]
        .into_iter()
        .chain(zone)
    }
}

fn length_error(value: &str) -> WindowError {
    let takes = "whole minutes from 1m to 366d";
    WindowError::field("for", value, takes, "write for example 10h")
}

/// The one text of a rule: `0 8 * * 1-5 for 10h scale 2/1 tz Europe/Berlin`.
impl fmt::Display for ScheduleRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cron.fmt(f)?;
        let mut fields = self.fields().skip(1);
        fields.try_for_each(|(field, value)| write!(f, " {field} {value}"))
    }
}

impl FromStr for ScheduleRule {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, WindowError> {
        let words: Vec<_> = text.split_ascii_whitespace().collect();
        let error = || {
            let takes = "five fields of cron, then for, scale and tz, each with its value";
            let remedy = "write for example 0 8 * * 1-5 for 10h scale 2/1 tz Europe/Berlin";
            WindowError::field("schedule", text.trim(), takes, remedy)
        };
        let at = words.iter().position(|word| *word == "for");
        let (cron, rest) = words.split_at(at.ok_or_else(error)?);
        match rest {
            ["for", length, "scale", scale] => Self::of(&cron.join(" "), length, scale, None),
            ["for", length, "scale", scale, "tz", zone] => {
                Self::of(&cron.join(" "), length, scale, Some(zone))
            }
            _ => Err(error()),
        }
    }
}
