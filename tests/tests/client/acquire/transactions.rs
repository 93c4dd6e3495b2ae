//! Transactions through the real SDK: what becomes of them, and what each way to fail means.

use std::sync::{Arc, Mutex};

use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use serde_json::json;
use weirgate_shared::ItemKey;
use weirgate_shared::write::{Action, AttributeUpdate, Condition, Path, Update, Value};
use weirgate_store::{ActionOutcome, ErrorKind, RetryPolicy, StoreError, Table, TransactOutcome};
use weirgate_testkit::leased::id;
use weirgate_testkit::{Dynamo, Fault};

fn key(pk: &str) -> ItemKey {
    ItemKey { pk: pk.to_owned(), sk: "#STATE".to_owned() }
}

fn n() -> Path {
    Path::of("n")
}

fn is(number: i64) -> Vec<Condition> {
    vec![Condition::Equals(n(), Value::Int(number))]
}

/// Adds to an item's number if all conditions hold.
fn add(pk: &str, by: i64, conditions: Vec<Condition>) -> Action {
    Action::Update(Update {
        key: key(pk),
        conditions,
        changes: vec![AttributeUpdate::Add(n(), Value::Int(by))],
    })
}

/// A table with these items and their numbers.
async fn table_with(items: &[(&str, i64)]) -> (Dynamo, Table) {
    let dynamo = Dynamo::new().await;
    for (pk, number) in items {
        dynamo
            .put(&json!({"PK": {"S": pk}, "SK": {"S": "#STATE"}, "n": {"N": number.to_string()}}));
    }
    let table = dynamo.table().await;
    (dynamo, table)
}

/// An item's number in the table.
fn stored(dynamo: &Dynamo, pk: &str) -> Option<i64> {
    dynamo.item(pk, "#STATE")["n"]["N"].as_str().map(|number| number.parse().unwrap())
}

/// Runs a transaction of two additions that meets a fault; its error.
async fn failed(fault: Fault) -> (Dynamo, StoreError) {
    let (dynamo, table) = table_with(&[("a", 1), ("b", 2)]).await;
    dynamo.fail_transactions(move |_| Some(fault));
    let error =
        table.transact(&[add("a", 1, vec![]), add("b", 1, vec![])], &id("t")).await.unwrap_err();
    (dynamo, error)
}

