//! Planned writes as text.

use std::fmt::Write as _;

use weirgate_shared::write::{Action, AttributeUpdate, Condition, Path, Update, Value};

fn path(Path(parts): &Path) -> String {
    parts.join(".")
}

fn value(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        Value::Count(count) => count.to_string(),
        Value::Tokens(tokens) => format!("{tokens} tokens"),
        Value::Text(text) => format!("{text:?}"),
        Value::Bool(is) => is.to_string(),
        Value::Map(map) => {
            let entries: Vec<_> = map
                .iter()
                .map(|(name, held)| format!("{name}: {}", self::value(held)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Numbers(numbers) => format!("{numbers:?}"),
    }
}

fn condition(asked: &Condition) -> String {
    match asked {
        Condition::Absent(at) => format!("no {}", path(at)),
        Condition::Present(at) => format!("some {}", path(at)),
        Condition::Equals(at, what) => format!("{} = {}", path(at), value(what)),
        Condition::Differs(at, what) => format!("{} <> {}", path(at), value(what)),
        Condition::AtLeast(at, what) => format!("{} >= {}", path(at), value(what)),
        Condition::AtMost(at, what) => format!("{} <= {}", path(at), value(what)),
        Condition::Lacks(at, number) => format!("{number} not in {}", path(at)),
        Condition::AbsentOr(at, asked) => format!("no {} or {}", path(at), condition(asked)),
    }
}

fn change(made: &AttributeUpdate) -> String {
    match made {
        AttributeUpdate::Set(at, what) => format!("{} := {}", path(at), value(what)),
        AttributeUpdate::SetIfAbsent(at, what) => {
            format!("{} := {} if there is none", path(at), value(what))
        }
        AttributeUpdate::Copy(to, from) => format!("{} := {} before", path(to), path(from)),
        AttributeUpdate::Next(to, from, first) => {
            format!("{} := {} + 1, or {first}", path(to), path(from))
        }
        AttributeUpdate::DeleteFrom(at, what) => format!("{} -= {}", path(at), value(what)),
        AttributeUpdate::Add(at, what) => format!("{} += {}", path(at), value(what)),
        AttributeUpdate::Remove(at) => format!("remove {}", path(at)),
    }
}

/// The writes, each under what it is for.
#[derive(Debug, Default)]
pub struct Page(pub String);

impl Page {
    pub fn write(&mut self, title: &str, actions: &[Action]) {
        let _ = writeln!(self.0, "# {title}");
        for action in actions {
            let (verb, key, conditions, changes) = match action {
                Action::Update(Update {
                    key,
                    conditions,
                    changes,
                }) => ("update", key, conditions, &**changes),
                Action::Delete(key, conditions) => ("delete", key, conditions, &[][..]),
                Action::Check(key, conditions) => ("check", key, conditions, &[][..]),
            };
            let _ = writeln!(self.0, "{verb} {} {}", key.pk, key.sk);
            for asked in conditions {
                let _ = writeln!(self.0, "  if {}", condition(asked));
            }
            for made in changes {
                let _ = writeln!(self.0, "  {}", change(made));
            }
        }
        self.0.push('\n');
    }

    pub fn update(&mut self, title: &str, update: impl Into<Option<Update>>) {
        let actions: Vec<_> = update.into().map(Action::Update).into_iter().collect();
        self.write(title, &actions);
    }

    pub fn nothing(&mut self, title: &str) {
        self.write(title, &[]);
    }
}
