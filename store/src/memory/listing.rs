//! The items of one partition of the table or of an index, in the order of their sort keys.

use weirgate_shared::{Attr, ItemKey, attr, read_key};

use super::{MemoryTable, item};
use crate::request::{Listed, Listing, Range};
use crate::{Item, StoreError};

/// A sort key, and the key of its item, which orders items of an index with the same one.
type Place = (SortKey, ItemKey);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SortKey {
    Number(i128),
    Text(String),
}

impl SortKey {
    fn of(item: &Item, name: &str) -> Option<Self> {
        item.attributes().find_map(|(known, value)| match value {
            Attr::N(number) if known == name => number.parse().ok().map(Self::Number),
            Attr::S(text) if known == name => Some(Self::Text(text.to_owned())),
            _ => None,
        })
    }
}

impl Range<'_> {
    fn contains(&self, key: &SortKey) -> bool {
        match (self, key) {
            (Self::StartingWith(prefix), SortKey::Text(text)) => text.starts_with(prefix),
            (Self::Between(first, last), SortKey::Text(text)) => {
                (*first..=*last).contains(&text.as_str())
            }
            (Self::UpTo(last), SortKey::Number(number)) => *number <= i128::from(*last),
            _ => false,
        }
    }
}

impl MemoryTable {
    /// Returns one page of a listing. As in DynamoDB, a page that reaches the limit has a next one,
    /// even if that is empty.
    pub(crate) async fn list(&self, listing: &Listing<'_>) -> Result<Listed, StoreError> {
        self.reach("Query")?;
        let (hash, range) = listing.names();
        let place = |item: &Item| -> Option<Place> {
            let key = read_key(item.attributes())?;
            Some((SortKey::of(item, range)?, key))
        };
        let after = listing.after.as_ref().and_then(place);
        let is_after = |place: &Place| match &after {
            Some(after) if listing.is_descending => place < after,
            Some(after) => place > after,
            None => true,
        };
        let mut found: Vec<(Place, Item)> = self
            .locked()
            .values()
            .filter(|item| {
                item.0.get(hash).is_some_and(
                    |held| matches!(held.attr(), Attr::S(text) if text == listing.partition),
                )
            })
            .map(item)
            .filter_map(|item| Some((place(&item)?, item)))
            .filter(|(place, _)| listing.keys.contains(&place.0) && is_after(place))
            .collect();
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        if listing.is_descending {
            found.reverse();
        }
        let most = listing.limit.and_then(|limit| usize::try_from(limit).ok());
        found.truncate(most.unwrap_or(usize::MAX));
        let keys = [attr::PK, attr::SK, hash, range];
        let only_keys = |mut item: Item| {
            item.0.retain(|name, _| keys.contains(&name.as_str()));
            item
        };
        let last = found.last().filter(|_| most.is_some_and(|most| found.len() >= most));
        let last = last.map(|(_, item)| only_keys(item.clone()));
        let items = found.into_iter().map(|(_, item)| match listing.index {
            Some(_) => only_keys(item),
            None => item,
        });
        Ok(Listed { items: items.collect(), last })
    }
}
