//! Crediting a bucket that would run dry before anybody looks at it again (design, sections 3 and 7).

use std::collections::BTreeMap;

use super::credit::Credit;
use super::{Change, Path, Update, Value, every_write, same_rf, wcu_credit};
use crate::attr;
use crate::math::credit;
use crate::{Bucket, EpochMillis, LimitName, LimitState, MilliTokens, Millis};

/// How long `rf` stays where it is. Our own takes find what flowed in by themselves, and those that rely on `rf` lose
/// their race when it moves: moving it with every batch would starve them.
const REST: Millis = Millis(200);

/// Credits `image` if one of its limits would not last for twice the `consumed` of the batch it was seen in, so that
/// takes find enough without knowing `rf`; or if its write units would not, so that they can be judged.
///
/// Conditional on `rf`, so it happens once; exact whatever was taken since the image, as every write that knows `rf`.
#[must_use]
pub fn refill(image: &Bucket, consumed: &BTreeMap<LimitName, MilliTokens>, now: EpochMillis) -> Option<Update> {
    let flowed = |state: &LimitState| credit(&state.rule, image.shard(), image.rf, now);
    let is_hungry = |(name, state): (&LimitName, &LimitState)| {
        let used = consumed.get(name).copied().unwrap_or_default();
        used > MilliTokens::ZERO && state.tk < used + used && flowed(state) > MilliTokens::ZERO
    };
    let is_fresh = image.v.is_some() && now.since(image.rf) < REST;
    // What `wcu` says counts from `rf`; it must move now and then for it to say anything.
    let runs_low = image.v.is_some() && image.wcu.is_some_and(|wcu| wcu.tk < wcu.rule.capacity / 5);
    if is_fresh || !runs_low && !image.limits.iter().any(is_hungry) {
        return None;
    }
    let mut update = Update {
        key: image.key.item_key(),
        conditions: same_rf(image).into(),
        changes: every_write(Some(image), wcu_credit(image, now)),
    };
    update.changes.push(Change::Set(Path::of(attr::RF), Value::Int(now.0)));
    for (name, state) in image.limits.iter().filter(|(_, state)| !state.rule.is_concurrent()) {
        let (ceiling, zero) = (image.share(state), MilliTokens::ZERO);
        let credit = Credit {
            flowed: flowed(state),
            back: zero,
            ceiling,
            need: zero,
            moves_rf: true,
            guesses_room: false,
            slack: zero,
        };
        credit.write(&mut update, name, state);
    }
    Some(update)
}
