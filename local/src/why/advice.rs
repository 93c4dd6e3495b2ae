//! What to run next for a bucket.

use weirgate::{ConfigLevel, ConfigStatus, LimitKind, LimitStatus, WindowCode};
use weirgate_shared::{rate_text, rounded_span};

use super::reasons::{Known, Next, Reasons};
use super::window;

impl Next {
    fn new(reason: String, command: &str) -> Self {
        Self {
            reason,
            command: format!("weirgate {command}"),
        }
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

/// Returns what to run next: what keeps the bucket from granting comes first.
pub(super) fn advice(reasons: &Reasons) -> Vec<Next> {
    let Reasons {
        entity, resource, ..
    } = reasons;
    let config = reasons.in_force();
    let by_stop = reasons.stopped_at.as_ref().map(|level| {
        let command = format!("start {}", options(level));
        Next::new(format!("{level} is stopped"), &command)
    });
    let by_config = match config {
        None if reasons.limits.is_empty() => Some(Next::new(
            "no limits are configured".to_owned(),
            &format!("limits set --resource {resource} rpm=600/minute"),
        )),
        Some((level, config)) if config.status != ConfigStatus::Enforced => {
            // A level cannot enforce limits that it does not have.
            let change = match config.limits.is_empty() {
                true => format!("delete {}", options(level)),
                false => format!("set {} --enforced", options(level)),
            };
            Some(Next::new(
                format!("{level} is {}", config.status.as_str()),
                &format!("limits {change}"),
            ))
        }
        _ => None,
    };
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
    let next = by_stop.into_iter().chain(by_config).chain(by_plan);
    let next = next.chain(paused).chain(by_limit);
    let mut next: Vec<_> = next.collect();
    if let (true, Some(Known { status, .. })) = (next.is_empty(), reasons.limits.first()) {
        next.push(Next::new(
            "nothing here denies an acquire of one token".to_owned(),
            &format!("acquire {entity} {resource} {}=1", status.limit),
        ));
    }
    next
}

fn by_pause(known: &Known) -> Option<Next> {
    let LimitStatus {
        entity, resource, ..
    } = &known.status;
    let left = rounded_span(known.status.paused_for?);
    Some(Next::new(
        format!("{entity} is paused, {left}: its vendor denied a call, or an operator asked"),
        &format!("resume {entity} {resource}"),
    ))
}

fn of_limit(known: &Known) -> impl Iterator<Item = Next> {
    let LimitStatus {
        limit,
        entity,
        resource,
        ..
    } = &known.status;
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
    let LimitStatus {
        limit, capacity, ..
    } = status;
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
