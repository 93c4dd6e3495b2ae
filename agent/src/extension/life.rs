//! Registers an extension, and waits for its end.

use std::time::Duration;

use crate::http::Token;

use super::api::ExtensionsApi;

/// Time for requests in flight once Lambda shuts down.
pub const SHUTDOWN_GRACE: Duration = Duration::from_millis(200);
/// Time for everything once Lambda shuts down, of the two seconds that it gives.
pub const SHUTDOWN_TIME: Duration = Duration::from_millis(1_200);

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
        let identifier = api.register(name, &["SHUTDOWN"]).await?;
        Ok(Self { api, identifier })
    }

    /// Waits for the end. Returns its reason: `SPINDOWN`, `TIMEOUT` or `FAILURE`.
    ///
    /// # Errors
    /// A sentence, if Lambda does not answer.
    pub async fn shut_down(&self) -> Result<String, String> {
        loop {
            let event = self.api.next(&self.identifier).await?;
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
        self.api.init_error(&self.identifier, kind, message).await;
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
