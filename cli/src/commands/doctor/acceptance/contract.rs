//! The store's contract as data: items, a write, a list or another read, and what DynamoDB answers.
//!
//! `planned.jsonl` has every write that is planned; `edges.jsonl` edge values, transactions, lists,
//! and what DynamoDB refuses; `reads.jsonl` every other read. Each line is a case, or an item that
//! cases begin with. `shapes.txt` has the shapes of all requests that callers and functions send, and
//! a test requires that the cases have them too.

use std::collections::BTreeMap;

use futures_util::stream::{self, StreamExt};
use serde::Deserialize;
use weirgate_shared::write::{Action, AttributeUpdate, Condition, Path, Update, Value};
use weirgate_shared::{Attr, EpochMillis, ItemKey, attr};
use weirgate_store::{
    ActionOutcome, Consistency, ErrorKind, Item, Order, Position, Query, RetryPolicy, ReturnValues,
    SortKeys, StoreError, Table, TransactOutcome, WriteOutcome, indexes, random_id,
};

const FILES: [&str; 3] = [
    include_str!("../../../../../store/contract/planned.jsonl"),
    include_str!("../../../../../store/contract/edges.jsonl"),
    include_str!("../../../../../store/contract/reads.jsonl"),
];
/// Partitions that the cases are spread over.
const PARTITIONS: usize = 16;
/// Attempts to read a list of an index, which is late by some milliseconds.
const READS: u32 = 50;
/// Group of the cases that DynamoDB refuses.
pub const REFUSED: &str = "refused";

/// Attributes by name; `None` removes one.
type Patch = BTreeMap<String, Option<Value>>;
type Attributes = BTreeMap<String, Value>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    item: String,
    attributes: Attributes,
}

/// A case.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub group: String,
    case: String,
    /// Items of the request; several are a transaction.
    items: Vec<Part>,
    /// Changes of the first item with which the request fails.
    #[serde(default)]
    fails: Vec<Patch>,
    /// Whether the answer has the item; `None` for the usual one, all of it.
    #[serde(default)]
    answer: Option<Answer>,
    #[serde(default)]
    list: Option<List>,
    #[serde(default)]
    read: Option<Read>,
    /// AWS's sentence, for what implementations differ in.
    #[serde(default)]
    aws: String,
}

/// An answer that does not have the item.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// If the request holds.
    None,
    /// In no case.
    Never,
}

/// An item before and after the request, and its part of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    /// Name of the item before; `None` if there is none.
    on: Option<String>,
    #[serde(default)]
    but: Patch,
    #[serde(rename = "if", default)]
    conditions: Vec<Condition>,
    /// `None` deletes the item.
    #[serde(rename = "do", default)]
    changes: Option<Vec<AttributeUpdate>>,
    /// Whether the request only checks the conditions.
    #[serde(default)]
    checks: bool,
    /// Changes of the item by the request; `None` if it never holds.
    #[serde(default)]
    after: Option<Patch>,
}

/// A list of the case's items, whose attribute `at` numbers them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
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
enum Read {
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

/// All cases, for one namespace.
#[derive(Debug)]
pub struct Contract {
    given: BTreeMap<String, Attributes>,
    cases: Vec<Case>,
    /// Whether each transaction is sent again with its token.
    pub repeats: bool,
    /// Cases under way at once.
    pub concurrency: usize,
}

#[cfg(test)]
impl Case {
    /// Returns whether the request is sent as a transaction.
    pub fn is_transaction(&self) -> bool {
        let is_read = self.list.is_some() || self.read.is_some();
        let is_update = |part: &Part| !part.checks && part.changes.is_some();
        !is_read && !matches!(&self.items[..], [part] if is_update(part))
    }
}

/// What a group of cases found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// Requests that were answered as expected.
    pub held: usize,
    /// Cases with another answer.
    pub differences: Vec<Difference>,
    /// Cases that the credentials do not allow, each with the reason.
    pub not_allowed: Vec<String>,
}

