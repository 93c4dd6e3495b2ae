//! Room that clients share: a number of connections, or of bytes. Where it ends, the place that has
//! waited longest for its client gives way, so a client that is slow never keeps out the others.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Room of a size, and its places.
#[derive(Debug)]
pub(crate) struct Room {
    size: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: u64,
    /// Counts the places, and the moments from which they wait.
    next: u64,
    places: HashMap<u64, Entry>,
    /// Places that may give way, by the moment from which they wait.
    waiting: BTreeMap<u64, u64>,
}

#[derive(Debug)]
struct Entry {
    size: u64,
    since: u64,
    busy: u32,
    gives_way: Arc<Notify>,
    /// The place of the same client in another room, which goes with this one.
    along: Option<(Arc<Room>, u64)>,
}

/// A part of a room, until it is dropped or has given way.
#[derive(Debug)]
pub(crate) struct Place {
    room: Arc<Room>,
    id: u64,
    gives_way: Arc<Notify>,
}

/// A place that does not give way, until this is dropped.
#[derive(Debug)]
pub(crate) struct Busy<'a>(&'a Place);

impl Room {
    pub(crate) fn new(size: u64) -> Arc<Self> {
        Arc::new(Self { size, state: Mutex::default() })
    }

    /// Takes a place for a client that is waited for. `None` if all others are busy. `gives_way` is
    /// told when it gives way.
    pub(crate) fn enter(self: &Arc<Self>, size: u64, gives_way: Arc<Notify>) -> Option<Place> {
        let mut state = self.state();
        if !state.make_room(size, self.size) {
            return None;
        }
        let id = state.number();
        state.taken += size;
        let entry =
            Entry { size, since: id, busy: 0, gives_way: Arc::clone(&gives_way), along: None };
        state.places.insert(id, entry);
        state.waiting.insert(id, id);
        drop(state);
        Some(Place { room: Arc::clone(self), id, gives_way })
    }

    /// Makes the place that has waited longest give way.
    pub(crate) fn give_way(&self) -> bool {
        self.state().give_way()
    }

    /// Returns the number of places.
    pub(crate) fn places(&self) -> u64 {
        u64::try_from(self.state().places.len()).unwrap_or(u64::MAX)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    const fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns whether there is room for so much more.
    fn make_room(&mut self, more: u64, size: u64) -> bool {
        while self.taken + more > size {
            if more > size || !self.give_way() {
                return false;
            }
        }
        true
    }

    fn give_way(&mut self) -> bool {
        let Some((_, id)) = self.waiting.pop_first() else {
            return false;
        };
        if let Some(entry) = self.leave(id) {
            entry.gives_way.notify_one();
            // At once, because another connection would else give way to one that has been told to end.
            if let Some((room, id)) = entry.along {
                room.state().leave(id);
            }
        }
        true
    }

    fn leave(&mut self, id: u64) -> Option<Entry> {
        let entry = self.places.remove(&id)?;
        self.taken -= entry.size;
        self.waiting.remove(&entry.since);
        Some(entry)
    }
}

impl Place {
    /// Lets a place of the same client in another room go with this one if this gives way.
    pub(crate) fn take_along(&self, other: &Self) {
        if let Some(entry) = self.room.state().places.get_mut(&self.id) {
            entry.along = Some((Arc::clone(&other.room), other.id));
        }
    }

    /// Takes more room. Returns whether the place has it, and has not given way.
    pub(crate) fn grow(&self, more: u64) -> bool {
        let mut state = self.room.state();
        if !state.places.contains_key(&self.id) || !state.make_room(more, self.room.size) {
            return false;
        }
        // It may have been the longest wait itself.
        let Some(entry) = state.places.get_mut(&self.id) else {
            return false;
        };
        entry.size += more;
        state.taken += more;
        true
    }

    /// Keeps the place while its client is served. `None` if it has given way.
    pub(crate) fn busy(&self) -> Option<Busy<'_>> {
        let mut state = self.room.state();
        let entry = state.places.get_mut(&self.id)?;
        entry.busy += 1;
        let since = entry.since;
        state.waiting.remove(&since);
        Some(Busy(self))
    }

