//! The protocol as a state machine.
