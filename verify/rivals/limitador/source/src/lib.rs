//! Only its dependency counts.
