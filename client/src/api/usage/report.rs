//! Usage over a range of time: of a bucket, an entity, or a resource.

use std::collections::BTreeSet;
use std::iter;
use std::ops::Range;

use weirgate_shared::{
    EntityId, EpochMillis, Granularity, Iso8601, LimitName, MilliTotal, Millis, Resource, Usage,
    UsageState, Window, is_kept,
};

use super::super::admin::Admin;
use super::super::page::{Page, PageToken, Unreadable};
use super::pages::page;
use super::query::{UsageQuery, UsageRow, UsageScope};
use super::read::horizon;
use crate::session::Session;
use crate::values::Error;

/// Sum of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UsageTotal {
    /// Amount of each limit, and the number of acquires.
    pub usage: Usage,
    /// Whether the amounts can change. If they are unknown, a part of them may be missing. Those of a
    /// resource or a plan are never final, because they are of the buckets or the entities that it has
    /// at the read.
    pub state: UsageState,
    /// Instant before which all usage is included. A bill for the range is complete once this is
    /// the range's end, and the state is final.
    #[cfg_attr(feature = "serde", serde(rename = "complete_until_ms"))]
    pub complete_until: EpochMillis,
    /// Items that cannot be read: the sum lacks them, and is complete only until the range begins.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Vec::is_empty"))]
    pub unreadable: Vec<Unreadable>,
}

/// One of the largest users in a report.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TopUser {
    /// The entity.
    pub entity: EntityId,
    /// The resource.
    pub resource: Resource,
    /// Usage in the whole range.
    pub usage: Usage,
}

/// A report of usage. Nothing is read until a page, the total or the top users are requested.
#[derive(Debug, Clone)]
#[must_use = "a report reads nothing until a page is requested"]
pub struct UsageReport<'a> {
    session: &'a Session,
    query: UsageQuery,
}

impl Admin {
    /// Returns a report of the usage in all intervals (UTC) that overlap `range`, each as a whole.
    ///
    /// Intervals in progress include the current items, so they are exact as of the read.
    ///
    /// | scope | read units, eventually consistent except for the items of a bucket or entity |
    /// |---|---|
    /// | bucket | 1 for its item, and half a unit for each 4 KB of snapshots: about 30 days, or 25 hours; for hours of days that may be final, twice that |
    /// | entity | the same for each resource, and 1 to find it |
    /// | resource | half a unit for each entity's item, and half a unit for its snapshots |
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter, month: std::ops::Range<weirgate::EpochMillis>) -> Result<(), Box<dyn std::error::Error>> {
    /// use weirgate::{Granularity, UsageScope};
    ///
    /// let scope = UsageScope::Resource("gpt-4".try_into()?);
    /// let report = limiter.admin().usage_report(scope, Granularity::Monthly, month)?;
    /// for user in report.top(&"tpm".try_into()?, 10).await?.items {
    ///     println!("{}: {:?}", user.entity, user.usage.tokens);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range is empty, or begins before the snapshots that the table
    /// keeps: see [`Builder::usage_retention`](crate::Builder::usage_retention).
    pub fn usage_report(
        &self,
        scope: UsageScope,
        granularity: Granularity,
        range: Range<EpochMillis>,
    ) -> Result<UsageReport<'_>, Error> {
        let Range { start, end } = range;
        if start >= end {
            return Err(Error::Invalid(format!(
                "a range of usage must begin before it ends, got {} to {}: swap them, or make it longer",
                Iso8601(start),
                Iso8601(end)
            )));
        }
        let first = granularity.start(start);
        let kept = first_kept(&self.session, granularity);
        if first < kept {
            return Err(Error::Invalid(format!(
                "usage is kept for {} days, got a range from {}: begin at {} or later, or set the usage retention to the SnapshotTtlDays of the stack",
                self.session.settings.usage_retention.as_secs() / 86_400,
                Iso8601(start),
                Iso8601(kept)
            )));
        }
        let mut last = granularity.start(end);
        if last < end {
            last = granularity.end(last);
        }
        Ok(UsageReport {
            session: &self.session,
            query: UsageQuery { scope, granularity, range: first..last },
        })
    }
}

/// Returns the first start of an interval of which all snapshots are kept.
fn first_kept(session: &Session, granularity: Granularity) -> EpochMillis {
    let (now, retention) = (session.now(), session.settings.usage_retention.into());
    let Millis(kept) = retention;
    let oldest = granularity.start(EpochMillis(now.0.saturating_sub(kept)));
    let has_first = |start: &EpochMillis| {
        let first = granularity.window().end(*start);
        is_kept(first.plus(retention), now)
    };
    // Of hours, the margin takes one more.
    let starts = iter::successors(Some(oldest), |start| Some(granularity.end(*start)));
    starts.take(3).find(has_first).unwrap_or(now)
}

