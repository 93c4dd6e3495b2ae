//! A planned write as expressions. Every name and value has a placeholder, because names may
//! contain `.` and `-`.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use weirgate_shared::write::{AttributeUpdate, Condition, Path, Update, Value};

use crate::attribute;

/// The parts of an `UpdateItem` request, or of one action of a transaction.
#[derive(Debug, Default)]
pub(crate) struct Expression {
    pub(crate) update: String,
    pub(crate) condition: Option<String>,
    pub(crate) names: HashMap<String, String>,
    pub(crate) values: HashMap<String, AttributeValue>,
}

pub(crate) fn render(update: &Update) -> Expression {
    render_parts(&update.conditions, &update.changes)
}

/// Renders the conditions of an item that is not updated; empty if there are none.
pub(crate) fn conditions(conditions: &[Condition]) -> Expression {
    render_parts(conditions, &[])
}

fn render_parts(conditions: &[Condition], changes: &[AttributeUpdate]) -> Expression {
    let mut parts = Placeholders::default();
    let condition =
        conditions.iter().map(|condition| parts.condition(condition)).collect::<Vec<_>>();
    let (mut set, mut add, mut delete, mut remove) = (vec![], vec![], vec![], vec![]);
    for change in changes {
        match change {
            AttributeUpdate::Set(path, value) => {
                set.push(format!("{} = {}", parts.path(path), parts.value(value)))
            }
            AttributeUpdate::SetIfAbsent(path, value) => {
                let path = parts.path(path);
                set.push(format!("{path} = if_not_exists({path}, {})", parts.value(value)));
            }
            AttributeUpdate::Copy(to, from) => {
                set.push(format!("{} = {}", parts.path(to), parts.path(from)))
            }
            AttributeUpdate::Next(to, from, first) => {
                let before = Value::Int(first.saturating_sub(1));
                set.push(format!(
                    "{} = if_not_exists({}, {}) + {}",
                    parts.path(to),
                    parts.path(from),
                    parts.value(&before),
                    parts.value(&Value::Int(1))
                ));
            }
            AttributeUpdate::DeleteFrom(path, value) => {
                delete.push(format!("{} {}", parts.path(path), parts.value(value)))
            }
            AttributeUpdate::Add(path, value) => {
                add.push(format!("{} {}", parts.path(path), parts.value(value)))
            }
            AttributeUpdate::Remove(path) => remove.push(parts.path(path)),
        }
    }
    let clauses = [("SET", set), ("ADD", add), ("DELETE", delete), ("REMOVE", remove)];
    let clauses = clauses.into_iter().filter(|(_, actions)| !actions.is_empty());
    // Omits spaces, because a write of many limits nearly reaches the maximum length of an
    // expression.
    let update = clauses
        .map(|(verb, actions)| format!("{verb} {}", actions.join(",")))
        .collect::<Vec<_>>()
        .join(" ");
    Expression {
        update,
        condition: (!condition.is_empty()).then(|| condition.join(" AND ")),
        names: parts
            .names
            .into_iter()
            .enumerate()
            .map(|(at, name)| (format!("#{at}"), name))
            .collect(),
        values: parts
            .values
            .into_iter()
            .enumerate()
            .map(|(at, value)| (format!(":{at}"), value))
            .collect(),
    }
}

#[derive(Default)]
struct Placeholders {
    names: Vec<String>,
    values: Vec<AttributeValue>,
}

impl Placeholders {
    fn path(&mut self, path: &Path) -> String {
        let segments = path.0.iter().map(|name| {
            let at = self.names.iter().position(|known| known == name).unwrap_or_else(|| {
                self.names.push(name.to_string());
                self.names.len() - 1
            });
            format!("#{at}")
        });
        segments.collect::<Vec<_>>().join(".")
    }

    fn value(&mut self, value: &Value) -> String {
        let value = attribute::write(value);
        let at = self.values.iter().position(|known| *known == value).unwrap_or_else(|| {
            self.values.push(value);
            self.values.len() - 1
        });
        format!(":{at}")
    }

    fn condition(&mut self, condition: &Condition) -> String {
        match condition {
            Condition::Absent(path) => format!("attribute_not_exists({})", self.path(path)),
            Condition::Present(path) => format!("attribute_exists({})", self.path(path)),
            Condition::Equals(path, value) => {
                format!("{} = {}", self.path(path), self.value(value))
            }
            Condition::Differs(path, value) => {
                format!("{} <> {}", self.path(path), self.value(value))
            }
            Condition::AtLeast(path, value) => {
                format!("{} >= {}", self.path(path), self.value(value))
            }
            Condition::AtMost(path, value) => {
                format!("{} <= {}", self.path(path), self.value(value))
            }
            Condition::Lacks(path, number) => {
                format!("NOT contains({}, {})", self.path(path), self.value(&Value::Int(*number)))
            }
            Condition::AbsentOr(path, other) => {
                format!("(attribute_not_exists({}) OR {})", self.path(path), self.condition(other))
            }
        }
    }
}

#[cfg(test)]
mod tests;
