//! Windows of quotas: what they are, their text, and their code in an item. Pure: when a window ends
//! is computed from its code by the feature `calendar`.
//!
//! - `release`: [`ZONE_DATA`] and the names of its zones; `zone`: [`ZoneName`]
//! - `error`: [`WindowError`]
//! - `period`: [`Period`], [`Weekday`]
//! - `calendar`: [`CalendarWindow`]; `every`: [`Every`] builds it
//! - `session`: [`SessionWindow`], a window from the first use
//! - `window`: [`QuotaWindow`]: either of them
//! - `code`: [`WindowCode`], one number for a window

mod calendar;
mod code;
mod error;
mod every;
mod period;
mod release;
mod session;
mod window;
mod zone;

pub use calendar::CalendarWindow;
pub use code::WindowCode;
pub use error::WindowError;
pub use every::Every;
pub use period::{Period, Weekday};
pub use release::ZONE_DATA;
pub use session::SessionWindow;
pub use window::QuotaWindow;
pub use zone::ZoneName;
pub(crate) use zone::fnv1a;
