//! Why a window or a schedule cannot be built.

use super::release::ZONE_DATA;

/// Why a window of a quota, or a schedule, cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// The zone data of this release has no such zone. A newer release may have it, so a window that
    /// was written by a newer process can be right.
    #[error(
        "tz must be a zone of the IANA time zone database, whose release here is {ZONE_DATA}, \
         got {name:?}; write for example Europe/Berlin, or update Weirgate for a newer zone"
    )]
    UnknownZone {
        /// Rejected name.
        name: String,
    },
    /// A field has a value that it does not take.
    #[error("{field} must be {takes}, got {value:?}; {remedy}")]
    Field {
        /// Which field, as the limits file and the command line name it.
        field: &'static str,
        /// Rejected value.
        value: String,
        /// What the field takes.
        takes: &'static str,
        /// What to do, in the imperative.
        remedy: &'static str,
    },
}

impl WindowError {
    pub(crate) fn field(
        field: &'static str,
        value: impl ToString,
        takes: &'static str,
        remedy: &'static str,
    ) -> Self {
        Self::Field { field, value: value.to_string(), takes, remedy }
    }

    /// Returns the field that is wrong, as the limits file and the command line name it.
    #[must_use]
    pub const fn wrong_field(&self) -> &'static str {
        match self {
            Self::UnknownZone { .. } => "tz",
            Self::Field { field, .. } => field,
        }
    }
}

/// A window that is built already needs no conversion.
impl From<std::convert::Infallible> for WindowError {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}
