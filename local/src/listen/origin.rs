//! Whether a request is addressed to this server, and of no other site.
//!
//! A page of any site can make a browser send requests to this machine. Where the site lets its own
//! name resolve to this machine (DNS rebinding), the page can read the answers too. The browser tells
//! both: `Host` has the name; `Origin`, `Referer` and `Sec-Fetch-Site` have the site. A name that
//! the site controls is never an IP address and never `localhost`.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use http::header::{HOST, ORIGIN, REFERER};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, Uri};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The port of an address without one.
const DEFAULT_PORT: u16 = 80;

/// A name under which a server is reached beside its own address: `NAME` with any port, or
/// `NAME:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostName {
    name: String,
    port: Option<u16>,
}

/// A text that is no [`HostName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a host must be NAME or NAME:PORT, got {0:?}; write what clients send in the header Host")]
pub struct NotAHost(String);

impl FromStr for HostName {
    type Err = NotAHost;

    fn from_str(text: &str) -> Result<Self, NotAHost> {
        let not = || NotAHost(text.to_owned());
        let authority = authority(text).ok_or_else(not)?;
        let name = authority.host();
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        if name.is_empty() || !name.chars().all(is_of_name) {
            return Err(not());
        }
        Ok(Self { name: name.to_owned(), port: authority.port_u16() })
    }
}

impl HostName {
    fn is(&self, authority: &Authority) -> bool {
        self.name.eq_ignore_ascii_case(authority.host())
            && self.port.is_none_or(|port| port == port_of(authority))
    }
}

/// Why a request is not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is addressed to something else.
    #[error("the header Host must be {own}, got {got:?}; send the request to this address")]
    Host {
        /// What it may be.
        own: String,
        /// What it is.
        got: String,
    },
    /// Another site caused it.
    #[error("the header {header} must be {own}, got {got:?}; other sites are not answered")]
    Site {
        /// The header that tells.
        header: HeaderName,
        /// What it may be.
        own: String,
        /// What it is.
        got: String,
    },
}

/// Checks that a request is addressed to `own`, the address at which its connection arrived, or to
/// one of `others`; and that, if a browser sent it, the cause is the server's own page or an address
/// that was typed.
///
/// # Errors
/// [`Refused`], which names the header.
pub fn check(
    uri: &Uri,
    headers: &HeaderMap,
    own: SocketAddr,
    others: &[HostName],
) -> Result<(), Refused> {
    let is_own = |authority: &Authority| {
        is_own(authority, own) || others.iter().any(|each| each.is(authority))
    };
    let host = only(headers, &HOST).and_then(authority).filter(is_own);
    // A request line with a whole URL has a host too, which other servers prefer.
    let is_own_too = |uri: &Authority| authority(uri.as_str()).as_ref().is_some_and(is_own);
    let host = host.filter(|_| uri.authority().is_none_or(is_own_too));
    let Some(host) = host else {
        return Err(Refused::Host { own: names_of(own), got: shown(headers, &HOST) });
    };
    let site = format!("http://{host}");
    let is_site = |origin: &str| origin.eq_ignore_ascii_case(&site);
    let is_page = |page: &str| {
        let (origin, path) = page.split_at_checked(site.len()).unwrap_or((page, ""));
        is_site(origin) && (path.is_empty() || path.starts_with('/'))
    };
    let is_trusted = |site: &str| ["same-origin", "none"].contains(&site);
    allow(headers, ORIGIN, &site, is_site)?;
    allow(headers, REFERER, &site, is_page)?;
    allow(headers, SEC_FETCH_SITE, "same-origin or none", is_trusted)
}

/// Checks that a header is not there, or is there once with a value that is allowed.
fn allow(
    headers: &HeaderMap,
    header: HeaderName,
    own: &str,
    is_allowed: impl Fn(&str) -> bool,
) -> Result<(), Refused> {
    if !headers.contains_key(&header) || only(headers, &header).is_some_and(is_allowed) {
        return Ok(());
    }
    Err(Refused::Site { own: own.to_owned(), got: shown(headers, &header), header })
}

/// Returns an authority of a host and maybe a port. Of `user@` another reader might take the user
/// for the host.
fn authority(text: &str) -> Option<Authority> {
    let authority: Authority = text.parse().ok()?;
    let port = text.strip_prefix(authority.host())?;
    // Rust reads `+80` as a number, too.
    let is_port = |port: &str| !port.starts_with('+') && port.parse::<u16>().is_ok();
    let is_whole = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
    is_whole.then_some(authority)
}

fn port_of(authority: &Authority) -> u16 {
    authority.port_u16().unwrap_or(DEFAULT_PORT)
}

fn is_own(authority: &Authority, own: SocketAddr) -> bool {
    let host = authority.host();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let address = address.parse::<IpAddr>().map(|address| address.to_canonical());
    let is_host = address == Ok(own.ip().to_canonical())
        || own.ip().to_canonical().is_loopback() && host.eq_ignore_ascii_case("localhost");
    is_host && port_of(authority) == own.port()
}

fn names_of(own: SocketAddr) -> String {
    if own.ip().to_canonical().is_loopback() {
        format!("{own} or localhost:{}", own.port())
    } else {
        own.to_string()
    }
}

/// Returns the value of a header that is there once, as text.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok();
    value.filter(|_| values.next().is_none())
}

