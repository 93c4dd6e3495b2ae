//! Planned writes as arguments of `apply.lua`: a list of texts in `MessagePack`.

use weirgate_shared::ItemKey;
use weirgate_shared::write::{Action, AttributeUpdate, Condition, Path, Update, Value};

use super::field::{fields, push_field, push_scalar};

/// Returns the argument for one action.
pub(super) fn pack(action: &Action) -> Vec<u8> {
    match action {
        Action::Update(update) => pack_update(update),
        Action::Delete(key, conditions) => pack_parts("delete", key, conditions, &[]),
        Action::Check(key, conditions) => pack_parts("check", key, conditions, &[]),
    }
}

pub(super) fn pack_update(update: &Update) -> Vec<u8> {
    pack_parts("update", &update.key, &update.conditions, &update.changes)
}

fn pack_parts(
    kind: &str,
    key: &ItemKey,
    conditions: &[Condition],
    changes: &[AttributeUpdate],
) -> Vec<u8> {
    let mut list = List::new();
    list.text(kind).text(&key.pk).text(&key.sk);
    for condition in conditions {
        list.condition(condition);
    }
    list.text("then");
    for change in changes {
        list.change(change);
    }
    list.packed()
}

/// A list that is being written. It is flat, because a table of Lua for each condition costs more than the script
/// otherwise does with it.
struct List {
    bytes: Vec<u8>,
    length: u32,
    /// Room for one text.
    text: String,
}

/// Marks a list, before its length in four bytes.
const LIST: u8 = 0xdd;

impl List {
    fn new() -> Self {
        Self { bytes: vec![LIST, 0, 0, 0, 0], length: 0, text: String::new() }
    }

    fn packed(mut self) -> Vec<u8> {
        self.bytes[1..5].copy_from_slice(&self.length.to_be_bytes());
        self.bytes
    }

    fn text(&mut self, text: &str) -> &mut Self {
        match u8::try_from(text.len()) {
            Ok(length) if length < 32 => self.bytes.push(0xa0 | length),
            _ => {
                let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
                self.bytes.push(0xdb);
                self.bytes.extend(length.to_be_bytes());
            }
        }
        self.bytes.extend(text.as_bytes());
        self.length += 1;
        self
    }

    /// Writes what is put into a text.
    fn put(&mut self, put: impl FnOnce(&mut String)) -> &mut Self {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        put(&mut text);
        self.text(&text);
        self.text = text;
        self
    }

    fn path(&mut self, path: &[impl AsRef<str>]) -> &mut Self {
        self.put(|text| push_field(text, path))
    }

    /// Writes a condition or change with a value: under the second name if that is a map, whose fields follow.
    fn part(&mut self, [name, of_map]: [&str; 2], path: &Path, value: &Value) -> &mut Self {
        if !matches!(value, Value::Map(_)) {
            self.text(name).path(&path.0);
            return self.put(|text| push_scalar(text, value));
        }
        let fields = fields(value);
        self.text(of_map).path(&path.0);
        self.text(&fields.len().to_string());
        for (below, text) in &fields {
            self.text(below).text(text);
        }
        self
    }

    fn condition(&mut self, condition: &Condition) -> &mut Self {
        let (names, path, value) = match condition {
            Condition::Absent(path) => return self.text("absent").path(&path.0).text(""),
            Condition::Present(path) => return self.text("present").path(&path.0).text(""),
            Condition::AbsentOr(path, condition) => {
                let list = self.text("absent_or").path(&path.0).text("");
                return list.condition(condition);
            }
            Condition::Lacks(path, number) => (["lacks"; 2], path, &Value::Int(*number)),
            Condition::Equals(path, value) => (["equals", "equals_map"], path, value),
            Condition::Differs(path, value) => (["differs", "differs_map"], path, value),
            Condition::AtLeast(path, value) => (["at_least"; 2], path, value),
            Condition::AtMost(path, value) => (["at_most"; 2], path, value),
        };
        self.part(names, path, value)
    }

    fn change(&mut self, change: &AttributeUpdate) -> &mut Self {
        if let [above @ .., _] = &change.path().0[..]
            && !above.is_empty()
        {
            self.text("within").path(above).text("");
        }
        let (names, path, value) = match change {
            AttributeUpdate::Remove(path) => return self.text("remove").path(&path.0).text(""),
            AttributeUpdate::Copy(path, from) => {
                return self.text("copy").path(&path.0).path(&from.0);
            }
            AttributeUpdate::Next(path, from, first) => {
                let list = self.text("next").path(&path.0).path(&from.0);
                return list.text(&first.to_string());
            }
            AttributeUpdate::Set(path, value) => (["set", "set_map"], path, value),
            AttributeUpdate::SetIfAbsent(path, value) => {
                (["set_if_absent", "set_map_if_absent"], path, value)
            }
            AttributeUpdate::Add(path, value @ Value::Numbers(_)) => (["add_to"; 2], path, value),
            AttributeUpdate::Add(path, value) => (["add"; 2], path, value),
            AttributeUpdate::DeleteFrom(path, value) => (["delete_from"; 2], path, value),
        };
        self.part(names, path, value)
    }
}
