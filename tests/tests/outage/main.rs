//! A table that does not answer, and clocks that are wrong.

use weirgate_tests as fixtures;

mod away;
mod breaker_gauge;
mod clocks;
mod unreachable;
