//! Many processes on one bucket; `make herds` runs these at full size.

use weirgate_tests as fixtures;

mod contended;
mod denials;
mod heat;
mod herd;
