//! The URL of DynamoDB, as a user gives it.

use http::Uri;

use crate::ConnectOptions;

impl ConnectOptions {
    /// Returns the URL of an endpoint, for an option of a program. An empty one is none, as an empty
    /// variable is for the AWS tools.
    ///
    /// # Errors
    /// A sentence, if no request could reach the URL.
    pub fn parse_endpoint(text: &str) -> Result<String, String> {
        if text.is_empty() || text.parse().is_ok_and(|uri| is_reachable(&uri)) {
            Ok(text.to_owned())
        } else {
            Err(
                "must be http:// or https://, a host, and a port (1 to 65535) unless it is the standard \
                 one, as in http://127.0.0.1:8000"
                    .to_owned(),
            )
        }
    }

    /// Returns whether a URL is of this machine.
    #[must_use]
    pub fn is_loopback(url: &str) -> bool {
        let host = url.split("://").nth(1).unwrap_or_default();
        ["127.0.0.1", "localhost", "[::1]"].iter().any(|name| match host.strip_prefix(name) {
            Some(rest) => rest.is_empty() || rest.starts_with([':', '/']),
            None => false,
        })
    }
}

fn is_reachable(uri: &Uri) -> bool {
    let Some(authority) = uri.authority() else {
        return false;
    };
    let (host, whole) = (authority.host(), authority.as_str());
    // A port that is no number, `Uri` accepts.
    let has_port = whole.rfind(host).is_some_and(|at| at + host.len() < whole.len());
    matches!(uri.scheme_str(), Some("http" | "https"))
        && !host.is_empty()
        && (!has_port || authority.port_u16().is_some_and(|port| port > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_endpoint_of_this_machine_needs_no_credentials() {
        for url in ["http://127.0.0.1:8000", "http://localhost", "http://[::1]:1/"] {
            assert!(ConnectOptions::is_loopback(url), "{url}");
        }
        for url in [
            "https://dynamodb.eu-west-1.amazonaws.com",
            "http://localhost.example",
            "http://127.0.0.1.example:80",
            "nonsense",
        ] {
            assert!(!ConnectOptions::is_loopback(url), "{url}");
        }
    }

    #[test]
    fn a_url_that_no_request_could_reach_is_refused_before_the_first_one() {
        for url in [
            "",
            "http://127.0.0.1:8000",
            "http://[::1]:8000/",
            "https://dynamodb.eu-west-1.amazonaws.com",
            "https://vpce-1.dynamodb.eu-west-1.vpce.amazonaws.com:443/path",
        ] {
            assert_eq!(ConnectOptions::parse_endpoint(url).as_deref(), Ok(url));
        }
        for url in [
            "http://127.0.0.1:8000.",
            "http://127.0.0.1:",
            "http://127.0.0.1:0",
            "http://127.0.0.1:65536",
            "http://",
            "127.0.0.1:8000",
            "localhost:8000",
            "ftp://127.0.0.1",
            "http://a b",
            "dynamodb",
        ] {
            assert!(ConnectOptions::parse_endpoint(url).is_err(), "{url}");
        }
    }
}
