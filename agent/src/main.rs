//! Wires the agent.

fn main() {}
