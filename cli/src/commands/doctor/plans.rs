//! Whether the plans of entities have limits.

use std::collections::BTreeMap;

use weirgate::{Error, RateLimiter};

use super::finding::Finding;

/// Maximum number of entities that are read.
const MOST: usize = 1_000;

/// Returns the finding about plans without limits, whose entities have those of the resource and of the
/// system instead.
pub async fn finding(limiter: &RateLimiter) -> Finding {
    match missing(limiter).await {
        Ok((missing, _)) if !missing.is_empty() => {
            let of = |(plan, (count, first)): (&String, &(usize, String))| {
                format!("{plan} (entities: {count}, such as {first})")
            };
            let plans: Vec<_> = missing.iter().map(of).collect();
            Finding::advice(
                "plans",
                format!("entities have plans without limits: {}", plans.join(", ")),
                "set their limits by limits set --plan, or give the entities another plan",
            )
        }
        Ok((_, false)) => Finding::fine("plans", "every plan of an entity has limits"),
        Ok((_, true)) => {
            let text = format!("every plan of the first {MOST} entities has limits");
            Finding::fine("plans", text)
        }
        Err(error) => Finding::unknown("plans", format!("not checked: {error}"), ""),
    }
}

/// Plans without limits, each with the number of its entities and one of them.
type Missing = BTreeMap<String, (usize, String)>;

/// Returns the plans without limits, and whether not all entities were read.
async fn missing(limiter: &RateLimiter) -> Result<(Missing, bool), Error> {
    let (admin, mut ids, mut after) = (limiter.admin(), vec![], None);
    loop {
        let page = admin.entities(after.as_ref()).await?;
        ids.extend(page.items);
        after = page.next;
        if after.is_none() || ids.len() >= MOST {
            break;
        }
    }
    let mut plans = BTreeMap::new();
    for entity in admin.read_entities(&ids).await?.into_iter().flatten() {
        if let Some(plan) = entity.plan {
            let seen = plans.entry(plan).or_insert((0, entity.id.to_string()));
            seen.0 += 1;
        }
    }
    let mut missing = BTreeMap::new();
    for (plan, entities) in plans {
        if !admin.has_plan(&plan).await? {
            missing.insert(plan.to_string(), entities);
        }
    }
    Ok((missing, after.is_some()))
}
