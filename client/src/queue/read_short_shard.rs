//! Before its retry time, a short shard is read instead of written to. A failed write costs two to
//! ten times as much, and a partition takes a thousand writes a second.

use weirgate_shared::Shard;
use weirgate_store::Consistency;

use super::shard_state::ShardState;
use crate::session::{Session, decode_shard};
use crate::values::Error;

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
