//! The secret that requests show, in a header or in the metadata of a call.

use hyper::HeaderMap;

/// Name of the header.
const HEADER: &str = "x-weirgate-token";

/// A secret that requests must show, so that only processes which know it can take tokens.
#[derive(Clone)]
pub struct Token {
    secret: Box<[u8]>,
    guards_all: bool,
}

impl Token {
    /// Takes a secret.
    ///
    /// # Errors
    /// A sentence, if it cannot be the value of a header.
    pub fn new(secret: &str) -> Result<Self, String> {
        if secret.is_empty() || !secret.bytes().all(|b| matches!(b, b'!'..=b'~')) {
            return Err("must be printable ASCII without spaces, one character at least".to_owned());
        }
        Ok(Self { secret: secret.as_bytes().into(), guards_all: false })
    }

    /// Returns the number of characters, which all are ASCII.
    #[must_use]
    pub fn characters(&self) -> usize {
        self.secret.len()
    }

    /// Requires the secret for health and metrics too, which are open otherwise.
    #[must_use]
    pub fn for_all(mut self) -> Self {
        self.guards_all = true;
        self
    }

    /// Returns whether health and metrics need it.
    pub(crate) const fn guards_all(&self) -> bool {
        self.guards_all
    }

    /// Checks the header of a request.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), &'static str> {
        let Some(shown) = headers.get(HEADER) else {
            return Err("the header X-Weirgate-Token is missing: send the agent's token in it");
        };
        match self.is(shown.as_bytes()) {
            true => Ok(()),
            false => Err("the header X-Weirgate-Token is wrong: send the agent's token in it"),
        }
    }

    /// Compares in a time that does not depend on where two texts of one length differ.
    fn is(&self, shown: &[u8]) -> bool {
        let differences = self.secret.iter().zip(shown).map(|(a, b)| a ^ b);
        self.secret.len() == shown.len() && differences.fold(0, |all, one| all | one) == 0
    }
}

/// Shows nothing of the secret.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_secret_is_accepted_and_none_is_shown() {
        let token = Token::new("s3cret").unwrap();
        assert!(token.is(b"s3cret"));
        for wrong in [&b""[..], b"s3cre", b"s3crets", b"S3cret", b"s3crey"] {
            assert!(!token.is(wrong), "{wrong:?}");
        }
        assert_eq!(format!("{token:?}"), "Token");
        for refused in ["", "two words", "umlaut \u{e4}", "line\n"] {
            assert!(Token::new(refused).is_err(), "{refused:?}");
        }
    }
}
