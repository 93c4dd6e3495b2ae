//! The invariants, which hold in every state.

use std::sync::Arc;

use stateright::{Model, Property};
use weirgate_shared::{LimitState, MilliTokens, Shard, ShardIndex, refill_between};

use crate::model::client::Client;
use crate::model::protocol::Protocol;
use crate::model::state::State;
use crate::model::table::Row;

impl Protocol {
    /// The limit that clients compete for.
    fn limit<'a>(&self, bucket: &'a Shard) -> &'a LimitState {
        &bucket.limits[self.bounds.limit.name()]
    }

    /// I1 over the whole run: checks that granted and still available tokens equal the capacity, the
    /// refill and what operators added.
    fn is_minted(&self, state: &State) -> bool {
        let rule = self.bounds.limit.rule();
        let Some(last) = state
            .table
            .shards()
            .map(|row| row.bucket().refilled_at)
            .max()
            .filter(|_| rule.kind().refills())
        else {
            return false;
        };
        let left = |bucket: &Shard| {
            self.limit(bucket).available
                + refill_between(rule, bucket.shard(), bucket.refilled_at, last)
        };
        let all = state.table.buckets().into_iter().map(left).sum::<MilliTokens>()
            + MilliTokens(state.ledger.used - state.ledger.edited);
        // The bucket is made at the first tick, or later: then the credit is less.
        all > rule.capacity + refill_between(rule, ShardIndex::UNSPLIT, self.bounds.start, last)
    }

    /// I1: checks that what is left of the last window, and what was granted of it, are no more than
    /// the quota.
    fn is_left(&self, state: &State) -> bool {
        let rule = self.bounds.limit.rule();
        let buckets = state.table.buckets();
        let ends = buckets.iter().map(|bucket| self.limit(bucket).window_end);
        let Some(last) = ends.max().filter(|_| rule.kind().has_window()) else {
            return true;
        };
        let left = |bucket: &&Shard| {
            let limit = self.limit(bucket);
            match limit.window_end == last {
                true => limit.available,
                false => bucket.share(limit),
            }
        };
        let left: MilliTokens = buckets.iter().map(left).sum();
        let granted = state.ledger.windows.get(&last).copied().unwrap_or_default();
        left.0 + granted <= rule.capacity.0
    }

    /// Slots: each is free, or held by a lease.
    fn has_all_slots(&self, state: &State) -> bool {
        let rule = self.bounds.limit.rule();
        let is_held = |row: &Arc<Row>| row.limit().rule.kind().is_held();
        if !state.table.shards().all(is_held) {
            return true;
        }
        let is_free = state.table.shards().all(|row| row.limit().available >= MilliTokens::ZERO);
        let held: MilliTokens = state.table.shards().map(|row| row.held()).sum();
        let sum = state
            .table
            .buckets()
            .into_iter()
            .map(|bucket| self.limit(bucket).available)
            .sum::<MilliTokens>()
            + held;
        !rule.kind().is_held() || state.table.rows()[0].is_none() || is_free && sum == rule.capacity
    }

    fn is_held_for(&self, state: &State, client: &Client) -> bool {
        let Some(grant) = client.relies_on(self.at(state.now)) else {
            return true;
        };
        let row = state.table.rows()[grant.shard];
        let lease = row.and_then(|row| row.bucket().leases.as_ref()?.get(&grant.id));
        lease.is_some_and(|lease| {
            lease.tokens.values().copied().sum::<MilliTokens>() == grant.amount
        })
    }

    /// Returns the invariants by name.
    pub(crate) fn invariants(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("I1: no interval admits too much", |model: &Self, state: &State| {
                state.ledger.is_within(model.bounds.limit.rule())
            }),
            Property::always(
                "I1: no window admits more than the quota",
                |model: &Self, state: &State| {
                    let quota = model.bounds.limit.rule().capacity;
                    state.ledger.is_within_windows(quota)
                },
            ),
            Property::always("I1: tokens return to their own window only", |_, state: &State| {
                !state.is_misreturned
            }),
            Property::always("I1: a take is of an open window", |_, state: &State| {
                !state.is_of_ended
            }),
            Property::always(
                "I1: what is left of the last window was not granted",
                |model: &Self, state: &State| model.is_left(state),
            ),
            Property::always("I1: no token is minted", |model: &Self, state| {
                !model.is_minted(state)
            }),
            Property::always(
                "I1: an operator's change is made once, to all shards",
                |_, state: &State| !state.is_misedited,
            ),
            Property::always("I1, I4, I6: every slot is free, or held once", Self::has_all_slots),
            Property::always("I4: slots stay slots", |_, state: &State| {
                !state.table.has_other_kind
            }),
            Property::always(
                "I3: recorded is what was consumed",
                |_, State { ledger, .. }: &State| {
                    (i128::from(ledger.used), i128::from(ledger.takes))
                        == (ledger.recorded, ledger.recorded_takes)
                },
            ),
            Property::always("I3: every write has a higher v", |_, state: &State| {
                !state.table.has_reused_v
            }),
            Property::always(
                "I3: a shard says what was counted in its hour and day",
                |_, state: &State| !state.table.is_miscounted,
            ),
            Property::always(
                "I3: no take counts for an hour before its own",
                |_, state: &State| !state.is_belated,
            ),
            Property::always(
                "I4: a lease is its holder's until it expires",
                |model: &Self, state: &State| {
                    state.clients.iter().all(|client| model.is_held_for(state, client))
                },
            ),
            Property::always("I4: in the end no lease is left", |model: &Self, state: &State| {
                let mut steps = vec![];
                let is_free = state.table.shards().all(|row| row.held() == MilliTokens::ZERO);
                is_free || {
                    model.actions(state, &mut steps);
                    !steps.is_empty()
                }
            }),
            Property::always("I7: a take that is repeated happens once", |_, state: &State| {
                !state.is_repeated
            }),
            Property::always("I6: splits and merges keep the tokens", |_, state: &State| {
                !state.is_uneven
            }),
        ]
    }
}
