//! The URL of a table in Redis or Valkey, as users give it.

use std::borrow::Cow;
use std::fmt;
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::RedisOptions;

/// Port of a URL without one.
const PORT: u16 = 6379;
/// Options of the URL: [`RedisOptions::table`] and [`RedisOptions::accept_eviction`].
const TABLE: &str = "table";
const ACCEPT_EVICTION: &str = "accept_eviction";

/// Fewer bytes than so many has a file with a password.
const MOST_BYTES: u64 = 65_536;
/// Some editors begin a text with it.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// The URL of a table in Redis or Valkey: `redis://user:password@host:6379/0?table=limits&accept_eviction=true`, or
/// `rediss://` for TLS. Host alone is required. It shows neither user nor password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    scheme: String,
    /// Percent-encoded, as the password; empty if there is none.
    user: String,
    password: String,
    host: String,
    port: u16,
    database: u32,
    table: String,
    accept_eviction: bool,
}

/// A text that is no URL of a store. It shows no more of the text than the scheme.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be redis://user:password@host:6379/0, or rediss:// for TLS, got {0}")]
pub struct StoreUrlError(String);

/// A file without a password, or beside another one. It shows no password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the password of the store {0}")]
pub struct PasswordFileError(String);

impl StoreUrl {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`StoreUrlError`] with what is wrong and the remedy.
    pub fn parse(text: &str) -> Result<Self, StoreUrlError> {
        let Some((scheme, _)) = text.split_once("://") else {
            return wrong("a text without a scheme; begin it with redis://");
        };
        if !["redis", "rediss"].contains(&scheme) {
            return wrong(format!("{scheme}://..; begin it with redis://"));
        }
        let got = |what: &str, remedy: &str| wrong(format!("{scheme}://.. {what}; {remedy}"));
        let encode = "percent-encode all but letters and digits in user and password";
        let Some(url) = redis::parse_redis_url(text) else {
            return got("that cannot be read", encode);
        };
        if url.fragment().is_some() {
            return got("with a #", encode);
        }
        let Some(host) = url.host_str().filter(|host| !host.is_empty()) else {
            return got("without a host", "add it");
        };
        let database = match url.path().trim_matches('/') {
            "" => Some(0),
            path => path.parse().ok(),
        };
        let Some(database) = database else {
            return got(
                "with a path that is no number of a database",
                "correct it, or leave it out",
            );
        };
        let mut read = Self {
            scheme: scheme.to_owned(),
            user: url.username().to_owned(),
            password: url.password().unwrap_or_default().to_owned(),
            host: host.to_owned(),
            port: url.port().unwrap_or(PORT),
            database,
            table: RedisOptions::new("").table,
            accept_eviction: false,
        };
        for (name, value) in url.query_pairs() {
            match (&*name, &*value) {
                (TABLE, table) => table.clone_into(&mut read.table),
                (ACCEPT_EVICTION, "true") => read.accept_eviction = true,
                (ACCEPT_EVICTION, "false") => read.accept_eviction = false,
                (ACCEPT_EVICTION, other) => {
                    let what = format!("with {ACCEPT_EVICTION}={other}");
                    return got(&what, "give true or false");
                }
                // It may be a part of a password with `?`.
                _ => {
                    let remedy = "leave it out, or percent-encode the password";
                    return got("with an option that is neither table nor accept_eviction", remedy);
                }
            }
        }
        Ok(read)
    }

    /// Returns whether the URL has a password.
    #[must_use]
    pub const fn has_password(&self) -> bool {
        !self.password.is_empty()
    }

    /// Sets the password, as it is.
    #[must_use]
    pub fn with_password(mut self, password: &str) -> Self {
        self.password = encoded(password);
        self
    }

    /// Sets the password from a file, which has it in its only line, without control characters. A pipe can
    /// be read once.
    ///
    /// # Errors
    /// [`PasswordFileError`] if the URL has a password too, or the file cannot be read or has not one line.
    pub fn with_password_file(self, path: &Path) -> Result<Self, PasswordFileError> {
        let shown = path.display();
        let wrong = |text: String| Err(PasswordFileError(text));
        if self.has_password() {
            return wrong(format!(
                "must be in one place, got one in the URL {self} and the file {shown}: leave one out"
            ));
        }
        let mut bytes = vec![];
        let read = File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes));
        if let Err(error) = read {
            return wrong(format!("cannot be read: {shown}: {error}; check --store-password-file"));
        }
        let is_long = u64::try_from(bytes.len()).is_ok_and(|length| length >= MOST_BYTES);
        let text = String::from_utf8_lossy(&bytes);
        let password = text.strip_suffix('\n').unwrap_or(&text);
        let password = password.strip_suffix('\r').unwrap_or(password);
        // No eye sees what an editor puts before a text, or a program between its letters.
        let hidden = password.chars().find(|part| part.is_control() || *part == BYTE_ORDER_MARK);
        let got = match hidden {
            _ if password.is_empty() => "none".to_owned(),
            _ if is_long => format!("{MOST_BYTES} bytes or more"),
            _ if matches!(text, Cow::Owned(_)) => "bytes that are no UTF-8".to_owned(),
            Some('\n') => "several".to_owned(),
            Some(hidden) => format!("one with the character U+{:04X}", u32::from(hidden)),
            None => return Ok(self.with_password(password)),
        };
        wrong(format!("must be one line, got {got} in {shown}: correct the file"))
    }

    /// Accepts a server that evicts keys, as `accept_eviction=true` does.
    #[must_use]
    pub const fn accepting_eviction(mut self) -> Self {
        self.accept_eviction = true;
        self
    }

    /// Returns the options of a connection.
    #[must_use]
    pub fn options(&self) -> RedisOptions {
        let Self { scheme, user, password, host, port, database, .. } = self;
        let url = format!("{scheme}://{user}:{password}@{host}:{port}/{database}");
        RedisOptions {
            table: self.table.clone(),
            accept_eviction: self.accept_eviction,
            ..RedisOptions::new(url)
        }
    }
}

