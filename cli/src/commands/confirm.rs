//! Confirmation of what destroys something.

use std::io::IsTerminal;

use clap::Args;

use crate::failure::Failure;
use crate::streams::ask;

/// Options of every command that destroys something.
#[derive(Debug, Clone, Copy, Args)]
pub struct Destroy {
    /// Shows what would be done, and writes nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Does not ask
    #[arg(long)]
    yes: bool,
}

impl Destroy {
    /// Returns whether [`confirm`](Self::confirm) asks on a terminal.
    pub fn asks(self) -> bool {
        !self.yes && !self.dry_run && std::io::stdin().is_terminal()
    }

    /// Asks for a word to be typed, unless nothing is written, or `--yes` is given. Without a terminal,
    /// the answer is no.
    ///
    /// # Errors
    /// [`Failure::Refused`] if another text was typed, or nothing can be.
    pub fn confirm(self, deed: &str, word: &str) -> Result<(), Failure> {
        if self.yes || self.dry_run {
            return Ok(());
        }
        if !std::io::stdin().is_terminal() {
            return Err(Failure::Refused(format!(
                "to {deed} needs a confirmation, and there is no terminal to ask: add --yes"
            )));
        }
        ask(&format!("This will {deed}. Type {word} to confirm: "));
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map_err(|error| {
            Failure::Failed(format!("the answer cannot be read: {error}; add --yes"))
        })?;
        if line.trim() == word {
            return Ok(());
        }
        Err(Failure::Refused("not confirmed: nothing was changed".to_owned()))
    }
}
