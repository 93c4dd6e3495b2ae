//! IAM, as far as the template uses it: what is asked of DynamoDB, and whether a policy of the
//! template allows it.
//!
//! Where AWS does not say what happens, the worse is taken for granted: a tag that is not there
//! stands for anything.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex};

use serde_json::{Value, json};
use weirgate_tests::template::template;
use weirgate_tests::{Dynamo, Fault};

/// The variable that a fenced policy compares keys with.
const TAG: &str = "${aws:PrincipalTag/weirgate-namespace}";

static RESOURCES: LazyLock<Value> = LazyLock::new(|| template()["Resources"].take());

/// What IAM is asked about one request, or about one part of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// Such as `dynamodb:UpdateItem`.
    pub action: String,
    /// `table`, or the index.
    pub resource: String,
    /// Every partition key that the request names, an index's own of an index.
    pub keys: Vec<String>,
    /// Whether it is part of a transaction.
    pub in_transaction: bool,
}

impl Call {
    /// A call outside of a transaction.
    pub fn of(action: &str, resource: &str, keys: &[&str]) -> Self {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        Self {
            action: format!("dynamodb:{action}"),
            resource: resource.to_owned(),
            keys,
            in_transaction: false,
        }
    }

    /// What a request amounts to.
    pub fn read(operation: &str, request: &Value) -> Vec<Self> {
        let text = |value: &Value| {
            value
                .as_str()
                .unwrap_or_else(|| panic!("no text in {request}"))
                .to_owned()
        };
        match operation {
            "UpdateItem" | "GetItem" => vec![Self::of(
                operation,
                "table",
                &[&text(&request["Key"]["PK"]["S"])],
            )],
            "TransactWriteItems" => request["TransactItems"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|part| part.as_object().unwrap())
                .map(|(kind, part)| {
                    let action = format!("{kind}Item");
                    Self {
                        in_transaction: true,
                        ..Self::of(&action, "table", &[&text(&part["Key"]["PK"]["S"])])
                    }
                })
                .collect(),
            "BatchGetItem" => {
                let keys = request["RequestItems"]
                    .as_object()
                    .unwrap()
                    .values()
                    .flat_map(|of| of["Keys"].as_array());
                let keys: Vec<_> = keys.flatten().map(|key| text(&key["PK"]["S"])).collect();
                vec![Self::of(
                    operation,
                    "table",
                    &keys.iter().map(String::as_str).collect::<Vec<_>>(),
                )]
            }
            "Query" => {
                let condition = text(&request["KeyConditionExpression"]);
                // The partition key's part comes first.
                let [_, "=", value] = *condition.split(' ').take(3).collect::<Vec<_>>() else {
                    panic!("{request}")
                };
                let key = text(&request["ExpressionAttributeValues"][value]["S"]);
                vec![Self::of(
                    operation,
                    request["IndexName"].as_str().unwrap_or("table"),
                    &[&key],
                )]
            }
            other => panic!("add {other} here: which keys does it name?"),
        }
    }
}

/// Statements of the template.
#[derive(Debug, Clone)]
pub struct Policy(Vec<Value>);

impl Policy {
    /// Those of a role or managed policy, with a customer's key or without.
    pub fn of(name: &str, has_key: bool) -> Self {
        let properties = &RESOURCES[name]["Properties"];
        assert!(properties.is_object(), "the template has no {name}");
        let inline = properties["Policies"].as_array().into_iter().flatten();
        let documents = inline
            .map(|policy| &policy["PolicyDocument"])
            .chain(properties.get("PolicyDocument"));
        let statements =
            documents.flat_map(|document| document["Statement"].as_array().expect("statements"));
        let decided = statements.filter_map(|statement| match statement.get("Fn::If") {
            None => Some(statement.clone()),
            Some(choice)
                if choice[0] == "HasKey" && choice[2] == json!({"Ref": "AWS::NoValue"}) =>
            {
                has_key.then(|| choice[1].clone())
            }
            Some(other) => panic!("which of {other} is it?"),
        });
        Self(decided.collect())
    }