/// Shows what finds the table, without user and password.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheme, host, port, database, table, accept_eviction, .. } = self;
        write!(f, "{scheme}://{host}:{port}/{database}")?;
        let table =
            (*table != RedisOptions::new("").table).then(|| format!("{TABLE}={}", encoded(table)));
        let eviction = accept_eviction.then(|| format!("{ACCEPT_EVICTION}=true"));
        let options: Vec<_> = table.into_iter().chain(eviction).collect();
        match options.is_empty() {
            true => Ok(()),
            false => write!(f, "?{}", options.join("&")),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

fn wrong<T>(got: impl Into<String>) -> Result<T, StoreUrlError> {
    Err(StoreUrlError(got.into()))
}

fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'_' | b'.' => {
                encoded.push(char::from(byte));
            }
            _ => {
                // Writing to a text cannot fail.
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use redis::IntoConnectionInfo;

    use super::*;

    #[test]
    fn a_password_file_has_one_line_that_an_eye_sees_whole() {
        let path = std::env::temp_dir().join(format!("weirgate-password-{}", std::process::id()));
        let long = "a".repeat(65_536);
        let cut = format!("{}\nb", &long[1..]);
        for (written, got) in [
            ("", "none"),
            ("\r\n", "none"),
            ("a\nb\n", "several"),
            ("a\n\n", "several"),
            ("\u{feff}secret\n", "one with the character U+FEFF"),
            ("sec\tret", "one with the character U+0009"),
            ("secret\0", "one with the character U+0000"),
            (&long, "65536 bytes or more"),
            (&cut, "65536 bytes or more"),
        ] {
            std::fs::write(&path, written).unwrap();
            let url = StoreUrl::parse("redis://host").expect("it is one");
            let refused = url.with_password_file(&path).expect_err(written).to_string();
            let shown = path.display();
            let told = format!(
                "the password of the store must be one line, got {got} in {shown}: correct the file"
            );
            assert_eq!(refused, told);
        }
        for written in [" a secret ", "geh\u{e4}im\r\n", &long[1..]] {
            std::fs::write(&path, written).unwrap();
            let url = StoreUrl::parse("redis://host").expect("it is one");
            let url = url.with_password_file(&path).expect("a password");
            let whole = url.options().url.into_connection_info().expect("a URL");
            assert_eq!(
                whole.redis_settings().password(),
                Some(written.trim_end_matches(['\r', '\n']))
            );
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_url_is_shown_with_what_finds_the_table_alone() {
        for (given, shown) in [
            ("redis://host", "redis://host:6379/0"),
            ("redis://host/", "redis://host:6379/0"),
            ("rediss://some:secret@[::1]:7000/3", "rediss://[::1]:7000/3"),
            (
                "redis://:secret@host?table=limits&accept_eviction=true",
                "redis://host:6379/0?table=limits&accept_eviction=true",
            ),
            ("redis://host?table=a%26b", "redis://host:6379/0?table=a%26b"),
        ] {
            let url = StoreUrl::parse(given).expect("it is one");
            assert_eq!(url.to_string(), shown);
            assert_eq!(format!("{url:?}"), shown);
            let again = StoreUrl::parse(shown).expect("it is one").options();
            assert_eq!(again.table, url.options().table);
            assert_eq!(again.accept_eviction, url.options().accept_eviction);
        }
        let url = StoreUrl::parse("redis://h?table=t&accept_eviction=true").expect("it is one");
        assert!(url.options().accept_eviction && url.options().table == "t");
    }

    #[test]
    fn a_text_that_is_no_url_is_refused_with_scheme_and_remedy_alone() {
        for (given, part) in [
            ("secret", "begin it with redis://"),
            ("", "begin it with redis://"),
            ("http://secret@host", "got http://.."),
            ("redis://user:secret", "percent-encode"),
            ("redis://user:sec/ret@host:6379/0", "percent-encode"),
            ("redis://user:secret@:6379/0", "redis://.."),
            ("redis://user:secret@", "redis://.."),
            ("redis://:secret@host/x", "no number of a database"),
            ("redis://:secret@host?tabel=a", "neither table nor accept_eviction"),
            ("redis://user:12?secret@host", "percent-encode the password"),
            ("redis://user:12#secret@host/0", "percent-encode"),
            ("rediss://secret:12#insecure", "percent-encode"),
            ("redis://:secret@host?accept_eviction=1", "true or false"),
        ] {
            let error = StoreUrl::parse(given).expect_err("it is refused");
            let text = format!("{error} {error:?}");
            assert!(text.contains(part) && !text.contains("secret"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_password_reaches_the_server_as_it_is(password in "\\PC{1,12}") {
            let url = StoreUrl::parse("redis://some@host:1/2").expect("it is one").with_password(&password);
            let info = url.options().url.into_connection_info().expect("it is one");
            prop_assert_eq!(info.redis_settings().password(), Some(&*password));
            prop_assert_eq!(info.redis_settings().username(), Some("some"));
            prop_assert_eq!(info.redis_settings().db(), 2);
        }
    }
}
