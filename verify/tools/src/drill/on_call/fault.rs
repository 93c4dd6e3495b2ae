//! What each fault of the exercise has to say and to do.

use super::metric::{Names, Point};
use super::runbook::{Section, link};
use crate::drill::Drill;

/// A fault of the exercise.
pub(super) trait Fault<P> {
    /// What is wrong.
    const NAME: &'static str;
    /// The stack's alarms that ring, by name.
    const ALARMS: &'static [&'static str];

    /// Puts the fault into the stack, until it has an effect.
    async fn inject(&mut self, drill: &Drill<'_, P>) -> Result<(), String>;

    /// What the fault showed beside the stack's own metrics.
    fn shown(&mut self, _names: &Names) -> Vec<Point> {
        vec![]
    }

    /// Returns the link to the runbook that on-call gets with the signal.
    fn link(&self) -> Result<String, String> {
        let first = Self::ALARMS.first().ok_or("no alarm rings")?;
        link(first)
    }

    /// Finds the cause and ends it, by the commands of the section alone.
    async fn end(&mut self, drill: &Drill<'_, P>, section: &Section<'_>) -> Result<(), String>;
}
