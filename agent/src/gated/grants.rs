//! The grants of one request as one text.

use weirgate::{Error, Grant, RateLimiter};

/// Stands between two tokens; a token is base64, which does not contain it.
const SEPARATOR: char = '.';
/// Most tokens in a text: as many as one request can have buckets.
const MAX_TOKENS: usize = 100;
/// Most parts of all tokens of a text, so most writes of one settlement.
const MAX_PARTS: usize = 1_024;

/// Returns the tokens of the grants as one text.
pub(crate) fn join(grants: Vec<Grant>) -> String {
    let mut text = String::new();
    for grant in grants {
        if !text.is_empty() {
            text.push(SEPARATOR);
        }
        text.push_str(&grant.into_token());
    }
    text
}

/// Restores the grants of a text.
///
/// # Errors
/// [`Error::Invalid`] if a part is no token of this table and namespace, or there are too many.
pub(crate) fn restore(limiter: &RateLimiter, text: &str) -> Result<Vec<Grant>, Error> {
    let count = text.split(SEPARATOR).count();
    if count > MAX_TOKENS {
        return Err(Error::Invalid(format!(
            "the grant token has {count} parts, the maximum is {MAX_TOKENS}: pass the token as it was returned"
        )));
    }
    let grants = text
        .split(SEPARATOR)
        .map(|token| limiter.restore_grant(token))
        .collect::<Result<Vec<_>, _>>()?;
    check_parts(&grants)?;
    Ok(grants)
}

/// Requires that one settlement of the grants does not write too much.
///
/// # Errors
/// [`Error::Invalid`] if they have too many parts together.
fn check_parts(grants: &[Grant]) -> Result<(), Error> {
    let parts: usize = grants.iter().map(Grant::parts).sum();
    match parts <= MAX_PARTS {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "the grants of one token can have {MAX_PARTS} parts, got {parts}: settle them, and acquire again"
        ))),
    }
}
