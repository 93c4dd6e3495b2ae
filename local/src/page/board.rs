//! What is known of the table, and what each viewer looks at.
//!
//! Everything has the version at which it last changed. A viewer asks for what is newer than the
//! last version it was sent, so a slow viewer misses states in between, and holds up nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::sync::watch;
use weirgate::{ConfigLevel, Switch};

use super::row::{Key, Row};
use super::subject::Subject;
use super::usage::Day;

/// How many viewers there can be at once.
pub const MAX_VIEWERS: usize = 16;

/// What the reads cost. Units are as DynamoDB bills them, by the documented cost of each list.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Read units a second, over the last 10 s.
    pub units_per_second: f64,
    /// Read units that are allowed in a second.
    pub allowed: u32,
    /// Read units since the page was started.
    pub units: f64,
    /// Viewers that are connected.
    pub viewers: usize,
}

/// The names that a viewer can choose from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Names {
    pub(crate) resources: Vec<String>,
    pub(crate) entities: Vec<String>,
}

/// What one source of callers' counters says. The table does not count denials.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Caller {
    /// Where the counters are from.
    pub(crate) name: String,
    /// Acquires denied a second; `None` until two reads are known.
    pub(crate) denied_per_second: Option<f64>,
    /// Acquires denied since the process began.
    pub(crate) denied: Option<f64>,
    /// Why the counters cannot be read.
    pub(crate) problem: Option<String>,
}

/// A level that is stopped or exempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Switched {
    #[serde(flatten)]
    pub(crate) level: ConfigLevel,
    pub(crate) switch: Switch,
}

/// The levels that are stopped or exempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Switches {
    pub(crate) switches: Vec<Switched>,
    /// What is wrong with those that cannot be read.
    pub(crate) unreadable: Vec<String>,
}

/// How far the reads of a subject are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Progress {
    /// How long it took to read all buckets the last time; `None` before that.
    pub(crate) sweep_ms: Option<u64>,
    /// Whether there are more buckets than the page shows.
    pub(crate) is_cut: bool,
    /// When the last read that succeeded began, epoch ms; `None` before that.
    pub(crate) read_at_ms: Option<i64>,
    /// Why the last read failed; `None` if it did not.
    pub(crate) problem: Option<String>,
}

#[derive(Debug, Default)]
struct Stamped<T> {
    value: T,
    version: u64,
}

impl<T: PartialEq> Stamped<T> {
    fn set(&mut self, value: T, version: u64) -> bool {
        let changed = self.value != value;
        if changed {
            *self = Self { value, version };
        }
        changed
    }

    fn newer(&self, than: u64) -> Option<&T> {
        (self.version > than).then_some(&self.value)
    }
}

/// A view of a subject. One that is made after the last viewer left is another one: it begins empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ViewId {
    pub(crate) subject: Subject,
    number: u64,
}

/// What is known of a subject.
#[derive(Debug, Default)]
struct View {
    number: u64,
    viewers: usize,
    /// `None` stands for a bucket that is gone, until a second read of all after it went.
    rows: BTreeMap<Key, (Option<Row>, u64)>,
    /// Version of the last read of all, and that up to which gone buckets are forgotten.
    swept: u64,
    forgotten: u64,
    day: Stamped<Option<Day>>,
    progress: Stamped<Progress>,
}

#[derive(Debug, Default)]
struct State {
    version: u64,
    viewers: usize,
    /// How many views were made.
    made: u64,
    views: BTreeMap<Subject, View>,
    names: Stamped<Names>,
    switches: Stamped<Option<Switches>>,
    callers: Stamped<Option<Vec<Caller>>>,
    cost: Stamped<Cost>,
}

/// What a viewer has not been sent yet.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct News {
    pub(crate) version: u64,
    pub(crate) names: Option<Names>,
    pub(crate) switches: Option<Switches>,
    pub(crate) callers: Option<Vec<Caller>>,
    pub(crate) cost: Option<Cost>,
    pub(crate) rows: Vec<Row>,
    pub(crate) gone: Vec<Key>,
    pub(crate) day: Option<Day>,
    pub(crate) progress: Option<Progress>,
}

