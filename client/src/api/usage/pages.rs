//! Pages of a usage query. A page token has the position as names and values:
//!
//! | scope | position |
//! |---|---|
//! | bucket | `from`: start of the next interval |
//! | entity | `resource`: the next one, or `after` the last one; `from` within it |
//! | plan | the keys of the last entity read in the index, or only the partition that follows; within an `entity`, as its |
//! | resource | the keys of the last bucket read in the index, or only the partition that follows |

use std::ops::Range;

use futures_util::{StreamExt, TryStreamExt, stream};
use weirgate_shared::{
    BucketKey, EntityId, EntityKey, EpochMillis, Granularity, ItemKey, LISTED_ENTITY, Meter,
    PlanName, Resource, SnapshotKey, UsageHorizon, UsageState, interval_usage, plan_partitions,
};
use weirgate_store::{BY_ENTITY, BY_RESOURCE, Consistency, Position, Query, SortKeys};

use super::super::admin::listed_of_resource;
use super::super::page::{PAGE, Page, PageToken, Unreadable, within};
use super::query::{UsageQuery, UsageRow, UsageScope};
use super::read::{Found, horizon, read_live, read_others, read_snapshots};

use crate::session::{Session, deadline};
use crate::values::Error;

/// Queries of snapshots in flight at once.
const CONCURRENT: usize = 10;

/// Maximum number of entities of a plan on a page: each may have used many resources, and a page has a
/// time limit.
const PLAN_ENTITIES: usize = 50;

/// A query, and what was known when its page began.
struct Asked {
    query: UsageQuery,
    horizon: UsageHorizon,
}

/// Rows, and an error for each item that they lack.
type Rows = Found<Vec<UsageRow>>;

const FROM: &str = "from";
const RESOURCE: &str = "resource";
const AFTER: &str = "after";
const ENTITY: &str = "entity";

/// Returns the maximum number of intervals on a page: a month of hours, a year of days or months.
const fn intervals(granularity: Granularity) -> usize {
    match granularity {
        Granularity::Hourly => 744,
        Granularity::Daily => 366,
        Granularity::Monthly => 12,
    }
}

/// Returns the page after `after`. Intervals that have not begun have no usage, and cost nothing.
pub(super) async fn page(
    session: &Session,
    query: &UsageQuery,
    after: Option<&PageToken>,
) -> Result<Page<UsageRow>, Error> {
    let Range { start, end } = &query.range;
    let list = format!("usage {:?} {:?} {} {}", query.scope, query.granularity, start.0, end.0);
    let position = within(after, &list)?;
    let start_of_all = Position::new();
    let position = position.unwrap_or(&start_of_all);
    let (timeout, now) = (session.settings.timeout, session.now());
    if *start > now {
        return Ok(Page { items: vec![], unreadable: vec![], next: None });
    }
    let granularity = query.granularity;
    let begun = granularity.end(granularity.start(now));
    let query = UsageQuery { range: *start..begun.min(*end), ..query.clone() };
    let read = async {
        let horizon = horizon(session).await?;
        let asked = &Asked { query, horizon };
        match &asked.query.scope {
            UsageScope::Bucket(entity, resource) => {
                let bucket = first_shard(session, entity, resource);
                let (rows, next) = bucket_page(session, asked, &bucket, from(position)?).await?;
                Ok((rows, next.map(at)))
            }
            UsageScope::Entity(entity) => entity_page(session, asked, entity, position).await,
            UsageScope::Plan(plan, resource) => {
                plan_page(session, asked, plan, resource.as_ref(), position).await
            }
            UsageScope::Resource(resource) => {
                resource_page(session, asked, resource, position).await
            }
        }
    };
    let read = tokio::time::timeout_at(deadline(timeout), read).await;
    let (rows, next): (Rows, Option<Position>) = read.unwrap_or_else(|_| {
        let error = session.env.no_answer("Query of usage", timeout);
        Err(error.into())
    })?;
    let unreadable = rows.damaged.into_iter().map(Unreadable::of);
    Ok(Page {
        items: rows.read,
        unreadable: unreadable.collect::<Result<_, _>>()?,
        next: next.map(|position| PageToken::new(list, position)),
    })
}

fn at(from: EpochMillis) -> Position {
    [(FROM.to_owned(), from.0.to_string())].into()
}

