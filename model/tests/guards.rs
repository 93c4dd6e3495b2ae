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
    }
}

/// Lists what finds each condition.
#[test]
#[ignore = "takes minutes"]
fn every_condition_is_missed() {
    let all: [(&str, fn() -> Bounds); 7] = [
        ("rested", sizes::rested),
        ("moved slots", sizes::moved_slots),
        ("slots", sizes::slots),
        ("rate", sizes::rate),
        ("leases", sizes::leases),
        ("renewals", sizes::renewals),
        ("again", sizes::again),
    ];
    let only = std::env::var("GUARD").unwrap_or_default();
    for guard in GUARDS.iter().filter(|guard| format!("{guard:?}").contains(&only)) {
        for (name, size) in all {
            if let Some((property, states)) = found(size(), *guard) {
                println!("{guard:?} | {property} | {name} | {states}");
                break;
            }
            println!("{guard:?} nothing in {name}");
        }
    }
}

const GUARDS: &[Guard] = &[
    (Kind::Create, "PK absent"),
    (Kind::Take, "op <>"),
    (Kind::Take, "h.id absent"),
    (Kind::Take, "shard_count ="),
    (Kind::Take, "tk >="),
    (Kind::Take, "tk <="),
    (Kind::Take, "rf >="),
    (Kind::Take, "rf ="),
    (Kind::Take, "due <="),
    (Kind::Take, "due >="),
    (Kind::Take, "h.id.e ="),
    (Kind::Take, "h.id.t ="),
    (Kind::Release, "h.id present"),
    (Kind::Release, "h.id.t ="),
    (Kind::RollBack, "h.id present"),
    (Kind::RollBack, "tk <="),
    (Kind::Refill, "rf ="),
    (Kind::Refill, "shard_count ="),
    (Kind::Refill, "tk >="),
    (Kind::Refill, "tk <="),
    (Kind::Split, "rf ="),
    (Kind::Split, "shard_count ="),
    (Kind::Split, "tk >="),
    (Kind::Split, "tk <="),
    (Kind::Split, "v <="),
    (Kind::Split, "PK absent"),
    (Kind::Merge, "v ="),
    (Kind::Expire, "v ="),
];
