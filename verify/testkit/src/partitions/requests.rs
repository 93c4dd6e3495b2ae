//! A request that has arrived: what it asks for, whether it is let in, and what it costs.

use serde_json::{Value, json};
use weirgate_store::indexes;

use super::Partitions;
use super::balances::{Of, half_read_units, write_units};
use super::indexes::{are_touched, charges};
use super::target::{Target, targets};
use crate::dynamo::{TABLE, TRANSACTION};

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
            targets.iter().map(|target| self.dynamo.item(target.pk, target.sk)).collect()
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
            targets.iter().map(|target| self.dynamo.item(target.pk, target.sk)).collect()
        };
        let units: Vec<_> = if is_transaction {
            // DynamoDB reports the cost of a whole transaction, and here that of each item must be
            // known: two units for each KB of it as it was or as it is, whichever is larger; as it
            // was if the transaction is cancelled.
            let is_cancelled = is(&answer, "TransactionCanceledException");
            let of = |at: usize| write_units(&before[at]).max(after.get(at).map_or(0, write_units));
            (0..targets.len())
                .map(|at| if status == 200 || is_cancelled { 2 * of(at) } else { 0 })
                .collect()
        } else if status == 200 {
            vec![reported(&answer["ConsumedCapacity"]["Table"]) / 2]
        } else if is(&answer, "ConditionalCheckFailedException") {
            let old = answer.get("Item").cloned();
            vec![write_units(
                &old.unwrap_or_else(|| self.dynamo.item(targets[0].pk, targets[0].sk)),
            )]
        } else {
            vec![0]
        };
        let mut state = self.state();
        for (target, units) in targets.iter().zip(units) {
            state.charge(target.pk, units);
        }
        if status == 200 {
            let of = |at: usize| {
                if touches { charges(&before[at], &after[at]) } else { vec![] }
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
        let of = match indexes().into_iter().find(|known| Some(known.name) == index) {
            Some(index) => Of::Index(index.name),
            None => Of::Table,
        };
        // The partition key is the one text that is compared with `=`, which is how all conditions
        // here begin.
        let condition = request["KeyConditionExpression"].as_str().unwrap_or_default();
        let value = condition.split_whitespace().nth(2).unwrap_or_default();
        let pk = request["ExpressionAttributeValues"][value]["S"]
            .as_str()
            .expect("a partition is asked for");
        let spent = self.state().read_spent(of, pk, request["ConsistentRead"] == true);
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
        let halves = if status == 200 { reported(&answer["ConsumedCapacity"]) } else { 0 };
        (status, body, halves)
    }

    fn get_batch(&self, request: &Value) -> (u16, String) {
        let wanted = &request["RequestItems"][TABLE];
        let is_consistent = wanted["ConsistentRead"] == true;
        let keys = wanted["Keys"].as_array().map(Vec::as_slice).unwrap_or_default();
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
        let held_back =
            answer["UnprocessedKeys"][TABLE]["Keys"].as_array().cloned().unwrap_or_default();
        let found = answer["Responses"][TABLE].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_of = |item: &Value, key: &Value| item["PK"] == key["PK"] && item["SK"] == key["SK"];
        for key in keys.iter().filter(|key| !held_back.contains(key)) {
            let item = found.iter().find(|item| is_of(item, key)).unwrap_or(&Value::Null);
            self.state().charge_read(Of::Table, &pk(key), half_read_units(item, is_consistent));
        }
        if kept_back.is_empty() {
            return (status, body);
        }
        let kept = u64::try_from(kept_back.len()).unwrap_or(u64::MAX);
        self.state().count(|counts| counts.kept_back += kept);
        for key in &kept_back {
            self.state().balances.count(Of::Table, &pk(key), |counts| counts.kept_back += 1);
        }
        let mut left = wanted.clone();
        left["Keys"] = Value::Array(held_back.into_iter().chain(kept_back).collect());
        answer["UnprocessedKeys"] = json!({TABLE: left});
        (status, answer.to_string())
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
    answer["__type"].as_str().is_some_and(|name| name.ends_with(kind))
}