/// Returns the start of the first interval of a page.
fn from(position: &Position) -> Result<Option<EpochMillis>, Error> {
    let parse = |text: &String| {
        let ms = text.parse().map(EpochMillis);
        ms.map_err(|_| Error::Invalid(format!("the page token has no instant, but {text:?}")))
    };
    position.get(FROM).map(parse).transpose()
}

fn first_shard(session: &Session, entity: &EntityId, resource: &Resource) -> BucketKey {
    BucketKey {
        namespace: session.namespace.clone(),
        entity: entity.clone(),
        resource: resource.clone(),
        shard: 0,
    }
}

/// Returns the end of a page of one bucket's rows that begins at `from`, or with the range.
fn page_end(query: &UsageQuery, from: Option<EpochMillis>) -> EpochMillis {
    let mut end = from.unwrap_or(query.range.start);
    for _ in 0..intervals(query.granularity) {
        if end < query.range.end {
            end = query.granularity.end(end);
        }
    }
    end
}

/// Returns a page of one bucket's rows, and where the next one begins.
async fn bucket_page(
    session: &Session,
    asked: &Asked,
    bucket: &BucketKey,
    from: Option<EpochMillis>,
) -> Result<(Rows, Option<EpochMillis>), Error> {
    let live = read_live(session, std::slice::from_ref(bucket), Consistency::Strong).await?;
    let live = live.into_iter().next().unwrap_or_default();
    let Range { start, end: last } = asked.query.range;
    let start = from.unwrap_or(start);
    let end = page_end(&asked.query, from);
    let mut rows = rows(session, asked, bucket, start..end, &live).await?;
    rows.damaged.extend(live.damaged);
    Ok((rows, (end < last).then_some(end)))
}

/// Returns the rows of one bucket in `range`, and the errors of its snapshots. Its items were read
/// before. A row that lacks an item is final nowhere.
async fn rows(
    session: &Session,
    asked: &Asked,
    bucket: &BucketKey,
    range: Range<EpochMillis>,
    live: &Found<Vec<Meter>>,
) -> Result<Rows, Error> {
    let (granularity, now) = (asked.query.granularity, session.now());
    let window = granularity.window();
    // Later than the items: they may lack usage of a window that ended since the page began.
    let horizon = UsageHorizon { now, ..asked.horizon.clone() };
    let Found { read: snapshots, mut damaged } = if is_in_items(granularity, &range, live, now) {
        Found::default()
    } else {
        let last = window.start(EpochMillis(range.end.0 - 1));
        let windows = (window.start(range.start), last);
        let eventual = Consistency::Eventual;
        read_snapshots(session, bucket, window, windows, eventual, &horizon).await?
    };
    let mut live = live.clone();
    let known = live.damaged.len();
    read_others(session, bucket, &mut live, &snapshots, Consistency::Eventual).await?;
    damaged.extend_from_slice(&live.damaged[known..]);
    let damaged_at: Vec<_> = damaged.iter().filter_map(window_of).collect();
    let (mut rows, mut start) = (vec![], range.start);
    while start < range.end {
        let end = granularity.end(start);
        let read = interval_usage(window, (start, end), &snapshots, &live.read, &horizon);
        let mut row = UsageRow {
            entity: bucket.entity.clone(),
            resource: bucket.resource.clone(),
            start,
            end,
            usage: read.usage,
            state: read.state,
            complete_until: read.complete_until,
        };
        // In progress or final without usage: nothing is missing. What an unreadable item lacks is
        // told once, with the item.
        let mut is_complete = row.is_final() || row.complete_until == now;
        let is_damaged = |(from, to): &(EpochMillis, EpochMillis)| *from < end && start < *to;
        if !live.damaged.is_empty() || damaged_at.iter().any(is_damaged) {
            (row.state, row.complete_until, is_complete) = (UsageState::Interim, start, true);
        }
        if row.usage != weirgate_shared::Usage::default() || !is_complete {
            rows.push(row);
        }
        start = end;
    }
    Ok(Found { read: rows, damaged })
}

/// Returns the start and the end of the window of an unreadable snapshot.
fn window_of(error: &Error) -> Option<(EpochMillis, EpochMillis)> {
    let Error::UnreadableItem { pk, sk, .. } = error else {
        return None;
    };
    let (pk, sk) = (pk.clone(), sk.clone());
    let key = SnapshotKey::parse(&ItemKey { pk, sk })?;
    Some((key.start, key.window.end(key.start)))
}

