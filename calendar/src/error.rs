//! Errors of cron and schedules, which are those of windows.

use weirgate_shared::WindowError;

/// Returns the error of a field with a value that it does not take.
pub(crate) fn field(
    field: &'static str,
    value: impl ToString,
    takes: &'static str,
    remedy: &'static str,
) -> WindowError {
    WindowError::Field {
        field,
        value: value.to_string(),
        takes,
        remedy,
    }
}
