//! Audit events of configuration changes.

use weirgate_shared::{AuditEvent, AuditKey, AuditSubject, ItemKey, read_audit};
use weirgate_store::{Item, Query, SortKeys};

use super::limiter::RateLimiter;
use super::page::{Page, PageToken};
use crate::values::Error;

impl RateLimiter {
    /// Returns the changes of an entity or of limits, newest first, one page at a time; `after` is
    /// the previous page's token. Events are kept for
    /// [`Builder::audit_retention`](crate::Builder::audit_retention).
    ///
    /// # Errors
    /// [`Error::Store`], or [`Error::UnreadableItem`] if an event was changed by other means.
    pub async fn audit(
        &self,
        of: &AuditSubject,
        after: Option<&PageToken>,
    ) -> Result<Page<AuditEvent>, Error> {
        let partition = AuditKey::partition(&self.session.namespace, of);
        let listing = Query {
            is_descending: true,
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
        let items = found.items.iter().map(read).collect::<Result<_, _>>()?;
        Ok(Page {
            items,
            next: found.next,
        })
    }
}