impl UsageReport<'_> {
    /// Returns the times that are reported: the intervals that overlap the requested range, each as a whole.
    #[must_use]
    pub fn range(&self) -> Range<EpochMillis> {
        self.query.range.clone()
    }

    /// Returns one page of rows; `after` is the previous page's token. Rows without usage are left
    /// out, unless some may be missing. Items that cannot be read are among the page's
    /// [unreadable](Page::unreadable) entries; the rows that lack them are not final.
    ///
    /// A page has one bucket's rows of up to 744 hours, 366 days or 12 months; of a resource, those
    /// of up to 50 entities. The rows of one bucket follow each other, in the order of time.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a page token of another report; the other errors if the table could
    /// not be read.
    pub async fn page(&self, after: Option<&PageToken>) -> Result<Page<UsageRow>, Error> {
        self.session.at_home(async { page(self.session, &self.query, after).await }).await
    }

    /// Returns the sum of all rows.
    ///
    /// # Errors
    /// As [`page`](Self::page).
    pub async fn total(&self) -> Result<UsageTotal, Error> {
        let Range { start, end } = self.query.range.clone();
        let horizon = self.session.at_home(horizon(self.session)).await?;
        let (now, is_delivered) = (horizon.now, horizon.is_delivered(start, end));
        let is_listed = matches!(self.query.scope, UsageScope::Resource(_) | UsageScope::Plan(..));
        let mut total = UsageTotal {
            usage: Usage::default(),
            // A bucket that is not listed yet may get usage of the range as late as one that is.
            state: match is_listed || !is_delivered {
                true => UsageState::Interim,
                false => UsageState::Final,
            },
            complete_until: end.min(now),
            unreadable: vec![],
        };
        if end <= now && !is_delivered {
            // Of the days that have ended, the first one that is not final.
            let is_known = horizon.delivered.start <= Window::Daily.start(start);
            let day = Window::Daily.start(horizon.delivered.end);
            total.complete_until = if is_known { day } else { start }.clamp(start, end);
        }
        total.unreadable = self
            .each(|row| {
                total.usage.add(&row.usage);
                if row.state == UsageState::Unknown {
                    total.state = UsageState::Unknown;
                }
                if !row.is_final() {
                    total.complete_until = total.complete_until.min(row.complete_until);
                }
            })
            .await?;
        if !total.unreadable.is_empty() {
            total.complete_until = total.complete_until.min(start);
        }
        if total.state == UsageState::Final && total.complete_until < end {
            total.state = UsageState::Interim;
        }
        // Rows do not tell: of an entity whose snapshots were all deleted, perhaps meanwhile, there are none.
        if start < first_kept(self.session, self.query.granularity) {
            (total.state, total.complete_until) = (UsageState::Unknown, start);
        }
        Ok(total)
    }

    /// Returns the `count` buckets with the largest amounts of `limit`, the largest first, on one
    /// page. Items that cannot be read are among its [unreadable](Page::unreadable) entries.
    ///
    /// # Errors
    /// As [`page`](Self::page).
    pub async fn top(&self, limit: &LimitName, count: usize) -> Result<Page<TopUser>, Error> {
        let amount = |user: &TopUser| user.usage.tokens.get(limit).copied();
        self.largest(count, |user| amount(user).unwrap_or(MilliTotal::ZERO).0).await
    }

    /// Returns the `count` buckets with the most acquires, the largest first, as [`top`](Self::top)
    /// does.
    ///
    /// # Errors
    /// As [`page`](Self::page).
    pub async fn top_by_acquires(&self, count: usize) -> Result<Page<TopUser>, Error> {
        self.largest(count, |user| user.usage.acquires).await
    }

    /// Keeps twice as many buckets as requested at most, so that it can read any number.
    async fn largest(
        &self,
        count: usize,
        amount: impl Fn(&TopUser) -> i128,
    ) -> Result<Page<TopUser>, Error> {
        let mut top: Vec<TopUser> = vec![];
        let cut = |top: &mut Vec<TopUser>| {
            top.sort_by_key(|user| std::cmp::Reverse(amount(user)));
            top.truncate(count);
        };
        let each = self.each(|row| match top.last_mut() {
            Some(user) if user.entity == row.entity && user.resource == row.resource => {
                user.usage.add(&row.usage);
            }
            _ => {
                if top.len() > count.saturating_mul(2) {
                    cut(&mut top);
                }
                top.push(TopUser { entity: row.entity, resource: row.resource, usage: row.usage });
            }
        });
        let unreadable = each.await?;
        cut(&mut top);
        Ok(Page { items: top, unreadable, next: None })
    }

    /// Calls `with` for each row of all pages. Returns the items that cannot be read, each once: a
    /// shard is read for each page of its bucket.
    async fn each(&self, mut with: impl FnMut(UsageRow)) -> Result<Vec<Unreadable>, Error> {
        let (mut unreadable, mut seen, mut after) = (vec![], BTreeSet::new(), None);
        loop {
            let page = self.page(after.as_ref()).await?;
            page.items.into_iter().for_each(&mut with);
            let new = page.unreadable.into_iter();
            unreadable.extend(new.filter(|item| seen.insert((item.pk.clone(), item.sk.clone()))));
            after = page.next;
            if after.is_none() {
                return Ok(unreadable);
            }
        }
    }
}
