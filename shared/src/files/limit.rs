//! A limit in a file: its text, or a map.

use std::collections::HashMap;

use super::{FileError, Node, Source};
use crate::{Limit, LimitMode};

const TAKES: &str = "a text such as 600/minute,burst=800 or 20, or a map with one of per_second, \
                     per_minute, per_hour, per_day, concurrent, or capacity with refill_amount and \
                     refill_period_ms; beside it burst and mode";

/// Reads the limit with this name: `600/minute,burst=800,mode=shadow`, or a map such as
/// `{per_minute: 600}`.
///
/// # Errors
/// [`FileError`] if the node is none.
pub fn read_limit(source: &Source<'_>, name: &str, node: &Node<'_>) -> Result<Limit, FileError> {
    if name.contains('=') {
        let message = "a comma between { and } ends a value: put the whole limit into quotes";
        return Err(source.error(node, message));
    }
    let limit = match node.is_map() {
        true => return read_map(source, name, node),
        false => source.text(node).map(|text| Limit::parse(name, &text)),
    };
    limit
        .map_err(|_| source.refuse(node, TAKES))?
        .map_err(|error| source.error(node, &error.to_string()))
}

fn read_map(source: &Source<'_>, name: &str, node: &Node<'_>) -> Result<Limit, FileError> {
    let (mut rules, mut numbers, mut mode) = (vec![], HashMap::new(), LimitMode::default());
    for (key, part) in source.entries(node, TAKES)? {
        match key.as_str() {
            "per_second" | "per_minute" | "per_hour" | "per_day" | "concurrent" => {
                rules.push((key, source.integer(&part)?));
            }
            "capacity" | "refill_amount" | "refill_period_ms" | "burst" => {
                numbers.insert(key, source.integer(&part)?);
            }
            "mode" => {
                let parsed = LimitMode::parse(&source.text(&part)?);
                mode = parsed.ok_or_else(|| source.refuse(&part, LimitMode::WORDS))?;
            }
            _ => return Err(source.unknown(node, &key, TAKES)),
        }
    }
    let number = |name: &str| numbers.get(name).copied();
    let custom = ["capacity", "refill_amount", "refill_period_ms"].map(number);
    let limit = match (&rules[..], custom) {
        ([(rule, number)], [None, None, None]) => match rule.as_str() {
            "per_second" => Limit::per_second(name, *number),
            "per_minute" => Limit::per_minute(name, *number),
            "per_hour" => Limit::per_hour(name, *number),
            "per_day" => Limit::per_day(name, *number),
            _ => Limit::concurrent(name, *number),
        },
        ([], [Some(capacity), Some(amount), Some(period)]) => {
            Limit::custom(name, capacity, amount, period)
        }
        _ => return Err(source.error(node, &format!("takes {TAKES}"))),
    };
    let limit = limit.and_then(|limit| match number("burst") {
        Some(burst) => limit.with_burst(burst),
        None => Ok(limit),
    });
    let limit = limit.map_err(|error| source.error(node, &error.to_string()))?;
    Ok(limit.in_mode(mode))
}
