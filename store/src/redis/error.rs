//! Classifies errors of Redis by what they mean for a write.

use redis::{ErrorKind as RedisKind, RedisError};

use crate::ErrorKind;

/// Codes of errors of `apply.lua`.
const INVALID: &str = "INVALID";
const FOREIGN: &str = "FOREIGN";
const UNDECIDED: &str = "UNDECIDED";

/// What to do about a key of another application.
pub(super) const OF_OTHERS: &str = "another application uses this key; give the table another name";

/// Returns whether the next request needs another connection. After a timeout, this one may never answer again. A
/// server that is now a replica, lacks its replicas, loads its data, or of a cluster no longer has the slot, may have a
/// successor, to which the name leads.
pub(super) fn needs_connection(error: &RedisError) -> bool {
    let told = told(error);
    let code = told.as_ref().map(|(code, _)| &**code);
    let is_elsewhere = matches!(
        code,
        Some("READONLY" | "MOVED" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "NOREPLICAS")
    );
    error.is_io_error() || error.is_unrecoverable_error() || is_elsewhere
}

/// Returns whether the user may not run a command, or use a key.
pub(super) fn is_denied(error: &RedisError) -> bool {
    let told = told(error);
    // Before 7.2 one that a script meets has no code of its own.
    let in_script = "The user executing the script can't";
    told.is_some_and(|(code, text)| code == "NOPERM" || text.starts_with(in_script))
}

/// Returns code and text of what the server told: of several requests, to the first that failed.
fn told(error: &RedisError) -> Option<(String, String)> {
    let errors = error.clone().into_server_errors()?;
    let (_, first) = errors.first()?;
    Some((first.code().to_owned(), first.details().unwrap_or_default().to_owned()))
}

/// Returns what to do about an error of TLS, of which the text alone tells which one it is.
fn remedy_of_tls(error: &RedisError) -> &'static str {
    let text = error.to_string();
    match () {
        () if text.contains("CertificateRequired") => {
            ": set tls-auth-clients to no in its redis.conf, because Weirgate has no certificate of its own"
        }
        () if text.contains("UnknownIssuer") => {
            ": name the file with the certificate of its authority in SSL_CERT_FILE"
        }
        () => "",
    }
}

