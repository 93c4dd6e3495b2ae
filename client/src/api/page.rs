//! Lists, one page at a time.

use std::fmt;
use std::str::FromStr;

use weirgate_shared::{
    BUCKET_SK, BucketKey, ConfigKey, ConfigLevel, EntityId, ItemError, ItemKey, Resource,
    SnapshotKey,
};
use weirgate_store::{Index, Item, Position, Query, SortKeys, base64};

use crate::session::Session;
use crate::values::Error;

/// Maximum number of entries on a page of a list, 100: what one `BatchGetItem` can read.
pub(super) const PAGE: i32 = 100;

/// One page of a list.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Page<T> {
    /// Entries; a page before the last one may be empty.
    pub items: Vec<T>,
    /// Entries whose items cannot be read: they are missing in `items`, which has all others.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Vec::is_empty"))]
    pub unreadable: Vec<Unreadable>,
    /// Token of the next page; `None` after the last one.
    pub next: Option<PageToken>,
}

/// Position of the next page of a list.
///
/// Its text can be stored, and parsed by another process later. A page of another list refuses it.
///
/// ```
/// # fn example(token: weirgate::PageToken) -> Result<(), weirgate::Error> {
/// let stored = token.to_string();
/// assert_eq!(stored.parse::<weirgate::PageToken>()?, token);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "String", into = "String")
)]
pub struct PageToken {
    /// The list.
    list: String,
    position: Position,
}

/// An item that cannot be read, because it was changed by other means.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Unreadable {
    /// Entity that the item's key names; `None` if it names none.
    pub entity: Option<EntityId>,
    /// Resource that the item's key names; `None` if it names none.
    pub resource: Option<Resource>,
    /// Shard that the item's key names; `None` if it names none.
    pub shard: Option<u32>,
    /// Partition key of the item.
    pub pk: String,
    /// Sort key of the item.
    pub sk: String,
    /// What is wrong with the item, and what to do.
    pub error: String,
}

/// Returns the entity and the resource of a level.
fn of_level(level: &ConfigLevel) -> (Option<EntityId>, Option<Resource>) {
    (level.entity().cloned(), level.resource().cloned())
}

impl Unreadable {
    pub(super) fn new(key: ItemKey, error: &ItemError) -> Self {
        let (mut entity, mut resource, mut shard) = (None, None, None);
        if let Some(bucket) = BucketKey::parse(&key.pk) {
            shard = Some(bucket.shard);
            (entity, resource) = (Some(bucket.entity), Some(bucket.resource));
        } else if let Some(snapshot) = SnapshotKey::parse(&key) {
            (entity, resource) = (Some(snapshot.entity), Some(snapshot.resource));
        } else if let Some(config) = ConfigKey::parse(&key) {
            (entity, resource) = of_level(&config.level);
        }
        let ItemKey { pk, sk } = key;
        Self {
            entity,
            resource,
            shard,
            pk,
            sk,
            error: format!("{error}; correct or delete the item"),
        }
    }

    /// Returns a switch that cannot be read. Its item has others too, so it is not to be deleted.
    pub(super) fn switch(key: ItemKey, level: Option<&ConfigLevel>, error: &ItemError) -> Self {
        let remedy = match level {
            Some(_) => "it counts as stopped: start, stop or exempt it",
            None => "correct or remove the attribute",
        };
        let (entity, resource) = level.map_or((None, None), of_level);
        Self { entity, resource, error: format!("{error}; {remedy}"), ..Self::new(key, error) }
    }

    /// Returns the item that an error is about.
    ///
    /// # Errors
    /// The error, if it is about no item.
    pub(super) fn of(error: Error) -> Result<Self, Error> {
        match error {
            Error::Unreadable { bucket: pk, error } => {
                let sk = BUCKET_SK.to_owned();
                Ok(Self::new(ItemKey { pk, sk }, &error))
            }
            Error::UnreadableItem { pk, sk, error } => Ok(Self::new(ItemKey { pk, sk }, &error)),
            error => Err(error),
        }
    }

