//! What a check found.

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use weirgate_shared::docs;

use super::aws::RequestError;
use crate::text::{Text, one_line, without_passwords};

/// The remedy for what the template creates.
pub const DEPLOY: &str = concat!("deploy the template again: ", docs!("deployment"));

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As it should be.
    Fine,
    /// It works, and something else would be better.
    Advice,
    /// Wrong.
    Problem,
    /// Not known: not allowed, or not reachable.
    Unknown,
}

/// What a check found, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was checked.
    pub check: &'static str,
    /// How it is.
    pub state: State,
    /// The finding.
    pub found: String,
    /// What to do; empty if there is nothing to do.
    pub remedy: String,
}

impl Finding {
    pub fn fine(check: &'static str, found: impl Into<String>) -> Self {
        Self::of(check, State::Fine, found, "")
    }

    pub fn advice(
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::of(check, State::Advice, found, remedy)
    }

    pub fn problem(
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::of(check, State::Problem, found, remedy)
    }

    pub fn unknown(
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::of(check, State::Unknown, found, remedy)
    }

    /// Returns the finding of a check whose request failed. `action` is the permission it needs.
    pub fn failed(check: &'static str, action: &str, error: &RequestError) -> Self {
        let RequestError { code, message } = error;
        let reason = match (code.as_str(), message.as_str()) {
            ("", message) => message.to_owned(),
            (code, "") => code.to_owned(),
            (code, message) => format!("{code}: {message}"),
        };
        let remedy = match code.contains("AccessDenied") || code.contains("Unauthorized") {
            true => format!("use credentials that allow {action}"),
            false => format!("check --region, and whether {action} works with the AWS CLI"),
        };
        Self::unknown(check, format!("not checked: {reason}"), remedy)
    }

    fn of(
        check: &'static str,
        state: State,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let [found, remedy] = [found.into(), remedy.into()].map(|text| without_passwords(&text));
        Self { check, state, found, remedy }
    }

    /// Returns the lines of the finding.
    pub fn text(&self) -> Text {
        let (word, color) = match self.state {
            State::Fine => ("fine", AnsiColor::Green),
            State::Advice => ("advice", AnsiColor::Yellow),
            State::Problem => ("WRONG", AnsiColor::Red),
            State::Unknown => ("unknown", AnsiColor::Cyan),
        };
        let style = Style::new().fg_color(Some(color.into())).bold();
        let (found, remedy) = (one_line(&self.found), one_line(&self.remedy));
        let remedy = match remedy.is_empty() {
            true => String::new(),
            false => format!("{:22}→ {remedy}\n", ""),
        };
        let check = self.check;
        Text::default()
            .with(style, format!("{word:7}"))
            .and(format!("  {check:11}  {found}\n{remedy}"))
    }
}
