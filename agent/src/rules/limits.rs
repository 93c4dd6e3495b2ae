//! A map of limits, as a limits file has it.

use std::collections::HashMap;

use weirgate::{FileError, Limit, LimitMode};
use weirgate_shared::files::{Node, Source};

/// Most limits of one rule, as of one acquire.
const MAX_LIMITS: usize = 20;

const TAKES: &str = "one of per_second, per_minute, per_hour, per_day, or capacity with refill_amount and \
     refill_period_ms; beside it burst and mode";

/// Reads the limits that a rule brings: rates, because no call of Envoy gives a slot back.
pub(super) fn read(source: &Source<'_>, node: &Node<'_>) -> Result<Vec<Limit>, FileError> {
    let mut limits = vec![];
    for (name, node) in source.entries(node, "a map of limits")? {
        limits.push(limit(source, &name, &node)?);
    }
    if limits.is_empty() || limits.len() > MAX_LIMITS {
        let count = limits.len();
        let message = format!("a rule has 1 to {MAX_LIMITS} limits, got {count}");
        return Err(source.error(node, &message));
    }
    Ok(limits)
}

fn limit(source: &Source<'_>, name: &str, node: &Node<'_>) -> Result<Limit, FileError> {
    let (mut rule, mut numbers, mut mode) = (None, HashMap::new(), LimitMode::default());
    for (key, part) in source.entries(node, TAKES)? {
        match key.as_str() {
            "per_second" | "per_minute" | "per_hour" | "per_day" if rule.is_none() => {
                rule = Some((key, source.integer(&part)?));
            }
            "capacity" | "refill_amount" | "refill_period_ms" | "burst" => {
                numbers.insert(key, source.integer(&part)?);
            }
            "mode" => {
                let parsed = LimitMode::parse(&source.text(&part)?);
                mode = parsed.ok_or_else(|| source.refuse(&part, "enforced, shadow or soft"))?;
            }
            _ => return Err(source.unknown(node, &key, TAKES)),
        }
    }
    let number = |name: &str| numbers.get(name).copied();
    let custom = (
        number("capacity"),
        number("refill_amount"),
        number("refill_period_ms"),
    );
    let limit = match (rule, custom) {
        (Some((rule, rate)), (None, None, None)) => match rule.as_str() {
            "per_second" => Limit::per_second(name, rate),
            "per_minute" => Limit::per_minute(name, rate),
            "per_hour" => Limit::per_hour(name, rate),
            _ => Limit::per_day(name, rate),
        },
        (None, (Some(capacity), Some(amount), Some(period))) => {
            Limit::custom(name, capacity, amount, period)
        }
        _ => return Err(source.error(node, &format!("takes {TAKES}"))),
    };
    let burst = number("burst");
    let limit = limit.and_then(|limit| match burst {
        Some(burst) => limit.with_burst(burst),
        None => Ok(limit),
    });
    let limit = limit.map_err(|error| source.error(node, &error.to_string()))?;
    Ok(limit.in_mode(mode))
}
