//! Configurations as text.

use weirgate::{Config, ConfigStatus, Limit, LimitKind, LimitMode};

use crate::instant;
use crate::output::Output;

/// Returns a configuration as a table of its limits.
pub fn config(output: &Output, config: &Config) -> String {
    let rows = config.limits.iter().map(|limit| {
        vec![
            limit.name().to_string(),
            rate(limit),
            limit.rule().capacity.to_string(),
            limit.mode().as_str().to_owned(),
        ]
    });
    let table = match config.limits.is_empty() {
        true => String::new(),
        false => output.table(&["limit", "rate", "#capacity", "mode"], rows) + "\n",
    };
    table + &remarks(config).join(", ")
}

/// Returns a configuration on one line.
pub fn one_line(config: &Config) -> String {
    let limit = |limit: &Limit| format!("{} {}", limit.name(), rate(limit));
    let limits = config.limits.iter().map(limit);
    limits.chain(remarks(config)).collect::<Vec<_>>().join(", ")
}

/// Returns what a limit refills: `500/minute`, or its slots.
fn rate(limit: &Limit) -> String {
    let rule = limit.rule();
    let mode = match limit.mode() {
        LimitMode::Enforced => String::new(),
        mode => format!(" ({})", mode.as_str()),
    };
    match rule.kind() {
        LimitKind::Rate => {
            let period = std::time::Duration::from_millis(rule.refill_period_ms.unsigned_abs());
            instant::rate_text(rule.refill_amount, period) + &mode
        }
        LimitKind::Slots => format!("{} slots", rule.capacity),
    }
}

fn remarks(config: &Config) -> Vec<String> {
    let status = match config.status {
        ConfigStatus::Enforced => None,
        status => Some(status.as_str().to_owned()),
    };
    let shadow = config
        .is_shadow
        .then(|| "shadow: denies nothing".to_owned());
    status.into_iter().chain(shadow).collect()
}
