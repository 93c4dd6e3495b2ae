//! Items of a list or report that cannot be read.

use weirgate::Unreadable;

use crate::failure::Outcome;
use crate::output::Output;

/// Returns the items as a table, one row each; nothing without any.
pub fn table(output: &Output, items: &[Unreadable]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let columns = ["cannot be read", "entity", "resource", "#shard", "reason"];
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let row = |item: &Unreadable| {
        vec![
            format!("{} {}", item.pk, item.sk),
            or_dash(item.entity.as_ref().map(ToString::to_string)),
            or_dash(item.resource.as_ref().map(ToString::to_string)),
            or_dash(item.shard.map(|shard| shard.to_string())),
            item.error.clone(),
        ]
    };
    output.table(&columns, items.iter().map(row)) + "\n"
}

/// Returns the outcome of a list or report without these items.
pub const fn outcome(items: &[Unreadable]) -> Outcome {
    match items.is_empty() {
        true => Outcome::Done,
        false => Outcome::Incomplete,
    }
}
