//! What is the same for all viewers.

use std::sync::Arc;

use super::actions::LastActions;

/// What is the same for all viewers.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) table: String,
    pub(crate) namespace: String,
    pub(crate) actions: Option<Arc<dyn LastActions>>,
    /// Whether any callers' counters are read.
    pub(crate) has_callers: bool,
}
