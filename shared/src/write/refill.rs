//! Crediting a bucket that would run dry before anybody looks at it again (design, sections 3 and 7).

use std::collections::BTreeMap;

use super::{Change, Condition, Path, Update, Value, add_tokens, every_write, tokens, wcu_credit};
use crate::attr::{self, Field};
use crate::{Bucket, EpochMillis, LimitName, LimitState, MilliTokens};

/// Credits `image` if one of its limits would not last for twice the `consumed` of the batch it was seen in.
///
/// The image is as old as its record: `seen`. A credit that fits under every ceiling at `now` is exact however much
/// was taken since, because it is added. One that would be cut off at a ceiling is exact only for the image's own
/// time: what was taken since then made room that a cut at `now` would not know of. Conditional on `rf`, so it
/// happens once.
#[must_use]
pub fn refill(
    image: &Bucket,
    seen: EpochMillis,
    consumed: &BTreeMap<LimitName, MilliTokens>,
    now: EpochMillis,
) -> Option<Update> {
    let hungry = |(name, state): (&LimitName, &LimitState)| {
        let used = consumed.get(name).copied().unwrap_or_default();
        used > MilliTokens::ZERO && !state.rule.is_concurrent() && state.tk < used + used
    };
    if !image.limits.iter().any(hungry) {
        return None;
    }
    let raw = |state: &LimitState, to| crate::math::credit(&state.rule, image.shard(), image.rf, to);
    let is_cut = |state: &LimitState| image.balance(state, now) < state.tk + raw(state, now);
    let to = if image.limits.values().any(is_cut) { seen.min(now) } else { now };

    let credits: Vec<_> = image
        .limits
        .iter()
        .map(|(name, state)| (name, state, image.balance(state, to) - state.tk))
        .filter(|(_, _, credit)| *credit > MilliTokens::ZERO)
        .collect();
    if !credits.iter().any(|(name, state, _)| hungry((name, state))) {
        return None;
    }
    let mut update = Update {
        key: image.key.item_key(),
        conditions: vec![Condition::Equals(Path::of(attr::RF), Value::Int(image.rf.0))],
        changes: every_write(Some(image), wcu_credit(image, to)),
    };
    update.changes.push(Change::Set(Path::of(attr::RF), Value::Int(to.0)));
    for (name, state, credit) in credits {
        let ceiling = image.share(state) - credit;
        update.conditions.push(Condition::AtMost(tokens(name), Value::Int(ceiling.0)));
        update.changes.push(add_tokens(name, Field::Tokens, credit));
    }
    Some(update)
}