/// Returns whether the items alone have the usage of `range`: it is the window in progress, and the
/// bucket's only shard is older than the window, so no earlier life was used in it.
fn is_in_items(
    granularity: Granularity,
    range: &Range<EpochMillis>,
    live: &Found<Vec<Meter>>,
    now: EpochMillis,
) -> bool {
    let window = granularity.window();
    let is_one = window.end(range.start) == range.end && now < range.end;
    let ([meter], true) = (&*live.read, live.damaged.is_empty()) else {
        return false;
    };
    is_one
        && meter.start(window) == range.start
        && meter.birth_seq < range.start.0.saturating_mul(1000)
}

/// Returns a page of one of the entity's resources, and the position after it.
async fn entity_page(
    session: &Session,
    asked: &Asked,
    entity: &EntityId,
    position: &Position,
) -> Result<(Rows, Option<Position>), Error> {
    let resource = match position.get(RESOURCE) {
        Some(resource) => Some(Resource::new(resource.as_str())?),
        None => next_resource(session, entity, position.get(AFTER)).await?,
    };
    let Some(resource) = resource else {
        return Ok((Rows::default(), None));
    };
    let bucket = first_shard(session, entity, &resource);
    let (rows, next) = bucket_page(session, asked, &bucket, from(position)?).await?;
    let resource = resource.to_string();
    let next = match next {
        Some(from) => {
            let mut next = at(from);
            next.insert(RESOURCE.to_owned(), resource);
            next
        }
        None => [(AFTER.to_owned(), resource)].into(),
    };
    Ok((rows, Some(next)))
}

/// Returns the rows of some entities of a plan, or of a part of one if the range is long, and the position
/// after them.
async fn plan_page(
    session: &Session,
    asked: &Asked,
    plan: &PlanName,
    resource: Option<&Resource>,
    position: &Position,
) -> Result<(Rows, Option<Position>), Error> {
    if let Some(entity) = position.get(ENTITY) {
        let id = EntityId::new(entity.as_str())?;
        return plan_entity_page(session, asked, (plan, &id), resource, position).await;
    }
    let partitions = plan_partitions(&session.namespace, plan);
    let listed = (BY_RESOURCE, LISTED_ENTITY);
    let position = Some(position).filter(|position| !position.is_empty());
    let page = session.partitioned_page(listed, partitions, position);
    let (found, mut next) = page.await?;
    let entities = found.iter().filter_map(|item| Some(EntityKey::parse(&item.key()?)?.entity));
    let mut entities: Vec<_> = entities.collect();
    if let Some(first) =
        entities.first().filter(|_| page_end(&asked.query, None) < asked.query.range.end)
    {
        let begin = Position::new();
        let part = plan_entity_page(session, asked, (plan, first), resource, &begin);
        return part.await;
    }
    if entities.len() > PLAN_ENTITIES {
        entities.truncate(PLAN_ENTITIES);
        let last = entities.last();
        next = last.map(|last| after_entity(session, plan, last));
    }
    // By place: a closure over references makes a future that servers cannot spawn.
    let read = |at: usize| all_rows(session, asked, &entities[at], resource);
    let read = stream::iter(0..entities.len()).map(read);
    let all: Vec<Rows> = read.buffered(CONCURRENT).try_collect().await?;
    let mut rows = Rows::default();
    for of_entity in all {
        rows.read.extend(of_entity.read);
        rows.damaged.extend(of_entity.damaged);
    }
    Ok((rows, next))
}

/// Returns the position in the list of a plan's entities after one of them.
fn after_entity(session: &Session, plan: &PlanName, entity: &EntityId) -> Position {
    let key = EntityKey { namespace: session.namespace.clone(), entity: entity.clone() };
    let (ItemKey { pk, sk }, listed) = (key.item_key(), key.by_plan(plan));
    let names = ["PK", "SK", BY_RESOURCE.hash, BY_RESOURCE.range.0].map(str::to_owned);
    let values = [pk, sk, listed.0, listed.1];
    names.into_iter().zip(values).collect()
}

/// Returns a page of an entity of a plan, and the position after it.
async fn plan_entity_page(
    session: &Session,
    asked: &Asked,
    (plan, entity): (&PlanName, &EntityId),
    resource: Option<&Resource>,
    position: &Position,
) -> Result<(Rows, Option<Position>), Error> {
    let (rows, next) = part_page(session, asked, entity, resource, position).await?;
    let next = match next {
        Some(mut next) => {
            next.insert(ENTITY.to_owned(), entity.to_string());
            next
        }
        None => after_entity(session, plan, entity),
    };
    Ok((rows, Some(next)))
}

