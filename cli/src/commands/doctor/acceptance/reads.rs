//! The cases of the contract that read.

use std::time::Duration;

use serde::Deserialize;
use weirgate_shared::{EpochMillis, ItemKey, attr};
use weirgate_store::{
    Consistency, Item, Order, Position, Query, SortKeys, StoreError, Table, indexes,
};

use super::answers::{Attributes, Unheld, compare};

/// Attempts of a read that may be late, as those of an index are by some milliseconds.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// A list of the case's items, whose attribute `at` numbers them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Index; `None` for the table.
    index: Option<String>,
    partition: String,
    /// Prefix of the sort keys, or their first and last one.
    keys: Vec<String>,
    #[serde(default)]
    is_descending: bool,
    #[serde(default)]
    is_eventual: bool,
    limit: Option<i32>,
    /// Number of each item, by page.
    pages: Vec<Vec<usize>>,
}

/// A read of the case's items that is no list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Read {
    /// Of one item that need not exist, as a process begins.
    Warm,
    /// By keys, of which so many have no item.
    Keys { missing: usize, is_eventual: bool },
    /// A scan that goes on after the first item, with pages of so many: whatever else the table has,
    /// it costs no more.
    Scan { limit: i32 },
    /// Of those that are due, in a partition of `DueIndex`.
    Due {
        partition: String,
        until_ms: i64,
        limit: i32,
        #[serde(default)]
        newest_first: bool,
        /// Number of each item, by page.
        pages: Vec<Vec<usize>>,
    },
}

impl Read {
    /// Returns the read units of a read of so many items, at most.
    pub const fn units(&self, items: usize) -> usize {
        /// Of 1 MB, eventually consistent.
        const PAGE: usize = 128;
        match self {
            Self::Keys { missing, .. } => items + *missing,
            Self::Scan { .. } => PAGE * (items + 1),
            Self::Warm | Self::Due { .. } => items + 1,
        }
    }
}

/// Returns the numbers of a page's items, if it has any.
fn numbers(keys: &[ItemKey], items: &[(ItemKey, Attributes)]) -> Option<Vec<usize>> {
    let number = |key: &ItemKey| items.iter().position(|(known, _)| known == key);
    let numbers: Vec<_> = keys.iter().filter_map(number).collect();
    (!numbers.is_empty()).then_some(numbers)
}

/// Returns the numbers of the items of each page. Where the last page was just full, implementations
/// differ in whether an empty one follows, so none counts.
async fn pages(
    table: &Table,
    query: Query<'_>,
    items: &[(ItemKey, Attributes)],
) -> Result<Vec<Vec<usize>>, StoreError> {
    let (mut found, mut after) = (vec![], None);
    loop {
        let page = table.query(query, after.as_ref()).await?;
        let keys: Vec<_> = page.items.iter().filter_map(Item::key).collect();
        found.extend(numbers(&keys, items));
        after = page.next;
        if after.is_none() {
            return Ok(found);
        }
    }
}

/// Requires that the list has these pages.
pub async fn listed(
    table: &Table,
    list: &List,
    items: &[(ItemKey, Attributes)],
) -> Result<(), Unheld> {
    let index = list.index.as_ref().map(|name| {
        let found = indexes().into_iter().find(|index| index.name == name);
        found.ok_or_else(|| format!("there is no index {name}"))
    });
    let index = index.transpose()?;
    let partition = match &index {
        Some(_) => list.partition.clone(),
        None => items[0].0.pk.clone(),
    };
    // Sort keys of the table are the store's, so all of a case begin alike.
    let own = |key: &String| match &index {
        Some(_) => key.clone(),
        None => format!("{}{key}", &items[0].0.sk[..8]),
    };
    let keys: Vec<_> = list.keys.iter().map(own).collect();
    let keys = match &keys[..] {
        [first, last] => SortKeys::Between(first, last),
        [prefix] => SortKeys::StartingWith(prefix),
        _ => {
            return Err("a list has a prefix, or a first and a last key".to_owned().into());
        }
    };
    let query = match index {
        Some(index) => Query::of_index(index, &partition, keys),
        None => Query::new(&partition, keys),
    };
    let query = Query {
        is_descending: list.is_descending,
        limit: list.limit,
        consistency: match list.is_eventual {
            true => Consistency::Eventual,
            false => query.consistency,
        },
        ..query
    };
    let is_late = query.consistency == Consistency::Eventual;
    until_held(is_late, async || has_pages(&pages(table, query, items).await?, &list.pages)).await
}

