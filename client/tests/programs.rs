//! The tests of the guides' programs, which are beside them: an example that is built as a test is
//! built as no program.

#![allow(dead_code, reason = "no test calls `main`")]
#![allow(clippy::duplicate_mod, reason = "each is a program of its own")]

#[path = "../examples/llm_gateway.rs"]
mod llm_gateway;
#[path = "../examples/tenants.rs"]
mod tenants;
#[path = "../examples/tower_api.rs"]
mod tower_api;
#[path = "../examples/vendor_slots.rs"]
mod vendor_slots;
