//! `weirgate completions` and `man`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Prints a script that completes commands in a shell.
#[derive(Debug, Args)]
#[command(after_help = "Example: weirgate completions bash > /etc/bash_completion.d/weirgate")]
pub struct Completions {
    /// The shell
    shell: Shell,
}

/// Writes a manual page for each command.
#[derive(Debug, Args)]
#[command(after_help = "Example: weirgate man ~/.local/share/man/man1")]
pub struct Man {
    /// Folder for the pages
    folder: PathBuf,
}

impl Completions {
    pub fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let mut script = vec![];
        clap_complete::generate(self.shell, &mut context.program(), "weirgate", &mut script);
        let script = String::from_utf8_lossy(&script).into_owned();
        context.output().print_text(script)?;
        Ok(Outcome::Done)
    }
}

impl Man {
    pub fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let failed = |error: std::io::Error| {
            let folder = self.folder.display();
            let remedy = "give a folder that can be written";
            Failure::Refused(format!("{folder} cannot be written: {error}; {remedy}"))
        };
        std::fs::create_dir_all(&self.folder).map_err(failed)?;
        clap_mangen::generate_to(context.program(), &self.folder).map_err(failed)?;
        context.output().note(format!("manual pages are in {}", self.folder.display()));
        Ok(Outcome::Done)
    }
}
