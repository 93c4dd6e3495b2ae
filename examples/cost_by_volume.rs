//! What so many acquires a month cost, for each of seven profiles of callers.
//!
//! ```sh
//! cargo run -p weirgate-tools --bin cost_by_volume -- 25000000
//! ```

use std::process::ExitCode;

use weirgate_tools::scaling::volume::table;

fn main() -> ExitCode {
    let wanted = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "100000000".to_owned());
    match wanted.replace([',', '_'], "").parse() {
        Ok(acquires @ 1..=1_000_000_000_000) => {
            print!("{}", table(acquires));
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("acquires a month must be 1 to 10^12, got {wanted:?}");
            ExitCode::FAILURE
        }
    }
}
