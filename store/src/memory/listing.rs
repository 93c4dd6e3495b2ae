//! The items of one partition of the table or of an index, in the order of their sort keys.

use std::collections::HashMap;

use aws_sdk_dynamodb::operation::query::QueryOutput;
use aws_sdk_dynamodb::types::AttributeValue;
use weirgate_shared::{Attr, ItemKey, attr, read_key};

use super::{MemoryTable, item};
use crate::Item;

/// Which items to list.
#[derive(Debug)]
pub(crate) struct Listing<'a> {
    /// Names of the key attributes, and whether they are an index's.
    pub(crate) hash: &'a str,
    pub(crate) range: &'a str,
    pub(crate) is_index: bool,
    pub(crate) partition: &'a str,
    pub(crate) keys: Range<'a>,
    pub(crate) is_descending: bool,
    pub(crate) limit: Option<i32>,
    /// Key attributes of the last item of the page before.
    pub(crate) after: Option<HashMap<String, AttributeValue>>,
}

/// Range of sort keys.
#[derive(Debug)]
pub(crate) enum Range<'a> {
    StartingWith(&'a str),
    Between(&'a str, &'a str),
    UpTo(i64),
}

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
    pub(crate) fn query(&self, listing: &Listing<'_>) -> QueryOutput {
        let place = |item: &Item| -> Option<Place> {
            let key = read_key(item.attributes())?;
            Some((SortKey::of(item, listing.range)?, key))
        };
        let after = listing.after.clone().and_then(|key| place(&Item(key)));
        let is_after = |place: &Place| match &after {
            Some(after) if listing.is_descending => place < after,
            Some(after) => place > after,
            None => true,
        };
        let mut found: Vec<(Place, Item)> = self
            .locked()
            .values()
            .filter(|item| {
                item.0.get(listing.hash).is_some_and(
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
        let keys = [attr::PK, attr::SK, listing.hash, listing.range];
        let only_keys = |mut item: HashMap<String, AttributeValue>| {
            item.retain(|name, _| keys.contains(&name.as_str()));
            item
        };
        let last = found
            .last()
            .filter(|_| most.is_some_and(|most| found.len() >= most));
        let last = last.map(|(_, item)| only_keys(item.0.clone()));
        let items = found.into_iter().map(|(_, Item(item))| {
            if listing.is_index {
                only_keys(item)
            } else {
                item
            }
        });
        QueryOutput::builder()
            .set_items(Some(items.collect()))
            .set_last_evaluated_key(last)
            .build()
    }
}