/// An answer that is not the expected one.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    pub case: String,
    pub found: String,
    /// AWS's sentence; empty if none says more than the case.
    pub aws: String,
}

/// Why a case did not hold.
#[derive(Debug)]
enum Unheld {
    Differs(String),
    NotAllowed(String),
}

impl From<String> for Unheld {
    fn from(text: String) -> Self {
        Self::Differs(text)
    }
}

impl From<StoreError> for Unheld {
    fn from(error: StoreError) -> Self {
        match error.kind {
            ErrorKind::AccessDenied => Self::NotAllowed(error.to_string()),
            _ => Self::Differs(error.to_string()),
        }
    }
}

impl Contract {
    /// Reads the cases. Nothing that they write is an item of Weirgate: neither functions nor
    /// DynamoDB's expiry visit it.
    pub fn new(namespace: &str) -> Self {
        let (mut given, mut cases) = (BTreeMap::new(), vec![]);
        for line in FILES.iter().flat_map(|file| file.lines()) {
            let line = line
                .replace("\"default/", &format!("\"{namespace}/"))
                .replace("\"DUE#", &format!("\"{namespace}/DUE#"))
                .replace("\"ttl\"", "\"ttl-of-case\"");
            if line.starts_with("{\"item\":") {
                let Given { item, attributes } = read(&line);
                given.insert(item, attributes);
            } else {
                cases.push(read(&line));
            }
        }
        Self {
            given,
            cases,
            repeats: true,
            concurrency: 16,
        }
    }

    /// Returns the number of requests, each at most a placement, a write and a read.
    pub fn requests(&self) -> usize {
        let of = |case: &Case| case.items.len() * (1 + case.fails.len());
        self.cases.iter().map(of).sum()
    }

    /// Returns the read units of the cases that read, at most.
    pub fn read_units(&self) -> u64 {
        /// Of 1 MB, eventually consistent.
        const PAGE: usize = 128;
        let of = |case: &Case| match &case.read {
            Some(Read::Keys { missing, .. }) => case.items.len() + missing,
            Some(Read::Scan { .. }) => PAGE * (case.items.len() + 1),
            _ => case.items.len(),
        };
        u64::try_from(self.cases.iter().map(of).sum::<usize>()).unwrap_or(u64::MAX)
    }

    /// Returns the partitions in which the cases write.
    pub fn partitions(namespace: &str) -> impl Iterator<Item = String> {
        (0..PARTITIONS).map(move |number| format!("{namespace}/CONTRACT#{number}"))
    }

    /// Runs all cases that `runs` names. Returns what each group found.
    pub async fn run(
        &self,
        table: &Table,
        namespace: &str,
        mut runs: impl FnMut(&Case) -> bool,
    ) -> BTreeMap<&str, Tried> {
        let cases = self.cases.iter().enumerate();
        let cases = cases.filter(|(_, case)| runs(case));
        let tried = cases.map(|(number, case)| async move {
            let found = self.case(table, namespace, number, case).await;
            (case, found)
        });
        let tried: Vec<_> = tried.collect();
        let mut tried = stream::iter(tried).buffered(self.concurrency);
        let mut groups = BTreeMap::<_, Tried>::new();
        while let Some((case, found)) = tried.next().await {
            let group = groups.entry(case.group.as_str()).or_default();
            match found {
                Ok(held) => group.held += held,
                Err(Unheld::NotAllowed(reason)) => {
                    group.not_allowed.push(format!("{}: {reason}", case.case));
                }
                Err(Unheld::Differs(found)) => group.differences.push(Difference {
                    case: case.case.clone(),
                    found,
                    aws: case.aws.clone(),
                }),
            }
        }
        groups
    }

