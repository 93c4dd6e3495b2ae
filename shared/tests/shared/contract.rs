//! Every planned write as a case of the store's contract: an item on which it holds, the item after
//! it, and items on which one of its conditions fails.
//!
//! `WRITTEN=1 cargo test --workspace --test shared contract` writes `store/contract/planned.jsonl`
//! again. Review each changed line: a missing condition is a missing guard.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path as File;

use serde::Serialize;
use weirgate_shared::write::{Action, AttributeUpdate, Condition, Path, Update, Value};
use weirgate_shared::{ItemKey, MilliTotal};

use crate::model::{Held, Item};
use crate::written::{kind, parts, written};

/// Attributes by name; `None` removes one.
type Patch = BTreeMap<String, Option<Value>>;

/// An item that cases begin with.
#[derive(Serialize)]
struct Given<'a> {
    item: &'a str,
    attributes: BTreeMap<String, Value>,
}

/// A write of one item.
#[derive(Serialize)]
struct Case<'a> {
    group: &'static str,
    case: String,
    items: [Part<'a>; 1],
    /// Items, as changes of the first one, on which the write must fail.
    fails: Vec<Patch>,
}

#[derive(Serialize)]
struct Part<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    on: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    but: Patch,
    #[serde(rename = "if")]
    conditions: &'a [Condition],
    #[serde(rename = "do")]
    changes: Option<&'a [AttributeUpdate]>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    checks: bool,
    /// `None` if it never holds.
    after: Option<Patch>,
}

fn value(held: &Held) -> Value {
    match held {
        Held::Number(thousandths, _) if thousandths % 1000 == 0 => Value::Count(thousandths / 1000),
        Held::Number(thousandths, _) => Value::Tokens(MilliTotal(*thousandths)),
        Held::Text(text) => Value::Text(text.clone()),
        Held::Bool(is) => Value::Bool(*is),
        Held::Map(map) => {
            let entries = map.iter();
            Value::Map(entries.map(|(name, held)| (name.clone(), value(held))).collect())
        }
        Held::Numbers(numbers) => {
            Value::Numbers(numbers.iter().map(|number| number.parse().unwrap()).collect())
        }
    }
}

/// Returns what makes `after` of `before`; the keys are the store's.
fn patch(before: &Item, after: &Item) -> Patch {
    let names: BTreeSet<_> = before.0.keys().chain(after.0.keys()).collect();
    let changed = names.into_iter().filter(|name| {
        before.0.get(*name) != after.0.get(*name) && !matches!(name.as_str(), "PK" | "SK")
    });
    changed.map(|name| (name.clone(), after.0.get(name).map(value))).collect()
}

/// Sets or removes what is at a path, with the maps above it.
fn put(item: &mut Item, path: &Path, held: Option<Held>) {
    let (last, above) = path.0.split_last().unwrap();
    let map = above.iter().fold(&mut item.0, |map, name| {
        let inner = map.entry(name.to_string()).or_insert_with(|| Held::Map(BTreeMap::new()));
        if !matches!(inner, Held::Map(_)) {
            *inner = Held::Map(BTreeMap::new());
        }
        match inner {
            Held::Map(inner) => inner,
            _ => unreachable!("it is one now"),
        }
    });
    match held {
        Some(held) => drop(map.insert(last.to_string(), held)),
        None => drop(map.remove(last.as_ref())),
    }
}

fn number(value: &Value, more: i64) -> Held {
    match value {
        Value::Int(number) => Held::from(&Value::Int(number.saturating_add(more))),
        Value::Count(count) => Held::from(&Value::Count(count + i128::from(more))),
        other => Held::from(other),
    }
}

/// Changes an item so that a condition just holds.
fn satisfy(item: &mut Item, condition: &Condition) {
    if item.holds(condition) {
        return;
    }
    match condition {
        Condition::Absent(path) | Condition::AbsentOr(path, _) => put(item, path, None),
        Condition::Present(path) if path.0[0] == "h" => {
            put(item, path, Some(Held::Map(BTreeMap::new())));
        }
        Condition::Present(path) => put(item, path, Some(Held::from(&Value::Int(1)))),
        Condition::Equals(path, value)
        | Condition::AtLeast(path, value)
        | Condition::AtMost(path, value) => put(item, path, Some(value.into())),
        Condition::Differs(path, _) => put(item, path, Some(Held::from(&Value::text("other")))),
        Condition::Lacks(path, number) => {
            let others = Value::Numbers([number ^ 1].into());
            put(item, path, Some(Held::from(&others)));
        }
    }
}

