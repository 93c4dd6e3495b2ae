//! What one viewer is sent, as server-sent events.
//!
//! | event | data |
//! |---|---|
//! | `hello` | `table`, `namespace`, `has_actions`, `has_callers`, `now` (epoch ms) |
//! | `names` | `resources`, `entities` |
//! | `switches` | `switches` (levels with `switch`), `unreadable` |
//! | `callers` | each source: `name`, `denied_per_second`, `denied`, `problem` |
//! | `rows` | `now`, `rows` (those that changed), `gone` |
//! | `progress` | `now`, `sweep_ms`, `is_cut`, `read_at_ms`, `problem` |
//! | `usage` | `start`, `at`, `measures` |
//! | `actions` | the new ones, the oldest first |
//! | `cost` | `units_per_second`, `allowed`, `units`, `viewers` |

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;
use weirgate::{Clock, SystemClock};

use super::board::{MAX_VIEWERS, Viewer};
use super::shown::Shown;

/// Time between two messages to a viewer, at least.
const PAUSE: Duration = Duration::from_millis(400);
/// Time after which actions are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// Time between two probes: comments, which a viewer skips. Events alone are so small that the system
/// keeps those of minutes for a viewer that is gone, or never reads.
const PROBED_EVERY: Duration = Duration::from_secs(10);
/// What a client's system keeps unread, by default, is less.
const PROBE: usize = 256 * 1024;
/// How many actions are sent at once.
const ACTIONS: usize = 40;

struct Sending {
    viewer: Viewer,
    shown: Arc<Shown>,
    versions: watch::Receiver<u64>,
    seen: u64,
    action: u64,
    sent_at: Option<Instant>,
    probed_at: Option<Instant>,
}

/// Returns what a viewer is sent, until it is dropped, or has fallen so far behind that it must begin
/// again.
pub(crate) fn events(viewer: Viewer, shown: Arc<Shown>) -> impl Stream<Item = Bytes> + Send {
    let sending = Sending {
        versions: viewer.board.versions(),
        viewer,
        shown,
        seen: 0,
        action: 0,
        sent_at: None,
        probed_at: None,
    };
    stream::unfold(sending, |mut sending| async {
        let bytes = sending.next().await?;
        Some((bytes, sending))
    })
}

impl Sending {
    async fn next(&mut self) -> Option<Bytes> {
        let Some(sent_at) = self.sent_at else {
            self.sent_at = Some(Instant::now());
            let Shown { table, namespace, actions, has_callers } = &*self.shown;
            let hello = json!({
                "table": table,
                "namespace": namespace,
                "has_actions": actions.is_some(),
                "has_callers": has_callers,
                "now": SystemClock.now().0,
            });
            let text = format!("retry: 2000\n{}{}", event("hello", &hello), self.news()?);
            return Some((text + &self.probe()).into());
        };
        tokio::time::sleep_until(sent_at + PAUSE).await;
        loop {
            let text = self.news()? + &self.probe();
            if !text.is_empty() {
                self.sent_at = Some(Instant::now());
                return Some(text.into());
            }
            // Actions have no version; the board outlives its viewers.
            let _ = tokio::time::timeout(LOOK, self.versions.changed()).await;
        }
    }

    /// Returns a comment if one is due. While all places are taken, one always is: viewers that do
    /// not read are found soon, however much their systems keep.
    fn probe(&mut self) -> String {
        let is_full = self.viewer.board.viewers() >= MAX_VIEWERS;
        let is_due = |at: Instant| is_full || at.elapsed() >= PROBED_EVERY;
        if !self.probed_at.is_none_or(is_due) {
            return String::new();
        }
        self.probed_at = Some(Instant::now());
        format!(":{}\n\n", " ".repeat(PROBE))
    }

    /// Returns the events of everything that is new.
    fn news(&mut self) -> Option<String> {
        self.versions.borrow_and_update();
        let subject = self.viewer.subject.as_ref();
        let news = self.viewer.board.news(subject, self.seen)?;
        self.seen = news.version;
        let mut text = String::new();
        if let Some(names) = &news.names {
            text += &event("names", names);
        }
        if let Some(switches) = &news.switches {
            text += &event("switches", switches);
        }
        if let Some(callers) = &news.callers {
            text += &event("callers", callers);
        }
        let now = SystemClock.now().0;
        if !news.rows.is_empty() || !news.gone.is_empty() {
            let rows = json!({"now": now, "rows": news.rows, "gone": news.gone});
            text += &event("rows", &rows);
        }
        if let Some(progress) = &news.progress {
            let mut progress = json!(progress);
            progress["now"] = now.into();
            text += &event("progress", &progress);
        }
        if let Some(day) = &news.day {
            text += &event("usage", day);
        }
        if let Some(actions) = &self.shown.actions {
            let lines = actions.lines_after(self.action);
            if let Some(last) = lines.last() {
                self.action = last.number;
                let from = lines.len().saturating_sub(ACTIONS);
                text += &event("actions", &lines[from..]);
            }
        }
        if let Some(cost) = &news.cost {
            text += &event("cost", cost);
        }
        Some(text)
    }
}

/// Returns one event. JSON has no line break.
fn event<T: Serialize + ?Sized>(name: &str, data: &T) -> String {
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n")
}
