//! The life of a Lambda extension.
//!
//! The agent registers for `SHUTDOWN` alone. So it never prolongs an invocation, and Managed
//! Instances take it, which refuse `INVOKE`. It listens before it registers, so the function can
//! ask already while it is initialised.
//!
//! # Layout
//!
//! - `api`: [`ExtensionsApi`]: Lambda's endpoints
//! - `life`: [`Extension`]: register, and wait for the end

mod api;
mod life;

pub use api::ExtensionsApi;
pub use life::{Extension, REFUSED, SHUTDOWN_GRACE, SHUTDOWN_TIME, check_variables, token};
