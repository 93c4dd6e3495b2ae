//! Limits whose buckets do not split.

use std::collections::BTreeMap;

use weirgate::{ConfigFilter, Error, RateLimiter};

use super::finding::Finding;

const CHECK: &str = "sessions";
/// Maximum number of levels that are looked at, 1,000; those that most entities have are the first.
const MOST: usize = 1_000;

/// Returns the finding about sessions: each half of one would begin with a first use of its own, so their
/// buckets have one shard however hot they are.
pub async fn finding(limiter: &RateLimiter) -> Finding {
    match sessions(limiter).await {
        Ok((levels, _)) if !levels.is_empty() => {
            let one = |(level, limits): (&String, &String)| format!("{level} ({limits})");
            let levels: Vec<_> = levels.iter().map(one).collect();
            Finding::advice(
                CHECK,
                format!(
                    "a bucket with a session does not split, so it takes at most about 1,000 writes a \
                     second: {}",
                    levels.join(", ")
                ),
                "for hot buckets use a quota of a calendar window, whose buckets split, or a rate",
            )
        }
        Ok((_, false)) => Finding::fine(CHECK, "no limit is a session: all hot buckets split"),
        Ok((_, true)) => {
            let text = format!("no limit of the first {MOST} levels is a session");
            Finding::fine(CHECK, text)
        }
        Err(error) => Finding::unknown(CHECK, format!("not checked: {error}"), ""),
    }
}

/// Returns the levels with sessions, with the names of these limits, and whether not all levels were
/// looked at.
async fn sessions(limiter: &RateLimiter) -> Result<(BTreeMap<String, String>, bool), Error> {
    let (mut found, mut seen) = (BTreeMap::new(), 0);
    for filter in [ConfigFilter::Resources, ConfigFilter::Plans, ConfigFilter::All] {
        let mut after = None;
        loop {
            let page = limiter.admin().configs(&filter, after.as_ref()).await?;
            for (level, config) in page.items {
                seen += 1;
                let limits = config.limits.iter();
                let sessions = limits.filter(|limit| limit.rule().is_session());
                let names: Vec<_> = sessions.map(|limit| limit.name().to_string()).collect();
                if !names.is_empty() {
                    found.insert(level.to_string(), names.join(", "));
                }
            }
            after = page.next;
            if seen >= MOST {
                return Ok((found, after.is_some() || filter != ConfigFilter::All));
            }
            if after.is_none() {
                break;
            }
        }
    }
    Ok((found, false))
}
