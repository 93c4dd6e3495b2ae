//! The stream is disabled: its mapping does not read it.

use super::fault::Fault;
use super::runbook::Section;
use crate::drill::{Drill, expect};

/// A resource that is used meanwhile.
const RESOURCE: &str = "unread";

pub(super) struct Disabled;

impl<P: Fn(&str)> Fault<P> for Disabled {
    const NAME: &'static str = "the stream was disabled";
    const ALARMS: &'static [&'static str] = &["StreamUnreadAlarm"];

    async fn inject(&mut self, drill: &Drill<'_, P>) -> Result<(), String> {
        let disable = "aws lambda update-event-source-mapping --uuid \"$mapping\" --no-enabled --query State --output text";
        drill.shell.text(disable, &[]).await?;
        drill.take_and_delete(RESOURCE, 4).await
    }

    async fn end(&mut self, drill: &Drill<'_, P>, section: &Section<'_>) -> Result<(), String> {
        let mapping = section.run("mapping", &[]).await?;
        expect(mapping.contains("\tDisabled\t"), || {
            format!("the mapping is said to be {mapping}")
        })?;
        section.run("enable", &[]).await?;
        drill.until_counted_of(RESOURCE, 4).await
    }
}