/// Changes an item so that a condition just does not hold.
fn violate(item: &mut Item, condition: &Condition) {
    match condition {
        Condition::Absent(path) => put(item, path, Some(Held::from(&Value::Int(0)))),
        Condition::Present(path) => put(item, path, None),
        Condition::Equals(path, Value::Text(text)) => {
            put(item, path, Some(Held::from(&Value::Text(format!("{text}x")))));
        }
        Condition::Equals(path, Value::Map(map)) => {
            let mut other = map.clone();
            other.insert("other".to_owned(), Value::Map(BTreeMap::new()));
            put(item, path, Some(Held::from(&Value::Map(other))));
        }
        Condition::Equals(path, value) | Condition::AtMost(path, value) => {
            put(item, path, Some(number(value, 1)));
        }
        Condition::AtLeast(path, value) => put(item, path, Some(number(value, -1))),
        Condition::Differs(path, value) => put(item, path, Some(value.into())),
        Condition::Lacks(path, number) => {
            let with = Value::Numbers([*number, number ^ 1].into());
            put(item, path, Some(Held::from(&with)));
        }
        Condition::AbsentOr(_, condition) => violate(item, condition),
    }
}

/// Changes an item so that the changes are valid on it, as they are on items of Weirgate.
fn prepare(item: &mut Item, changes: &[AttributeUpdate]) {
    for change in changes {
        let path = change.path();
        if path.0.len() > 1 && item.get(&Path(path.0[..1].to_vec())).is_none() {
            put(item, &Path(path.0[..1].to_vec()), Some(Held::Map(BTreeMap::new())));
        }
        if let AttributeUpdate::Copy(_, from) = change
            && item.get(from).is_none()
        {
            put(item, from, Some(Held::from(&Value::Int(7))));
        }
    }
}

/// Returns the item after a write, if its conditions hold.
fn applied(item: &Item, action: &Action) -> Option<Item> {
    let mut after = item.clone();
    match action {
        Action::Update(update) => {
            // The key is the store's.
            after.0.remove("PK");
            after.0.remove("SK");
            let key = ItemKey { pk: "p".to_owned(), sk: "s".to_owned() };
            let update = Update { key, ..update.clone() };
            after.apply(&update).then_some(after)
        }
        Action::Delete(_, conditions) => {
            let holds = conditions.iter().all(|condition| item.holds(condition));
            holds.then(Item::default)
        }
        Action::Check(_, conditions) => {
            let holds = conditions.iter().all(|condition| item.holds(condition));
            holds.then_some(after)
        }
    }
}

#[test]
fn the_contract_has_every_write() {
    let (mut page, mut seen) = (String::new(), BTreeSet::new());
    for (name, view, actions) in written() {
        let item = Item::of_bucket(&view);
        let attributes = patch(&Item::default(), &item).into_iter();
        let given = Given {
            item: name,
            attributes: attributes.filter_map(|(name, value)| Some((name, value?))).collect(),
        };
        page += &(serde_json::to_string(&given).unwrap() + "\n");
        for (number, action) in (1..).zip(actions) {
            let (conditions, changes, checks) = parts(&action);
            let is_new = conditions.iter().any(|known| *known == Condition::Absent(Path::of("rf")));
            let base = if is_new { Item::default() } else { item.clone() };
            let mut before = base.clone();
            prepare(&mut before, changes.unwrap_or_default());
            for condition in conditions.iter().chain(conditions) {
                satisfy(&mut before, condition);
            }
            // Some conditions contradict each other, as of a take of more than the capacity.
            let after = applied(&before, &action);
            let mut fails = vec![];
            if after.is_none() {
                fails.push(Patch::new());
            }
            for (left, condition) in (0..conditions.len()).rev().zip(conditions) {
                let mut other = before.clone();
                violate(&mut other, condition);
                if applied(&other, &action).is_none()
                    && (seen.insert(kind(condition)) || fails.is_empty() && left == 0)
                {
                    fails.push(patch(&before, &other));
                }
            }
            let on = (!is_new).then_some(name);
            let part = Part {
                on,
                but: patch(&base, &before),
                conditions,
                changes,
                checks,
                after: after.map(|after| patch(&before, &after)),
            };
            let case =
                Case { group: "writes", case: format!("{name} {number}"), items: [part], fails };
            page += &(serde_json::to_string(&case).unwrap() + "\n");
        }
    }
    let file = File::new(env!("CARGO_MANIFEST_DIR")).join("../store/contract/planned.jsonl");
    if std::env::var_os("WRITTEN").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let known = std::fs::read_to_string(&file).unwrap();
    let is_current = page == known;
    assert!(is_current, "{} is not current: run this with WRITTEN=1", file.display());
}
