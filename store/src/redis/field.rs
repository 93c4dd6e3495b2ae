//! Attributes as fields of a hash, and back: see `apply.lua`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use aws_sdk_dynamodb::types::AttributeValue;
use weirgate_shared::write::{Path, Value};

use crate::Item;

/// Separator of the names of a path.
const SEPARATOR: char = '\x1f';
/// Begins fields that are no attributes, and escapes both characters in names.
const ESCAPE: char = '\x1e';

/// Returns the field of a path.
pub(super) fn field(path: &Path) -> String {
    let mut field = String::new();
    for (at, name) in path.0.iter().enumerate() {
        if at > 0 {
            field.push(SEPARATOR);
        }
        push_name(&mut field, name);
    }
    field
}

fn push_name(field: &mut String, name: &str) {
    for c in name.chars() {
        match c {
            ESCAPE => field.extend([ESCAPE, '0']),
            SEPARATOR => field.extend([ESCAPE, '1']),
            c => field.push(c),
        }
    }
}

fn name(escaped: &str) -> String {
    let unescaped = escaped.replace("\x1e1", "\x1f");
    unescaped.replace("\x1e0", "\x1e")
}

/// Returns a value that is no map, as it is in its field; `None` for a map.
pub(super) fn scalar(value: &Value) -> Option<String> {
    Some(match value {
        Value::Int(number) => number.to_string(),
        Value::Count(count) => count.to_string(),
        Value::Tokens(amount) => amount.to_string(),
        Value::Text(text) => format!("\"{text}"),
        Value::Bool(is) => (if *is { "t" } else { "f" }).to_owned(),
        Value::Numbers(numbers) => {
            let numbers: Vec<_> = numbers.iter().map(ToString::to_string).collect();
            format!("#{}", numbers.join(","))
        }
        Value::Map(_) => return None,
    })
}

/// Returns the fields of a value, each after the field of the value itself.
pub(super) fn fields(value: &Value) -> Vec<(String, String)> {
    let mut all = vec![];
    push_fields(String::new(), value, &mut all);
    all
}

fn push_fields(field: String, value: &Value, all: &mut Vec<(String, String)>) {
    if let Value::Map(map) = value {
        for (name, value) in map {
            let mut below = field.clone();
            below.push(SEPARATOR);
            push_name(&mut below, name);
            push_fields(below, value, all);
        }
    }
    let text = scalar(value).unwrap_or_else(|| "{".to_owned());
    all.push((field, text));
}

/// Returns the item that a hash holds; `None` if it does not exist, or holds anything else.
pub(super) fn item(fields: Vec<(String, String)>) -> Option<Item> {
    let mut item = HashMap::new();
    for (field, text) in fields {
        if !field.starts_with(ESCAPE) || field.starts_with("\x1e0") || field.starts_with("\x1e1") {
            place(&mut item, &field, value(text)?)?;
        }
    }
    (!item.is_empty()).then_some(Item(item))
}

/// Returns the value of a field.
pub(super) fn value(mut text: String) -> Option<AttributeValue> {
    Some(match text.chars().next()? {
        '"' => AttributeValue::S(text.split_off(1)),
        't' => AttributeValue::Bool(true),
        'f' => AttributeValue::Bool(false),
        '{' => AttributeValue::M(HashMap::new()),
        '#' => {
            let numbers = text.split_off(1);
            AttributeValue::Ns(numbers.split(',').map(str::to_owned).collect())
        }
        _ => AttributeValue::N(text),
    })
}

/// Puts a value into the maps of its field, whichever of both comes first.
fn place(
    map: &mut HashMap<String, AttributeValue>,
    field: &str,
    value: AttributeValue,
) -> Option<()> {
    let Some((first, rest)) = field.split_once(SEPARATOR) else {
        match (map.entry(name(field)), &value) {
            (Entry::Occupied(_), AttributeValue::M(_)) => {}
            (entry, _) => drop(entry.insert_entry(value)),
        }
        return Some(());
    };
    let inner = map.entry(name(first));
    match inner.or_insert_with(|| AttributeValue::M(HashMap::new())) {
        AttributeValue::M(inner) => place(inner, rest, value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::attribute;

    fn value_of() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(Value::Int),
            any::<i128>().prop_map(Value::Count),
            any::<String>().prop_map(Value::Text),
            any::<bool>().prop_map(Value::Bool),
            prop::collection::btree_set(any::<i64>(), 1..3).prop_map(Value::Numbers),
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            let names = "[a.\\x1e\\x1f01#]{0,3}";
            prop::collection::btree_map(names, inner, 0..4).prop_map(Value::Map)
        })
    }

    proptest! {
        #[test]
        fn every_value_reads_back_from_its_fields(name in "[a-c.\\x1e\\x1f01]{1,3}", value in value_of()) {
            let path = field(&Path::of(name.clone()));
            let fields = fields(&value).into_iter().map(|(below, text)| (path.clone() + &below, text));
            let mut found = item(fields.collect()).expect("an item").0;
            prop_assert_eq!(found.remove(&name), Some(attribute::write(&value)));
            prop_assert!(found.is_empty());
        }
    }
}
