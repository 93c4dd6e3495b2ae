//! The on-call exercise: five faults in the deployed stack. Each rings its alarms and no others, and
//! the commands of the section that the alarm's text links lead to the cause and end it.
//!
//! Which alarms ring is decided by their definitions in the template, over what the stack shows:
//! before the fault, for 15 minutes of it, and afterwards.

mod fault;
mod leases;
mod limit;
mod metric;
mod observe;
mod poison;
mod runbook;
mod stream;
mod throttle;
mod throttled;

use weirgate::EpochMillis;

use super::{Drill, expect};
use crate::demo::now;
use fault::Fault;
use metric::{Names, Point, ringing};
use observe::{Failed, observe};
use runbook::Section;

/// What lasts over all faults.
struct Exercise<'a, 'b, P> {
    drill: &'a Drill<'b, P>,
    names: Names,
    failed: Failed,
    /// The last observation of a stack without faults.
    healthy: Vec<Point>,
}

impl<P: Fn(&str)> Drill<'_, P> {
    pub(super) async fn on_call(&self) -> Result<(), String> {
        // A new stack's schedule has not run yet.
        let run = "aws lambda invoke --function-name \"$reconciler\" run.json --query StatusCode";
        self.shell.text(run, &[]).await?;
        let mut exercise = Exercise {
            drill: self,
            names: self.names().await?,
            failed: Failed::new(),
            healthy: vec![],
        };
        exercise.prepare().await?;
        exercise.pass(stream::Disabled).await?;
        exercise.pass(poison::Poison).await?;
        exercise
            .pass(throttled::Capped::new(&self.endpoint).await?)
            .await?;
        exercise.pass(limit::WrongLimit).await?;
        exercise.pass(leases::Unreturned::default()).await
    }
}

impl<P: Fn(&str)> Exercise<'_, '_, P> {
    /// Observes what the stack has shown since an instant.
    async fn observe(&mut self, phase: EpochMillis) -> Result<Vec<Point>, String> {
        observe(self.drill, &self.names, &mut self.failed, phase.0).await
    }

    async fn prepare(&mut self) -> Result<(), String> {
        let limit = weirgate::Limit::per_minute("rpm", 100_000).map_err(super::told)?;
        self.drill.configure(observe::PROBE, limit).await?;
        self.healthy = self.observe(now()).await?;
        let rings = ringing(&self.names, &self.healthy, &self.healthy, None)?;
        expect(rings.is_empty(), || {
            format!("without any fault {rings:?} ring: {:?}", self.healthy)
        })
    }

    /// One fault, from its begin to its end.
    async fn pass<F: Fault<P>>(&mut self, mut fault: F) -> Result<(), String> {
        let passed = self.one(&mut fault).await;
        passed.map_err(|error| format!("on call: {}: {error}", F::NAME))
    }

    async fn one<F: Fault<P>>(&mut self, fault: &mut F) -> Result<(), String> {
        let begun = now();
        fault.inject(self.drill).await?;
        let mut trouble = self.observe(begun).await?;
        trouble.extend(fault.shown(&self.names));
        let rings = ringing(&self.names, &self.healthy, &trouble, None)?;
        expect(rings == F::ALARMS, || {
            format!("{:?} must ring, got {rings:?}: {trouble:?}", F::ALARMS)
        })?;
        let section = Section::linked(self.drill.shell, &fault.link()?)?;
        fault.end(self.drill, &section).await?;
        // Records of the time of the fault, which the aggregator has had when this returns.
        self.observe(now()).await?;
        fault.shown(&self.names);
        let mut after = self.observe(now()).await?;
        after.extend(fault.shown(&self.names));
        let rings = ringing(&self.names, &self.healthy, &trouble, Some(&after))?;
        expect(rings.is_empty(), || {
            format!("{rings:?} do not end: {after:?}")
        })?;
        self.healthy = after;
        let rang = match F::ALARMS {
            [] => "no alarm of the stack rang".to_owned(),
            alarms => format!("{} alone rang", alarms.join(" and ")),
        };
        self.drill.say(&format!(
            "on call: {}; {rang}; #{} led to the cause, and ended it",
            F::NAME,
            section.anchor()
        ));
        Ok(())
    }
}
