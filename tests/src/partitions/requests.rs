//! A request that has arrived: what it asks for, whether it is let in, and what it costs.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use weirgate_store::indexes;

use super::balances::{Kind, Of, Spent, half_read_units, write_units};
use super::indexes::{Charge, Scratch, are_touched, charges};
use super::{Partitions, State};
use crate::dynamo::{TABLE, TRANSACTION, cancelled, conflict};

/// An item that a request writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    pub pk: &'a str,
    pub sk: &'a str,
    /// It is only checked, by a transaction.
    pub is_check: bool,
}

impl<'a> Target<'a> {
    fn of(key: &'a Value, is_check: bool) -> Self {
        let text = |name: &str| key[name]["S"].as_str().expect("a key is text");
        Self {
            pk: text("PK"),
            sk: text("SK"),
            is_check,
        }
    }

    pub fn key(&self) -> (String, String) {
        (self.pk.to_owned(), self.sk.to_owned())
    }
}

/// The items that a request writes or, in a transaction, checks; none if it only reads.
fn targets<'a>(operation: &str, request: &'a Value) -> Vec<Target<'a>> {
    match operation {
        "UpdateItem" | "DeleteItem" => vec![Target::of(&request["Key"], false)],
        "PutItem" => vec![Target::of(&request["Item"], false)],
        TRANSACTION => {
            let actions = request["TransactItems"]
                .as_array()
                .map(Vec::as_slice)
                .unwrap_or_default();
            let actions = actions
                .iter()
                .flat_map(|action| action.as_object().into_iter().flatten());
            let key = |of: &'a Value| of.get("Key").unwrap_or_else(|| &of["Item"]);
            actions
                .map(|(kind, of)| Target::of(key(of), kind == "ConditionCheck"))
                .collect()
        }
        _ => vec![],
    }
}

impl Partitions {
    /// Runs a request that has arrived.
    pub(super) fn run(&self, operation: &str, request: &Value) -> (u16, String) {
        let targets = targets(operation, request);
        self.state().arrive(&targets);
        match operation {
            _ if !targets.is_empty() => self.write(operation, request, &targets),
            "GetItem" => self.get(request),
            "BatchGetItem" => self.get_batch(request),
            "Query" => self.query(request),
            _ => self.dynamo.run(operation, request),
        }
    }