    /// Every role and managed policy of the template.
    pub fn names() -> Vec<String> {
        let all = RESOURCES.as_object().unwrap().iter();
        let has = |resource: &Value| {
            let kind = resource["Type"].as_str().unwrap().to_owned();
            [
                "AWS::IAM::Role",
                "AWS::IAM::ManagedPolicy",
                "AWS::IAM::Policy",
            ]
            .contains(&&*kind)
        };
        all.filter(|(_, resource)| has(resource))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// What it allows on which resource, and under which condition, as text.
    pub fn grants(&self) -> BTreeSet<String> {
        let mut grants = BTreeSet::new();
        for statement in &self.0 {
            assert_eq!(statement["Effect"], "Allow");
            let condition = statement
                .get("Condition")
                .map(|condition| format!(" if {condition}"))
                .unwrap_or_default();
            for (action, resource) in pairs(statement) {
                grants.insert(format!("{action} on {resource}{condition}"));
            }
        }
        grants
    }

    /// The DynamoDB actions it allows, each with `table` or the index.
    pub fn actions(&self) -> BTreeSet<(String, String)> {
        let of_dynamodb = self
            .0
            .iter()
            .flat_map(pairs)
            .filter(|(action, _)| action.starts_with("dynamodb:"));
        of_dynamodb
            .map(|(action, resource)| (short(&resource), action))
            .collect()
    }

    /// Whether a caller whose role has this value of the tag may do this.
    pub fn allows(&self, call: &Call, tag: Option<&str>) -> bool {
        let asked = (call.action.clone(), call.resource.clone());
        self.0.iter().any(|statement| {
            let is_about =
                pairs(statement).any(|(action, resource)| (action, short(&resource)) == asked);
            is_about && conditions(statement).all(|condition| is_met(condition, call, tag))
        })
    }
}

/// Each action of a statement with each resource, as the template names it.
fn pairs(statement: &Value) -> impl Iterator<Item = (String, String)> {
    let list = |value: &Value| {
        value
            .as_array()
            .cloned()
            .unwrap_or_else(|| vec![value.clone()])
    };
    let (actions, resources) = (list(&statement["Action"]), list(&statement["Resource"]));
    actions.into_iter().flat_map(move |action| {
        let named = |resource: &Value| match resource
            .as_object()
            .and_then(|object| object.values().next())
        {
            Some(name) => name.as_str().unwrap().to_owned(),
            None => resource.as_str().unwrap().to_owned(),
        };
        let action = action.as_str().unwrap().to_owned();
        resources
            .iter()
            .map(|resource| (action.clone(), named(resource)))
            .collect::<Vec<_>>()
    })
}

fn short(resource: &str) -> String {
    let index = resource
        .strip_prefix("${Table.Arn}/index/")
        .unwrap_or(resource);
    if index == "Table.Arn" {
        "table".to_owned()
    } else {
        index.to_owned()
    }
}

/// Each condition of a statement: operator, key, values.
fn conditions(statement: &Value) -> impl Iterator<Item = (String, String, Vec<String>)> {
    let operators = statement["Condition"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    operators.into_iter().flat_map(|(operator, keys)| {
        let keys = keys.as_object().cloned().expect("an operator has keys");
        keys.into_iter().map(move |(key, values)| {
            let values = values.as_array().cloned().unwrap_or_else(|| vec![values]);
            let values = values
                .iter()
                .map(|value| value.as_str().expect("a text").to_owned())
                .collect();
            (operator.clone(), key, values)
        })
    })
}

fn is_met(
    (operator, key, values): (String, String, Vec<String>),
    call: &Call,
    tag: Option<&str>,
) -> bool {
    match (&*operator, &*key) {
        ("ForAllValues:StringLike", "dynamodb:LeadingKeys") => {
            // True of no keys at all, as IAM has it.
            call.keys.iter().all(|key| {
                values
                    .iter()
                    .any(|value| is_like(&value.replace(TAG, tag.unwrap_or("*")), key))
            })
        }
        ("ForAnyValue:StringEquals", "dynamodb:EnclosingOperation") => {
            call.in_transaction && values == ["TransactWriteItems"]
        }
        ("Null", "dynamodb:LeadingKeys") => values == [call.keys.is_empty().to_string()],
        ("Null", "aws:PrincipalTag/weirgate-namespace") => values == [tag.is_none().to_string()],
        (operator, key) => panic!("what does {operator} of {key} mean?"),
    }
}

/// Whether a text is like a pattern with `*` and `?`.
pub fn is_like(pattern: &str, text: &str) -> bool {
    let mut rest = pattern.chars();
    match rest.next() {
        None => text.is_empty(),
        Some('*') => (0..=text.len())
            .filter(|at| text.is_char_boundary(*at))
            .any(|at| is_like(rest.as_str(), &text[at..])),
        Some(first) => {
            let mut text = text.chars();
            text.next()
                .is_some_and(|next| first == '?' || first == next)
                && is_like(rest.as_str(), text.as_str())
        }
    }
}

/// What was asked of DynamoDB, and what of it was refused.
#[derive(Debug, Default)]
pub struct Asked {
    pub calls: Vec<Call>,
    pub refused: Vec<Call>,
}

impl Asked {
    /// The actions asked for, each with `table` or the index.
    pub fn actions(&self) -> BTreeSet<(String, String)> {
        self.calls
            .iter()
            .map(|call| (call.resource.clone(), call.action.clone()))
            .collect()
    }
}

/// Refuses from now on what the policy does not allow a caller with this tag, as IAM would; without
/// a policy nothing.
pub fn enforce(dynamo: &Dynamo, policy: Option<Policy>, tag: Option<&str>) -> Arc<Mutex<Asked>> {
    let (asked, tag) = (
        Arc::new(Mutex::new(Asked::default())),
        tag.map(str::to_owned),
    );
    let kept = Arc::clone(&asked);
    let judge = move |operation: &str, request: &Value| {
        let calls = Call::read(operation, request);
        let is_refused = |call: &&Call| {
            policy
                .as_ref()
                .is_some_and(|policy| !policy.allows(call, tag.as_deref()))
        };
        let refused: Vec<_> = calls.iter().filter(is_refused).cloned().collect();
        let fault = (!refused.is_empty()).then_some(Fault::Forbidden);
        let mut kept = kept.lock().unwrap();
        kept.calls.extend(calls);
        kept.refused.extend(refused);
        fault
    };
    let (updates, transactions) = (judge.clone(), judge.clone());
    dynamo.fail_when(move |request| updates("UpdateItem", request));
    dynamo.fail_transactions(move |request| transactions("TransactWriteItems", request));
    dynamo.fail_reads(judge);
    asked
}

/// What each role and policy allows: a line each, under its name.
pub fn listed(has_key: bool) -> BTreeMap<String, BTreeSet<String>> {
    Policy::names()
        .into_iter()
        .map(|name| (name.clone(), Policy::of(&name, has_key).grants()))
        .collect()
}
