//! Bucket math against vectors of another implementation: same tokens to the millitoken, same waits
//! to the millisecond.

#![allow(
    clippy::as_conversions,
    reason = "the vectors' waits are floats, in seconds"
)]

use serde_json::Value;
use weirgate_shared::{EpochMillis, MilliTokens, RefillRule, ShardIndex, ready_at, refilled};

fn vectors(kind: &str) -> Vec<Value> {
    let text = include_str!("vectors.json");
    let mut all: Value = serde_json::from_str(text).unwrap();
    let Value::Array(vectors) = all[kind].take() else {
        panic!("no {kind} vectors")
    };
    assert_eq!(vectors.len(), 300, "{kind}");
    vectors
}

fn number(vector: &Value, field: &str) -> i64 {
    vector[field]
        .as_i64()
        .unwrap_or_else(|| panic!("{field} in {vector}"))
}

#[test]
fn refill_agrees_within_one_millitoken() {
    for vector in vectors("refill") {
        let field = |name| number(&vector, name);
        let rule = RefillRule {
            capacity: MilliTokens(field("capacity")),
            refill_amount: MilliTokens(field("refill_amount")),
            refill_period_ms: field("refill_period_ms"),
        };
        let (rf, now) = (
            EpochMillis(field("last_refill_ms")),
            EpochMillis(field("now_ms")),
        );
        let tokens = refilled(
            MilliTokens(field("tokens")),
            &rule,
            ShardIndex::UNSPLIT,
            rf,
            now,
        );
        let apart = tokens.0.abs_diff(field("new_tokens"));
        assert!(
            apart <= 1,
            "{apart} millitokens apart: {tokens:?} for {vector}"
        );
    }
}

#[test]
fn retry_after_agrees_within_one_millisecond_and_is_never_later() {
    for vector in vectors("retry_after_ms") {
        let field = |name| number(&vector, name);
        let need = MilliTokens(field("deficit"));
        let (refill_amount, refill_period_ms) = (
            MilliTokens(field("refill_amount")),
            field("refill_period_ms"),
        );
        let rule = RefillRule {
            capacity: need,
            refill_amount,
            refill_period_ms,
        };
        let ours = ready_at(
            need,
            MilliTokens::ZERO,
            &rule,
            ShardIndex::UNSPLIT,
            EpochMillis(0),
        )
        .unwrap()
        .0;

        let seconds = vector["seconds"].as_f64().unwrap();
        let theirs = (seconds * 1000.0).round() as i64;
        // Past some 10^12 seconds (30,000 years) a float's last digit is more than a millisecond,
        // and JSON's reader may be off by one of it. Everywhere below this is zero.
        let blur = ((seconds.next_up() - seconds) * 2000.0) as i64;
        assert!(
            ours <= theirs + blur,
            "later than {theirs} by {}: {vector}",
            ours - theirs
        );
        assert!(
            ours >= theirs - 1 - blur,
            "earlier than {theirs} by {}: {vector}",
            theirs - ours
        );
    }
}
