//! Planned writes as arguments of `apply.lua`: arrays and texts in `MessagePack`.

use weirgate_shared::ItemKey;
use weirgate_shared::write::{Action, AttributeUpdate, Condition, Path, Update, Value};

use super::field::{field, fields, scalar};

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
    let mut packed = Packed(vec![]);
    packed.array(5).text(kind).text(&key.pk).text(&key.sk);
    packed.array(conditions.len());
    for condition in conditions {
        packed.condition(condition);
    }
    packed.array(changes.len());
    for change in changes {
        packed.change(change);
    }
    packed.0
}

struct Packed(Vec<u8>);

impl Packed {
    fn head(&mut self, short: u8, shorter_than: usize, long: u8, length: usize) -> &mut Self {
        match u8::try_from(length) {
            Ok(length) if usize::from(length) < shorter_than => self.0.push(short | length),
            _ => {
                self.0.push(long);
                let length = u32::try_from(length).unwrap_or(u32::MAX);
                self.0.extend(length.to_be_bytes());
            }
        }
        self
    }

    fn array(&mut self, length: usize) -> &mut Self {
        self.head(0x90, 16, 0xdd, length)
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.head(0xa0, 32, 0xdb, text.len());
        self.0.extend(text.as_bytes());
        self
    }

    fn path(&mut self, path: &Path) -> &mut Self {
        self.text(&field(path))
    }

    fn value(&mut self, value: &Value) -> &mut Self {
        if let Some(text) = scalar(value) {
            return self.text(&text);
        }
        let fields = fields(value);
        self.array(fields.len() * 2);
        for (below, text) in &fields {
            self.text(below).text(text);
        }
        self
    }

    fn condition(&mut self, condition: &Condition) -> &mut Self {
        let (name, path, value) = match condition {
            Condition::Absent(path) => return self.array(2).text("absent").path(path),
            Condition::Present(path) => return self.array(2).text("present").path(path),
            Condition::AbsentOr(path, condition) => {
                let packed = self.array(3).text("absent_or").path(path);
                return packed.condition(condition);
            }
            Condition::Lacks(path, number) => ("lacks", path, &Value::Int(*number)),
            Condition::Equals(path, value) => ("equals", path, value),
            Condition::Differs(path, value) => ("differs", path, value),
            Condition::AtLeast(path, value) => ("at_least", path, value),
            Condition::AtMost(path, value) => ("at_most", path, value),
        };
        self.array(3).text(name).path(path).value(value)
    }

    fn change(&mut self, change: &AttributeUpdate) -> &mut Self {
        let (name, path, value) = match change {
            AttributeUpdate::Remove(path) => return self.array(2).text("remove").path(path),
            AttributeUpdate::Copy(path, from) => {
                return self.array(3).text("copy").path(path).path(from);
            }
            AttributeUpdate::Next(path, from, first) => {
                let packed = self.array(4).text("next").path(path).path(from);
                return packed.value(&Value::Int(*first));
            }
            AttributeUpdate::Set(path, value) => ("set", path, value),
            AttributeUpdate::SetIfAbsent(path, value) => ("set_if_absent", path, value),
            AttributeUpdate::Add(path, value) => ("add", path, value),
            AttributeUpdate::DeleteFrom(path, value) => ("delete_from", path, value),
        };
        self.array(3).text(name).path(path).value(value)
    }
}
