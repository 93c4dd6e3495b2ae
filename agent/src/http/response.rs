//! Responses, built from their parts.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Response, StatusCode, header};

/// The type of values.
pub(super) const JSON: &str = "application/json";

/// Returns a response.
pub(super) fn response(
    status: StatusCode,
    kind: &'static str,
    fields: Vec<(&'static str, String)>,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in fields {
        // Names of limits are printable ASCII in a field.
        if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(value)) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    response
}

/// Returns the JSON of a value.
pub(super) fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("values of the limiter are JSON")
}
