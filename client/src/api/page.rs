//! Lists, one page at a time.

use weirgate_store::{Item, Query};

use crate::session::Session;
use crate::values::Error;

/// Most entries on a page of a list, 100.
pub(super) const PAGE: i32 = 100;

/// One page of a list.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// Entries; a page before the last one may be empty.
    pub items: Vec<T>,
    /// Token of the next page; `None` after the last one.
    pub next: Option<PageToken>,
}

/// Position of the next page of a list.
#[derive(Debug, Clone)]
pub struct PageToken {
    after: Item,
    /// Index and partition of the list.
    of: (Option<&'static str>, String),
}

impl Session {
    /// Reads one page of a list. Skips items of other namespaces, because an item can name any
    /// partition of an index.
    pub(super) async fn page(
        &self,
        listing: Query<'_>,
        after: Option<&PageToken>,
    ) -> Result<Page<Item>, Error> {
        let of = (
            listing.index.map(|index| index.name),
            listing.partition.to_owned(),
        );
        if let Some(next) = after.filter(|next| next.of != of) {
            let (asked, given) = (&of.1, &next.of.1);
            let text = "pass the `next` of a page of the same list";
            return Err(Error::Invalid(format!(
                "page token of the list {given} used for the list {asked}: {text}"
            )));
        }
        let found = self
            .table
            .query(listing, after.map(|next| &next.after))
            .await?;
        let prefix = format!("{}/", self.namespace);
        let items = found
            .items
            .into_iter()
            .filter(|item| item.pk().starts_with(&prefix))
            .collect();
        Ok(Page {
            items,
            next: found.next.map(|after| PageToken { after, of }),
        })
    }
}