/// Returns a page of an entity on a resource, or on one of all, and the position after it.
async fn part_page(
    session: &Session,
    asked: &Asked,
    entity: &EntityId,
    resource: Option<&Resource>,
    position: &Position,
) -> Result<(Rows, Option<Position>), Error> {
    let Some(resource) = resource else {
        return entity_page(session, asked, entity, position).await;
    };
    let bucket = first_shard(session, entity, resource);
    let (rows, next) = bucket_page(session, asked, &bucket, from(position)?).await?;
    Ok((rows, next.map(at)))
}

/// Returns all rows of an entity, on a resource or on all.
async fn all_rows(
    session: &Session,
    asked: &Asked,
    entity: &EntityId,
    resource: Option<&Resource>,
) -> Result<Rows, Error> {
    let (mut rows, mut position) = (Rows::default(), Position::new());
    loop {
        let (page, next) = part_page(session, asked, entity, resource, &position).await?;
        rows.read.extend(page.read);
        rows.damaged.extend(page.damaged);
        match next {
            Some(next) => position = next,
            None => return Ok(rows),
        }
    }
}

/// Returns the first resource after `after` of which the entity has a bucket or a snapshot. `$`
/// sorts after the delimiter `#`, and before every character of a name.
async fn next_resource(
    session: &Session,
    entity: &EntityId,
    after: Option<&String>,
) -> Result<Option<Resource>, Error> {
    let partition = format!("{}/ENTITY#{entity}", session.namespace);
    let range = |prefix: &str| {
        let name = after.map_or(String::new(), |after| format!("{after}$"));
        (format!("{prefix}{name}"), format!("{}$", prefix.trim_end_matches('#')))
    };
    let (buckets, snapshots) = (range("BUCKET#"), range("#USAGE#"));
    let bucket = Query::of_index(BY_ENTITY, &partition, SortKeys::Between(&buckets.0, &buckets.1));
    let snapshot = Query::new(&partition, SortKeys::Between(&snapshots.0, &snapshots.1));
    // Any item can name a partition of the index.
    let of_bucket = |key: &ItemKey| {
        let BucketKey { namespace, entity: of, resource, .. } = BucketKey::parse(&key.pk)?;
        let is_later = after.is_none_or(|after| resource.as_str() > after.as_str());
        let is_listed = namespace == session.namespace && of == *entity && is_later;
        is_listed.then_some(resource)
    };
    let of_snapshot = |key: &ItemKey| Some(SnapshotKey::parse(key)?.resource);
    let (bucket, snapshot) =
        tokio::try_join!(first(session, bucket, of_bucket), first(session, snapshot, of_snapshot))?;
    Ok(bucket.into_iter().chain(snapshot).min())
}

/// Returns what `read` finds in the first entry in which it finds something. That is mostly the
/// first one, so only that is read at first.
async fn first<T>(
    session: &Session,
    query: Query<'_>,
    read: impl Fn(&ItemKey) -> Option<T>,
) -> Result<Option<T>, Error> {
    let (mut limit, mut after) = (1, None);
    loop {
        let query = Query { limit: Some(limit), ..query };
        let page = session.query(query, after.as_ref()).await?;
        let found = page.items.iter().find_map(|item| read(&item.key()?));
        if found.is_some() || page.next.is_none() {
            return Ok(found);
        }
        (limit, after) = (PAGE, page.next);
    }
}

/// Returns the rows of some entities of a resource, and the position after them.
async fn resource_page(
    session: &Session,
    asked: &Asked,
    resource: &Resource,
    position: &Position,
) -> Result<(Rows, Option<Position>), Error> {
    let position = Some(position).filter(|position| !position.is_empty());
    let (buckets, next) = listed_of_resource(session, resource, "", position).await?;
    let live = read_live(session, &buckets, Consistency::Eventual).await?;
    // By place: a closure over pairs of references makes a future that servers cannot spawn.
    let read = |at: usize| rows(session, asked, &buckets[at], asked.query.range.clone(), &live[at]);
    let all = stream::iter(0..buckets.len().min(live.len())).map(read).buffered(CONCURRENT);
    let mut all: Vec<Rows> = all.try_collect().await?;
    let mut rows = Rows::default();
    for of_bucket in &mut all {
        rows.read.append(&mut of_bucket.read);
        rows.damaged.append(&mut of_bucket.damaged);
    }
    rows.damaged.extend(live.into_iter().flat_map(|live| live.damaged));
    Ok((rows, next))
}
