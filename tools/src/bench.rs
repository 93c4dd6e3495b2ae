//! Measurements for `make bench`; each prints its rows.

pub mod acquire;
pub mod aggregator;
pub mod edge;
pub mod function;
pub mod heat;
pub mod local;
pub mod peer;
pub mod prefetch;
pub mod reconciler;

/// A measured number beside its target.
#[derive(Debug)]
pub struct Row<'a> {
    what: &'a str,
    measured: String,
    target: &'static str,
    is_met: bool,
}

/// Prints a row.
fn print(row: &Row<'_>) {
    let Row {
        what,
        measured,
        target,
        is_met,
    } = row;
    println!(
        "{what:<50} {}  {measured}  (target: {target})",
        if *is_met { "met   " } else { "MISSED" }
    );
}
