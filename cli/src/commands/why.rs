//! `weirgate why`.

use std::time::{Duration, Instant};

use clap::Args;
use weirgate::{ClassName, EntityId, LimitKind, RateLimiter, Resource, Switch};
use weirgate_local::why::{Known, Level, Next, Reasons, Used};
use weirgate_shared::rounded_span;

use super::audit;
use super::balances::BucketArgs;
use super::leases;
use super::limits::show;
use super::peek;
use super::unreadable;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::instant::{self, HOUR};
use crate::output::Output;

/// Explains what decides about a bucket, and what to run next.
///
/// The levels with their limits and switches, the entity's parents, each limit with its balance, its
/// use and the level that it comes from, the leases, and the last changes. It costs about 12 read
/// units.
///
/// Saturation is the part of a rate's refill that was used, the part of slots that is held now, or the
/// part of a quota's window that is used.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  weirgate why user-1 gpt-4\n  weirgate why user-1 gpt-4 --over 10s"
)]
pub struct Why {
    #[command(flatten)]
    bucket: BucketArgs,
    /// Class of the caller, of limits with classes, unless the entity's configuration has one
    #[arg(long, value_name = "NAME", value_parser = |text: &str| ClassName::new(text))]
    class: Option<ClassName>,
    /// Measures the bucket's use for this time; without it, saturation is that of this hour (UTC)
    #[arg(long, value_name = "SPAN", value_parser = instant::span_within::<1, HOUR>)]
    over: Option<Duration>,
}

impl Why {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let limiter = context.limiter().await?;
        let BucketArgs { entity, resource } = self.bucket;
        let used = match self.over {
            Some(over) => measure(&limiter, &entity, &resource, over).await?,
            None => None,
        };
        let class = self.class.as_ref();
        let reasons = Reasons::read(&limiter, entity, resource, class, used).await?;
        let output = context.output();
        output.print(&reasons, |reasons| text(reasons, output))?;
        Ok(unreadable::outcome(&reasons.unreadable))
    }
}

/// Returns what a bucket uses from now on, for so long; `None` if it does not exist.
async fn measure(
    limiter: &RateLimiter,
    entity: &EntityId,
    resource: &Resource,
    over: Duration,
) -> Result<Option<Used>, Failure> {
    let admin = limiter.admin();
    let before = admin.bucket(entity, resource).await?;
    let begun = Instant::now();
    tokio::time::sleep(over).await;
    let after = admin.bucket(entity, resource).await?;
    let over_ms = i64::try_from(begun.elapsed().as_millis()).unwrap_or(i64::MAX);
    let counted = before.zip(after);
    Ok(counted.and_then(|(before, after)| Used::between(&before.counted, &after.counted, over_ms)))
}

fn text(reasons: &Reasons, output: &Output) -> String {
    let mut parts = vec![];
    let in_force = reasons.in_force();
    let is_own = |level: &Level| {
        let entity = level.level.entity();
        entity.is_none_or(|of| *of == reasons.entity)
    };
    let levels = reasons
        .levels
        .iter()
        .filter(|level| is_own(level) || level.config.is_some() || level.switch.is_some());
    let row = |level: &Level| {
        let is_in_force = in_force.is_some_and(|(in_force, _)| *in_force == level.level);
        let limits = level.config.as_ref().map(show::one_line);
        vec![
            format!("{} {}", if is_in_force { "*" } else { " " }, level.level),
            limits.unwrap_or_else(|| "-".to_owned()),
            level.switch.map_or("-", Switch::as_str).to_owned(),
        ]
    };
    parts.push(output.table(&["  level", "limits", "switch"], levels.map(row)));
    let parents: Vec<_> = reasons
        .entities
        .windows(2)
        .map(|pair| {
            let takes =
                if pair[0].cascades { "also takes from it" } else { "takes nothing from it" };
            format!("{} has the parent {}, and {takes}", pair[0].id, pair[1].id)
        })
        .collect();
    parts.extend((!parents.is_empty()).then(|| parents.join("\n")));
    if let Some(level) = &reasons.stopped_at {
        parts.push(format!("stopped at {level}"));
    }
    if !reasons.limits.is_empty() {
        let columns = [&["of"][..], &peek::COLUMNS, &["saturation", "from"]].concat();
        parts.push(output.table(&columns, reasons.limits.iter().map(limit_row)));
    }
    if !reasons.leases.is_empty() {
        let rows = reasons.leases.iter().map(leases::row);
        let more = match reasons.lease_count.saturating_sub(reasons.leases.len()) {
            0 => String::new(),
            more => format!(
                "\n{more} more: weirgate leases list {} {}",
                reasons.entity, reasons.resource
            ),
        };
        parts.push(output.table(&leases::COLUMNS, rows) + &more);
    }
    if !reasons.changes.is_empty() {
        let changes = reasons.changes.iter();
        let rows = changes.flat_map(|change| audit::rows(&change.event));
        parts.push(output.table(&audit::COLUMNS, rows));
    }
    if !reasons.unreadable.is_empty() {
        let table = unreadable::table(output, &reasons.unreadable);
        parts.push(table.trim_end().to_owned());
    }
    let next =
        reasons.next.iter().map(|Next { reason, command }| vec![reason.clone(), command.clone()]);
    parts.push(output.table(&["next: because", "run"], next));
    parts.join("\n\n")
}

fn limit_row(known: &Known) -> Vec<String> {
    let Known { status, from, saturation, scale, .. } = known;
    let from = from.as_ref();
    let mut from = from.map_or("not the table".to_owned(), ToString::to_string);
    if let Some(scale) = scale {
        from += &format!(": {scale}");
    }
    let saturation = saturation.map_or("unknown".to_owned(), |known| match status.kind() {
        LimitKind::Slots => format!("{}% held", known.percent),
        LimitKind::Quota => format!("{}% used", known.percent),
        LimitKind::Rate => {
            let over = Duration::from_millis(known.over_ms.unsigned_abs());
            format!("{}% in {}", known.percent, rounded_span(over))
        }
    });
    let of = vec![status.entity.to_string()];
    [of, peek::row(status), vec![saturation, from]].concat()
}
