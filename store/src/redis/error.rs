//! Classifies errors of Redis by what they mean for a write.

use redis::{ErrorKind as RedisKind, RedisError};

use crate::ErrorKind;

/// Codes of errors of `apply.lua`.
const INVALID: &str = "INVALID";
const FOREIGN: &str = "FOREIGN";
const UNDECIDED: &str = "UNDECIDED";

/// Returns whether the next request needs another connection. After a timeout, this one may never answer again;
/// and a server that is now a replica, or of a cluster no longer has the slot, has a successor.
pub(super) fn needs_connection(error: &RedisError) -> bool {
    let told = told(error);
    let code = told.as_ref().map(|(code, _)| &**code);
    let is_elsewhere = matches!(code, Some("READONLY" | "MOVED" | "CLUSTERDOWN"));
    error.is_io_error() || error.is_unrecoverable_error() || is_elsewhere
}

/// Returns code and text of what the server told: of several requests, to the first that failed.
fn told(error: &RedisError) -> Option<(String, String)> {
    let errors = error.clone().into_server_errors()?;
    let (_, first) = errors.first()?;
    Some((
        first.code().to_owned(),
        first.details().unwrap_or_default().to_owned(),
    ))
}

/// Returns what an error of a request that was sent means, and its reason. The outcome of a request without an
/// answer is unknown.
pub(super) fn classify(error: &RedisError, server: &str) -> (ErrorKind, String) {
    if error.is_connection_refusal() {
        return (
            ErrorKind::Unreachable,
            format!("{server} refuses connections"),
        );
    }
    if error.is_timeout() {
        return (ErrorKind::Unconfirmed, format!("{server} timed out"));
    }
    if error.is_io_error() {
        return (
            ErrorKind::Unconfirmed,
            format!("the connection to {server} failed ({error})"),
        );
    }
    let (code, text) = told(error).unwrap_or_default();
    let (code, text) = (&*code, &*text);
    // Redis adds where in the script an error was met.
    let text = text.split(" script: ").next().unwrap_or(text);
    let message = match (code, text) {
        ("", _) => error.to_string(),
        (code, "") => code.to_owned(),
        (code, text) => format!("{code}: {text}"),
    };
    let is_killed = text.contains("Script killed");
    let is_crowded = text.contains("max number of clients reached");
    match (code, error.kind()) {
        ("NOAUTH" | "WRONGPASS", _) | (_, RedisKind::AuthenticationFailed) => (
            ErrorKind::MissingCredentials,
            format!(
                "{server} does not accept the user and password: correct them in the URL ({message})"
            ),
        ),
        ("NOPERM", _) => (
            ErrorKind::AccessDenied,
            format!(
                "{message}: allow the user the commands @hash, @sortedset, @stream, @scripting, exists, del, get, \
                 set, incr, pexpire, time and info on the keys of the table"
            ),
        ),
        ("WRONGTYPE" | FOREIGN, _) => (
            ErrorKind::Invalid,
            format!("{message}: another application uses this key; give the table another name"),
        ),
        (INVALID, _) => (ErrorKind::Invalid, text.to_owned()),
        (UNDECIDED, _) => (ErrorKind::Unconfirmed, text.to_owned()),
        (
            "OOM" | "READONLY" | "MOVED" | "ASK" | "TRYAGAIN" | "LOADING" | "CLUSTERDOWN"
            | "MASTERDOWN" | "BUSY" | "NOREPLICAS" | "MISCONF",
            _,
        ) => (
            ErrorKind::Unavailable,
            format!("{server} answered {message}"),
        ),
        _ if is_killed || is_crowded => (
            ErrorKind::Unavailable,
            format!("{server} answered {message}"),
        ),
        _ => (ErrorKind::Rejected, format!("{server} answered {message}")),
    }
}
