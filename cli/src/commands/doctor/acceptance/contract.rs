//! The store's contract as data: items, a write or a list, and what DynamoDB answers.
//!
//! `planned.jsonl` has every write that is planned; `edges.jsonl` edge values, transactions, lists,
//! and what DynamoDB refuses. Each line is a case, or an item that cases begin with.

use std::collections::BTreeMap;

use futures_util::stream::{self, StreamExt};
use serde::Deserialize;
use weirgate_shared::write::{Action, AttributeUpdate, Condition, Path, Update, Value};
use weirgate_shared::{Attr, ItemKey};
use weirgate_store::{
    ActionOutcome, Consistency, ErrorKind, Item, Query, RetryPolicy, ReturnValues, SortKeys, Table,
    TransactOutcome, WriteOutcome, indexes, random_id,
};

const FILES: [&str; 2] = [
    include_str!("../../../../../store/contract/planned.jsonl"),
    include_str!("../../../../../store/contract/edges.jsonl"),
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
    #[serde(default)]
    list: Option<List>,
    /// AWS's sentence, for what implementations differ in.
    #[serde(default)]
    aws: String,
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
    limit: Option<i32>,
    /// Number of each item, by page.
    pages: Vec<Vec<usize>>,
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
        let [part] = &self.items[..] else {
            return self.list.is_none();
        };
        part.checks || part.changes.is_none()
    }
}

/// What a group of cases found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// Requests that were answered as expected.
    pub held: usize,
    /// Cases with another answer.
    pub differences: Vec<Difference>,
}

/// An answer that is not the expected one.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    pub case: String,
    pub found: String,
    /// AWS's sentence; empty if none says more than the case.
    pub aws: String,
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
                Err(found) => group.differences.push(Difference {
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
    ) -> Result<usize, String> {
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
            match (&case.list, case.group == REFUSED) {
                (Some(list), _) => listed(table, list, &items).await?,
                (None, true) => refused(table, case, &items).await?,
                (None, false) => self.written(table, case, items, is_held).await?,
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
    ) -> Result<(), String> {
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
                let answer = table.update(&update, ReturnValues::AllNew).await;
                match answer.map_err(|error| error.to_string())? {
                    WriteOutcome::Applied(item) => (true, item),
                    WriteOutcome::ConditionFailed(item) => (false, item),
                }
            }
            (_, last) => {
                actions.extend(last);
                let token = random_id();
                let answer = table.transact(&actions, &token).await;
                match answer.map_err(|error| error.to_string())? {
                    TransactOutcome::Applied if self.repeats => {
                        // The token makes another one of the same text the same one.
                        let again = table.transact(&actions, &token).await;
                        match again.map_err(|error| error.to_string())? {
                            TransactOutcome::Applied => (true, None),
                            other => return Err(format!("repeated with its token: {other:?}")),
                        }
                    }
                    TransactOutcome::Applied => (true, None),
                    TransactOutcome::ConditionFailed(outcomes) => match outcomes.into_iter().next()
                    {
                        Some(ActionOutcome::ConditionFailed(item)) => (false, item),
                        _ => return Err("the failed condition is not reported".to_owned()),
                    },
                }
            }
        };
        if answer.0 != holds {
            let word = if holds { "failed" } else { "was applied" };
            return Err(format!(
                "the request {word}: {:?}",
                case.items[0].conditions
            ));
        }
        for (key, expected, is_written) in &after {
            let read = table.read_all(std::slice::from_ref(key), Consistency::Strong);
            let read = read.await.map_err(|error| error.to_string())?;
            compare("the item", read.first(), expected, *is_written)?;
        }
        let (_, expected, is_written) = &after[0];
        let is_merged =
            |item: &Attributes| weirgate_shared::is_merged(item.keys().map(String::as_str));
        match answer.1 {
            // Of an item that was merged away, as of none, the store returns nothing.
            None if holds && items.len() == 1 && case.items[0].changes.is_some() => {
                Err("no item is returned".to_owned())
            }
            None if holds || expected.is_empty() || is_merged(expected) => Ok(()),
            answer => compare("the answer", answer.as_ref(), expected, *is_written),
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

async fn place(table: &Table, key: &ItemKey, item: &Attributes) -> Result<(), String> {
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
    let placed = table.update_with(&update, ReturnValues::None, retry).await;
    placed.map(drop).map_err(|error| error.to_string())
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

/// Returns the numbers of the items of each page. Where the last page was just full, implementations
/// differ in whether an empty one follows, so none counts.
async fn pages(
    table: &Table,
    query: Query<'_>,
    items: &[(ItemKey, Attributes)],
) -> Result<Vec<Vec<usize>>, String> {
    let number = |item: &Item| {
        let key = item.key();
        items
            .iter()
            .position(|(known, _)| Some(known) == key.as_ref())
    };
    let (mut found, mut after) = (vec![], None);
    loop {
        let page = table.query(query, after.as_ref()).await;
        let page = page.map_err(|error| error.to_string())?;
        let numbers: Vec<_> = page.items.iter().filter_map(number).collect();
        if !numbers.is_empty() {
            found.push(numbers);
        }
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
async fn listed(table: &Table, list: &List, items: &[(ItemKey, Attributes)]) -> Result<(), String> {
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
        _ => return Err("a list has a prefix, or a first and a last key".to_owned()),
    };
    let query = match index {
        Some(index) => Query::of_index(index, &partition, keys),
        None => Query::new(&partition, keys),
    };
    let query = Query {
        is_descending: list.is_descending,
        limit: list.limit,
        ..query
    };
    let mut found = vec![];
    for _ in 0..READS {
        found = pages(table, query, items).await?;
        if found == list.pages {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    Err(format!(
        "the pages are {found:?}, expected {:?}",
        list.pages
    ))
}
