//! Whether the plans of entities have limits.

use weirgate::{Error, RateLimiter};

use super::finding::Finding;

const CHECK: &str = "plans";

/// Returns the finding about plans without limits, whose entities have those of the resource and of the
/// system instead.
pub async fn finding(limiter: &RateLimiter) -> Finding {
    match missing(limiter).await {
        Ok((missing, _)) if !missing.is_empty() => Finding::advice(
            CHECK,
            format!("entities have plans without limits: {}", missing.join(", ")),
            "set their limits by limits set --plan, or give the entities another plan: entities list \
             --plan has them",
        ),
        Ok((_, None)) => Finding::fine(CHECK, "every plan of an entity has limits"),
        Ok((_, Some(error))) => Finding::unknown(CHECK, format!("not checked: {error}"), ""),
        Err(error) => Finding::unknown(CHECK, format!("not checked: {error}"), ""),
    }
}

/// Returns the plans without limits, each with the number of its entities, and why one could not be read.
/// Plans count their entities, so none of those is read.
async fn missing(limiter: &RateLimiter) -> Result<(Vec<String>, Option<String>), Error> {
    let (mut missing, mut unreadable, mut after) = (vec![], None, None);
    loop {
        let page = limiter.admin().plans(after.as_ref()).await?;
        let lacking = page.items.iter();
        let lacking = lacking.filter(|of| of.entities > 0 && of.levels == 0);
        missing.extend(lacking.map(|of| format!("{} (entities: {})", of.plan, of.entities)));
        unreadable = unreadable.or(page.unreadable.into_iter().next());
        after = page.next;
        if after.is_none() {
            return Ok((missing, unreadable.map(|one| one.error)));
        }
    }
}
