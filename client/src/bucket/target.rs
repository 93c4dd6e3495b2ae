//! One bucket of a request.

use std::sync::Arc;

use super::state::BucketState;
use crate::values::BucketRequest;

/// One bucket of a request.
#[derive(Debug)]
pub(crate) struct BucketTarget {
    pub(crate) bucket: Arc<BucketState>,
    pub(crate) request: BucketRequest,
    /// Whether its limits never deny, whatever their mode.
    pub(crate) is_shadow: bool,
}