    /// Runs a case. Returns the number of its requests, or what differs.
    async fn case(
        &self,
        table: &Table,
        namespace: &str,
        number: usize,
        case: &Case,
    ) -> Result<usize, Unheld> {
        let pk = format!("{namespace}/CONTRACT#{}", number % PARTITIONS);
        let key = |variant: usize, part: usize| ItemKey {
            pk: pk.clone(),
            sk: format!("#{number:03}-{variant:02}-{part:03}"),
        };
        let none = Patch::new();
        let holds = case.items.iter().all(|part| part.after.is_some());
        let first = (holds || case.group == REFUSED).then_some(&none);
        let all = first.into_iter().chain(&case.fails);
        let mut count = 0;
        for (variant, other) in all.enumerate() {
            let mut items = vec![];
            for (at, part) in case.items.iter().enumerate() {
                let mut item = self.before(part);
                if at == 0 {
                    change(&mut item, other);
                }
                let key = key(variant, at);
                place(table, &key, &item).await?;
                items.push((key, item));
            }
            let is_held = first.is_some() && variant == 0;
            match (&case.list, &case.read) {
                (Some(list), _) => listed(table, list, &items).await?,
                (None, Some(read)) => tried(table, read, &items).await?,
                _ if case.group == REFUSED => refused(table, case, &items).await?,
                _ => self.written(table, case, items, is_held).await?,
            }
            count += 1;
        }
        Ok(count)
    }

    /// Runs the request, and compares its answer and the items.
    async fn written(
        &self,
        table: &Table,
        case: &Case,
        items: Vec<(ItemKey, Attributes)>,
        holds: bool,
    ) -> Result<(), Unheld> {
        let parts = case.items.iter().zip(&items);
        let mut actions: Vec<_> = parts.map(|(part, (key, _))| action(part, key)).collect();
        let after = case.items.iter().zip(&items).map(|(part, (key, item))| {
            let mut item = item.clone();
            let patch = part.after.as_ref().filter(|_| holds);
            change(&mut item, patch.unwrap_or(&Patch::new()));
            // A write without a change makes an item anyway.
            let is_written = holds && part.changes.is_some() && !part.checks;
            (key.clone(), item, is_written)
        });
        let after: Vec<_> = after.collect();
        let answer = match (actions.len(), actions.pop()) {
            (1, Some(Action::Update(update))) => {
                let answer = match case.answer {
                    None => ReturnValues::AllNew,
                    Some(Answer::None) => ReturnValues::None,
                    Some(Answer::Never) => ReturnValues::Never,
                };
                match table.update(&update, answer).await? {
                    WriteOutcome::Applied(item) => (true, item),
                    WriteOutcome::ConditionFailed(item) => (false, item),
                }
            }
            (_, last) => {
                actions.extend(last);
                let token = random_id();
                match table.transact(&actions, &token).await? {
                    TransactOutcome::Applied if self.repeats => {
                        // The token makes another one of the same text the same one.
                        match table.transact(&actions, &token).await? {
                            TransactOutcome::Applied => (true, None),
                            other => {
                                return Err(format!("repeated with its token: {other:?}").into());
                            }
                        }
                    }
                    TransactOutcome::Applied => (true, None),
                    TransactOutcome::ConditionFailed(outcomes) => match outcomes.into_iter().next()
                    {
                        Some(ActionOutcome::ConditionFailed(item)) => (false, item),
                        _ => return Err("the failed condition is not reported".to_owned().into()),
                    },
                }
            }
        };
        if answer.0 != holds {
            let word = if holds { "failed" } else { "was applied" };
            return Err(format!("the request {word}: {:?}", case.items[0].conditions).into());
        }
        for (key, expected, is_written) in &after {
            let read = table.read_all(std::slice::from_ref(key), Consistency::Strong);
            let read = read.await?;
            compare("the item", read.first(), expected, *is_written)?;
        }
        let (_, expected, is_written) = &after[0];
        let is_merged =
            |item: &Attributes| weirgate_shared::is_merged(item.keys().map(String::as_str));
        let is_returned = match case.answer {
            None => true,
            Some(Answer::None) => !holds,
            Some(Answer::Never) => false,
        };
        match answer.1 {
            None if !is_returned => Ok(()),
            Some(_) if !is_returned => Err("an item is returned".to_owned().into()),
            // Of an item that was merged away, as of none, the store returns nothing.
            None if holds && items.len() == 1 && case.items[0].changes.is_some() => {
                Err("no item is returned".to_owned().into())
            }
            None if holds || expected.is_empty() || is_merged(expected) => Ok(()),
            answer => Ok(compare(
                "the answer",
                answer.as_ref(),
                expected,
                *is_written,
            )?),
        }
    }

