//! A planned write as expressions: every name and value behind a placeholder, as names may hold `.` and `-`.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use weirgate_shared::write::{Change, Condition, Path, Update, Value};

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
    whole(&update.conditions, &update.changes)
}

/// What must hold of an item that is not updated: no update, and no condition if there is nothing to hold.
pub(crate) fn conditions(conditions: &[Condition]) -> Expression {
    whole(conditions, &[])
}

fn whole(conditions: &[Condition], changes: &[Change]) -> Expression {
    let mut parts = Placeholders::default();
    let condition = conditions.iter().map(|condition| parts.condition(condition)).collect::<Vec<_>>();
    let (mut set, mut add, mut remove) = (vec![], vec![], vec![]);
    for change in changes {
        match change {
            Change::Set(path, value) => set.push(format!("{} = {}", parts.path(path), parts.value(value))),
            Change::SetIfAbsent(path, value) => {
                let path = parts.path(path);
                set.push(format!("{path} = if_not_exists({path}, {})", parts.value(value)));
            }
            Change::Add(path, value) => add.push(format!("{} {}", parts.path(path), parts.value(value))),
            Change::Remove(path) => remove.push(parts.path(path)),
        }
    }
    let clauses = [("SET", set), ("ADD", add), ("REMOVE", remove)];
    let clauses = clauses.into_iter().filter(|(_, actions)| !actions.is_empty());
    let update = clauses.map(|(verb, actions)| format!("{verb} {}", actions.join(", "))).collect::<Vec<_>>().join(" ");
    Expression {
        update,
        condition: (!condition.is_empty()).then(|| condition.join(" AND ")),
        names: parts.names.into_iter().enumerate().map(|(at, name)| (format!("#{at}"), name)).collect(),
        values: parts.values.into_iter().enumerate().map(|(at, value)| (format!(":{at}"), value)).collect(),
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
            Condition::Equals(path, value) => format!("{} = {}", self.path(path), self.value(value)),
            Condition::Differs(path, value) => format!("{} <> {}", self.path(path), self.value(value)),
            Condition::AtLeast(path, value) => format!("{} >= {}", self.path(path), self.value(value)),
            Condition::AtMost(path, value) => format!("{} <= {}", self.path(path), self.value(value)),
            Condition::AbsentOr(path, other) => {
                format!("(attribute_not_exists({}) OR {})", self.path(path), self.condition(other))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weirgate_shared::ItemKey;

    #[test]
    fn names_and_values_stand_behind_placeholders_and_are_sent_once() {
        let (dotted, lease) = (Path::of("b_a.b-c_tk"), Path::of("h").then("x"));
        let rendered = render(&Update {
            key: ItemKey { pk: "p".into(), sk: "s".into() },
            conditions: vec![
                Condition::AtLeast(dotted.clone(), Value::Int(5)),
                Condition::AbsentOr(Path::of("due"), Box::new(Condition::AtMost(Path::of("due"), Value::Int(9)))),
            ],
            changes: vec![
                Change::Set(lease.clone(), Value::text("owner")),
                Change::SetIfAbsent(Path::of("due"), Value::Int(9)),
                Change::Add(dotted, Value::Int(-5)),
                Change::Remove(lease.then("e")),
            ],
        });
        assert_eq!(rendered.condition.unwrap(), "#0 >= :0 AND (attribute_not_exists(#1) OR #1 <= :1)");
        assert_eq!(rendered.update, "SET #2.#3 = :2, #1 = if_not_exists(#1, :1) ADD #0 :3 REMOVE #2.#3.#4");
        assert_eq!(rendered.names["#0"], "b_a.b-c_tk");
        assert_eq!((rendered.names.len(), rendered.values.len()), (5, 4));
    }
}
