//! What a write can meet instead of being applied and answered, and the answers that DynamoDB gives
//! then.

use std::collections::{BTreeMap, VecDeque};

use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use serde_json::{Value, json};
use weirgate_shared::EpochMillis;

use crate::shape::{require_listed, shape};

/// The operation that runs a transaction.
pub(crate) const TRANSACTION: &str = "TransactWriteItems";

/// The operations that read items: the contract must have whatever any test makes the code ask. Its
/// writes are recorded where they are planned.
const READS: [&str; 4] = ["BatchGetItem", "GetItem", "Query", "Scan"];

/// What happens to one write, or to one transaction, instead of being applied and answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It never arrives.
    LoseRequest,
    /// It is applied, and its answer is lost.
    LoseAnswer,
    /// It arrives twice, as by a network that repeats it. The caller hears the second answer, but not
    /// a refusal of the copy: only a sender that repeats requests would, and the SDK is set not to.
    Repeat,
    /// It is throttled: the item's partition is too hot, or (`false`) the account is. A transaction
    /// is cancelled if it is not said to be the key range, since a reason of a cancellation has no
    /// field for it; if it is, the whole request is throttled.
    Throttle {
        /// Whether the reason names the key range.
        key_range: bool,
    },
    /// It is throttled for this reason, in DynamoDB's word.
    ThrottleFor(&'static str),
    /// It meets a transaction on its item, a transaction one on the item of its first part.
    Conflict,
    /// It arrives with one more condition, which no item fulfils. Only for a write of one item.
    Refuse,
    /// The server fails before applying it.
    ServerError,
    /// The server fails after applying it.
    ServerErrorApplied,
    /// The caller has no permission.
    Forbidden,
    /// Its credentials are not valid yet, or not any more.
    StaleCredentials,
    /// The request is refused with an unknown error code.
    Rejected,
}

pub(super) type Decide = Box<dyn FnMut(&Value) -> Option<Fault> + Send>;
pub(super) type DecideRead = Box<dyn FnMut(&str, &Value) -> Option<Fault> + Send>;
pub(super) type DecideStall = Box<dyn FnMut(&str, &Value) -> bool + Send>;

/// The faults to come, and what has arrived.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) next: VecDeque<Option<Fault>>,
    pub(super) decide: Option<Decide>,
    pub(super) decide_transactions: Option<Decide>,
    pub(super) decide_reads: Option<DecideRead>,
    pub(super) stalls: Option<DecideStall>,
    pub(super) requests: BTreeMap<String, u64>,
}

impl Faults {
    /// Returns whether a request gets no answer.
    pub(super) fn stalls(&mut self, operation: &str, request: &Value) -> bool {
        let stalls = self.stalls.as_mut();
        stalls.is_some_and(|decide| decide(operation, request))
    }

    /// Counts a request, and says what it meets.
    pub(super) fn of(&mut self, operation: &str, request: &Value) -> Option<Fault> {
        *self.requests.entry(operation.to_owned()).or_default() += 1;
        match operation {
            "UpdateItem" => match self.next.pop_front() {
                Some(next) => next,
                None => self.decide.as_mut().and_then(|decide| decide(request)),
            },
            TRANSACTION => self.decide_transactions.as_mut().and_then(|decide| decide(request)),
            _ => {
                if READS.contains(&operation) {
                    require_listed(&shape(operation, request));
                }
                let decide = self.decide_reads.as_mut();
                decide.and_then(|decide| decide(operation, request))
            }
        }
    }
}

impl Fault {
    /// The answer to a request that meets this, which `run` applies if it is applied.
    pub(super) fn answer(
        self,
        operation: &str,
        request: &Value,
        run: impl Fn(&Value) -> (u16, String),
    ) -> Result<(u16, String), ConnectorError> {
        let lost = || ConnectorError::io("the connection was reset".into());
        let refused = |kind| Ok(error(kind, &json!({"message": "injected"})));
        let failed = || Ok((500, error("InternalServerError", &json!({"message": "injected"})).1));
        let is_transaction = operation == TRANSACTION;
        let cancelled = |code| {
            let parts = request["TransactItems"].as_array().map_or(0, Vec::len);
            let codes: Vec<_> =
                (0..parts).map(|part| if part == 0 { code } else { "None" }).collect();
            Ok(cancelled(&codes))
        };
        match self {
            Self::LoseRequest => Err(lost()),
            Self::LoseAnswer => {
                let _ = run(request);
                Err(lost())
            }
            Self::Repeat => {
                let (first, second) = (run(request), run(request));
                Ok(if is_refusal(&second) { first } else { second })
            }
            Self::Throttle { key_range: false } if is_transaction => cancelled("ThrottlingError"),
            Self::Throttle { key_range } => Ok(throttled(key_range)),
            Self::ThrottleFor(reason) => Ok(throttled_by(reason, "table/weirgate")),
            Self::Conflict if is_transaction => cancelled("TransactionConflict"),
            Self::Conflict => refused("TransactionConflictException"),
            Self::Refuse => Ok(run(&refusing(request))),
            Self::ServerError => failed(),
            Self::ServerErrorApplied => {
                let _ = run(request);
                failed()
            }
            Self::Forbidden => refused("AccessDeniedException"),
            Self::StaleCredentials => refused("UnrecognizedClientException"),
            Self::Rejected => refused("SomethingNewException"),
        }
    }
}

