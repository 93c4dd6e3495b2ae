//! When the windows of quotas end, and which rule of a schedule holds: instants from calendars in
//! time zones. Pure, without a clock; the zones are those of the bundled database.
//!
//! A quota of "10,000 a month, from the 15th at 9:00 in Berlin" is an amount and a [`Window`]. The
//! client asks the window for its end, and stores the end in the item of the bucket; all other
//! processes, and the functions, follow the item and never need a zone.
//!
//! One rule makes an instant of a local time: the first instant at which the zone's clock shows that
//! time or later. So each day, hour or month has exactly one window, also where daylight saving time
//! begins (the window begins right after the gap) or ends (it begins the first time, not twice).
//!
//! # Layout
//!
//! - `zone`: [`Zone`], and the rule above
//! - `every`: [`Every`] builds a [`Window`]; [`Period`], [`Weekday`]
//! - `window`: [`Window`], its boundaries, its text, and its code in an item
//! - `session`: [`Session`], a window from the first use
//! - `code`: the layout that codes of windows and sessions share
//! - `cron`: [`Cron`], five fields
//! - `schedule`: [`Schedule`] of [`Rule`]s with a [`Scale`], and what is [`Active`]
//! - `error`: [`CalendarError`]

mod code;
mod cron;
mod error;
mod every;
mod schedule;
mod session;
mod window;
mod zone;

pub use cron::Cron;
pub use error::CalendarError;
pub use every::{Every, Period, Weekday};
pub use schedule::{Active, Rule, Scale, Schedule};
pub use session::Session;
pub use window::Window;
pub use zone::{ZONE_DATA, Zone};