#[tokio::test(start_paused = true)]
async fn a_lost_race_is_one_whatever_else_stood_in_the_way() {
    let (dynamo, table) = table_with(&[("a", 1)]).await;
    dynamo.put(&json!({"PK": {"S": "text"}, "SK": {"S": "#STATE"}, "n": {"S": "1"}}));
    let actions = [add("text", 1, vec![]), add("a", 1, is(0))];
    let TransactOutcome::ConditionFailed(parts) = table.transact(&actions, &id("t")).await.unwrap()
    else {
        panic!("a condition does not hold");
    };
    assert!(
        matches!(&parts[..], [ActionOutcome::NotReported, ActionOutcome::ConditionFailed(Some(_))]),
        "{parts:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_is_refused_names_the_reason_and_changes_nothing() {
    let throttle = |key_range| Fault::Throttle { key_range };
    let spent = ErrorKind::Throttled { key_range: true };
    for (fault, kind, named) in [
        (Fault::Conflict, ErrorKind::Conflict, "TransactionConflict at a #STATE: "),
        (throttle(false), ErrorKind::IndexThrottled, "ThrottlingError at a #STATE: "),
        (throttle(true), spent, "TransactWriteItems of a, b on table \"weirgate\""),
        (Fault::Forbidden, ErrorKind::AccessDenied, "not permitted"),
    ] {
        let (dynamo, error) = failed(fault).await;
        assert_eq!((error.kind, stored(&dynamo, "a")), (kind, Some(1)), "{error}");
        let text = error.to_string();
        assert!(text.contains(named) && !text.contains("b #STATE"), "{text}");
        let is_permanent = fault == Fault::Forbidden;
        assert_eq!(error.kind.is_transient(), !is_permanent, "{text}");
        assert!(is_permanent || error.kind.was_not_applied(), "{text}");
    }
    let table = Dynamo::empty().table().await;
    let error = table.transact(&[add("a", 1, vec![])], &id("t")).await;
    assert_eq!(error.unwrap_err().kind, ErrorKind::TableNotFound);
}

#[tokio::test(start_paused = true)]
async fn retries_keep_the_token_and_stop_where_they_are_told_to() {
    let (dynamo, table) = table_with(&[("a", 1)]).await;
    let tokens = Arc::new(Mutex::new(vec![]));
    let seen = tokens.clone();
    let mut faults =
        [Fault::LoseAnswer, Fault::Throttle { key_range: false }, Fault::Conflict].into_iter();
    dynamo.fail_transactions(move |request| {
        seen.lock().unwrap().push(request["ClientRequestToken"].as_str().unwrap().to_owned());
        faults.next()
    });
    let actions = [add("a", 1, is(1))];
    let outcome =
        table.transact_with(&actions, &id("t"), RetryPolicy::AlsoUnconfirmed).await.unwrap();
    assert_eq!(
        (outcome, stored(&dynamo, "a")),
        (TransactOutcome::Applied, Some(2)),
        "applied once, and known to be"
    );
    assert_eq!(*tokens.lock().unwrap(), ["t"; 4]);

    let _ = (dynamo.take_requests(), dynamo.fail_transactions(|_| Some(Fault::LoseRequest)));
    let error =
        table.transact_with(&actions, &id("u"), RetryPolicy::IfNotApplied).await.unwrap_err();
    assert_eq!(
        (error.kind, dynamo.take_requests()),
        (ErrorKind::Unconfirmed, 1),
        "it may have been applied"
    );
    dynamo.fail_transactions(|_| Some(Fault::Forbidden));
    let error =
        table.transact_with(&actions, &id("u"), RetryPolicy::AlsoUnconfirmed).await.unwrap_err();
    assert_eq!(
        (error.kind, dynamo.take_requests()),
        (ErrorKind::AccessDenied, 1),
        "asking again does not help"
    );
}

/// A transport that keeps the text of each request.
#[derive(Debug, Clone)]
struct Kept {
    dynamo: Dynamo,
    texts: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl HttpConnector for Kept {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        self.texts.lock().unwrap().push(request.body().bytes().unwrap_or_default().to_vec());
        self.dynamo.call(request)
    }
}

/// DynamoDB Local compares the text under a token, and an answer that is lost would end as an error
/// there.
#[tokio::test(start_paused = true)]
async fn a_transaction_that_is_repeated_is_the_same_text() {
    let (dynamo, _) = table_with(&[("a", 1)]).await;
    let kept = Kept { dynamo: dynamo.clone(), texts: Arc::default() };
    let table = Dynamo::reached_by(kept.clone(), weirgate::SystemClock).await;
    let names: Vec<_> = (0..12).map(|at| format!("n{at}")).collect();
    let changes = names
        .iter()
        .map(|name| AttributeUpdate::Add(Path::of(name.clone()), Value::Int(1)))
        .collect();
    let conditions = names.iter().map(|name| Condition::Absent(Path::of(name.clone()))).collect();
    let actions =
        [Action::Update(Update { key: key("a"), conditions, changes }), add("b", 1, vec![])];
    let mut faults =
        [Fault::LoseRequest, Fault::Throttle { key_range: false }, Fault::LoseAnswer].into_iter();
    dynamo.fail_transactions(move |_| faults.next());
    assert_eq!(
        table.transact_with(&actions, &id("t"), RetryPolicy::AlsoUnconfirmed).await.unwrap(),
        TransactOutcome::Applied
    );
    let texts = kept.texts.lock().unwrap();
    assert_eq!(texts.len(), 4);
    assert!(!texts[0].is_empty() && texts.iter().all(|text| *text == texts[0]));
}

#[tokio::test(start_paused = true)]
async fn what_can_never_happen_is_invalid_and_says_why() {
    let (dynamo, table) = table_with(&[("a", 1)]).await;
    dynamo.put(&json!({"PK": {"S": "text"}, "SK": {"S": "#STATE"}, "n": {"S": "1"}}));
    let error =
        table.transact(&[add("a", 1, vec![]), add("text", 1, vec![])], &id("t")).await.unwrap_err();
    assert_eq!((error.kind, stored(&dynamo, "a")), (ErrorKind::Invalid, Some(1)));
    assert!(error.to_string().contains("ValidationError at text #STATE: "), "{error}");

    let _ = dynamo.take_requests();
    let error = table.transact(&[], &id("t")).await.unwrap_err();
    assert!(error.kind == ErrorKind::Invalid && error.reason.contains("got 0"), "{error}");
    let many: Vec<_> = (0..101).map(|at| add(&format!("m{at}"), 1, vec![])).collect();
    let error = table.transact(&many, &id("t")).await.unwrap_err();
    assert!(error.kind == ErrorKind::Invalid && error.reason.contains("got 101"), "{error}");
    assert_eq!(error.request, "TransactWriteItems of m0, m1, m2, m3 and 97 more");
    let error = table.transact(&[Action::Check(key("c"), vec![])], &id("t")).await.unwrap_err();
    assert!(
        error.kind == ErrorKind::Invalid
            && error.to_string().contains("give the check a condition"),
        "{error}"
    );
    assert_eq!(dynamo.take_requests(), 0, "nothing was sent");
    assert_eq!(table.transact(&many[..100], &id("t")).await.unwrap(), TransactOutcome::Applied);
}
