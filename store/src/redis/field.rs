//! Attributes as fields of a hash, and back: see `apply.lua`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write;

use aws_sdk_dynamodb::types::AttributeValue;
use weirgate_shared::write::Value;

use crate::Item;

/// Separator of the names of a path.
const SEPARATOR: char = '\x1f';
/// Attributes of most shards at most: room for more is made.
const ATTRIBUTES: usize = 48;
/// Separates fields and values of an answer; no text has it.
const END: u8 = 0xff;
/// Begins fields that are no attributes, and escapes both characters in names.
const ESCAPE: char = '\x1e';

/// Adds the field of a path to a text.
pub(super) fn push_field(text: &mut String, path: &[impl AsRef<str>]) {
    for (at, name) in path.iter().enumerate() {
        if at > 0 {
            text.push(SEPARATOR);
        }
        push_name(text, name.as_ref());
    }
}

fn push_name(field: &mut String, name: &str) {
    if !name.contains([ESCAPE, SEPARATOR]) {
        field.push_str(name);
        return;
    }
    for c in name.chars() {
        match c {
            ESCAPE => field.extend([ESCAPE, '0']),
            SEPARATOR => field.extend([ESCAPE, '1']),
            c => field.push(c),
        }
    }
}

fn name(escaped: &str) -> String {
    if !escaped.contains(ESCAPE) {
        return escaped.to_owned();
    }
    let unescaped = escaped.replace("\x1e1", "\x1f");
    unescaped.replace("\x1e0", "\x1e")
}

/// Adds a value to a text as it is in its field; of a map, what marks one.
pub(super) fn push_scalar(text: &mut String, value: &Value) {
    // Writing to a text does not fail.
    let _ = match value {
        Value::Int(number) => write!(text, "{number}"),
        Value::Count(count) => write!(text, "{count}"),
        Value::Tokens(amount) => write!(text, "{amount}"),
        Value::Text(value) => write!(text, "\"{value}"),
        Value::Bool(is) => text.write_char(if *is { 't' } else { 'f' }),
        Value::Numbers(numbers) => {
            let separators = std::iter::once('#').chain(std::iter::repeat(','));
            let mut numbers = numbers.iter().zip(separators);
            numbers.try_for_each(|(number, separator)| write!(text, "{separator}{number}"))
        }
        Value::Map(_) => text.write_char('{'),
    };
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
    let mut text = String::new();
    push_scalar(&mut text, value);
    all.push((field, text));
}

/// Returns the item that a hash holds; `None` if it does not exist, or holds anything else.
pub(super) fn item<T: AsRef<str>>(fields: impl IntoIterator<Item = (T, T)>) -> Option<Item> {
    let mut item = HashMap::with_capacity(ATTRIBUTES);
    for (field, text) in fields {
        let (field, text) = (field.as_ref(), text.as_ref());
        let is_attribute =
            !field.starts_with(ESCAPE) || field.starts_with("\x1e0") || field.starts_with("\x1e1");
        if is_attribute {
            place(&mut item, field, value(text)?)?;
        }
    }
    (!item.is_empty()).then_some(Item(item))
}

/// Returns the item of an answer of `apply.lua`.
pub(super) fn answered_item(answer: &[u8]) -> Option<Item> {
    item(texts(answer))
}

/// Returns the item of an answer of `apply.lua` after a write that changed fields.
pub(super) fn changed_item(before: &[u8], changed: &[u8]) -> Option<Item> {
    let mut changed: HashMap<_, _> = texts(changed).collect();
    let fields = texts(before).map(|(field, text)| (field, changed.remove(field).unwrap_or(text)));
    let mut fields: Vec<_> = fields.collect();
    fields.extend(changed);
    // Those without a value were removed.
    item(fields.into_iter().filter(|(_, text)| !text.is_empty()))
}

/// Returns fields and their values, without the ids of writes, which are no UTF-8.
fn texts(answer: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    let mut parts = answer.split(|byte| *byte == END);
    std::iter::from_fn(move || Some((parts.next()?, parts.next()?)))
        .filter_map(|(field, text)| Some((str::from_utf8(field).ok()?, str::from_utf8(text).ok()?)))
}

/// Returns the value of a field.
pub(super) fn value(text: &str) -> Option<AttributeValue> {
    let of = || text[1..].to_owned();
    Some(match text.as_bytes().first()? {
        b'"' => AttributeValue::S(of()),
        b't' => AttributeValue::Bool(true),
        b'f' => AttributeValue::Bool(false),
        b'{' => AttributeValue::M(HashMap::new()),
        b'#' => AttributeValue::Ns(of().split(',').map(str::to_owned).collect()),
        _ => AttributeValue::N(text.to_owned()),
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
            let mut path = String::new();
            push_field(&mut path, &[&name]);
            let fields = fields(&value).into_iter().map(|(below, text)| (path.clone() + &below, text));
            let mut found = item(fields).expect("an item").0;
            prop_assert_eq!(found.remove(&name), Some(attribute::write(&value)));
            prop_assert!(found.is_empty());
        }
    }
}