/// Returns what an error of a request that was sent means, and its reason. The outcome of a request without an
/// answer is unknown.
pub(super) fn classify(error: &RedisError, server: &str) -> (ErrorKind, String) {
    if error.is_connection_refusal() {
        return (ErrorKind::Unreachable, format!("{server} refuses connections"));
    }
    if error.is_timeout() {
        return (ErrorKind::Unconfirmed, format!("{server} timed out"));
    }
    if error.is_io_error() {
        return (
            ErrorKind::Unconfirmed,
            format!("the connection to {server} failed ({error}){}", remedy_of_tls(error)),
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
        _ if is_denied(error) => (
            ErrorKind::AccessDenied,
            format!(
                "{message}: allow the user the commands @hash, @sortedset, @stream, @scripting, exists, del, get, \
                 set, pexpire, time, info and select on the keys of the table"
            ),
        ),
        ("WRONGTYPE" | FOREIGN, _) => (ErrorKind::Invalid, format!("{message}: {OF_OTHERS}")),
        (INVALID, _) => (ErrorKind::Invalid, text.to_owned()),
        (UNDECIDED, _) => (ErrorKind::Unconfirmed, text.to_owned()),
        (
            "OOM" | "READONLY" | "MOVED" | "ASK" | "TRYAGAIN" | "LOADING" | "CLUSTERDOWN"
            | "MASTERDOWN" | "BUSY" | "NOREPLICAS" | "MISCONF",
            _,
        ) => (ErrorKind::Unavailable, format!("{server} answered {message}")),
        _ if is_killed || is_crowded => {
            (ErrorKind::Unavailable, format!("{server} answered {message}"))
        }
        ("", RedisKind::Client | RedisKind::InvalidClientConfig) => {
            (ErrorKind::Rejected, format!("the request cannot be sent to {server}: {message}"))
        }
        // A server that applied it may have answered so.
        ("", _) => {
            (ErrorKind::Unconfirmed, format!("the answer of {server} cannot be read ({message})"))
        }
        _ => (ErrorKind::Rejected, format!("{server} answered {message}")),
    }
}

#[cfg(test)]
mod tests {
    use redis::{Value, from_redis_value, parse_redis_value};

    use super::*;

    fn answered(line: &str) -> RedisError {
        let answer = parse_redis_value(format!("-{line}\r\n").as_bytes());
        match answer.expect("it is one") {
            Value::ServerError(error) => error.into(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_error_of_a_server_tells_whether_it_passes_and_what_to_do() {
        for (line, kind, part) in [
            ("LOADING Redis is loading the dataset in memory", ErrorKind::Unavailable, "LOADING"),
            ("BUSY Redis is busy", ErrorKind::Unavailable, "BUSY"),
            ("MISCONF Errors writing", ErrorKind::Unavailable, "MISCONF"),
            ("NOREPLICAS Not enough", ErrorKind::Unavailable, "NOREPLICAS"),
            ("CLUSTERDOWN Hash slot not served", ErrorKind::Unavailable, "CLUSTERDOWN"),
            ("MASTERDOWN Link", ErrorKind::Unavailable, "MASTERDOWN"),
            ("READONLY You can't", ErrorKind::Unavailable, "READONLY"),
            ("OOM command not allowed", ErrorKind::Unavailable, "OOM"),
            ("TRYAGAIN Multiple keys", ErrorKind::Unavailable, "TRYAGAIN"),
            (
                "ERR Script killed by user with SCRIPT KILL. script: 1, on @user_script:1.",
                ErrorKind::Unavailable,
                "killed",
            ),
            ("ERR max number of clients reached", ErrorKind::Unavailable, "clients"),
            (
                "NOPERM User some has no permissions to run the 'hset' command",
                ErrorKind::AccessDenied,
                "allow the user",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand script: 1, on @user_script:1.",
                ErrorKind::AccessDenied,
                "allow the user",
            ),
            (
                "WRONGPASS invalid username-password pair",
                ErrorKind::MissingCredentials,
                "in the URL",
            ),
            ("NOAUTH Authentication required.", ErrorKind::MissingCredentials, "in the URL"),
            ("WRONGTYPE Operation against a key", ErrorKind::Invalid, "another application"),
            ("INVALID no number at a", ErrorKind::Invalid, "no number at a"),
            ("UNDECIDED more writes", ErrorKind::Unconfirmed, "more writes"),
            ("ERR unknown command", ErrorKind::Rejected, "host answered ERR"),
        ] {
            let (found, reason) = classify(&answered(line), "host");
            assert_eq!(found, kind, "{line}");
            assert!(reason.contains(part), "{reason}");
        }
    }

    #[test]
    fn a_server_that_may_have_a_successor_needs_another_connection() {
        for code in "READONLY MOVED CLUSTERDOWN LOADING MASTERDOWN NOREPLICAS".split(' ') {
            assert!(needs_connection(&answered(code)), "{code}");
        }
        for code in "OOM BUSY MISCONF TRYAGAIN ASK NOPERM WRONGTYPE INVALID ERR".split(' ') {
            assert!(!needs_connection(&answered(code)), "{code}");
        }
    }

    #[test]
    fn an_answer_that_cannot_be_read_leaves_a_write_unknown() {
        let other = from_redis_value::<u64>(Value::Okay).expect_err("it is no number");
        let kinds = [RedisKind::Parse, RedisKind::UnexpectedReturnType];
        let errors = kinds.map(|kind| RedisError::from((kind, "expected another one")));
        for error in errors.into_iter().chain([other.into()]) {
            assert_eq!(classify(&error, "host").0, ErrorKind::Unconfirmed, "{error}");
        }
        let before = RedisError::from((RedisKind::Client, "it cannot be sent"));
        assert_eq!(classify(&before, "host").0, ErrorKind::Rejected);
    }
}
