//! The runbook as on-call reads it: from an alarm's text to one section, and no further.

use weirgate_testkit::template::properties;

use crate::drill::page::{PAGE, section_blocks};
use crate::drill::shell::Shell;

/// One section of the page, whose blocks alone may be run.
#[derive(Debug)]
pub(super) struct Section<'a> {
    shell: &'a Shell,
    anchor: String,
    blocks: Vec<&'static str>,
}

impl<'a> Section<'a> {
    /// Opens the section that a link such as `docs/operations.md#a-function-is-stuck` names.
    ///
    /// # Errors
    /// If the link has no section, the page has none of that name, or it has no commands.
    pub(super) fn linked(shell: &'a Shell, link: &str) -> Result<Self, String> {
        let (_, anchor) = link
            .rsplit_once('#')
            .ok_or_else(|| format!("{link:?} names no section"))?;
        let blocks = section_blocks(PAGE, anchor);
        if blocks.is_empty() {
            return Err(format!("the page has no section {anchor} with commands"));
        }
        Ok(Self {
            shell,
            anchor: anchor.to_owned(),
            blocks,
        })
    }

    pub(super) fn anchor(&self) -> &str {
        &self.anchor
    }

    /// Runs one of the section's blocks.
    ///
    /// # Errors
    /// If the block is of another section, or fails.
    pub(super) async fn run(
        &self,
        block: &str,
        variables: &[(&str, &str)],
    ) -> Result<String, String> {
        if !self.blocks.contains(&block) {
            return Err(format!(
                "on-call reads {} alone, and {block} is not among its commands: {:?}",
                self.anchor, self.blocks
            ));
        }
        self.shell.block(block, variables).await
    }
}

/// Returns the link at the end of an alarm's text.
///
/// # Errors
/// If the text has none.
pub(super) fn link(alarm: &str) -> Result<String, String> {
    let text = properties(alarm)["AlarmDescription"]["Fn::Sub"].take();
    let link = text
        .as_str()
        .and_then(|text| text.split_whitespace().next_back());
    link.map(str::to_owned)
        .ok_or_else(|| format!("{alarm} has no text"))
}