/// Returns what a header has, for an error.
fn shown(headers: &HeaderMap, name: &HeaderName) -> String {
    let values = headers.get_all(name).iter();
    let values: Vec<_> = values.map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
    values.join(", ").chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const OWN: &str = "127.0.0.1:8000";

    fn checked(own: &str, fields: &[(HeaderName, &str)], others: &[&str]) -> Result<(), Refused> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let others: Vec<HostName> = others.iter().map(|name| name.parse().unwrap()).collect();
        check(&Uri::from_static("/"), &headers, own.parse().unwrap(), &others)
    }

    fn is_host(own: &str, host: &str, others: &[&str]) -> bool {
        checked(own, &[(HOST, host)], others).is_ok()
    }

    #[test]
    fn a_host_is_the_address_of_the_connection_or_localhost_with_its_port() {
        for (own, host) in [
            (OWN, OWN),
            (OWN, "localhost:8000"),
            (OWN, "LocalHost:8000"),
            (OWN, "[::ffff:127.0.0.1]:8000"),
            ("127.0.0.1:80", "127.0.0.1"),
            ("[::1]:8000", "[::1]:8000"),
            ("[::1]:8000", "localhost:8000"),
            ("[::ffff:127.0.0.1]:8000", OWN),
            ("10.0.0.7:8000", "10.0.0.7:8000"),
        ] {
            assert!(is_host(own, host, &[]), "{own}: {host}");
        }
        for (own, host) in [
            (OWN, ""),
            (OWN, "127.0.0.1"),
            (OWN, "localhost"),
            (OWN, "127.0.0.1:8001"),
            (OWN, "127.0.0.2:8000"),
            (OWN, "127.1:8000"),
            (OWN, "2130706433:8000"),
            (OWN, "0.0.0.0:8000"),
            (OWN, "[::1]:8000"),
            (OWN, "localhost.:8000"),
            (OWN, "localhost.evil.example:8000"),
            (OWN, "127.0.0.1.evil.example:8000"),
            (OWN, "evil.example"),
            (OWN, "evil.example:8000"),
            (OWN, "127.0.0.1:8000@evil.example"),
            (OWN, "evil.example@127.0.0.1:8000"),
            (OWN, "127.0.0.1:8000, evil.example"),
            (OWN, "http://127.0.0.1:8000"),
            (OWN, "127.0.0.1:8000/"),
            (OWN, "127.0.0.1:8000x"),
            ("127.0.0.1:80", "127.0.0.1:"),
            ("127.0.0.1:80", "127.0.0.1:x"),
            ("127.0.0.1:80", "127.0.0.1:80000"),
            ("10.0.0.7:8000", "localhost:8000"),
        ] {
            assert!(!is_host(own, host, &[]), "{own}: {host}");
        }
        assert!(checked(OWN, &[], &[]).is_err(), "no host");
        assert!(checked(OWN, &[(HOST, OWN), (HOST, OWN)], &[]).is_err(), "two");
    }

    #[test]
    fn a_name_that_is_allowed_is_a_host_with_its_port_or_any() {
        let others = ["weirgate-local", "table.test:9000"];
        for host in ["weirgate-local:8000", "Weirgate-Local", "table.test:9000", OWN] {
            assert!(is_host(OWN, host, &others), "{host}");
        }
        for host in
            ["table.test", "table.test:8000", "a.weirgate-local:8000", "weirgate-local.:8000"]
        {
            assert!(!is_host(OWN, host, &others), "{host}");
        }
        for text in [
            "",
            ":8000",
            "a b",
            "user@name",
            "*",
            "*.test",
            "name:x",
            "name:+80",
            "http://name",
            "name/",
        ] {
            let error = text.parse::<HostName>().unwrap_err().to_string();
            assert!(error.starts_with("a host must be NAME or NAME:PORT, got \""), "{error}");
        }
    }

    #[test]
    fn a_request_line_with_a_url_of_another_host_is_refused() {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static(OWN));
        let of = |uri| check(&Uri::from_static(uri), &headers, OWN.parse().unwrap(), &[]);
        assert_eq!(of("http://127.0.0.1:8000/events"), Ok(()));
        assert!(of("http://evil.example/events").is_err());
        assert!(of("http://evil@127.0.0.1:8000/events").is_err());
    }

    #[test]
    fn the_error_names_the_header_both_values_and_the_remedy() {
        let error = |fields: &[_]| checked(OWN, fields, &[]).unwrap_err().to_string();
        assert_eq!(
            error(&[(HOST, "evil.example:8000")]),
            "the header Host must be 127.0.0.1:8000 or localhost:8000, got \"evil.example:8000\"; \
             send the request to this address"
        );
        assert_eq!(
            error(&[(HOST, OWN), (ORIGIN, "null")]),
            "the header origin must be http://127.0.0.1:8000, got \"null\"; other sites are not \
             answered"
        );
        let long = "x".repeat(10_000);
        assert!(error(&[(HOST, &long)]).len() < 300);
    }

    proptest! {
        #[test]
        fn no_other_text_is_a_host_or_a_site(text in "[ -~]{0,40}", near in 0..=OWN.len(), by in "[ -~]{1,3}") {
            let mut changed = OWN.to_owned();
            changed.insert_str(near, &by);
            for text in [text, changed] {
                let text = text.trim();
                let is_own = [OWN, "localhost:8000", "127.0.0.1:08000", "localhost:08000"].iter()
                    .any(|own| own.eq_ignore_ascii_case(text));
                prop_assume!(!is_own);
                prop_assert!(!is_host(OWN, text, &[]), "{text}");
                let origin = format!("http://{text}");
                prop_assert!(checked(OWN, &[(HOST, OWN), (ORIGIN, &origin)], &[]).is_err());
            }
        }
    }
}
