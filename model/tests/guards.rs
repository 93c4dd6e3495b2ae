//! A model that cannot fail proves nothing: each condition of a write is taken out, and a property finds it missing.

use stateright::{Checker, HasDiscoveries, Model};
use weirgate_model::counting::Counting;
use weirgate_model::{Bounds, Guard, Kind, Protocol, sizes};

/// The property that does not hold without the condition, and after how many states that is seen.
fn found(bounds: Bounds, guard: Guard) -> Option<(&'static str, usize)> {
    let model = Protocol::new(Bounds { happens: vec![], without: Some(guard), ..bounds });
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let states = checker.unique_state_count();
    checker.discoveries().into_keys().next().map(|property| (property, states))
}

/// A snapshot that is not asked what it has counted.
#[test]
fn without_its_conditions_usage_is_counted_twice() {
    for guard in [(Kind::Count, "q ="), (Kind::Count, "g =")] {
        let model = Counting::new(&Protocol::new(sizes::recorded()), 3, 0, Some(guard));
        let checker = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let states = checker.unique_state_count();
        let property = checker.discoveries().into_keys().find(|property| property.starts_with("I3"));
        println!("{guard:?} | {property:?} | counting | {states}");
        assert!(property.is_some(), "nothing misses {guard:?}");
    }
}

/// Prints, of each condition that is missed, by which property, in which size and after how many states.
#[test]
#[ignore = "takes minutes; GUARD=Split for those of one kind of write"]
fn every_condition_is_missed() {
    let only = std::env::var("GUARD").unwrap_or_default();
    for (guard, sizes) in GUARDS.iter().filter(|(guard, _)| format!("{guard:?}").contains(&only)) {
        let mut all = sizes.iter().map(|(name, size)| (name, found(size(), *guard)));
        let (name, property) = all.find(|(_, property)| property.is_some()).unwrap_or((&"any", None));
        println!("{guard:?} | {property:?} | {name}");
        assert!(property.is_some(), "nothing misses {guard:?}");
    }
}

type Size = (&'static str, fn() -> Bounds);

const RESTED: Size = ("rested", sizes::rested);
const RATE: Size = ("rate", sizes::rate);
const AGAIN: Size = ("again", sizes::again);
const MOVED: Size = ("moved slots", sizes::moved_slots);
const SLOTS: Size = ("slots", sizes::slots);
const LEASES: Size = ("leases", sizes::leases);
const RENEWALS: Size = ("renewals", sizes::renewals);
const RETURNED: Size = ("returned", sizes::returned);

const GUARDS: &[(Guard, &[Size])] = &[
    ((Kind::Create, "PK absent"), &[RESTED]),
    ((Kind::Take, "op <>"), &[MOVED]),
    ((Kind::Take, "h.id absent"), &[MOVED]),
    ((Kind::Take, "tk >="), &[RESTED]),
    ((Kind::Take, "tk <="), &[RETURNED]),
    ((Kind::Take, "rf ="), &[RESTED, RATE]),
    ((Kind::Take, "rf >="), &[RESTED, RATE]),
    ((Kind::Take, "h.id.e ="), &[RENEWALS, LEASES]),
    ((Kind::Release, "h.id*"), &[SLOTS]),
    ((Kind::RollBack, "h.id*"), &[RENEWALS]),
    ((Kind::Refill, "rf ="), &[RESTED, RATE]),
    ((Kind::Refill, "tk >="), &[RESTED, RATE]),
    ((Kind::Split, "rf ="), &[RESTED, RATE]),
    ((Kind::Split, "tk >="), &[MOVED, RATE]),
    ((Kind::Merge, "v ="), &[AGAIN]),
    ((Kind::Expire, "v ="), &[LEASES]),
];
