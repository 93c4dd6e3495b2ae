//! How long a denial is cached.

use std::time::Duration;

use crate::values::LimitStatus;

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
    if short.kind().is_held() {
        return SLOT_DENIAL_TTL.min(most);
    }
    let wait = short
        .retry_after
        .map_or(Duration::MAX, |left| left.saturating_add(age));
    (wait / 10).clamp(MIN_DENIAL_TTL, MAX_DENIAL_TTL).min(most)
}
