//! The agent: in this process in virtual time where that proves it, and the binary where not.

mod contract;
mod extension;
mod fixtures;
mod framing;
mod guide;
mod hostile;
mod openapi;
mod process;
mod requests;
mod rls;
mod rules;
