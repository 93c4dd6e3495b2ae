//! Configurations as text.

use weirgate::{Config, ConfigStatus};

/// Returns a configuration with a line for each limit, as `limits set` takes it.
pub fn lines(config: &Config) -> String {
    let limits = config.limits.iter().map(ToString::to_string);
    limits.chain(remarks(config)).collect::<Vec<_>>().join("\n")
}

/// Returns a configuration on one line.
pub fn one_line(config: &Config) -> String {
    let limits = config.limits.iter().map(ToString::to_string);
    let limits = limits.collect::<Vec<_>>().join(" ");
    let limits = (!limits.is_empty()).then_some(limits).into_iter();
    limits.chain(remarks(config)).collect::<Vec<_>>().join(", ")
}

fn remarks(config: &Config) -> impl Iterator<Item = String> {
    let status = match config.status {
        ConfigStatus::Enforced => None,
        status => Some(status.as_str().to_owned()),
    };
    let shadow = config.is_shadow.then(|| "shadow: denies nothing".to_owned());
    let class = config.class.as_ref();
    let class = class.map(|class| format!("callers are of class {class}"));
    status.into_iter().chain(shadow).chain(class)
}
