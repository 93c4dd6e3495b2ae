//! The store's contract as data: items, a write, a list or another read, and what DynamoDB answers.
//!
//! `planned.jsonl` has every write that is planned; `edges.jsonl` edge values, transactions, lists,
//! and what DynamoDB refuses; `reads.jsonl` every other read. Each line is a case, or an item that
//! cases begin with. `shapes.txt` has the shapes of all requests that callers and functions send, and
//! a test requires that the cases have them too.

use std::collections::BTreeMap;

use futures_util::stream::{self, StreamExt};
use serde::Deserialize;
use weirgate_shared::ItemKey;
use weirgate_shared::write::{Action, AttributeUpdate, Condition, Path, Update, Value};
use weirgate_store::{
    ActionOutcome, Consistency, ErrorKind, RetryPolicy, ReturnValues, StoreError, Table,
    TransactOutcome, WriteOutcome, random_id,
};

use super::answers::{Attributes, Unheld, compare};
use super::reads::{self, List, Read};

const FILES: [&str; 3] = [
    include_str!("../../../../../store/contract/planned.jsonl"),
    include_str!("../../../../../store/contract/edges.jsonl"),
    include_str!("../../../../../store/contract/reads.jsonl"),
];
/// Partitions that the cases are spread over.
const PARTITIONS: usize = 16;
/// Group of the cases that DynamoDB refuses.
pub const REFUSED: &str = "refused";

/// Attributes by name; `None` removes one.
type Patch = BTreeMap<String, Option<Value>>;

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
        Self { given, cases, repeats: true, concurrency: 16 }
    }

    /// Returns the number of requests, each at most a placement, a write and a read.
    pub fn requests(&self) -> usize {
        let of = |case: &Case| case.items.len() * (1 + case.fails.len());
        self.cases.iter().map(of).sum()
    }

    /// Returns the read units of the cases that read, at most.
    pub fn read_units(&self) -> u64 {
        let of = |case: &Case| {
            let items = case.items.len();
            case.read.as_ref().map_or(items, |read| read.units(items))
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
                (Some(list), _) => reads::listed(table, list, &items).await?,
                (None, Some(read)) => reads::tried(table, read, &items).await?,
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
            answer => Ok(compare("the answer", answer.as_ref(), expected, *is_written)?),
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
    let update =
        Update { key: key.clone(), conditions: vec![], changes: item.iter().map(set).collect() };
    let retry = RetryPolicy::AlsoUnconfirmed;
    table.update_with(&update, ReturnValues::None, retry).await.map(drop)
}

fn action(part: &Part, key: &ItemKey) -> Action {
    let (key, conditions) = (key.clone(), part.conditions.clone());
    match &part.changes {
        _ if part.checks => Action::Check(key, conditions),
        Some(changes) => Action::Update(Update { key, conditions, changes: changes.clone() }),
        None => Action::Delete(key, conditions),
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