/// Shared by the poller and all viewers.
#[derive(Debug)]
pub(crate) struct Board {
    state: Mutex<State>,
    version: watch::Sender<u64>,
    /// Rises with each viewer that comes or goes.
    visits: watch::Sender<u64>,
}

impl Board {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::default(),
            version: watch::Sender::new(0),
            visits: watch::Sender::new(0),
        }
    }

    /// Lets a viewer in, if there is a place.
    pub(crate) fn enter(self: &Arc<Self>, subject: Option<Subject>) -> Option<Viewer> {
        let mut state = self.state();
        if state.viewers >= MAX_VIEWERS {
            return None;
        }
        state.viewers += 1;
        if let Some(subject) = &subject {
            let State { made, views, .. } = &mut *state;
            let view = views.entry(subject.clone()).or_insert_with(|| {
                *made += 1;
                View { number: *made, ..View::default() }
            });
            view.viewers += 1;
        }
        self.visits.send_modify(|visits| *visits += 1);
        Some(Viewer { board: Arc::clone(self), subject })
    }

    /// Returns how many viewers there are.
    pub(crate) fn viewers(&self) -> usize {
        self.state().viewers
    }

    /// Returns what viewers look at.
    pub(crate) fn views(&self) -> BTreeSet<ViewId> {
        let state = self.state();
        let views = state
            .views
            .iter()
            .map(|(subject, view)| ViewId { subject: subject.clone(), number: view.number });
        views.collect()
    }

    /// Returns a receiver that is told of viewers that come and go.
    pub(crate) fn visits(&self) -> watch::Receiver<u64> {
        self.visits.subscribe()
    }

    /// Returns a receiver of the version.
    pub(crate) fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Returns the last known cost.
    pub(crate) fn cost(&self) -> Cost {
        self.state().cost.value.clone()
    }

    pub(crate) fn set_names(&self, names: Names) {
        self.change(|state, version| state.names.set(names, version));
    }

    pub(crate) fn set_switches(&self, switches: Switches) {
        self.change(|state, version| state.switches.set(Some(switches), version));
    }

    pub(crate) fn set_callers(&self, callers: Vec<Caller>) {
        self.change(|state, version| state.callers.set(Some(callers), version));
    }

    pub(crate) fn set_cost(&self, cost: Cost) {
        self.change(|state, version| state.cost.set(cost, version));
    }

    pub(crate) fn set_day(&self, id: &ViewId, day: Day) {
        self.change_view(id, |view, version| view.day.set(Some(day), version));
    }

    pub(crate) fn set_progress(&self, id: &ViewId, progress: Progress) {
        self.change_view(id, |view, version| view.progress.set(progress, version));
    }

    /// Takes over rows that viewers would see differently.
    pub(crate) fn set_rows(&self, id: &ViewId, rows: Vec<Row>) {
        self.change_view(id, |view, version| {
            let mut changed = false;
            for row in rows {
                let key = row.key();
                let shown = view.rows.get(&key).and_then(|(shown, _)| shown.as_ref());
                if shown.is_none_or(|shown| row.differs(shown)) {
                    view.rows.insert(key, (Some(row), version));
                    changed = true;
                }
            }
            changed
        });
    }

    /// Ends a read of all buckets: removes rows of those that are gone.
    pub(crate) fn keep_rows(&self, id: &ViewId, is_there: impl Fn(&Key) -> bool) {
        self.change_view(id, |view, version| {
            let (mut changed, swept) = (false, std::mem::replace(&mut view.swept, version));
            let count = view.rows.len();
            view.rows.retain(|_, (row, at)| row.is_some() || *at > swept);
            if view.rows.len() < count {
                view.forgotten = swept;
            }
            for (key, (row, at)) in &mut view.rows {
                if row.is_some() && !is_there(key) {
                    (*row, *at) = (None, version);
                    changed = true;
                }
            }
            changed
        });
    }

    /// Returns what changed since version `seen`, 0 for a new viewer; `None` if buckets that went since then
    /// are forgotten.
    pub(crate) fn news(&self, subject: Option<&Subject>, seen: u64) -> Option<News> {
        let state = self.state();
        let mut news = News {
            version: state.version,
            names: state.names.newer(seen).cloned(),
            switches: state.switches.newer(seen).cloned().flatten(),
            callers: state.callers.newer(seen).cloned().flatten(),
            cost: state.cost.newer(seen).cloned(),
            ..News::default()
        };
        if let Some(view) = subject.and_then(|subject| state.views.get(subject)) {
            if (1..view.forgotten).contains(&seen) {
                return None;
            }
            news.day = view.day.newer(seen).cloned().flatten();
            news.progress = view.progress.newer(seen).cloned();
            for (key, (row, at)) in &view.rows {
                match row {
                    _ if *at <= seen => {}
                    Some(row) => news.rows.push(row.clone()),
                    None if seen == 0 => {}
                    None => news.gone.push(key.clone()),
                }
            }
        }
        Some(news)
    }

    /// Makes a change of a view, unless it has ended.
    fn change_view(&self, id: &ViewId, change: impl FnOnce(&mut View, u64) -> bool) {
        self.change(|state, version| {
            let view = state.views.get_mut(&id.subject);
            let view = view.filter(|view| view.number == id.number);
            view.is_some_and(|view| change(view, version))
        });
    }

    /// Makes a change, and tells viewers if there was one.
    fn change(&self, change: impl FnOnce(&mut State, u64) -> bool) {
        let mut state = self.state();
        let version = state.version + 1;
        if change(&mut state, version) {
            state.version = version;
            // Under the lock, so that versions are in order.
            self.version.send_replace(version);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A viewer, until it is dropped.
#[derive(Debug)]
pub(crate) struct Viewer {
    pub(crate) board: Arc<Board>,
    pub(crate) subject: Option<Subject>,
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut state = self.board.state();
        state.viewers -= 1;
        if let Some(subject) = &self.subject
            && let Some(view) = state.views.get_mut(subject)
        {
            view.viewers -= 1;
            if view.viewers == 0 {
                state.views.remove(subject);
            }
        }
        self.board.visits.send_modify(|visits| *visits += 1);
    }
}

#[cfg(test)]
mod tests {
    use weirgate::{EntityId, EpochMillis, Resource, Unreadable};

    use super::*;

    fn row(number: usize) -> Row {
        let item = Unreadable {
            entity: Some(EntityId::new(format!("user-{number}")).unwrap()),
            resource: Some(Resource::new("gpt-4").unwrap()),
            shard: None,
            pk: String::new(),
            sk: String::new(),
            error: "attribute x".to_owned(),
        };
        Row::unreadable(item, EpochMillis(0)).unwrap()
    }

    /// Entities come and go while a viewer stays for weeks.
    #[test]
    fn a_gone_bucket_is_told_to_each_viewer_and_then_forgotten() {
        let board = Arc::new(Board::new());
        let subject = Subject::Resource(Resource::new("gpt-4").unwrap());
        let viewer = board.enter(Some(subject.clone())).unwrap();
        let view = board.views().pop_first().unwrap();
        let (mut seen, mut late) = (0, 0);
        for number in 0..20 {
            let new = row(number);
            let key = new.key();
            board.set_rows(&view, vec![new]);
            board.keep_rows(&view, |known| *known == key);
            assert!(board.state().views[&subject].rows.len() <= 3);
            let news = board.news(Some(&subject), seen).unwrap();
            assert_eq!((news.rows.len(), news.gone.len()), (1, usize::from(number > 0)));
            seen = news.version;
            late = if number == 0 { seen } else { late };
            let first = board.news(Some(&subject), 0).unwrap();
            assert_eq!((first.rows.len(), first.gone.len()), (1, 0));
        }
        assert_eq!(board.news(Some(&subject), late), None);
        drop(viewer);
    }
}
