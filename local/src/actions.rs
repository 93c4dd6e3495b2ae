//! What the functions did last.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use weirgate_shared::EpochMillis;
use weirgate_worker::Work;

use crate::page::{ActionLine, LastActions};

/// How many actions are remembered.
const REMEMBERED: usize = 256;
/// How many lines are remembered, in which actions that wrote nothing are one.
const LINES: usize = 64;

/// One invocation of a function that found something to do, or failed.
#[derive(Debug)]
pub struct Action {
    /// Number of the action, from 1 on.
    pub number: u64,
    /// When it began.
    pub at: EpochMillis,
    /// How long it took.
    pub took: Duration,
    /// What was done.
    pub work: Work,
}

/// Returns the number of records of a batch that needed no write.
fn idle_records(work: &Work) -> Option<usize> {
    let Work::Aggregated(summary) = work else {
        return None;
    };
    (work.to_string() == records(summary.records)).then_some(summary.records)
}

fn records(count: usize) -> String {
    format!("{count} {}", if count == 1 { "record" } else { "records" })
}

/// The last actions of the functions. Clones share them.
#[derive(Debug, Clone)]
pub struct Actions(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    last: Mutex<Last>,
    count: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Last {
    actions: VecDeque<Arc<Action>>,
    lines: VecDeque<ActionLine>,
    /// Records, and batches, of the last line if it is idle.
    idle: (usize, usize),
}

impl Last {
    /// Adds the line of an action. Batches in a row that wrote nothing are one line.
    fn add_line(&mut self, action: &Action) {
        let mut line = ActionLine {
            number: action.number,
            at_ms: action.at.0,
            took_ms: u64::try_from(action.took.as_millis()).unwrap_or(u64::MAX),
            function: action.work.function().to_owned(),
            text: action.work.to_string(),
            is_idle: false,
        };
        match idle_records(&action.work) {
            None => self.idle = (0, 0),
            Some(records) => {
                self.idle = (self.idle.0 + records, self.idle.1 + 1);
                line.is_idle = true;
                if let (records, batches @ 2..) = self.idle {
                    line.text = format!("{records} records in {batches} batches");
                    self.lines.pop_back();
                }
            }
        }
        self.lines.push_back(line);
        if self.lines.len() > LINES {
            self.lines.pop_front();
        }
    }
}

impl Default for Actions {
    fn default() -> Self {
        Self(Arc::new(Shared { last: Mutex::default(), count: watch::Sender::new(0) }))
    }
}

impl Actions {
    /// Returns the remembered actions after number `after`, the oldest first. The last 256 are
    /// remembered.
    #[must_use]
    pub fn after(&self, after: u64) -> Vec<Arc<Action>> {
        let last = self.last();
        let from = last.actions.partition_point(|action| action.number <= after);
        last.actions.range(from..).cloned().collect()
    }

    /// Returns a receiver of the number of the last action, for callers that wait for the next one.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.count.subscribe()
    }

    pub(crate) fn push(&self, at: EpochMillis, took: Duration, work: Work) {
        let mut last = self.last();
        let number = *self.0.count.borrow() + 1;
        let action = Action { number, at, took, work };
        last.add_line(&action);
        last.actions.push_back(Arc::new(action));
        if last.actions.len() > REMEMBERED {
            last.actions.pop_front();
        }
        // Under the lock, so that numbers are in order.
        self.0.count.send_replace(number);
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LastActions for Actions {
    fn lines_after(&self, after: u64) -> Vec<ActionLine> {
        let last = self.last();
        let from = last.lines.partition_point(|line| line.number <= after);
        last.lines.range(from..).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_actions_are_remembered_in_order_and_told_in_words() {
        let actions = Actions::default();
        let told = actions.subscribe();
        for count in 0..300 {
            actions.push(EpochMillis(0), Duration::ZERO, Work::Expired(count));
        }
        assert_eq!(*told.borrow(), 300);
        let last = actions.after(0);
        assert_eq!((last.len(), last[0].number), (256, 45));
        let last = actions.after(298);
        let lines: Vec<_> = last.iter().map(|action| action.work.to_string()).collect();
        assert_eq!(lines, ["298 expired items deleted", "299 expired items deleted"]);
        assert!(actions.after(300).is_empty());
        let summary =
            weirgate_aggregator::Summary { records: 120, copied: 1, ..Default::default() };
        let work = Work::Aggregated(summary);
        assert_eq!(work.to_string(), "120 records, 1 usage copy");
        assert_eq!(work.function(), "aggregator");
    }

    #[test]
    fn batches_in_a_row_that_wrote_nothing_are_one_line_and_hide_no_other() {
        let actions = Actions::default();
        let batch = |records, copied| {
            Work::Aggregated(weirgate_aggregator::Summary { records, copied, ..Default::default() })
        };
        let push = |work| actions.push(EpochMillis(0), Duration::ZERO, work);
        let texts = |after| {
            let lines = actions.lines_after(after).into_iter();
            lines.map(|line| line.text).collect::<Vec<_>>()
        };
        push(Work::Expired(1));
        for _ in 0..200 {
            push(batch(15, 0));
        }
        push(batch(15, 1));
        push(batch(1, 0));
        let expected = [
            "1 expired item deleted",
            "3000 records in 200 batches",
            "15 records, 1 usage copy",
            "1 record",
        ];
        assert_eq!(texts(0), expected);
        assert_eq!(texts(202), expected[3..], "only what is new");
        push(batch(2, 0));
        assert_eq!(texts(203), ["3 records in 2 batches"]);
    }
}
