//! The meanings of an error for its request.

/// What an error means for the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Not applied: the table or the account is over its throughput.
    Throttled {
        /// Whether the item's own partition is: its bucket has more traffic than one partition
        /// takes.
        key_range: bool,
    },
    /// Not applied: an index is over its throughput, or a part of a transaction is. It says nothing
    /// about other items, nor about the write rate of this one.
    IndexThrottled,
    /// Not applied: a transaction or a write in another region was in progress on the item.
    Conflict,
    /// Not applied: no connection could be made, so nothing was sent.
    Unreachable,
    /// Not applied: the server takes no writes for now. It loads its data, is a replica or out of memory.
    Unavailable,
    /// Not applied: signed at a time too far from DynamoDB's. The response has corrected the clock,
    /// so plan the write again.
    ClockSkew,
    /// Perhaps applied: no response, or one that does not tell.
    Unconfirmed,
    /// Not applied: no permission. Ask for the actions in the deployed policy.
    AccessDenied,
    /// Not applied: nothing was sent, because there are no credentials, no region, or a setting is
    /// wrong. The error's reason says which, and what to do.
    MissingCredentials,
    /// Not applied: credentials could not be loaded for now, or are not valid yet, or have expired.
    /// If many processes start at the same time, the source of credentials throttles too.
    CredentialsUnavailable,
    /// Not applied: there is no such table.
    TableNotFound,
    /// Not applied, and never will be: the request is malformed, or the item's content does not
    /// allow it.
    Invalid,
    /// Not applied, for another reason, which the error's text names.
    Rejected,
}

impl std::fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.meaning())?;
        match self.remedy() {
            "" => Ok(()),
            remedy => write!(f, "; {remedy}"),
        }
    }
}

impl ErrorKind {
    /// Returns the text without its remedy, for programs that have one of their own.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Throttled { .. } => "throttled",
            Self::IndexThrottled => "throttled in one place",
            Self::Conflict => "in conflict with another write",
            Self::Unreachable => "no connection, nothing was sent",
            Self::Unavailable => "the server takes no writes for now",
            Self::ClockSkew => "signed by a clock that is off and now corrected",
            Self::Unconfirmed => "no answer, it may have been applied",
            Self::AccessDenied => "not permitted",
            Self::MissingCredentials => "nothing was sent",
            Self::CredentialsUnavailable => "credentials could not be loaded, or are not valid now",
            Self::TableNotFound => "no such table in this region and account",
            Self::Invalid => "refused as invalid",
            Self::Rejected => "refused, for the reason that follows",
        }
    }

    /// Returns what to do. The reason of missing credentials contains it.
    const fn remedy(self) -> &'static str {
        match self {
            Self::Unreachable => "check the region, the endpoint and the network",
            Self::ClockSkew => "if this repeats, set the machine's clock",
            Self::AccessDenied => "the caller's role needs this action on this table",
            Self::CredentialsUnavailable => "if this repeats, check where the process gets them",
            Self::TableNotFound => "deploy the stack, or correct the name",
            _ => "",
        }
    }

    /// Returns whether the same request may succeed later.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        matches!(
            self,
            Self::Throttled { .. }
                | Self::IndexThrottled
                | Self::Conflict
                | Self::Unreachable
                | Self::Unavailable
                | Self::ClockSkew
                | Self::CredentialsUnavailable
                | Self::Unconfirmed
        )
    }

    /// Returns whether a throughput was exceeded.
    #[must_use]
    pub const fn is_throttle(self) -> bool {
        matches!(self, Self::Throttled { .. } | Self::IndexThrottled)
    }

    /// Returns whether the request certainly changed nothing.
    #[must_use]
    pub const fn was_not_applied(self) -> bool {
        !matches!(self, Self::Unconfirmed)
    }
}