    fn write(&self, operation: &str, request: &Value, targets: &[Target<'_>]) -> (u16, String) {
        let is_transaction = operation == TRANSACTION;
        let token = request["ClientRequestToken"].as_str().unwrap_or_default();
        let touches = are_touched(request);
        let before: Vec<_> = if is_transaction || touches {
            targets
                .iter()
                .map(|target| self.dynamo.item(target.pk, target.sk))
                .collect()
        } else {
            vec![]
        };
        let has_happened = self.state().tokens.contains(token);
        let refused = if has_happened {
            None
        } else {
            self.state().refusal(operation, request, targets, &before)
        };
        if let Some(refused) = refused {
            return refused;
        }
        let mut request = request.clone();
        request["ReturnConsumedCapacity"] = "INDEXES".into();
        let (status, body) = self.dynamo.run(operation, &request);
        let answer: Value = serde_json::from_str(&body).expect("an answer is JSON");
        let is_again = answer["ConsumedCapacity"][0]["ReadCapacityUnits"].is_number();
        if is_again {
            return (status, body);
        }
        let after: Vec<_> = if before.is_empty() || status != 200 {
            vec![]
        } else {
            targets
                .iter()
                .map(|target| self.dynamo.item(target.pk, target.sk))
                .collect()
        };
        let units: Vec<_> = if is_transaction {
            // DynamoDB reports the cost of a whole transaction, and here that of each item must be
            // known: two units for each KB of it as it was or as it is, whichever is larger; as it
            // was if the transaction is cancelled.
            let is_cancelled = is(&answer, "TransactionCanceledException");
            let of = |at: usize| write_units(&before[at]).max(after.get(at).map_or(0, write_units));
            (0..targets.len())
                .map(|at| {
                    if status == 200 || is_cancelled {
                        2 * of(at)
                    } else {
                        0
                    }
                })
                .collect()
        } else if status == 200 {
            vec![reported(&answer["ConsumedCapacity"]["Table"]) / 2]
        } else if is(&answer, "ConditionalCheckFailedException") {
            let old = answer.get("Item").cloned();
            vec![write_units(&old.unwrap_or_else(|| {
                self.dynamo.item(targets[0].pk, targets[0].sk)
            }))]
        } else {
            vec![0]
        };
        let mut state = self.state();
        for (target, units) in targets.iter().zip(units) {
            state.charge(target.pk, units);
        }
        if status == 200 {
            let of = |at: usize| {
                if touches {
                    charges(&before[at], &after[at])
                } else {
                    vec![]
                }
            };
            for charge in (0..targets.len()).flat_map(of) {
                state.charge_index(&charge);
            }
            state.conflicts.note(targets);
            if is_transaction {
                state.conflicts.hold(targets);
                state.tokens.insert(token.to_owned());
            }
        }
        (status, body)
    }

    fn get(&self, request: &Value) -> (u16, String) {
        let is_consistent = request["ConsistentRead"] == true;
        let pk = request["Key"]["PK"]["S"].as_str().expect("a key is text");
        let spent = self.state().read_spent(Of::Table, pk, is_consistent);
        if let Some(spent) = spent {
            return self.state().refuse_read(pk, spent);
        }
        let (status, body, halves) = self.read("GetItem", request);
        self.state().charge_read(Of::Table, pk, halves);
        (status, body)
    }

    /// Runs a query. It costs what it reads in all: half as much on an index, where reads are
    /// eventually consistent.
    fn query(&self, request: &Value) -> (u16, String) {
        let index = request["IndexName"].as_str();
        let of = match indexes()
            .into_iter()
            .find(|known| Some(known.name) == index)
        {
            Some(index) => Of::Index(index.name),
            None => Of::Table,
        };
        // The partition key is the one text that is compared with `=`, which is how all conditions
        // here begin.
        let condition = request["KeyConditionExpression"]
            .as_str()
            .unwrap_or_default();
        let value = condition.split_whitespace().nth(2).unwrap_or_default();
        let pk = request["ExpressionAttributeValues"][value]["S"]
            .as_str()
            .expect("a partition is asked for");
        let spent = self
            .state()
            .read_spent(of, pk, request["ConsistentRead"] == true);
        if let Some(spent) = spent {
            return self.state().refuse_read(pk, spent);
        }
        let (status, body, halves) = self.read("Query", request);
        self.state().charge_read(of, pk, halves);
        (status, body)
    }

    /// Reads, and says how many half units it cost.
    fn read(&self, operation: &str, request: &Value) -> (u16, String, u64) {
        let mut request = request.clone();
        request["ReturnConsumedCapacity"] = "TOTAL".into();
        let (status, body) = self.dynamo.run(operation, &request);
        let answer: Value = serde_json::from_str(&body).expect("an answer is JSON");
        let halves = if status == 200 {
            reported(&answer["ConsumedCapacity"])
        } else {
            0
        };
        (status, body, halves)
    }

    fn get_batch(&self, request: &Value) -> (u16, String) {
        let wanted = &request["RequestItems"][TABLE];
        let is_consistent = wanted["ConsistentRead"] == true;
        let keys = wanted["Keys"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let pk = |key: &Value| key["PK"]["S"].as_str().expect("a key is text").to_owned();
        let mut last = None;
        let (kept_back, keys): (Vec<_>, Vec<_>) = keys.iter().cloned().partition(|key| {
            let spent = self.state().read_spent(Of::Table, &pk(key), is_consistent);
            if let Some(spent) = spent {
                last = Some((pk(key), spent));
            }
            spent.is_some()
        });
        if let (Some((pk, spent)), true) = (last, keys.is_empty()) {
            return self.state().refuse_read(&pk, spent);
        }
        let mut asked = request.clone();
        asked["RequestItems"][TABLE]["Keys"] = Value::Array(keys.clone());
        let (status, body) = self.dynamo.run("BatchGetItem", &asked);
        if status != 200 {
            return (status, body);
        }
        let mut answer: Value = serde_json::from_str(&body).expect("an answer is JSON");
        let held_back = answer["UnprocessedKeys"][TABLE]["Keys"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let found = answer["Responses"][TABLE]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let is_of = |item: &Value, key: &Value| item["PK"] == key["PK"] && item["SK"] == key["SK"];
        for key in keys.iter().filter(|key| !held_back.contains(key)) {
            let item = found
                .iter()
                .find(|item| is_of(item, key))
                .unwrap_or(&Value::Null);
            self.state()
                .charge_read(Of::Table, &pk(key), half_read_units(item, is_consistent));
        }
        if kept_back.is_empty() {
            return (status, body);
        }
        let kept = u64::try_from(kept_back.len()).unwrap_or(u64::MAX);
        self.state().count(|counts| counts.kept_back += kept);
        for key in &kept_back {
            self.state()
                .balances
                .count(Of::Table, &pk(key), |counts| counts.kept_back += 1);
        }
        let mut left = wanted.clone();
        left["Keys"] = Value::Array(held_back.into_iter().chain(kept_back).collect());
        answer["UnprocessedKeys"] = json!({TABLE: left});
        (status, answer.to_string())
    }
}

impl State {
    /// Counts a request.
    fn arrive(&mut self, targets: &[Target<'_>]) {
        let is_write = u64::from(!targets.is_empty());
        self.count(|counts| {
            counts.requests += 1;
            counts.writes += is_write;
        });
        let pks: BTreeSet<_> = targets.iter().map(|target| target.pk).collect();
        for pk in pks {
            self.balances.count(Of::Table, pk, |counts| {
                counts.requests += 1;
                counts.writes += 1;
            });
        }
    }

    /// The answer to a write that is not let in. `before` are its items, if it is a transaction or
    /// may change entries of indexes.
    fn refusal(
        &mut self,
        operation: &str,
        request: &Value,
        targets: &[Target<'_>],
        before: &[Value],
    ) -> Option<(u16, String)> {
        if self.is_lifted {
            return None;
        }
        let is_transaction = operation == TRANSACTION;
        let mut spent: Vec<_> = targets
            .iter()
            .map(|target| self.balances.spent(Of::Table, Kind::Write, target.pk, 2))
            .collect();
        let mut pks: Vec<_> = targets.iter().map(|target| target.pk.to_owned()).collect();
        if are_touched(request) && self.balances.may_throttle_indexes() {
            let charges = self
                .scratch
                .get_or_insert_with(Scratch::new)
                .charges(operation, request, targets, before);
            for (at, charges) in charges.into_iter().enumerate() {
                for Charge { index, pk, .. } in charges {
                    if let (None, Some(met)) = (
                        spent[at],
                        self.balances.spent(Of::Index(index), Kind::Write, &pk, 2),
                    ) {
                        spent[at] = Some(met);
                        pks[at] = pk;
                    }
                }
            }
        }
        if let Some(first) = spent.iter().flatten().next().copied() {
            self.refuse_write(&spent, &pks);
            if !is_transaction {
                return Some(first.answer());
            }
            let codes = spent.iter().map(|spent| {
                if spent.is_some() {
                    "ThrottlingError"
                } else {
                    "None"
                }
            });
            return Some(cancelled(&codes.collect::<Vec<_>>()));
        }
        let met = |target: &Target<'_>| {
            if is_transaction {
                self.conflicts.cancels(target)
            } else {
                self.conflicts.is_held(target)
            }
        };
        let met: Vec<_> = targets.iter().map(met).collect();
        if !met.contains(&true) {
            return None;
        }
        self.count(|counts| counts.conflicts += 1);
        for (target, _) in targets.iter().zip(&met).filter(|(_, met)| **met) {
            self.balances
                .count(Of::Table, target.pk, |counts| counts.conflicts += 1);
        }
        if !is_transaction {
            return Some(conflict());
        }
        for (target, item) in targets.iter().zip(before) {
            self.charge(target.pk, 2 * write_units(item));
        }
        Some(cancelled(
            &met.iter()
                .map(|met| if *met { "TransactionConflict" } else { "None" })
                .collect::<Vec<_>>(),
        ))
    }

    fn refuse_write(&mut self, spent: &[Option<Spent>], pks: &[String]) {
        let is_index = spent.iter().flatten().all(|spent| spent.of != Of::Table);
        self.count(|counts| {
            counts.throttled += 1;
            counts.index_throttled += u64::from(is_index);
        });
        let met: BTreeSet<_> = spent
            .iter()
            .zip(pks)
            .filter_map(|(spent, pk)| Some(((*spent)?.of, pk)))
            .collect();
        for (of, pk) in met {
            self.balances.count(of, pk, |counts| counts.throttled += 1);
        }
    }

    fn charge(&mut self, pk: &str, units: u64) {
        self.count(|counts| counts.units += units);
        self.balances.charge(Of::Table, Kind::Write, pk, 2 * units);
    }

    fn charge_index(&mut self, Charge { index, pk, units }: &Charge) {
        self.count(|counts| counts.index_units += units);
        self.balances
            .charge(Of::Index(index), Kind::Write, pk, 2 * units);
    }

    fn read_spent(&mut self, of: Of, pk: &str, is_consistent: bool) -> Option<Spent> {
        let halves = if is_consistent { 2 } else { 1 };
        if self.is_lifted {
            None
        } else {
            self.balances.spent(of, Kind::Read, pk, halves)
        }
    }

    fn refuse_read(&mut self, pk: &str, spent: Spent) -> (u16, String) {
        self.count(|counts| counts.reads_throttled += 1);
        self.balances
            .count(spent.of, pk, |counts| counts.reads_throttled += 1);
        spent.answer()
    }

    fn charge_read(&mut self, of: Of, pk: &str, halves: u64) {
        self.count(|counts| counts.half_reads += halves);
        self.balances.charge(of, Kind::Read, pk, halves);
    }
}

/// Half units that an answer reports.
fn reported(consumed: &Value) -> u64 {
    // Whole and half numbers, written as floats.
    let units = consumed["CapacityUnits"].as_f64();
    units
        .and_then(|units| (units * 2.0).to_string().parse().ok())
        .expect("a request that was run reports its units")
}

fn is(answer: &Value, kind: &str) -> bool {
    answer["__type"]
        .as_str()
        .is_some_and(|name| name.ends_with(kind))
}
