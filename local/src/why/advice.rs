//! What to run next for a bucket.

use weirgate::{ClassName, ConfigLevel, ConfigStatus, Entity, LimitKind, LimitStatus, WindowCode};
use weirgate_shared::{rate_text, rounded_span};

use super::reasons::{Known, Next, Reasons};
use super::window;

impl Next {
    fn new(reason: String, command: &str) -> Self {
        Self { reason, command: format!("weirgate {command}") }
    }
}

/// Returns the options of the command line that name a level. Names are words of a shell.
#[must_use]
pub fn options(level: &ConfigLevel) -> String {
    match level {
        ConfigLevel::EntityResource(entity, resource) => {
            format!("--entity {entity} --resource {resource}")
        }
        ConfigLevel::Entity(entity) => format!("--entity {entity}"),
        ConfigLevel::PlanResource(plan, resource) => format!("--plan {plan} --resource {resource}"),
        ConfigLevel::Plan(plan) => format!("--plan {plan}"),
        ConfigLevel::Resource(resource) => format!("--resource {resource}"),
        ConfigLevel::System => "--system".to_owned(),
    }
}

/// What a peek says of an acquire of one token of each limit.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It is refused with this error.
    Refused(String),
    /// It is disabled.
    Disabled,
    /// These limits deny it.
    Short(Vec<LimitStatus>),
}

/// Returns what to run next: what keeps the bucket from granting comes first. `taken_from` are the entity
/// and the ancestors whose limits its acquires take from.
pub(super) fn advice(reasons: &Reasons, taken_from: &[Entity]) -> Vec<Next> {
    let Reasons { resource, .. } = reasons;
    let config = reasons.in_force();
    let by_stop = reasons.stopped_at.as_ref().map(|level| {
        let command = format!("start {}", options(level));
        Next::new(format!("{level} is stopped"), &command)
    });
    let not_configured = (config.is_none() && reasons.limits.is_empty()).then(|| {
        Next::new(
            "no limits are configured".to_owned(),
            &format!("limits set --resource {resource} rpm=600/minute"),
        )
    });
    let mut by_config: Vec<_> = taken_from
        .iter()
        .filter_map(|taken| {
            let (level, config) = reasons.in_force_for(taken)?;
            let is_told = match config.status {
                ConfigStatus::Enforced => false,
                ConfigStatus::Disabled => true,
                // An ancestor without limits keeps nothing from being granted.
                ConfigStatus::Unlimited => taken.id == reasons.entity,
            };
            // A level cannot enforce limits that it does not have.
            let change = match config.limits.is_empty() {
                true => format!("delete {}", options(level)),
                false => format!("set {} --enforced", options(level)),
            };
            is_told.then(|| {
                Next::new(
                    format!("{level} is {}", config.status.as_str()),
                    &format!("limits {change}"),
                )
            })
        })
        .collect();
    by_config.dedup();
    let by_plan = reasons.missing_plan.as_ref().map(|plan| {
        // Where an entity has limits of its own, they hold with and without the plan.
        let instead = match &config {
            Some((level @ (ConfigLevel::Resource(_) | ConfigLevel::System), _)) => {
                format!(": those of {level} hold")
            }
            _ => String::new(),
        };
        Next::new(
            format!("plan {plan} has no limits{instead}"),
            &format!("limits set --plan {plan} rpm=600/minute"),
        )
    });
    let mut paused: Vec<_> = reasons.limits.iter().filter_map(by_pause).collect();
    paused.dedup();
    let by_limit = reasons.limits.iter().flat_map(of_limit);
    let next = by_stop.into_iter().chain(not_configured).chain(by_config);
    let next = next.chain(by_plan).chain(paused).chain(by_limit);
    next.collect()
}

