//! Audit events of configuration changes.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use weirgate_shared::{
    AuditEvent, AuditKey, AuditSubject, ItemKey, LISTED_AUDIT, audit_partitions, read_audit,
};
use weirgate_store::{BY_ENTITY, Item, Query, SortKeys};

use super::Admin;
use crate::api::page::{PAGE, Page, PageToken, Unreadable, within};
use crate::values::Error;

/// Queries of a page under way at once.
const CONCURRENCY: usize = 16;

impl Admin {
    /// Returns the changes of an entity or of limits, newest first, one page at a time; `after` is
    /// the previous page's token. Events are kept for
    /// [`Builder::audit_retention`](crate::Builder::audit_retention). One that was changed by other
    /// means is among the page's [unreadable](Page::unreadable) entries.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a page token of another list; [`Error::Store`].
    pub async fn audit(
        &self,
        of: &AuditSubject,
        after: Option<&PageToken>,
    ) -> Result<Page<AuditEvent>, Error> {
        self.changes(of, PAGE, after).await
    }

    /// Returns the last changes, up to `count` of them, newest first: the first page of
    /// [`audit`](Self::audit), which costs less if it is short.
    ///
    /// # Errors
    /// As [`audit`](Self::audit).
    pub async fn last_changes(
        &self,
        of: &AuditSubject,
        count: u8,
    ) -> Result<Page<AuditEvent>, Error> {
        self.changes(of, i32::from(count.max(1)).min(PAGE), None).await
    }

    async fn changes(
        &self,
        of: &AuditSubject,
        count: i32,
        after: Option<&PageToken>,
    ) -> Result<Page<AuditEvent>, Error> {
        self.session
            .at_home(async {
                let partition = AuditKey::partition(&self.session.namespace, of);
                let listing = Query {
                    is_descending: true,
                    limit: Some(count),
                    ..Query::new(&partition, SortKeys::StartingWith("#AUDIT#"))
                };
                let found = self.session.page(listing, after).await?;
                let (items, unreadable) = Unreadable::separate(found.items.iter().map(read))?;
                Ok(Page { items, unreadable, next: found.next })
            })
            .await
    }

    /// Returns all changes of the namespace, newest first, one page at a time, as
    /// [`audit`](Self::audit) does for one subject. Changes of the last second may be missing, and
    /// those that a release before 0.10 made are.
    ///
    /// # Errors
    /// As [`audit`](Self::audit).
    pub async fn audit_all(&self, after: Option<&PageToken>) -> Result<Page<AuditEvent>, Error> {
        self.session
            .at_home(async {
                let session = &*self.session;
                let list = format!("audit of {}", session.namespace);
                let last = within(after, &list)?.and_then(|at| at.get(BY_ENTITY.range.0));
                // After every id of an event.
                let end = last.map_or_else(|| format!("{LISTED_AUDIT}~"), String::clone);
                let pages = audit_partitions(&session.namespace).map(|partition| {
                    let end = &end;
                    async move {
                        let listing = Query {
                            is_descending: true,
                            limit: Some(PAGE),
                            ..Query::of_index(
                                BY_ENTITY,
                                &partition,
                                SortKeys::Between(LISTED_AUDIT, end),
                            )
                        };
                        session.query(listing, None).await
                    }
                });
                let pages: Vec<_> = stream::iter(pages.collect::<Vec<_>>())
                    .buffer_unordered(CONCURRENCY)
                    .try_collect()
                    .await?;
                // Of a part that goes on, nothing older than its last entry is known.
                let next = pages.iter().filter_map(|page| page.next.as_ref());
                let next = next.filter_map(|at| at.get(BY_ENTITY.range.0));
                let mut next = next.max().cloned();
                let listed = pages.iter().flat_map(|page| &page.items);
                let event = |item: &Item| {
                    let key = item.key()?;
                    let parsed = AuditKey::parse(&key)?;
                    let (_, name) = parsed.by_namespace();
                    (parsed.namespace == session.namespace).then_some((name, key))
                };
                let mut listed: Vec<_> = listed.filter_map(event).collect();
                listed.retain(|(name, _)| {
                    last != Some(name) && next.as_ref().is_none_or(|next| name >= next)
                });
                listed.sort_by(|one, other| other.cmp(one));
                let most = usize::try_from(PAGE).unwrap_or_default();
                if listed.len() > most {
                    listed.truncate(most);
                    next = listed.last().map(|(name, _)| name.clone());
                }
                let keys: Vec<_> = listed.into_iter().map(|(_, key)| key).collect();
                let items = session.read_many(&keys).await?;
                let found = keys.iter().filter_map(|key| items.get(key));
                let (items, unreadable) = Unreadable::separate(found.map(read))?;
                let token =
                    |name| PageToken::new(list, [(BY_ENTITY.range.0.to_owned(), name)].into());
                Ok(Page { items, unreadable, next: next.map(token) })
            })
            .await
    }
}

fn read(item: &Item) -> Result<AuditEvent, Error> {
    read_audit(item.attributes()).map_err(|error| {
        let ItemKey { pk, sk } =
            item.key().unwrap_or_else(|| unreachable!("a query answers with keys"));
        Error::UnreadableItem { pk, sk, error }
    })
}
