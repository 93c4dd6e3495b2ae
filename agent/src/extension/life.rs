//! Registers an extension, and waits for its end.

use std::time::Duration;

use crate::token::Token;

use super::api::{CallError, ExtensionsApi};

/// Time for requests in flight once Lambda shuts down.
pub const SHUTDOWN_GRACE: Duration = Duration::from_millis(200);
/// Time for everything once Lambda shuts down, of the two seconds that it gives.
pub const SHUTDOWN_TIME: Duration = Duration::from_millis(1_200);

/// Variables of the agent that an extension does not take: it listens on one port, with the
/// function's secret, on one thread, and ends in the time that Lambda gives.
pub const REFUSED: [&str; 9] = [
    "WEIRGATE_AGENT_LISTEN",
    "WEIRGATE_AGENT_UNIX_SOCKET",
    "WEIRGATE_AGENT_GRPC",
    "WEIRGATE_AGENT_RULES",
    "WEIRGATE_AGENT_START_WITHOUT_RULES",
    "WEIRGATE_AGENT_WITHOUT_SECRET",
    "WEIRGATE_AGENT_TOKEN_FILE",
    "WEIRGATE_AGENT_GRACE",
    "WEIRGATE_AGENT_THREADS",
];
/// How often a lost connection is replaced while the extension waits for an event.
const RETRIES: u32 = 3;
/// Pause before that.
const PAUSE: Duration = Duration::from_millis(100);
/// Time for the report of a failure.
const REPORT: Duration = Duration::from_millis(300);

/// A registered extension.
#[derive(Debug)]
pub struct Extension {
    api: ExtensionsApi,
    identifier: String,
}

impl Extension {
    /// Registers for `SHUTDOWN`, under the name of the executable.
    ///
    /// # Errors
    /// A sentence, if Lambda refuses.
    pub async fn register(api: ExtensionsApi, name: &str) -> Result<Self, String> {
        let registered = api.register(name, &["SHUTDOWN"]).await;
        let identifier = registered.map_err(|error| error.to_string())?;
        Ok(Self { api, identifier })
    }

    /// Waits for the end. Returns its reason: `SPINDOWN`, `TIMEOUT` or `FAILURE`.
    ///
    /// # Errors
    /// A sentence, if Lambda refuses, or the connection is lost several times in a row.
    pub async fn shut_down(&self) -> Result<String, String> {
        let mut lost = 0;
        loop {
            let event = match self.api.next(&self.identifier).await {
                Ok(event) => event,
                Err(CallError::Lost(error)) if lost < RETRIES => {
                    tracing::warn!(error, "waiting for an event again");
                    lost += 1;
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(error) => return Err(error.to_string()),
            };
            lost = 0;
            let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
            match text("eventType").as_str() {
                "SHUTDOWN" => return Ok(text("shutdownReason")),
                // Not registered for.
                other => tracing::warn!(event = other, "an event is not handled"),
            }
        }
    }

    /// Reports to Lambda why the extension cannot start, so that the log of the function has it.
    pub async fn fail(&self, message: &str) {
        let kind = "Extension.WeirgateConfiguration";
        self.api
            .error("init", &self.identifier, kind, message)
            .await;
    }

    /// Reports to Lambda why the extension ends before the function does.
    pub async fn exit(&self, message: &str) {
        let kind = "Extension.WeirgateExit";
        let report = self.api.error("exit", &self.identifier, kind, message);
        let _ = tokio::time::timeout(REPORT, report).await;
    }
}

/// Checks that no variable is set that an extension does not take.
///
/// # Errors
/// A sentence that names the first one.
pub fn check_variables(variable: impl Fn(&str) -> Option<String>) -> Result<(), String> {
    let set = REFUSED
        .iter()
        .find_map(|name| Some((name, variable(name)?)));
    match set {
        None => Ok(()),
        Some((name, value)) => Err(format!(
            "{name} must not be set in a Lambda extension, got {value:?}: remove it from the function"
        )),
    }
}

/// Returns the secret that requests of the function must show: what `variable` has of
/// `WEIRGATE_AGENT_TOKEN`, or else of the credentials' own secrets, which a request from outside
/// cannot know. With SnapStart there is no `AWS_SESSION_TOKEN`.
///
/// # Errors
/// A sentence, if there is none.
pub fn token(variable: impl Fn(&str) -> Option<String>) -> Result<Token, String> {
    const VARIABLES: [&str; 3] = [
        "WEIRGATE_AGENT_TOKEN",
        "AWS_SESSION_TOKEN",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    ];
    for name in VARIABLES {
        if let Some(secret) = variable(name).filter(|secret| !secret.is_empty()) {
            return Token::new(&secret).map_err(|rule| format!("{name} {rule}; set another one"));
        }
    }
    Err("there is no AWS_SESSION_TOKEN, which requests must show: set WEIRGATE_AGENT_TOKEN on the function".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_secret_that_is_set_counts() {
        let of =
            |set: &'static [&str]| token(move |name| set.contains(&name).then(|| name.to_owned()));
        for set in [
            &["WEIRGATE_AGENT_TOKEN", "AWS_SESSION_TOKEN"][..],
            &["AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN"],
            &["AWS_CONTAINER_AUTHORIZATION_TOKEN"],
        ] {
            let mut headers = hyper::HeaderMap::new();
            headers.insert("x-weirgate-token", set[0].parse().unwrap());
            assert_eq!(of(set).unwrap().check(&headers), Ok(()));
        }
        let error = of(&[]).unwrap_err();
        assert!(error.contains("set WEIRGATE_AGENT_TOKEN"), "{error}");
    }
}
