//! Confirmation of what cannot be undone.

use std::io::IsTerminal;

use crate::failure::Failure;
use crate::streams::ask;

/// Asks for a word to be typed. Without a terminal, the answer is no.
///
/// # Errors
/// [`Failure::Refused`] if another text was typed, or nothing can be.
pub fn confirm(deed: &str, name: &str) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::Refused(format!(
            "to {deed} needs a confirmation, and there is no terminal to ask: add --yes"
        )));
    }
    ask(&format!("This will {deed}. Type {name} to confirm: "));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    if line.trim() == name {
        return Ok(());
    }
    Err(Failure::Refused(
        "not confirmed: nothing was changed".to_owned(),
    ))
}