    /// Returns whether its client is served.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.room.state();
        state.places.get(&self.id).is_some_and(|entry| entry.busy > 0)
    }

    /// Waits until the place has given way.
    pub(crate) async fn gave_way(&self) {
        self.gives_way.notified().await;
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut state = self.0.room.state();
        let now = state.number();
        let id = self.0.id;
        if let Some(entry) = state.places.get_mut(&id) {
            entry.busy -= 1;
            if entry.busy == 0 {
                entry.since = now;
                state.waiting.insert(now, id);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.room.state().leave(self.id);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn enter(room: &Arc<Room>, size: u64) -> Option<Place> {
        room.enter(size, Arc::default())
    }

    #[test]
    fn the_longest_wait_gives_way_and_what_is_busy_does_not() {
        let room = Room::new(3);
        let places: Vec<_> = (0..3).map(|_| enter(&room, 1).unwrap()).collect();
        let working = places[0].busy().unwrap();
        let fourth = enter(&room, 1).unwrap();
        assert!(places[1].busy().is_none(), "the second has waited longest");
        // The first waits from now on, after the third.
        drop(working);
        let _fifth = enter(&room, 1).unwrap();
        assert!(places[2].busy().is_none());
        let all = [&places[0], &fourth].map(|place| place.busy().unwrap());
        assert!(enter(&room, 1).is_some(), "the fifth gave way");
        assert!(enter(&room, 4).is_none(), "it has never so much room");
        drop(all);
    }

    #[tokio::test]
    async fn a_place_is_told_that_it_has_given_way() {
        let room = Room::new(10);
        let first = enter(&room, 4).unwrap();
        let second = enter(&room, 4).unwrap();
        assert!(second.grow(6), "with the room of the first");
        first.gave_way().await;
        assert!(!first.grow(1));
        drop(first);
        assert_eq!(room.state().taken, 10);
        assert!(!second.grow(1), "it is the longest wait itself");
        assert_eq!(room.state().taken, 0);
    }

    #[test]
    fn what_gives_way_leaves_the_other_room_at_once() {
        let (connections, multiplexed) = (Room::new(3), Room::new(1));
        let other = enter(&connections, 1).unwrap();
        let mut opened = vec![];
        for _ in 0..10 {
            let one = (enter(&multiplexed, 1).unwrap(), enter(&connections, 1).unwrap());
            one.0.take_along(&one.1);
            // It is told to end, but has not ended.
            opened.push(one);
        }
        assert_eq!(connections.places(), 2);
        assert!(other.busy().is_some(), "it gave way to what had given way");
        drop(opened);
        assert_eq!((connections.state().taken, multiplexed.state().taken), (1, 0));
    }

    proptest! {
        #[test]
        fn the_room_is_never_exceeded_and_returns_as_a_whole(
            steps in vec((0..4_u8, 0..8_usize, 0..40_u64), 1..200),
        ) {
            let room = Room::new(100);
            let mut places: Vec<Option<Place>> = (0..8).map(|_| None).collect();
            for (step, at, size) in steps {
                match (step, &places[at]) {
                    (0, None) => places[at] = enter(&room, size),
                    (1, Some(place)) => {
                        place.grow(size);
                    }
                    (2, Some(place)) => {
                        let working = place.busy();
                        let before = room.state().taken;
                        // What is busy keeps its room, whatever others want.
                        drop(enter(&room, size));
                        prop_assert!(working.is_none() || room.state().taken <= before);
                        prop_assert!(working.is_none() || place.busy().is_some());
                    }
                    (3, _) => places[at] = None,
                    _ => {}
                }
                prop_assert!(room.state().taken <= 100);
            }
            places.clear();
            prop_assert_eq!(room.state().taken, 0);
            prop_assert!(room.state().waiting.is_empty());
        }
    }
}
