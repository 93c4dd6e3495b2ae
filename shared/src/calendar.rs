//! When the windows of quotas end, and which rule of a schedule holds: instants from calendars in
//! time zones. Pure, without a clock; the zones are those of the bundled database.
//!
//! A quota of "10,000 a month, from the 15th at 9:00 in Berlin" is an amount and a
//! [`QuotaWindow`](crate::QuotaWindow), for which an item has a code. The client asks the
//! code for the end of its window, and stores the end in the item of the bucket; all other processes,
//! and the functions, follow the item and never need a zone.
//!
//! One rule makes an instant of a local time: the first instant at which the zone's clock shows that
//! time or later. So each day, hour or month has exactly one window, also where daylight saving time
//! begins (the window begins right after the gap) or ends (it begins the first time, not twice).
//!
//! # Layout
//!
//! - `zone`: [`Zone`], and the rule above
//! - `window`: [`end_after`], [`start_before`] and [`bounds`] of windows, and an end as it is [`shown`]
//! - `schedule`: the [`active_scale`] of a schedule

mod schedule;
mod window;
mod zone;

pub use schedule::active_scale;
pub use window::{bounds, end_after, shown, shown_in, start_before};
pub use zone::{ZONE_DATA, Zone};
