//! Responses of the limiter itself, for HTTP and gRPC clients.

use std::fmt::Write;
use std::time::Duration;

use http::header::{CONTENT_TYPE, Entry};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use weirgate_shared::Millis;

use crate::http::Problem;
use crate::tower::LimitedBody;

/// Protocol of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    /// A status without a message, in the headers ("trailers only").
    Grpc,
}

impl Protocol {
    pub(crate) fn of(request: &HeaderMap) -> Self {
        let is_grpc = |kind: &HeaderValue| kind.as_bytes().starts_with(b"application/grpc");
        if request.get(CONTENT_TYPE).is_some_and(is_grpc) { Self::Grpc } else { Self::Http }
    }

    /// Returns the response for a request that is not served. `retry_after` is for gRPC clients,
    /// which wait in milliseconds.
    pub(crate) fn answer<B>(
        self,
        problem: &Problem,
        fields: Vec<(&'static str, String)>,
        retry_after: Option<Duration>,
    ) -> Response<LimitedBody<B>> {
        let mut response = match self {
            Self::Http => Response::new(LimitedBody::own(problem.json())),
            Self::Grpc => Response::new(LimitedBody::own(String::new())),
        };
        insert_headers(response.headers_mut(), fields);
        match self {
            Self::Http => {
                *response.status_mut() =
                    StatusCode::from_u16(problem.status()).expect("a problem has an HTTP status");
                insert_headers(
                    response.headers_mut(),
                    [("content-type", "application/problem+json".to_owned())],
                );
            }
            Self::Grpc => {
                let status = [
                    ("content-type", "application/grpc".to_owned()),
                    ("grpc-status", problem.grpc_status().to_string()),
                    ("grpc-message", percent_encoded(&problem.to_string())),
                ];
                let pushback = retry_after
                    .map(|after| ("grpc-retry-pushback-ms", Millis::from(after).0.to_string()));
                insert_headers(response.headers_mut(), status.into_iter().chain(pushback));
            }
        }
        response
    }
}

/// Adds fields to a response. List fields are appended; any other field of the response stays.
pub(crate) fn insert_headers(
    headers: &mut HeaderMap,
    fields: impl IntoIterator<Item = (&'static str, String)>,
) {
    for (name, value) in fields {
        let value = HeaderValue::try_from(value).expect("names in fields are printable ASCII");
        match headers.entry(HeaderName::from_static(name)) {
            Entry::Occupied(mut known) if name.starts_with("ratelimit") => known.append(value),
            Entry::Occupied(_) => {}
            Entry::Vacant(field) => drop(field.insert(value)),
        }
    }
}

/// Returns a gRPC status message: `%`, and all but printable ASCII, as `%` and two hexadecimal
/// digits.
fn percent_encoded(message: &str) -> String {
    message.bytes().fold(String::with_capacity(message.len()), |mut encoded, byte| {
        match byte {
            b'%' | ..b' ' | 0x7f.. => {
                write!(encoded, "%{byte:02X}").expect("a string takes whatever is written")
            }
            _ => encoded.push(char::from(byte)),
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_message_has_only_characters_of_a_header() {
        assert_eq!(
            percent_encoded("rpm has 0 of 100 left: 3 % \u{e9}\n"),
            "rpm has 0 of 100 left: 3 %25 %C3%A9%0A"
        );
    }

    #[test]
    fn grpc_is_told_by_the_content_type() {
        for (content_type, kind) in [
            ("application/grpc", Protocol::Grpc),
            ("application/grpc+proto", Protocol::Grpc),
            ("application/grpc-web", Protocol::Grpc),
            ("application/json", Protocol::Http),
        ] {
            let headers =
                HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
            assert_eq!(Protocol::of(&headers), kind, "{content_type}");
        }
        assert_eq!(Protocol::of(&HeaderMap::new()), Protocol::Http);
    }

    #[test]
    fn another_limiters_members_stay_and_other_fields_are_not_overwritten() {
        let mut headers = HeaderMap::new();
        insert_headers(
            &mut headers,
            [("ratelimit", "\"a\";r=1".to_owned()), ("x-ratelimit-limit", "9".to_owned())],
        );
        insert_headers(
            &mut headers,
            [("ratelimit", "\"b\";r=2".to_owned()), ("x-ratelimit-limit", "5".to_owned())],
        );
        assert_eq!(
            headers.get_all("ratelimit").iter().collect::<Vec<_>>(),
            ["\"a\";r=1", "\"b\";r=2"]
        );
        assert_eq!(headers.get_all("x-ratelimit-limit").iter().collect::<Vec<_>>(), ["9"]);
    }
}
