//! Audit events of configuration changes.

use weirgate_shared::{AuditEvent, AuditKey, AuditSubject, ItemKey, read_audit};
use weirgate_store::{Item, Query, SortKeys};

use super::Admin;
use crate::api::page::{PAGE, Page, PageToken, Unreadable};
use crate::values::Error;

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
        self.changes(of, i32::from(count.max(1)).min(PAGE), None)
            .await
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
                let read = |item: &Item| {
                    read_audit(item.attributes()).map_err(|error| {
                        let ItemKey { pk, sk } = item
                            .key()
                            .unwrap_or_else(|| unreachable!("a query answers with keys"));
                        Error::UnreadableItem { pk, sk, error }
                    })
                };
                let (items, unreadable) = Unreadable::separate(found.items.iter().map(read))?;
                Ok(Page {
                    items,
                    unreadable,
                    next: found.next,
                })
            })
            .await
    }
}