    fn before(&self, part: &Part) -> Attributes {
        let on = part.on.as_ref();
        let mut item = on.map_or_else(Attributes::new, |name| self.given[name].clone());
        change(&mut item, &part.but);
        item
    }
}

fn read<'a, T: Deserialize<'a>>(line: &'a str) -> T {
    serde_json::from_str(line)
        .unwrap_or_else(|error| panic!("the cases are part of the program: {error}: {line}"))
}

fn change(item: &mut Attributes, patch: &Patch) {
    for (name, value) in patch {
        match value {
            Some(value) => drop(item.insert(name.clone(), value.clone())),
            None => drop(item.remove(name)),
        }
    }
}

async fn place(table: &Table, key: &ItemKey, item: &Attributes) -> Result<(), StoreError> {
    if item.is_empty() {
        return Ok(());
    }
    let set = |(name, value): (&String, &Value)| {
        AttributeUpdate::Set(Path::of(name.clone()), value.clone())
    };
    let update = Update {
        key: key.clone(),
        conditions: vec![],
        changes: item.iter().map(set).collect(),
    };
    let retry = RetryPolicy::AlsoUnconfirmed;
    table
        .update_with(&update, ReturnValues::None, retry)
        .await
        .map(drop)
}

fn action(part: &Part, key: &ItemKey) -> Action {
    let (key, conditions) = (key.clone(), part.conditions.clone());
    match &part.changes {
        _ if part.checks => Action::Check(key, conditions),
        Some(changes) => Action::Update(Update {
            key,
            conditions,
            changes: changes.clone(),
        }),
        None => Action::Delete(key, conditions),
    }
}

