//! Measurements for `make bench`; each prints its rows.

pub mod acquire;
pub mod aggregator;
pub mod edge;
pub mod function;
pub mod reconciler;
mod server;

/// A measured number beside its target.
#[derive(Debug)]
pub struct Row {
    what: &'static str,
    measured: String,
    target: &'static str,
    is_met: bool,
}

/// Prints a row.
fn print(row: &Row) {
    let Row { what, measured, target, is_met } = row;
    println!("{what:<46} {}  {measured}  (target: {target})", if *is_met { "met   " } else { "MISSED" });
}