fn has_pages(found: &[Vec<usize>], expected: &[Vec<usize>]) -> Result<(), Unheld> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("the pages are {found:?}, expected {expected:?}").into()),
    }
}

/// Repeats a read that may be late.
async fn until_held(
    is_late: bool,
    read: impl AsyncFn() -> Result<(), Unheld>,
) -> Result<(), Unheld> {
    let mut left = if is_late { ATTEMPTS } else { 1 };
    loop {
        let tried = read().await;
        left -= 1;
        if left == 0 || !matches!(tried, Err(Unheld::Differs(_))) {
            return tried;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Requires that a read returns the items.
pub async fn tried(
    table: &Table,
    read: &Read,
    items: &[(ItemKey, Attributes)],
) -> Result<(), Unheld> {
    match read {
        Read::Warm => Ok(table.warm().await?),
        Read::Keys { missing, is_eventual } => {
            let missing = (0..*missing).map(|number| ItemKey {
                sk: format!("{}-none-{number}", items[0].0.sk),
                ..items[0].0.clone()
            });
            let keys = items.iter().map(|(key, _)| key.clone()).chain(missing);
            let keys: Vec<_> = keys.collect();
            let consistency = match is_eventual {
                true => Consistency::Eventual,
                false => Consistency::Strong,
            };
            until_held(*is_eventual, async || {
                let found = table.read_all(&keys, consistency).await?;
                same(&found, items)
            })
            .await
        }
        Read::Scan { limit } => {
            // Of other items, perhaps large ones: once.
            page(table, *limit, &items[0].0, None).await?;
            until_held(true, async || scanned(table, *limit, items).await).await
        }
        Read::Due { partition, until_ms, limit, newest_first, pages } => {
            let order = match newest_first {
                true => Order::NewestFirst,
                false => Order::OldestFirst,
            };
            until_held(true, async || {
                let (mut found, mut after, until) = (vec![], None, EpochMillis(*until_ms));
                loop {
                    let page = table.query_due(partition, until, order, *limit, after.as_ref());
                    let page = page.await?;
                    let keys: Vec<_> = page.due.into_iter().map(|due| due.key).collect();
                    found.extend(numbers(&keys, items));
                    after = page.next;
                    if after.is_none() {
                        return has_pages(&found, pages);
                    }
                }
            })
            .await
        }
    }
}

/// Requires that these are the items that exist, in any order.
fn same(found: &[Item], items: &[(ItemKey, Attributes)]) -> Result<(), Unheld> {
    for (key, expected) in items {
        let own = found.iter().find(|item| item.key().as_ref() == Some(key));
        compare("the item", own, expected, !expected.is_empty())?;
    }
    let number = items.iter().filter(|(_, item)| !item.is_empty()).count();
    match found.len() == number {
        true => Ok(()),
        false => Err(format!("{} items are returned, expected {number}", found.len()).into()),
    }
}

/// Scans one page of the namespace's items. The table has more than a page.
async fn page(
    table: &Table,
    limit: i32,
    first: &ItemKey,
    after: Option<&Position>,
) -> Result<(Vec<Item>, Position), Unheld> {
    let most = usize::try_from(limit).unwrap_or_default();
    let namespace = first.pk.split('/').next().unwrap_or_default();
    let prefix = format!("{namespace}/");
    let page = table.scan(&prefix, limit, after).await?;
    let is_own = |item: &Item| item.pk().starts_with(&prefix);
    if page.scanned > most || page.items.len() > page.scanned || !page.items.iter().all(is_own) {
        return Err(format!("a page of {most} items is {page:?}").into());
    }
    let next = page.next;
    Ok((page.items, next.ok_or("the scan ends".to_owned())?))
}

/// Requires that a scan after the first item has the others.
async fn scanned(table: &Table, limit: i32, items: &[(ItemKey, Attributes)]) -> Result<(), Unheld> {
    let (first, rest) = (&items[0].0, &items[1..]);
    let key = [(attr::PK, &first.pk), (attr::SK, &first.sk)];
    let key = key.map(|(name, key)| (name.to_owned(), key.clone()));
    let (mut found, mut after) = (vec![], Position::from(key));
    for _ in rest {
        if found.len() < rest.len() {
            let (items, next) = page(table, limit, first, Some(&after)).await?;
            found.extend(items);
            after = next;
        }
    }
    found.truncate(rest.len());
    same(&found, rest)
}
