//! The model: each size is explored to its end, and without any condition of a write a property
//! fails, because a model that cannot fail proves nothing.

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};
use weirgate_sim::model::{Bounds, Copying, Guard, Kind, Protocol, sizes};

macro_rules! explored {
    ($($(#[$ignore:meta])? $name:ident: $model:expr;)*) => {$(
        /// Fails with the steps that lead to the first state in which a property does not hold.
        #[test]
        $(#[$ignore])?
        fn $name() {
            let start = Instant::now();
            let checker = $model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
            let (states, steps, depth) = (checker.unique_state_count(), checker.state_count(), checker.max_depth());
            println!("{}: {states} states, {steps} steps, {depth} deep, {:?}", stringify!($name), start.elapsed());
            checker.assert_properties();
            assert_eq!(checker.model().missing(), [], "what did not happen");
        }
    )*};
}

explored! {
    rate: Protocol::new(sizes::rate());
    again: Protocol::new(Bounds { requests: [1, 1], ..sizes::again() });
    #[ignore = "larger: a third take"]
    again_and_again: Protocol::new(sizes::again());
    late_splits: Protocol::new(sizes::late_splits());
    rested: Protocol::new(sizes::rested());
    returned: Protocol::new(sizes::returned());
    edited: Protocol::new(sizes::edited());
    brought: Protocol::new(sizes::brought());
    remade: Protocol::new(sizes::remade());
    erased: Protocol::new(sizes::erased());
    changed: Protocol::new(sizes::changed());
    #[ignore = "larger: slots and renewals have most of it"]
    leases: Protocol::new(sizes::leases());
    renewals: Protocol::new(sizes::renewals());
    #[ignore = "larger: a request or an answer is lost"]
    renewals_with_a_fault: Protocol::new(Bounds { faults: 1, ..sizes::renewals() });
    slots: Protocol::new(sizes::slots());
    moved_slots: Protocol::new(sizes::moved_slots());
    looks: Protocol::new(sizes::looks());
    quota: Protocol::new(sizes::quota());
    sharded_quota: Protocol::new(sizes::sharded_quota());
    recorded: Copying::new(sizes::recorded());
    deleted: Copying::new(sizes::deleted());
    #[ignore = "larger: a third step of the functions"]
    deleted_again: Copying::new(Bounds { works: 3, ..sizes::deleted() });
}

/// The property that does not hold, and after how many states that is seen.
macro_rules! broken {
    ($model:expr) => {{
        let checker =
            $model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
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
            let bounds = Bounds { without: Some(*guard), ..size() };
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
    Take "we =": quota;
    Take "we >=": sharded_quota;
    RollBack "we =": quota;
    Split "we =": sharded_quota;
    Erase "v =": erased;
    Erase "rf absent": erased;
    Copy "q <=": recorded;
    Copy "q >=": deleted;
    Copy "q =": deleted;
    Copy "#c lacks": deleted;
}
