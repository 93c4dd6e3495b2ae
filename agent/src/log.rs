//! Log lines: one JSON object each, on standard output. Lambda reads their `timestamp` and `level`.
//!
//! Whatever becomes of the output, the agent goes on: a thread of its own writes the lines, those
//! beyond its queue are lost and counted, and a place of the code that logs has a bound.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use weirgate::Error;

/// Lines that wait to be written, 4,096.
const QUEUE: usize = 4_096;
/// Longest time that an end waits for the lines before it.
const FLUSH: Duration = Duration::from_secs(1);
/// Lines of one place of the code within [`SPAN`], 100.
const BURST: u32 = 100;
/// Time in which a place of the code has its lines, 10 s.
const SPAN: Duration = Duration::from_secs(10);
/// Target of the lines about refused copies, whose errors have no bound.
const REFUSALS: &str = "weirgate_aggregator::execute::effect";

/// Errors that are logged in a [`ROUND`], 1,000.
const MAX_ERRORS: usize = 1_000;
/// Time after which an error is logged again, 60 s.
const ROUND: Duration = Duration::from_secs(60);

/// Lines that were not written, since the start.
static LOST: AtomicU64 = AtomicU64::new(0);
static LINES: OnceLock<SyncSender<Line>> = OnceLock::new();
static ERRORS: Mutex<Option<Round>> = Mutex::new(None);

/// What the thread that writes is sent.
enum Line {
    Text(Vec<u8>),
    /// All lines before are to be written, and the sender told.
    Flush(SyncSender<()>),
}

/// Writes the events of this process that are of at least `level` to standard output.
pub fn start(level: LevelFilter) {
    let lines = LINES.get_or_init(|| queue(io::stdout()));
    // A second call fails and leaves the first subscriber in place.
    let _ = tracing::subscriber::set_global_default(subscriber(level, lines.clone()));
}

/// Logs an error that each call meets until a repair: the same one once a minute.
pub(crate) fn until_repaired(error: &Error) {
    let mut round = ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_new = Round::has_new(&mut round, error.to_string(), Instant::now());
    drop(round);
    if is_new {
        tracing::warn!(%error, "no decision until a repair");
    }
}

/// The errors that were logged since an instant.
#[derive(Debug)]
struct Round {
    begun: Instant,
    errors: HashSet<String>,
}

impl Round {
    /// Returns whether an error was not logged in this round. A round that is over begins again.
    fn has_new(round: &mut Option<Self>, error: String, now: Instant) -> bool {
        let _ = round.take_if(|round| now.duration_since(round.begun) >= ROUND);
        let round = round.get_or_insert_with(|| Self { begun: now, errors: HashSet::new() });
        round.errors.len() < MAX_ERRORS && round.errors.insert(error)
    }
}

/// Waits until what was logged is written, for a second at most.
pub fn flush() {
    let Some(lines) = LINES.get() else { return };
    let (written, is_written) = sync_channel(1);
    if lines.try_send(Line::Flush(written)).is_ok() {
        let _ = is_written.recv_timeout(FLUSH);
    }
}

/// Writes a line to standard error. An output that takes nothing is left after a second.
pub fn print_error(text: &str) {
    let lines = queue(io::stderr());
    let (written, is_written) = sync_channel(1);
    let _ = lines.try_send(Line::Text(format!("{text}\n").into_bytes()));
    let _ = lines.try_send(Line::Flush(written));
    let _ = is_written.recv_timeout(FLUSH);
}

/// Returns the number of lines that were not written, since the start.
#[must_use]
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Returns a queue whose lines a thread writes to `output`.
fn queue(output: impl Write + Send + 'static) -> SyncSender<Line> {
    let (lines, queued) = sync_channel(QUEUE);
    // Without the thread every line is lost, and counted.
    let _ = thread::Builder::new().name("log".to_owned()).spawn(move || write(output, &queued));
    lines
}

fn write(mut output: impl Write, lines: &Receiver<Line>) {
    for line in lines {
        match line {
            Line::Text(text) => {
                if output.write_all(&text).and_then(|()| output.flush()).is_err() {
                    LOST.fetch_add(1, Ordering::Relaxed);
                }
            }
            Line::Flush(written) => drop(written.send(())),
        }
    }
}

/// A line that is written to the queue.
struct Queued(SyncSender<Line>);

impl Write for Queued {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.0.try_send(Line::Text(line.to_vec())).is_err() {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn subscriber(level: LevelFilter, lines: SyncSender<Line>) -> impl Subscriber + Send + Sync {
    fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_target(false)
        .with_max_level(level)
        .with_writer(move || Queued(lines.clone()))
        .finish()
        .with(Bounded::default())
}

/// Bounds the lines of each place of the code, because a call may cause one.
#[derive(Debug, Default)]
struct Bounded(Mutex<HashMap<Identifier, (Instant, u32)>>);

impl<S: Subscriber> Layer<S> for Bounded {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        // Their numbers are in the log alone, and no call causes them.
        if metadata.target() == REFUSALS && *metadata.level() == Level::ERROR {
            return true;
        }
        let now = Instant::now();
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = counted.entry(metadata.callsite()).or_insert((now, 0));
        if now.duration_since(counted.0) >= SPAN {
            *counted = (now, 0);
        }
        counted.1 = counted.1.saturating_add(1);
        let is_within = counted.1 <= BURST;
        if !is_within {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
        is_within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_is_logged_once_a_minute_and_a_thousand_at_most() {
        let (mut round, begin) = (None, Instant::now());
        let mut logged = |error: usize, seconds| {
            let now = begin + Duration::from_secs(seconds);
            Round::has_new(&mut round, error.to_string(), now)
        };
        for minute in [0, 60, 150] {
            assert!(logged(0, minute) && logged(1, minute));
            assert!(!logged(0, minute + 59) && !logged(1, minute + 59));
        }
        let count = (0..5_000).filter(|error| logged(*error, 209)).count();
        assert_eq!(count, MAX_ERRORS - 2);
        let count = (0..5_000).filter(|error| logged(*error, 210)).count();
        assert_eq!(count, MAX_ERRORS);
    }
}
