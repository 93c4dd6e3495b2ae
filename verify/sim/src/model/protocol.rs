//! The protocol in one size.

use weirgate_shared::{BucketKey, EntityId, EpochMillis, Millis, Namespace, Resource};

use crate::model::bounds::Bounds;
use crate::model::coverage::{Coverage, Event};

/// The model.
#[derive(Debug)]
pub struct Protocol {
    /// Size of the model.
    pub bounds: Bounds,
    pub(crate) coverage: Coverage,
    pub(crate) keys: [BucketKey; 3],
}

impl Protocol {
    /// The model of this size.
    pub fn new(bounds: Bounds) -> Self {
        let key = |shard| BucketKey {
            namespace: Namespace::new("n").expect("a name"),
            entity: EntityId::new("e").expect("a name"),
            resource: Resource::new("r").expect("a name"),
            shard,
        };
        Self { bounds, coverage: Coverage::default(), keys: [key(0), key(1), key(2)] }
    }

    /// Returns what should have happened in some state, and did not.
    pub fn missing(&self) -> Vec<Event> {
        self.coverage.missing(&self.bounds.happens)
    }

    /// The instant of a tick.
    pub(crate) fn at(&self, tick: i64) -> EpochMillis {
        self.bounds.start.plus(Millis(self.bounds.tick.0 * tick))
    }
}
