//! Before its retry time, a short shard is read instead of written to. A failed write costs two to
//! ten times as much, and a partition takes a thousand writes a second.

use std::time::Duration;

use weirgate_shared::Shard;
use weirgate_store::Consistency;

use super::shard_state::ShardState;
use crate::session::{Session, decode_shard};
use crate::values::{Error, LimitStatus};

/// Time for which a denial for lack of slots is cached, 50 ms: another process may release a slot
/// at any time.
pub(crate) const SLOT_DENIAL_TTL: Duration = Duration::from_millis(50);
/// Shortest time for which a denial by a rate is cached, 1 s.
const MIN_DENIAL_TTL: Duration = Duration::from_secs(1);
/// Longest time for which a denial by a rate is cached, 30 s.
const MAX_DENIAL_TTL: Duration = Duration::from_secs(30);

/// Returns how long a denial by one limit is cached, if the view has this `age`: for a rate a tenth
/// of its retry-after, between 1 s and 30 s; at most `most`.
pub(crate) fn denial_ttl(short: &LimitStatus, age: Duration, most: Duration) -> Duration {
    if short.is_concurrent() {
        return SLOT_DENIAL_TTL.min(most);
    }
    let wait = short
        .retry_after
        .map_or(Duration::MAX, |left| left.saturating_add(age));
    (wait / 10).clamp(MIN_DENIAL_TTL, MAX_DENIAL_TTL).min(most)
}

impl ShardState {
    /// Reads the shard because `seen` is short, or because there is no view and DynamoDB throttles.
    /// The read is strongly consistent for slots; for rates, a balance may be half a second old.
    ///
    /// # Errors
    /// The store's; [`Error::Unreadable`] if the item is damaged.
    pub(super) async fn recheck(
        &self,
        session: &Session,
        seen: Option<&Shard>,
        lacks_slots: bool,
    ) -> Result<(), Error> {
        let known = seen.map_or(i64::MIN, |seen| seen.write_seq);
        let mut consistency = if lacks_slots {
            Consistency::Strong
        } else {
            Consistency::Eventual
        };
        loop {
            let sent = self.summary.ages.sent();
            self.request_started("BatchGetItem");
            let found = session.read_once(&self.key.item_key(), consistency).await;
            self.request_finished(&found);
            let shard = found?.as_ref().map(decode_shard).transpose()?;
            match shard {
                Some(shard) if shard.write_seq >= known => {
                    drop(self.record_read_response(shard, sent))
                }
                // The response is older than the view, or the item was deleted since.
                _ if consistency == Consistency::Eventual => {
                    consistency = Consistency::Strong;
                    continue;
                }
                Some(shard) => {
                    self.clear_view();
                    self.record_read_response(shard, sent);
                }
                None if self.key.shard == 0 && self.summary.max_shards_seen() == 1 => {
                    self.clear_view()
                }
                None => self.mark_missing(),
            }
            return Ok(());
        }
    }
}
