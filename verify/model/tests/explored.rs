//! Each size, explored to its end.

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};
use weirgate_model::{Bounds, Copying, Protocol, sizes};

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
    recorded: Copying::new(sizes::recorded());
    deleted: Copying::new(sizes::deleted());
    #[ignore = "larger: a third step of the functions"]
    deleted_again: Copying::new(Bounds { works: 3, ..sizes::deleted() });
}
