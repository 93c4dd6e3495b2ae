//! Replays.
fn main() {}
