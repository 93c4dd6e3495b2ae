//! Integration tests only: see `tests/`. What they stand on is in the crate `weirgate-testkit`.
