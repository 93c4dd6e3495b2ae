//! Periods of the calendar, and days of the week.

/// The length of a window on the calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Period {
    /// An hour of the clock.
    Hour,
    /// A day.
    Day,
    /// Seven days.
    Week,
    /// A month.
    Month,
    /// A year.
    Year,
}

impl Period {
    /// All periods, the shortest first.
    pub const ALL: [Self; 5] = [Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Returns the name in every notation.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }
}

/// A day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "their names say it")]
pub enum Weekday {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

impl Weekday {
    /// All days of a week, with their names in every notation.
    pub(super) const NAMES: [(Self, &'static str); 7] = [
        (Self::Monday, "monday"),
        (Self::Tuesday, "tuesday"),
        (Self::Wednesday, "wednesday"),
        (Self::Thursday, "thursday"),
        (Self::Friday, "friday"),
        (Self::Saturday, "saturday"),
        (Self::Sunday, "sunday"),
    ];

    /// Returns the number from Monday, 1, to Sunday, 7.
    pub(super) const fn number(self) -> u8 {
        match self {
            Self::Monday => 1,
            Self::Tuesday => 2,
            Self::Wednesday => 3,
            Self::Thursday => 4,
            Self::Friday => 5,
            Self::Saturday => 6,
            Self::Sunday => 7,
        }
    }

    /// Returns the day with a number.
    pub(super) fn numbered(number: u8) -> Option<Self> {
        let day = Self::NAMES.iter().find(|(day, _)| day.number() == number);
        day.map(|(day, _)| *day)
    }
}

/// Returns the name of a day of the week by its number.
pub(super) fn weekday_name(number: u8) -> &'static str {
    let day = Weekday::NAMES.iter().find(|(day, _)| day.number() == number);
    day.map_or("", |(_, name)| name)
}
