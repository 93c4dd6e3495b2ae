//! Windows of quotas: what they are, their text, and their code in an item. Pure: when a window ends
//! is computed from its code by the crate `weirgate-calendar`.
//!
//! - `every`: [`Every`] builds a [`CalendarWindow`]; [`Period`], [`Weekday`]
//! - `window`: [`QuotaWindow`]: a window on the calendar, or from the first use
//! - `session`: [`SessionWindow`], a window from the first use
//! - `code`: [`WindowCode`], one number for a window
//! - `zone`: [`ZoneName`], a zone of the IANA time zone database
//! - `error`: [`WindowError`]

mod code;
mod error;
mod every;
mod session;
mod window;
mod zone;

pub use code::WindowCode;
pub use error::WindowError;
pub use every::{Every, Period, Weekday};
pub use session::SessionWindow;
pub use window::{CalendarWindow, QuotaWindow};
pub use zone::{ZONE_DATA, ZoneName};