/// Returns the request with a condition that never holds.
fn refusing(request: &Value) -> Value {
    let mut refusing = request.clone();
    let never = "attribute_exists(PK) AND attribute_not_exists(PK)";
    let asked = request["ConditionExpression"].as_str();
    let both = asked.map_or_else(|| never.to_owned(), |asked| format!("{asked} AND {never}"));
    refusing["ConditionExpression"] = both.into();
    refusing
}

/// Whether the request was refused for now: throttled, or beside a transaction.
fn is_refusal((_, body): &(u16, String)) -> bool {
    ["Throttling", "TransactionConflict"].iter().any(|reason| body.contains(reason))
}

/// DynamoDB's own words for a throttled write to a table on demand.
const THROTTLED: &str = "Throughput exceeds the current capacity of your table or index. DynamoDB is automatically \
    scaling your table or index so please try again shortly. If exceptions persist, check if you have a hot key: \
    https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/bp-partition-key-design.html";

/// The answer to a throttled write: its partition is too hot, or (`false`) the account is over its
/// throughput.
pub(crate) fn throttled(key_range: bool) -> (u16, String) {
    let reason = if key_range {
        "TableWriteKeyRangeThroughputExceeded"
    } else {
        "TableWriteAccountLimitExceeded"
    };
    throttled_by(reason, "table/weirgate")
}

/// The answer to a request that is throttled for this reason, at a table or an index.
pub(crate) fn throttled_by(reason: &str, resource: &str) -> (u16, String) {
    let reasons = json!([{"reason": reason, "resource": format!("arn:aws:dynamodb:::{resource}")}]);
    error("ThrottlingException", &json!({"message": THROTTLED, "throttlingReasons": reasons}))
}

/// The answer to a single write to an item of a running transaction.
pub(crate) fn conflict() -> (u16, String) {
    error(
        "TransactionConflictException",
        &json!({"message": "Transaction is ongoing for the item"}),
    )
}

/// The answer to a cancelled transaction, with the code of every part; `None` for a part that was
/// not in the way.
pub(crate) fn cancelled(codes: &[&str]) -> (u16, String) {
    let reason = |code: &&str| match *code {
        "None" => json!({"Code": code}),
        "ThrottlingError" => json!({"Code": code, "Message": THROTTLED}),
        _ => json!({"Code": code, "Message": "Transaction is ongoing for the item"}),
    };
    let reasons: Vec<_> = codes.iter().map(reason).collect();
    let text = "Transaction cancelled, please refer cancellation reasons for specific reasons";
    let text = format!("{text} [{}]", codes.join(", "));
    // This exception spells its message with a capital.
    error("TransactionCanceledException", &json!({"Message": text, "CancellationReasons": reasons}))
}

/// The answer to a request that was `signed` more than five minutes from `now`, in the words of
/// AWS.
pub(super) fn untimely(signed: &str, now: EpochMillis) -> Option<(u16, String)> {
    const WINDOW_SECONDS: i64 = 300;
    let now = now.0.div_euclid(1000);
    let part = |from, to| signed.get(from..to).unwrap_or_default();
    let (day, time) = (
        [part(0, 4), part(4, 6), part(6, 8)].join("-"),
        [part(9, 11), part(11, 13), part(13, 15)].join(":"),
    );
    let at = DateTime::from_str(&format!("{day}T{time}Z"), Format::DateTime)
        .expect("the SDK dates what it signs")
        .secs();
    let text = |seconds: i64| {
        let text = DateTime::from_secs(seconds).fmt(Format::DateTime).expect("a date of our time");
        text.replace(['-', ':'], "")
    };
    let told = if at < now - WINDOW_SECONDS {
        format!(
            "Signature expired: {signed} is now earlier than {} ({} - 5 min.)",
            text(now - WINDOW_SECONDS),
            text(now)
        )
    } else if at > now + WINDOW_SECONDS {
        format!(
            "Signature not yet current: {signed} is still later than {} ({} + 5 min.)",
            text(now + WINDOW_SECONDS),
            text(now)
        )
    } else {
        return None;
    };
    let kind = "com.amazon.coral.service#InvalidSignatureException";
    Some((400, json!({"__type": kind, "message": told}).to_string()))
}

/// An answer with status 400.
fn error(kind: &str, fields: &Value) -> (u16, String) {
    let mut body = fields.clone();
    body["__type"] = format!("com.amazonaws.dynamodb.v20120810#{kind}").into();
    (400, body.to_string())
}
