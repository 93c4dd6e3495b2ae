//! Files of limits and rules.

mod watched;
mod yaml;
