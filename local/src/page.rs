//! The live page: buckets, usage, and what the functions do, in a browser.
//!
//! ```no_run
//! use weirgate_local::page::{LivePage, Options};
//!
//! # fn example(limiter: weirgate::RateLimiter) -> std::io::Result<()> {
//! let page = LivePage::start(limiter, Options::new("limits"))?;
//! println!("open {}", page.url());
//! # Ok(())
//! # }
//! ```
//!
//! It only reads, listens on 127.0.0.1 unless told otherwise, and reads nothing while no page is
//! open.
//!
//! # Layout
//!
//! - `live_page`: [`LivePage`]: start and stop
//! - `server`: the files and the events over HTTP, for this machine only
//! - `files`: the files of the page, which the crate contains
//! - `shown`: what is the same for all viewers
//! - `events`: what one viewer is sent
//! - `board`: what is known of the table, and what each viewer looks at
//! - `poller`: the reads, one page of a list after the other
//! - `budget`: how many read units they take
//! - `row`: a bucket as the page shows it
//! - `levels`: which level its limits come from
//! - `history`: its use in the last minute, and in the minutes of the last hour
//! - `details`: what is read of one bucket when it is opened
//! - `hour`: its last hour, minute by minute
//! - `usage`: today's usage by hour, and the largest users
//! - `subject`: [`Subject`]: what a viewer looks at
//! - `callers`: [`MetricsUrl`]: what callers count themselves: denials
//! - `actions`: [`LastActions`]: what the functions did

mod actions;
mod board;
mod budget;
mod callers;
mod details;
mod events;
mod files;
mod history;
mod hour;
mod levels;
mod live_page;
mod poller;
mod row;
mod server;
mod shown;
mod subject;
mod usage;

pub use actions::{ActionLine, LastActions};
pub use board::{Cost, MAX_VIEWERS};
pub use callers::{MetricsUrl, NotAMetricsUrl};
pub use live_page::{LivePage, Options, PORT, PORTS};
pub use server::MAX_CONNECTIONS;
pub use subject::Subject;
