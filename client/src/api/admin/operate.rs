//! What operators do in an incident. Each change is one transaction with its audit event, made once
//! per idempotency key. A change of all shards of a bucket is recorded so, and then written to each.

mod balances;
mod edit;
mod limits;
mod operation;
mod pauses;
mod switches;
mod unavailable;

pub use balances::{BalanceEdit, BalanceReport};
pub use limits::{LimitsEdit, LimitsReport};
pub use operation::OperationOutcome;
pub use pauses::{PauseEdit, PauseReport};
pub use switches::{SwitchEdit, SwitchReport};
pub use unavailable::{PolicyEdit, PolicyReport};
