//! Cache of the switches by which an operator stops levels.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use weirgate_shared::Switches;
use weirgate_store::Consistency;

use super::Session;
use super::env::{Cached, Moment};
use super::load_turn::LoadTurn;
use crate::values::Locked;

/// Age below which the switches are not read again, and time after a failed read before the next,
/// 1 s.
const MIN_REREAD_INTERVAL: Duration = Duration::from_secs(1);

/// The cached switches of the namespace, and the turn of their load.
#[derive(Debug, Default)]
pub(crate) struct SwitchCache {
    state: Locked<State>,
    /// Notification of new switches.
    pub(crate) changed: Notify,
    pub(crate) loading: LoadTurn,
}

#[derive(Debug, Default)]
struct State {
    /// The newest that were read or written; `None` if none were.
    latest: Option<Cached<Arc<Switches>>>,
    /// Number of answers that were cached, and of changes by this process.
    answers: u64,
    failed_at: Option<Moment>,
    /// Whether the table probably has newer ones.
    is_outdated: bool,
}

/// A read or a write of the switches that is under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SwitchRequest {
    sent_at: Moment,
    is_strong: bool,
    /// Number of answers when it was sent.
    answers: u64,
}

impl SwitchRequest {
    pub(crate) const fn consistency(self) -> Consistency {
        match self.is_strong {
            true => Consistency::Strong,
            false => Consistency::Eventual,
        }
    }
}

/// The switches as a process knows them.
pub(crate) struct KnownSwitches {
    /// The newest that were read or written; `None` if none were.
    pub(crate) latest: Option<Arc<Switches>>,
    pub(crate) is_due: bool,
}

impl SwitchCache {
    /// Returns the age at which the switches are due to be read again.
    #[allow(clippy::unused_self, reason = "it is a property of the cache")]
    pub(crate) fn max_age(&self, session: &Session) -> Duration {
        session.settings.config_ttl.max(MIN_REREAD_INTERVAL)
    }

    /// Returns the newest switches, and whether they are due to be read again.
    pub(crate) fn known(&self, session: &Session) -> KnownSwitches {
        let (now, max_age) = (session.env.ages.now(), self.max_age(session));
        let state = self.state.lock();
        let has_failed = (state.failed_at).is_some_and(|at| now.since(at) < MIN_REREAD_INTERVAL);
        let latest = state.latest.as_ref();
        let is_fresh = latest.is_some_and(|read| now.since(read.read_at) < max_age);
        let latest = latest.map(|read| Arc::clone(&read.value));
        KnownSwitches {
            is_due: !has_failed && (state.is_outdated || !is_fresh),
            // Switches that cannot be read stop nothing.
            latest: latest.or_else(|| has_failed.then(Arc::default)),
        }
    }

    /// Returns the switches, unless they are due to be read.
    pub(crate) fn fresh(&self, session: &Session) -> Option<Arc<Switches>> {
        let KnownSwitches { latest, is_due } = self.known(session);
        latest.filter(|_| !is_due)
    }

    /// Begins a read or a write. A read after a change by this process is strongly consistent.
    pub(crate) fn begin(&self, sent_at: Moment, is_strong: bool) -> SwitchRequest {
        let state = self.state.lock();
        SwitchRequest { sent_at, is_strong: is_strong || state.is_outdated, answers: state.answers }
    }

    /// Returns the newest switches that were read or written.
    pub(super) fn latest(&self) -> Option<Arc<Switches>> {
        let state = self.state.lock();
        state.latest.as_ref().map(|known| Arc::clone(&known.value))
    }

    /// Caches the answer to a request, unless it is older than the cached one. Returns the newest.
    ///
    /// The version orders answers. It falls only if the item was deleted, which a strongly
    /// consistent read shows that began after the newest answer.
    pub(super) fn record(&self, request: SwitchRequest, answer: Switches) -> Arc<Switches> {
        let mut state = self.state.lock();
        let known = state.latest.as_ref().map(|known| known.value.version);
        let is_alone = state.answers == request.answers;
        let is_newer = known.is_none_or(|known| {
            answer.version > known || is_alone && (request.is_strong || answer.version == known)
        });
        if is_alone {
            state.failed_at = (!is_newer).then_some(request.sent_at);
            state.is_outdated = !is_newer;
        }
        if is_newer {
            state.answers += 1;
            state.latest = Some(Cached { read_at: request.sent_at, value: Arc::new(answer) });
            self.changed.notify_waiters();
        }
        drop(state);
        self.latest().unwrap_or_default()
    }

    /// Returns the request of a write that was sent at `sent_at` and has ended.
    pub(crate) fn written(&self, sent_at: Moment) -> SwitchRequest {
        SwitchRequest { is_strong: false, ..self.begin(sent_at, false) }
    }

    /// Records a failed read. Returns the newest switches, or none.
    pub(crate) fn record_failure(&self, at: Moment) -> Arc<Switches> {
        self.state.lock().failed_at = Some(at);
        self.latest().unwrap_or_default()
    }

    /// Makes the switches due, because this process has changed them, or may have. Until they are
    /// read, those known before stay in force.
    pub(super) fn mark_changed(&self) {
        let mut state = self.state.lock();
        state.answers += 1;
        (state.failed_at, state.is_outdated) = (None, true);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::session::AgeClock;

    #[derive(Debug, Clone)]
    enum Step {
        /// Another process changes the switches.
        Change,
        /// This process does, and may not learn the outcome.
        OwnChange(bool),
        /// A read that may show switches of so many changes before.
        Read(i64),
        /// One of the reads under way is answered.
        Answer(prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            1 => Just(Step::Change),
            1 => any::<bool>().prop_map(Step::OwnChange),
            3 => (0..3_i64).prop_map(Step::Read),
            3 => any::<prop::sample::Index>().prop_map(Step::Answer),
        ]
    }

    fn version(version: i64) -> Switches {
        Switches { version, ..Switches::default() }
    }

    proptest! {
        #[test]
        fn an_older_answer_never_replaces_a_newer_one(steps in prop::collection::vec(step(), 1..60)) {
            let (cache, at) = (SwitchCache::default(), AgeClock::default().now());
            let (mut table, mut newest, mut under_way) = (3, 0, vec![]);
            for step in steps {
                let (request, shown) = match step {
                    Step::Change => {
                        table += 1;
                        continue;
                    }
                    Step::OwnChange(is_confirmed) => {
                        table += 1;
                        cache.mark_changed();
                        if !is_confirmed {
                            continue;
                        }
                        (cache.written(at), table)
                    }
                    Step::Read(lag) => {
                        let request = cache.begin(at, false);
                        let lag = if request.is_strong { 0 } else { lag };
                        under_way.push((request, table - lag));
                        continue;
                    }
                    Step::Answer(_) if under_way.is_empty() => continue,
                    Step::Answer(which) => under_way.swap_remove(which.index(under_way.len())),
                };
                newest = newest.max(shown);
                prop_assert_eq!(cache.record(request, version(shown)).version, newest);
            }
        }
    }

    #[test]
    fn a_deleted_item_is_believed_when_a_strongly_consistent_read_shows_it() {
        let (cache, at) = (SwitchCache::default(), AgeClock::default().now());
        let read = |shown| {
            let answer = version(shown);
            cache.record(cache.begin(at, false), answer).version
        };
        assert_eq!([read(7), read(0), read(0)], [7, 7, 0]);
    }
}
