//! A model that cannot fail proves nothing: each condition of a write is taken out, and a property
//! finds it missing.

use stateright::{Checker, HasDiscoveries, Model};
use weirgate_model::{Bounds, Copying, Guard, Kind, Protocol, sizes};

/// The property that does not hold, and after how many states that is seen.
macro_rules! broken {
    ($model:expr) => {{
        let checker = $model
            .checker()
            .threads(2)
            .finish_when(HasDiscoveries::AnyFailures)
            .spawn_bfs()
            .join();
        checker
            .discoveries()
            .into_keys()
            .next()
            .map(|property| (property, checker.unique_state_count()))
    }};
}

/// Prints, of each of these conditions, which property finds it missing, in which size and after
/// how many states.
fn find(is_tried: impl Fn(&Guard) -> bool) {
    for (guard, sizes) in GUARDS.iter().filter(|(guard, _)| is_tried(guard)) {
        let mut all = sizes.iter().map(|(name, size)| {
            let bounds = Bounds {
                without: Some(*guard),
                ..size()
            };
            (
                name,
                if guard.0 == Kind::Copy {
                    broken!(Copying::new(bounds))
                } else {
                    broken!(Protocol::new(bounds))
                },
            )
        });
        let found = all.find(|(_, property)| property.is_some());
        println!("{guard:?} | {found:?}");
        assert!(found.is_some(), "nothing misses {guard:?}");
    }
}

#[test]
fn every_condition_of_a_copy_and_a_roll_is_missed() {
    find(|(kind, name)| matches!(kind, Kind::Copy | Kind::Roll) || *name == "uh >=");
}

#[test]
#[ignore = "takes minutes; GUARD=Split for those of one kind of write"]
fn every_condition_is_missed() {
    let only = std::env::var("GUARD").unwrap_or_default();
    find(|guard| format!("{guard:?}").contains(&only));
}

macro_rules! guards {
    ($($kind:ident $name:literal: $($size:ident)*;)*) => {
        /// Conditions, and the sizes in which one of them is missed.
        const GUARDS: &[(Guard, &[(&str, fn() -> Bounds)])] =
            &[$(((Kind::$kind, $name), &[$((stringify!($size), sizes::$size)),*])),*];
    };
}

guards! {
    Create "rf absent": rested;
    Take "op <>": moved_slots;
    Take "h.id absent": moved_slots;
    Take "tk >=": rested;
    Take "tk <=": returned;
    Take "rf =": rested rate;
    Take "rf >=": rested rate;
    Take "h.id.e =": renewals leases;
    Take "uh >=": brought rate;
    RollBack "uh >=": returned;
    Roll "uh =": brought rate;
    Roll "rf =": brought;
    Release "h.id*": slots;
    RollBack "h.id*": renewals;
    Refill "rf =": rested rate;
    Refill "tk >=": rested rate;
    Split "rf =": rested rate;
    Split "tk >=": moved_slots rate;
    Split "escrow absent": late_splits;
    Make "v <=": late_splits;
    Make "v <= as <>": late_splits;
    Clear "escrow.id =": late_splits;
    Merge "v =": again;
    Reset "rf =": edited;
    TopUp "rf =": edited;
    TopUp "shard_count =": edited;
    Reset "shard_count =": edited;
    Expire "v =": leases;
    Erase "v =": erased;
    Erase "rf absent": erased;
    Copy "q <=": recorded;
    Copy "q >=": deleted;
    Copy "q =": deleted;
    Copy "#c lacks": deleted;
}
