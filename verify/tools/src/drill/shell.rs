//! Runs the page's blocks as an operator would, in the stack's folder.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Stdio;

use super::page::{PAGE, blocks};

/// Version 1 of the CLI asks SQS at an address of its own, whatever the environment says.
const AWS: &str = "aws() { command aws --endpoint-url \"$AWS_ENDPOINT_URL\" \"$@\"; }";

/// A shell with the page's commands and the account's environment.
#[derive(Debug)]
pub struct Shell {
    blocks: BTreeMap<&'static str, String>,
    run: RefCell<BTreeSet<&'static str>>,
    folder: PathBuf,
    environment: Vec<(String, String)>,
}

impl Shell {
    /// Runs in `folder`, with `environment` beside what this process has.
    ///
    /// # Errors
    /// If the page cannot be read.
    pub fn new(folder: PathBuf, environment: Vec<(String, String)>) -> Result<Self, String> {
        Ok(Self {
            blocks: blocks(PAGE)?,
            run: RefCell::default(),
            folder,
            environment,
        })
    }

    /// Runs the block `name`, with variables set before, and says what it wrote.
    ///
    /// # Errors
    /// If there is no such block, or a command in it fails.
    pub async fn block(&self, name: &str, variables: &[(&str, &str)]) -> Result<String, String> {
        self.block_with(name, "", variables).await
    }

    /// The same after commands of the drill's own, which set what `setup` would.
    ///
    /// # Errors
    /// As [`Self::block`].
    pub async fn block_with(
        &self,
        name: &str,
        before: &str,
        variables: &[(&str, &str)],
    ) -> Result<String, String> {
        let (name, text) = self
            .blocks
            .get_key_value(name)
            .ok_or_else(|| format!("the page has no block {name}"))?;
        self.run.borrow_mut().insert(*name);
        self.text(&format!("{before}\n{text}"), variables)
            .await
            .map_err(|error| format!("the block {name} of docs/operations.md: {error}"))
    }

    /// Runs commands that are the drill's own.
    ///
    /// # Errors
    /// If one fails.
    pub async fn text(&self, text: &str, variables: &[(&str, &str)]) -> Result<String, String> {
        self.run.borrow_mut().insert("setup");
        let script = format!(
            "{AWS}\n{}\n{text}",
            self.blocks.get("setup").map_or("", String::as_str)
        );
        let output = tokio::process::Command::new("bash")
            .args(["-euo", "pipefail", "-c", &script])
            .current_dir(&self.folder)
            .envs(self.environment.iter().cloned())
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| format!("bash cannot be run: {error}"))?;
        let (said, complained) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        if output.status.success() {
            Ok(said.into_owned())
        } else {
            Err(format!("{}\n{said}{complained}", output.status))
        }
    }

    /// Returns the blocks that were not run.
    #[must_use]
    pub fn left(&self) -> Vec<&'static str> {
        self.blocks
            .keys()
            .filter(|name| !self.run.borrow().contains(*name))
            .copied()
            .collect()
    }
}