/// Returns what to run next where nothing else keeps the bucket from granting.
pub(super) fn by_verdict(
    reasons: &Reasons,
    verdict: Verdict,
    class: Option<&ClassName>,
) -> Vec<Next> {
    let Reasons { entity, resource, .. } = reasons;
    let fixed = reasons.in_force().and_then(|(_, config)| config.class.as_ref());
    let caller = fixed.or(class).map_or_else(String::new, |class| format!(" for class {class}"));
    let short = match verdict {
        Verdict::Refused(reason) => {
            let command = format!("limits list --resource {resource}");
            return vec![Next::new(reason, &command)];
        }
        Verdict::Disabled => {
            let reason = "it was disabled while this was read".to_owned();
            return vec![Next::new(reason, &format!("why {entity} {resource}"))];
        }
        Verdict::Short(short) => short,
    };
    if !short.is_empty() {
        let next = short.into_iter().map(|status| {
            let LimitStatus { limit, entity, resource, .. } = &status;
            Next::new(
                format!("{limit} of {entity} has no token left{caller}"),
                &format!("usage --entity {entity} --resource {resource} --by hour --from 1d"),
            )
        });
        return next.collect();
    }
    let option = class.map_or_else(String::new, |class| format!(" --class {class}"));
    let first = reasons.limits.first().map(|Known { status, .. }| {
        Next::new(
            format!("nothing here denies an acquire of one token{caller}"),
            &format!("acquire {entity} {resource} {}=1{option}", status.limit),
        )
    });
    first.into_iter().collect()
}

fn by_pause(known: &Known) -> Option<Next> {
    let LimitStatus { entity, resource, .. } = &known.status;
    let left = rounded_span(known.status.paused_for?);
    Some(Next::new(
        format!("{entity} is paused, {left}: its vendor denied a call, or an operator asked"),
        &format!("resume {entity} {resource}"),
    ))
}

fn of_limit(known: &Known) -> impl Iterator<Item = Next> {
    let LimitStatus { limit, entity, resource, .. } = &known.status;
    let is_out = known.status.available.whole_tokens() <= 0;
    let by_kind = known.other_kind.as_ref().map(|(level, other)| {
        let reason = format!(
            "{limit} of {entity} is {} in the bucket and {} of {level}: acquires fail until {level} \
             has it as {} again, or under another name",
            known.status.kind(),
            other.rule().kind(),
            known.status.kind()
        );
        let command = format!("limits set {} {}", options(level), text(&known.status));
        Next::new(reason, &command)
    });
    let is_brought = known.from.is_none() && by_kind.is_none();
    let by_callers = is_brought.then(|| {
        let reason = format!(
            "{limit} of {entity} is not the table's: callers bring it with the call or from a \
             file, or none has taken since a change"
        );
        Next::new(reason, &format!("audit --resource {resource}"))
    });
    let used_up = |until: &str| {
        Next::new(
            format!("{limit} of {entity} is used up{until}"),
            &format!("usage --entity {entity} --resource {resource} --by hour --from 1d"),
        )
    };
    let by_balance = is_out.then(|| match known.status.kind() {
        LimitKind::Slots => Next::new(
            format!("all slots of {limit} of {entity} are held"),
            &format!("leases list {entity} {resource}"),
        ),
        LimitKind::Rate => used_up(""),
        LimitKind::Quota => {
            let resets = window::resets(&known.status);
            used_up(&resets.map_or_else(String::new, |resets| format!(": {resets}")))
        }
    });
    by_kind.into_iter().chain(by_callers).chain(by_balance)
}

/// Returns a limit as `limits set` takes it.
fn text(status: &LimitStatus) -> String {
    let LimitStatus { limit, capacity, .. } = status;
    match status.kind() {
        LimitKind::Slots => format!("{limit}={capacity}"),
        LimitKind::Quota => {
            let code = status.window.unwrap_or(WindowCode(0));
            format!("{limit}={}", window::text(status, code))
        }
        LimitKind::Rate => {
            let rate = rate_text(status.refill_amount, status.refill_period);
            match status.refill_amount == *capacity {
                true => format!("{limit}={rate}"),
                false => format!("{limit}={rate},burst={capacity}"),
            }
        }
    }
}
