//! Taking from quotas. Whatever ends a window, time does not write: the first take after it begins the
//! next one, with the whole share.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::attr::Field;
use crate::math::MIN_BALANCE;
use crate::write::changes::add_tokens;
use crate::write::conditions::{has_rule, push_new, require_shard_count, same_window};
use crate::write::update::{tokens, window_end};
use crate::write::{AttributeUpdate, Condition, Take, Update, Value};
use crate::{EpochMillis, Lease, LimitKind, LimitName, LimitState, MilliTokens, Shard, WriteId};

impl Take<'_> {
    /// Returns the end of the window that the take begins. `None` if the window of the view is open
    /// or nothing is taken of it, another process is assumed to have begun it, it is too small, or
    /// this process does not know it: the take then requires an open window.
    pub(super) fn begins(
        &self,
        view: &Shard,
        name: &LimitName,
        state: &LimitState,
        now: EpochMillis,
    ) -> Option<EpochMillis> {
        let need = self.need(name);
        let fits = need <= view.share(state) || self.is_into_debt(name);
        // A lease names the window that its tokens are from, so none is assumed.
        let by_others = self.windows_begun && self.leases.is_empty();
        let begins = state.has_ended(now) && need > MilliTokens::ZERO && !by_others && fits;
        let code = state.rule.window_code().filter(|_| begins)?;
        self.limits.calendar.end_after(code, now)
    }

    /// Returns the end of the first window of a limit in a new bucket. A session begins with its
    /// first use.
    pub(super) fn first_window(
        &self,
        name: &LimitName,
        state: &LimitState,
        now: EpochMillis,
    ) -> EpochMillis {
        let is_used = self.need(name) > MilliTokens::ZERO;
        let code = state.rule.window_code();
        let code = code.filter(|code| is_used || code.session().is_none());
        let end = code.and_then(|code| self.limits.calendar.end_after(code, now));
        end.unwrap_or(state.window_end)
    }

    /// Returns the view with the acquire's limits, and the windows that the take leaves.
    pub(super) fn changed(&self, view: &Shard, now: EpochMillis) -> Shard {
        let mut changed = view.projected(self.limits, now);
        for (name, next) in &mut changed.limits {
            next.window_end = match view.limits.get(name) {
                Some(state) if state.rule == next.rule => {
                    let begins = self.begins(view, name, state, now);
                    begins.unwrap_or(state.window_end)
                }
                // Another rule, or a new limit.
                _ if next.has_ended(now) => self.first_window(name, next, now),
                _ => next.window_end,
            };
        }
        changed
    }

    /// Returns the view with the windows that the take begins.
    pub(super) fn begun<'s>(&self, view: &'s Shard, now: EpochMillis) -> Cow<'s, Shard> {
        let mut next = Cow::Borrowed(view);
        for (name, state) in &view.limits {
            if let Some(end) = self.begins(view, name, state, now)
                && let Some(state) = next.to_mut().limits.get_mut(name)
            {
                state.window_end = end;
            }
        }
        next
    }

    /// Returns the leases, with the windows of `limits` from which they hold tokens.
    pub(super) fn leases_in(
        &self,
        limits: &BTreeMap<LimitName, LimitState>,
    ) -> impl Iterator<Item = (WriteId, Lease)> {
        self.leases.iter().map(move |(id, lease)| {
            let window = |name: &LimitName| {
                let state = limits.get(name)?;
                let window = state.rule.kind().has_window().then_some(state.window_end)?;
                Some((name.clone(), window))
            };
            let windows = lease.tokens.keys().filter_map(window).collect();
            let lease = Lease { windows, ..lease.clone() };
            (id.clone(), lease)
        })
    }

    /// Adds the change of a quota's balance: `back` of leases returns to its window, and the take
    /// debits it.
    ///
    /// The take requires that a window is open, whichever it is, so that processes that disagree
    /// about its end share it. To begin one, it requires the one that has ended, and the rule, by
    /// which the new one ends.
    pub(super) fn take_window(
        &self,
        update: &mut Update,
        view: &Shard,
        (name, state): (&LimitName, &LimitState),
        back: MilliTokens,
        now: EpochMillis,
    ) {
        let need = self.need(name);
        if let Some(end) = self.begins(view, name, state, now) {
            push_new(update, require_shard_count(view.shard()));
            update.conditions.push(same_window(name, state));
            update.conditions.extend(has_rule(name, &state.rule));
            let left = view.share(state) - need;
            update.changes.extend([
                AttributeUpdate::Set(tokens(name), Value::Int(left.0)),
                AttributeUpdate::Set(window_end(name), Value::Int(end.0)),
            ]);
            return;
        }
        let is_open = !state.has_ended(now);
        let back = if is_open { back } else { MilliTokens::ZERO };
        // A lease names the window that its tokens are from.
        let is_leased = need > MilliTokens::ZERO && !self.leases.is_empty();
        let is_named = back > MilliTokens::ZERO || is_leased;
        if is_named {
            push_new(update, same_window(name, state));
        }
        if need > MilliTokens::ZERO && !(is_named && is_open) {
            require_open(update, name, now);
        }
        if need > MilliTokens::ZERO || back > MilliTokens::ZERO {
            self.debit_window(update, name, need, back);
        } else if is_open && self.asks.enforced(name.as_str()).is_some() {
            // Nothing is granted of a debt.
            let least = Condition::AtLeast(tokens(name), Value::Int(0));
            update.conditions.push(least);
        }
    }

    /// Adds the debit of an open window, into which `more` comes at once.
    fn debit_window(
        &self,
        update: &mut Update,
        name: &LimitName,
        need: MilliTokens,
        more: MilliTokens,
    ) {
        let least = match self.is_into_debt(name) {
            true => MIN_BALANCE + need,
            false => need - more,
        };
        if need > MilliTokens::ZERO {
            let least = Condition::AtLeast(tokens(name), Value::Int(least.0));
            update.conditions.push(least);
        }
        if more != need {
            update.changes.push(add_tokens(name, Field::Tokens, more - need));
        }
    }

    /// Adds the change of a quota's balance to that of its next rule, less the take. Returns whether it
    /// did: of an open window that goes over into a rate, the balance changes as that of a rate.
    pub(super) fn replace_window(
        &self,
        update: &mut Update,
        view: &Shard,
        name: &LimitName,
        (state, next): (&LimitState, &LimitState),
        back: MilliTokens,
        now: EpochMillis,
    ) -> bool {
        let (need, is_quota) = (self.need(name), next.rule.kind().has_window());
        if state.has_ended_by(&next.rule, now) {
            // To a process with a slower clock the window is still open, with the balance of it.
            let is_kept = is_quota && next.window_end == state.window_end;
            if !is_kept || need > MilliTokens::ZERO {
                let left = Value::Int((next.available - need).0);
                let set = AttributeUpdate::Set(tokens(name), left);
                update.changes.push(set);
            }
            return true;
        }
        let goes_on = state.rule.kind().has_window() && is_quota;
        if goes_on {
            let more = view.share(next) - view.share(state);
            self.debit_window(update, name, need, back + more);
        }
        goes_on
    }
}

/// Requires that a window of a quota is open.
fn require_open(update: &mut Update, name: &LimitName, now: EpochMillis) {
    let open = Value::Int(now.0.saturating_add(1));
    update.conditions.push(Condition::AtLeast(window_end(name), open));
}

/// Adds the change of the attribute that only quotas have, and requires it as it was seen.
pub(super) fn change_window(
    update: &mut Update,
    name: &LimitName,
    state: &LimitState,
    next: &LimitState,
) {
    let had_window = state.rule.kind().has_window();
    if had_window {
        update.conditions.push(same_window(name, state));
    }
    let (path, end) = (window_end(name), Value::Int(next.window_end.0));
    match next.rule.kind() {
        LimitKind::Quota if had_window && state.window_end == next.window_end => {}
        LimitKind::Quota => update.changes.push(AttributeUpdate::Set(path, end)),
        LimitKind::Rate | LimitKind::Slots if had_window => {
            update.changes.push(AttributeUpdate::Remove(path));
        }
        LimitKind::Rate | LimitKind::Slots => {}
    }
}
