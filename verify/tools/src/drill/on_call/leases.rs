//! Leases are never returned: the reconciler's schedule is disabled.

use std::time::Duration;

use weirgate::Grant;

use super::fault::Fault;
use super::observe::SCHEDULE_MS;
use super::runbook::Section;
use crate::demo::now;
use crate::drill::{Drill, expect};

const RESOURCE: &str = "crashed";
const LEASE: Duration = Duration::from_secs(2);

/// The slots of a caller that crashed: it neither renews nor releases them.
#[derive(Default)]
pub(super) struct Unreturned {
    crashed: Option<(Grant, String)>,
}

impl<P: Fn(&str)> Fault<P> for Unreturned {
    const NAME: &'static str =
        "the reconciler's schedule was disabled, and leases were not returned";
    const ALARMS: &'static [&'static str] = &["ReconcilerAbsentAlarm"];

    async fn inject(&mut self, drill: &Drill<'_, P>) -> Result<(), String> {
        let disable = "schedule=$(aws scheduler get-schedule --name \"$stack-reconciler\" --output json \
             --query '{Name: Name, GroupName: GroupName, ScheduleExpression: ScheduleExpression, \
                       FlexibleTimeWindow: FlexibleTimeWindow, Target: Target}')
             aws scheduler update-schedule --cli-input-json \"$schedule\" --state DISABLED --query ScheduleArn";
        drill.shell.text(disable, &[]).await?;
        let since = now().0;
        self.crashed = Some(drill.hold(RESOURCE, LEASE).await?);
        // A schedule is a matter of minutes.
        let left = (since + SCHEDULE_MS - now().0).max(0);
        tokio::time::sleep(Duration::from_millis(left.unsigned_abs())).await;
        let shown = drill.shown_leases(RESOURCE).await?;
        let (_, lease) = self.crashed.as_ref().ok_or("no lease")?;
        expect(shown.contains(lease), || {
            format!("an expired lease was returned: {shown}")
        })
    }

    async fn end(&mut self, drill: &Drill<'_, P>, section: &Section<'_>) -> Result<(), String> {
        let schedule = section.run("schedule", &[]).await?;
        expect(schedule.trim() == "DISABLED", || {
            format!("the schedule is said to be {schedule}")
        })?;
        section.run("enable-schedule", &[]).await?;
        let schedule = section.run("schedule", &[]).await?;
        expect(schedule.trim() == "ENABLED", || {
            format!("the enabled schedule is said to be {schedule}")
        })?;
        let run = section.run("reconcile", &[]).await?;
        expect(run.contains("200\tNone"), || format!("the run says {run}"))?;
        let shown = drill.shown_leases(RESOURCE).await?;
        let (_, lease) = self.crashed.as_ref().ok_or("no lease")?;
        expect(!shown.contains(lease), || {
            format!("the lease is not returned: {shown}")
        })
    }
}
