//! What the functions do, as lines.

use std::sync::Arc;
use std::time::Duration;

use weirgate_local::{Action, Actions, Work};

use crate::context::Context;
use crate::instant;
use crate::text::one_line;

/// Time over which the work of the aggregator is told in one line.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// Tells what the functions do, for as long as they run.
pub async fn tell(actions: &Actions, context: &Context) {
    let mut told = 0;
    let mut changes = actions.subscribe();
    while changes.wait_for(|last| *last > told).await.is_ok() {
        let last = actions.after(told);
        told = last.last().map_or(told, |action| action.number);
        for line in lines(&last) {
            context.output().note(one_line(&line));
        }
        tokio::time::sleep(TOLD_EVERY).await;
    }
}

/// Returns the lines of actions: one of all that the aggregator did, and one of each other action.
fn lines(actions: &[Arc<Action>]) -> Vec<String> {
    let mut lines = vec![];
    let mut sum: Option<(&Action, weirgate_aggregator::Summary)> = None;
    for action in actions {
        let Work::Aggregated(summary) = &action.work else {
            lines.push(line(action, &action.work));
            continue;
        };
        let (_, sum) = sum.get_or_insert_with(|| (action, Default::default()));
        sum.records += summary.records;
        sum.undecodable += summary.undecodable;
        sum.copied += summary.copied;
        sum.refilled += summary.refilled;
        sum.splits += summary.splits;
        sum.refused += summary.refused;
        sum.failed += summary.failed;
    }
    let summed = sum.map(|(first, sum)| line(first, &Work::Aggregated(sum)));
    summed.into_iter().chain(lines).collect()
}

/// Returns an action as a line.
pub fn line(action: &Action, work: &Work) -> String {
    format!("{} {:<10} {work}", instant::text(action.at), work.function())
}

#[cfg(test)]
mod tests {
    use weirgate::EpochMillis;

    use super::*;

    #[test]
    fn the_work_of_the_aggregator_is_one_line_and_each_other_action_has_its_own() {
        let action = |number, work| {
            Arc::new(Action {
                number,
                at: EpochMillis(1_795_198_200_000),
                took: Duration::ZERO,
                work,
            })
        };
        let batch = |records| {
            Work::Aggregated(weirgate_aggregator::Summary {
                records,
                copied: 1,
                ..Default::default()
            })
        };
        let failed = Work::Failed { function: "reconciler", reason: "no".to_owned() };
        let actions = [action(1, batch(2)), action(2, failed), action(3, batch(5))];
        assert_eq!(
            lines(&actions),
            [
                "2026-11-20T18:10:00Z aggregator 7 records, 2 usage copies",
                "2026-11-20T18:10:00Z reconciler failed, and tries again: no",
            ]
        );
        assert!(lines(&[]).is_empty());
    }
}
