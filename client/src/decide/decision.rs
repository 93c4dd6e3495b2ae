//! Decisions of an acquire: granted, denied with a retry-after, never fits, or disabled.

use super::grant::Grant;
use crate::values::{Denied, Disabled, NeverFits};

/// Decision of an acquire.
#[derive(Debug)]
#[must_use = "a denial is a decision, not an error: handle every variant"]
pub enum Decision<G = Grant> {
    /// The tokens were taken.
    Granted(G),
    /// Denied for now; nothing was taken.
    Denied(Denied),
    /// Never grantable: the amount exceeds the capacity of a limit.
    NeverFits(NeverFits),
    /// Disabled by the configuration, until it is enabled there, or by a level that is
    /// [stopped](crate::Admin::stop).
    Disabled(Disabled),
}

impl<G> Decision<G> {
    /// Returns the grant, if there is one.
    #[must_use]
    pub fn granted(self) -> Option<G> {
        match self {
            Self::Granted(grant) => Some(grant),
            Self::Denied(_) | Self::NeverFits(_) | Self::Disabled(_) => None,
        }
    }

    /// Returns the denial, if it is one.
    #[must_use]
    pub fn denied(self) -> Option<Denied> {
        match self {
            Self::Denied(denied) => Some(denied),
            Self::Granted(_) | Self::NeverFits(_) | Self::Disabled(_) => None,
        }
    }

    /// Returns whether the tokens were taken.
    #[must_use]
    pub const fn is_granted(&self) -> bool {
        matches!(self, Self::Granted(_))
    }

    /// Turns the grant into something else.
    pub fn map<H>(self, grant: impl FnOnce(G) -> H) -> Decision<H> {
        match self {
            Self::Granted(granted) => Decision::Granted(grant(granted)),
            Self::Denied(denied) => Decision::Denied(denied),
            Self::NeverFits(never) => Decision::NeverFits(never),
            Self::Disabled(disabled) => Decision::Disabled(disabled),
        }
    }
}
