//! Grants as text: to settle them in another process, or after a restart.

use serde::{Deserialize, Serialize};
use weirgate_store::base64;

use super::grant::Grant;
use crate::bucket::{BucketRegistry, Hold, HoldToken};
use crate::values::Error;

/// Version of the token's format.
const FORMAT: u8 = 1;
/// Most holds in a token: one request's buckets, with its entity's ancestors.
const MAX_HOLDS: usize = 100;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantToken {
    format: u8,
    holds: Vec<HoldToken>,
    has_unlimited: bool,
}

impl Grant {
    /// Turns the grant into a token: text from which
    /// [`RateLimiter::restore_grant`](crate::RateLimiter::restore_grant) makes it again, in this
    /// process or in another. Writes nothing, and releases nothing.
    ///
    /// The token is not signed: a token that was changed can return tokens that were never taken.
    /// Accept tokens only from callers that may settle any grant of the namespace.
    ///
    /// Tokens taken from a [local bucket](crate::OnUnavailable) stay taken: the token has none of
    /// them.
    #[must_use = "only the token can still settle the grant"]
    pub fn into_token(self) -> String {
        let (holds, has_unlimited) = self.into_holds();
        let token = GrantToken {
            format: FORMAT,
            holds: holds.into_iter().map(Hold::into_token).collect(),
            has_unlimited,
        };
        base64::encode(serde_json::to_vec(&token).expect("strings and numbers are JSON"))
    }
}

/// Restores a grant from its token.
///
/// # Errors
/// [`Error::Invalid`] for text that is no token, or a token of another namespace.
pub(crate) fn restore(token: &str, buckets: &BucketRegistry) -> Result<Grant, Error> {
    let json = base64::decode(token).ok();
    let parsed = json.and_then(|json| serde_json::from_slice::<GrantToken>(&json).ok());
    let parsed = parsed.filter(|token| token.format == FORMAT && token.holds.len() <= MAX_HOLDS);
    let GrantToken {
        holds,
        has_unlimited,
        ..
    } = parsed.ok_or_else(|| {
        Error::Invalid(
            "the text is not a grant token of this version: pass the token as it was returned"
                .to_owned(),
        )
    })?;
    let holds = holds.into_iter().map(|hold| hold.restore(buckets));
    Ok(Grant::restored(
        holds.collect::<Result<_, _>>()?,
        has_unlimited,
    ))
}