    /// Separates what was read from what cannot be.
    ///
    /// # Errors
    /// The first error that is about no item.
    pub(super) fn separate<T>(
        read: impl IntoIterator<Item = Result<T, Error>>,
    ) -> Result<(Vec<T>, Vec<Self>), Error> {
        let (mut items, mut unreadable) = (vec![], vec![]);
        for read in read {
            match read {
                Ok(item) => items.push(item),
                Err(error) => unreadable.push(Self::of(error)?),
            }
        }
        Ok((items, unreadable))
    }
}

impl PageToken {
    pub(super) const fn new(list: String, position: Position) -> Self {
        Self { list, position }
    }
}

/// Returns the position of a page in `list`; `None` for the first page.
///
/// # Errors
/// [`Error::Invalid`] if the token is of another list.
pub(super) fn within<'a>(
    token: Option<&'a PageToken>,
    list: &str,
) -> Result<Option<&'a Position>, Error> {
    match token {
        Some(token) if token.list != list => Err(Error::Invalid(format!(
            "page token of the list {:?} used for the list {list:?}: pass the `next` of a page of the same list",
            token.list
        ))),
        token => Ok(token.map(|token| &token.position)),
    }
}

impl fmt::Display for PageToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_vec(&(&self.list, &self.position)).map_err(|_| fmt::Error)?;
        f.write_str(&base64::encode(json))
    }
}

#[cfg(feature = "serde")]
impl From<PageToken> for String {
    fn from(token: PageToken) -> Self {
        token.to_string()
    }
}

#[cfg(feature = "serde")]
impl TryFrom<String> for PageToken {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl FromStr for PageToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let json = base64::decode(text).ok();
        let parsed = json.and_then(|json| serde_json::from_slice(&json).ok());
        parsed.map(|(list, position)| Self { list, position }).ok_or_else(|| {
            Error::Invalid(format!(
                "{text:?} is not a page token: pass the `next` of a page as it was returned"
            ))
        })
    }
}

impl Session {
    /// Reads one page of a list, up to 100 items, or to the listing's own limit. Skips items of other namespaces, because an item
    /// can name any partition of an index.
    pub(super) async fn page(
        &self,
        listing: Query<'_>,
        after: Option<&PageToken>,
    ) -> Result<Page<Item>, Error> {
        let index = listing.index.map_or("table", |index| index.name);
        let list = format!("{index} {} {:?}", listing.partition, listing.keys);
        let after = within(after, &list)?;
        let listing = Query { limit: Some(listing.limit.unwrap_or(PAGE)), ..listing };
        let found = self.query(listing, after).await?;
        Ok(Page {
            items: self.own(found.items),
            unreadable: vec![],
            next: found.next.map(|position| PageToken::new(list, position)),
        })
    }

    /// Reads one page of a list that is spread over several partitions of an index, whose sort keys
    /// have a prefix. No page has items of two partitions. The position is the last key read, or
    /// only the next partition's name.
    pub(super) async fn partitioned_page(
        &self,
        (index, prefix): (Index, &str),
        mut partitions: impl Iterator<Item = String>,
        position: Option<&Position>,
    ) -> Result<(Vec<Item>, Option<Position>), Error> {
        let at = position.and_then(|position| position.get(index.hash));
        let partition = match at {
            Some(partition) => partitions.find(|known| known == partition),
            None => partitions.next(),
        };
        let Some(partition) = partition else {
            return Err(Error::Invalid(format!(
                "the page token names {at:?}, which is no part of the list: pass the `next` of a page as it was returned"
            )));
        };
        let listing = Query {
            limit: Some(PAGE),
            ..Query::of_index(index, &partition, SortKeys::StartingWith(prefix))
        };
        let after = position.filter(|position| position.len() > 1);
        let found = self.query(listing, after).await?;
        let next =
            found.next.or_else(|| Some([(index.hash.to_owned(), partitions.next()?)].into()));
        Ok((self.own(found.items), next))
    }

    /// Returns the items of this namespace.
    fn own(&self, mut items: Vec<Item>) -> Vec<Item> {
        let prefix = format!("{}/", self.namespace);
        items.retain(|item| item.pk().starts_with(&prefix));
        items
    }
}
