//! Reads the body of a request, in bounded time and memory.

use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::StatusCode;
use hyper::body::{Body, Incoming};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};

/// Maximum length of a body: that of DynamoDB.
const MAX_BODY: usize = 16 * 1024 * 1024;
/// Up to this length a body needs no permit. Nearly all requests are shorter.
const SMALL: usize = 64 * 1024;
/// How many longer ones are in memory at once. The others wait unread.
const LARGE_AT_ONCE: usize = 2;
/// Time for a body to arrive, from its head or its permit.
const ARRIVAL: Duration = Duration::from_secs(10);
/// Time to wait for a permit.
const WAIT: Duration = Duration::from_secs(60);

/// A body that is not read to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unread {
    /// It is too long.
    #[error("a request must have at most {MAX_BODY} bytes; send fewer items at once")]
    TooLong,
    /// It arrives too slowly.
    #[error("a request must arrive within {} s; send it again", ARRIVAL.as_secs())]
    TooSlow,
    /// Too many long ones wait.
    #[error("{LARGE_AT_ONCE} requests beyond {SMALL} bytes are read at once; send this one again")]
    Busy,
    /// The client ended it.
    #[error("the request must be whole, got {0}; send it again")]
    Broken(String),
}

impl Unread {
    /// Returns the status of the answer, and the name that AWS has for the error.
    pub(crate) const fn answer(&self) -> (StatusCode, &'static str) {
        match self {
            Self::TooLong => (StatusCode::PAYLOAD_TOO_LARGE, "SerializationException"),
            Self::TooSlow => (StatusCode::REQUEST_TIMEOUT, "RequestTimeoutException"),
            Self::Busy => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailableException"),
            Self::Broken(_) => (StatusCode::BAD_REQUEST, "SerializationException"),
        }
    }
}

/// A body, and the permit to have it in memory.
#[derive(Debug, Default)]
pub(crate) struct Held<'a> {
    pub(crate) bytes: Vec<u8>,
    permit: Option<SemaphorePermit<'a>>,
}

/// What all bodies share.
#[derive(Debug)]
pub(crate) struct Bodies(Semaphore);

impl Default for Bodies {
    fn default() -> Self {
        Self(Semaphore::new(LARGE_AT_ONCE))
    }
}

impl Bodies {
    /// Reads a body to its end.
    pub(crate) async fn read(&self, body: Incoming) -> Result<Held<'_>, Unread> {
        let stated = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if stated > MAX_BODY {
            return Err(Unread::TooLong);
        }
        let (mut body, mut held) = (Limited::new(body, MAX_BODY), Held::default());
        let mut deadline = Instant::now() + ARRIVAL;
        loop {
            let frame = timeout_at(deadline, body.frame()).await;
            let Some(frame) = frame.map_err(|_| Unread::TooSlow)? else {
                return Ok(held);
            };
            let frame = frame.map_err(|error| match error.downcast::<LengthLimitError>() {
                Ok(_) => Unread::TooLong,
                Err(error) => Unread::Broken(error.to_string()),
            })?;
            // Trailers are ignored.
            let Ok(part) = frame.into_data() else {
                continue;
            };
            if held.permit.is_none() && held.bytes.len() + part.len() > SMALL {
                let permit = timeout(WAIT, self.0.acquire()).await;
                held.permit = permit.map_err(|_| Unread::Busy)?.ok();
                held.bytes.reserve_exact(stated);
                deadline = Instant::now() + ARRIVAL;
            }
            held.bytes.extend_from_slice(&part);
        }
    }
}