fn compare(
    what: &str,
    found: Option<&Item>,
    expected: &Attributes,
    is_written: bool,
) -> Result<(), String> {
    let attributes = found.into_iter().flat_map(Item::attributes);
    let attributes = attributes.filter(|(name, _)| !matches!(*name, "PK" | "SK"));
    let mut found_all: BTreeMap<_, _> = attributes
        .map(|(name, value)| (name.to_owned(), shown(&value)))
        .collect();
    for (name, value) in expected {
        let (value, here) = (shown_value(value), found_all.remove(name));
        if here.as_ref() != Some(&value) {
            let here = here.unwrap_or_else(|| "nothing".to_owned());
            return Err(format!("{what} has {here} as {name}, expected {value}"));
        }
    }
    match found_all.pop_first() {
        Some((name, value)) => Err(format!("{what} has {value} as {name}, expected nothing")),
        None if found.is_none() && is_written && expected.is_empty() => {
            Err(format!("{what} is missing"))
        }
        None => Ok(()),
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

/// Returns parts in an order that does not depend on the source.
fn sorted(parts: impl Iterator<Item = String>) -> String {
    let mut parts: Vec<_> = parts.collect();
    parts.sort();
    parts.join(", ")
}

fn shown(value: &Attr<'_>) -> String {
    match value {
        Attr::N(number) => (*number).to_owned(),
        Attr::S(text) => format!("{text:?}"),
        Attr::Bool(is) => is.to_string(),
        Attr::M(map) => {
            let entry = |(name, value): &(&str, Attr<'_>)| format!("{name}: {}", shown(value));
            format!("{{{}}}", sorted(map.iter().map(entry)))
        }
        Attr::Numbers(numbers) => format!("<{}>", sorted(numbers.iter().map(ToString::to_string))),
        Attr::Other => "another type".to_owned(),
    }
}

fn shown_value(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        Value::Count(count) => count.to_string(),
        Value::Tokens(tokens) => tokens.to_string(),
        Value::Text(text) => format!("{text:?}"),
        Value::Bool(is) => is.to_string(),
        Value::Map(map) => {
            let entry =
                |(name, value): (&String, &Value)| format!("{name}: {}", shown_value(value));
            format!("{{{}}}", sorted(map.iter().map(entry)))
        }
        Value::Numbers(numbers) => format!("<{}>", sorted(numbers.iter().map(ToString::to_string))),
    }
}

/// Requires that the request is invalid.
async fn refused(
    table: &Table,
    case: &Case,
    items: &[(ItemKey, Attributes)],
) -> Result<(), String> {
    let parts = case.items.iter().zip(items);
    let actions: Vec<_> = parts.map(|(part, (key, _))| action(part, key)).collect();
    let answer = match &actions[..] {
        [Action::Update(update)] => {
            let answer = table.update(update, ReturnValues::None).await;
            answer.map(|_| ())
        }
        actions => table.transact(actions, &random_id()).await.map(|_| ()),
    };
    match answer {
        Err(error) if error.kind == ErrorKind::Invalid => Ok(()),
        Err(error) => Err(format!("it is refused for another reason: {error}")),
        Ok(()) => Err("it is accepted".to_owned()),
    }
}

/// Requires that the list has these pages.
async fn listed(table: &Table, list: &List, items: &[(ItemKey, Attributes)]) -> Result<(), Unheld> {
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
            return Err("a list has a prefix, or a first and a last key"
                .to_owned()
                .into());
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
    until_held(is_late, async || {
        has_pages(&pages(table, query, items).await?, &list.pages)
    })
    .await
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
    let mut left = if is_late { READS } else { 1 };
    loop {
        let tried = read().await;
        left -= 1;
        if left == 0 || !matches!(tried, Err(Unheld::Differs(_))) {
            return tried;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// Requires that a read returns the items.
async fn tried(table: &Table, read: &Read, items: &[(ItemKey, Attributes)]) -> Result<(), Unheld> {
    match read {
        Read::Warm => Ok(table.warm().await?),
        Read::Keys {
            missing,
            is_eventual,
        } => {
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
            until_held(true, async || scanned(table, *limit, items).await).await
        }
        Read::Due {
            partition,
            until_ms,
            limit,
            newest_first,
            pages,
        } => {
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

/// Requires that a scan begins, and that one after the first item has the others.
async fn scanned(table: &Table, limit: i32, items: &[(ItemKey, Attributes)]) -> Result<(), Unheld> {
    let most = usize::try_from(limit).unwrap_or_default();
    let (first, rest) = (&items[0].0, &items[1..]);
    let namespace = first.pk.split('/').next().unwrap_or_default();
    let prefix = format!("{namespace}/");
    let (mut found, mut after, mut pages) = (vec![], None, 0);
    while found.len() < rest.len() {
        let page = table.scan(&prefix, limit, after.as_ref()).await?;
        let is_foreign = |item: &Item| !item.pk().starts_with(&prefix);
        if page.scanned > most
            || page.items.len() > page.scanned
            || page.items.iter().any(is_foreign)
        {
            return Err(format!("a page of {most} items is {page:?}").into());
        }
        // The table has more than a page.
        let Some(next) = page.next else {
            return Err(format!("the scan ends after {pages} pages").into());
        };
        after = Some(next);
        if pages == 0 {
            let key = [(attr::PK, &first.pk), (attr::SK, &first.sk)];
            let key = key.map(|(name, key)| (name.to_owned(), key.clone()));
            after = Some(Position::from(key));
        } else {
            found.extend(page.items);
        }
        pages += 1;
        if pages > items.len() {
            break;
        }
    }
    found.truncate(rest.len());
    same(&found, rest)
}
