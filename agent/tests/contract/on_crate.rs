//! The crate as a subject of the contract: a table in memory, with virtual time.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};
use weirgate::testing::TestTable;
use weirgate::{
    Acquire, Decision, Denied, Error, Grant, Limit, LimitStatus, LimitsFile, MilliTokens,
    RateLimiter, Settlement,
};

use crate::scenario::Subject;

type Request = Map<String, Value>;

/// A limiter, and the table that outlives it.
pub struct OnCrate {
    table: TestTable,
    limiter: RateLimiter,
}

impl OnCrate {
    pub async fn new(is_available: bool) -> Self {
        let table = TestTable::new();
        table.set_unavailable(!is_available);
        let limiter = limiter(&table).await;
        Self { table, limiter }
    }

    fn acquire_of<'a>(&'a self, bucket: &Request, options: &Request) -> Result<Acquire<'a>, Error> {
        let text = |field: &str| bucket[field].as_str().unwrap();
        let mut acquire = self.limiter.acquire(text("entity"), text("resource"));
        if let Some(limits) = bucket.get("limits") {
            acquire = acquire.limits(&limits_of(limits)?);
        }
        for (limit, amount) in bucket["take"].as_object().unwrap() {
            acquire = match amount.as_object() {
                Some(range) => {
                    let tokens = |field: &str| range[field].as_i64().unwrap();
                    acquire.take_up_to(limit, tokens("at_least"), tokens("at_most"))
                }
                None => acquire.take_milli(limit, milli(amount)),
            };
        }
        if let Some(lease) = span(options, "lease_ms") {
            acquire = acquire.lease(lease);
        }
        if let Some(timeout) = span(options, "timeout_ms") {
            acquire = acquire.timeout(timeout);
        }
        if let Some(text) = options.get("on_unavailable") {
            let parsed = serde_json::from_value(text.clone());
            let parsed = parsed.map_err(|error| Error::Invalid(error.to_string()))?;
            acquire = acquire.on_unavailable(parsed);
        }
        if options.contains_key("bypass") {
            acquire = acquire.bypass();
        }
        Ok(acquire)
    }

    async fn decide(&self, request: &Request) -> Result<Value, Error> {
        let wait = span(request, "wait_ms").unwrap_or_default();
        let Some(buckets) = request.get("buckets").and_then(Value::as_array) else {
            let acquire = self.acquire_of(request, request)?.wait_up_to(wait);
            return Ok(decided(acquire.send().await?, |grant| vec![grant]));
        };
        let buckets = buckets.iter().map(|bucket| bucket.as_object().unwrap());
        let requests = buckets.map(|bucket| self.acquire_of(bucket, request));
        let requests = requests.collect::<Result<Vec<_>, _>>()?;
        let decision = self
            .limiter
            .acquire_all(requests)
            .wait_up_to(wait)
            .send()
            .await?;
        Ok(decided(decision, |grants| grants.into_iter().collect()))
    }

    async fn change(&self, request: &Request) -> Result<Value, Error> {
        let tokens = request["grant"].as_str().unwrap().split('.');
        let grants = tokens.map(|token| self.limiter.restore_grant(token));
        let mut grants = grants.collect::<Result<Vec<_>, _>>()?;
        let bucket = request.get("bucket").and_then(Value::as_u64);
        let mut settlement = Settlement::Applied;
        for change in ["adjust", "give_back", "take_more"] {
            for (limit, amount) in request
                .get(change)
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
            {
                for at in places(&grants, limit, bucket) {
                    let grant = &mut grants[at];
                    let tokens = amount.as_i64().unwrap_or_default();
                    let done = match change {
                        "adjust" => match amount.as_i64() {
                            Some(tokens) => grant.adjust(limit, tokens).await?,
                            None => grant.adjust_milli(limit, milli(amount)).await?,
                        },
                        "give_back" => grant.give_back(limit, tokens).await?,
                        _ => match grant.take_more(limit, tokens).await? {
                            Decision::Granted(()) => Settlement::Applied,
                            refused => return Ok(decided(refused, |()| vec![])),
                        },
                    };
                    settlement = worse(settlement, done);
                }
            }
        }
        if let Some(lasts) = span(request, "renew_ms") {
            for grant in &mut grants {
                settlement = worse(settlement, grant.renew(lasts).await?);
            }
        }
        let Some(end) = request.get("end") else {
            return Ok(merge(held(grants), json!({"outcome": word(settlement)})));
        };
        for grant in grants {
            let done = match end.as_str() {
                Some("release") => grant.release().await?,
                _ => grant.roll_back().await?,
            };
            settlement = worse(settlement, done);
        }
        Ok(json!({"outcome": word(settlement), "ended": true}))
    }

    async fn balances(&self, request: &Request) -> Result<Value, Error> {
        let text = |field: &str| request[field].as_str().unwrap();
        let mut peek = self.limiter.peek(text("entity"), text("resource"));
        if let Some(limits) = request.get("limits") {
            peek = peek.limits(&limits_of(limits)?);
        }
        for (limit, tokens) in request
            .get("need")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            peek = peek.need(limit, tokens.as_i64().unwrap());
        }
        let balances = peek.send().await?;
        let json = serde_json::to_value(&balances).unwrap();
        Ok(json!({
            "outcome": "balances",
            "status": json["status"],
            "retry_after_ms": json["retry_after_ms"],
            "remaining": remaining(&balances.limits),
        }))
    }
}

impl Subject for OnCrate {
    async fn acquire(&mut self, request: &Request) -> Value {
        self.decide(request).await.unwrap_or_else(failed)
    }

    async fn settle(&mut self, request: &Request) -> Value {
        self.change(request).await.unwrap_or_else(failed)
    }

    async fn peek(&mut self, request: &Request) -> Value {
        self.balances(request).await.unwrap_or_else(failed)
    }

    async fn restart(&mut self) {
        self.limiter = limiter(&self.table).await;
    }
}

async fn limiter(table: &TestTable) -> RateLimiter {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/contract/limits.yaml");
    let file = LimitsFile::open(path).expect("the limits of the contract are valid");
    table.builder().limits_file(file).build().await.unwrap()
}

fn decided<G>(decision: Decision<G>, grants: impl FnOnce(G) -> Vec<Grant>) -> Value {
    match decision {
        Decision::Granted(granted) => merge(held(grants(granted)), json!({"outcome": "granted"})),
        Decision::Denied(denied) => json!({
            "outcome": "denied",
            "short": short(&denied),
            "retry_after_ms": serde_json::to_value(&denied).unwrap()["retry_after_ms"],
            "text": denied.to_string(),
        }),
        Decision::NeverFits(never) => {
            json!({"outcome": "never_fits", "short": [never.limit], "text": never.to_string()})
        }
        Decision::Disabled(disabled) => {
            json!({"outcome": "disabled", "text": disabled.to_string()})
        }
    }
}

/// Returns what the answer says of grants that go on, and turns them into their token.
fn held(grants: Vec<Grant>) -> Value {
    let limits: Vec<_> = grants.iter().flat_map(Grant::limits).collect();
    let amounts: Vec<_> = grants.iter().map(Grant::amounts).collect();
    let waived = grants.iter().filter_map(Grant::would_deny);
    let would_deny: Vec<_> = waived.flat_map(short).collect();
    json!({
        "amounts": amounts,
        "remaining": remaining(&limits),
        "lease": grants.iter().any(|grant| grant.expires_at().is_some()),
        "would_deny": would_deny,
        "degraded": grants.iter().any(|grant| grant.degraded().is_some()),
        "ended": false,
        "grant": grants.into_iter().map(Grant::into_token).collect::<Vec<_>>().join("."),
    })
}

fn failed(error: Error) -> Value {
    let text = error.to_string();
    match error {
        Error::Invalid(_) => json!({"outcome": "invalid", "applied": "no", "text": text}),
        error => {
            let applied = if error.is_unknown() { "unknown" } else { "no" };
            json!({"outcome": "unavailable", "applied": applied, "text": text})
        }
    }
}

/// Returns the places of the grants that a change is for.
fn places(grants: &[Grant], limit: &str, bucket: Option<u64>) -> Vec<usize> {
    let is_meant = |at: &usize| bucket.is_none_or(|bucket| u64::try_from(*at) == Ok(bucket));
    let all: Vec<_> = (0..grants.len()).filter(is_meant).collect();
    let has = |at: &usize| grants[*at].amounts().contains_key(limit);
    let holders: Vec<_> = all.iter().copied().filter(has).collect();
    if holders.is_empty() { all } else { holders }
}

fn short(denied: &Denied) -> Vec<String> {
    denied.short().map(|status| status.limit.clone()).collect()
}

fn remaining(limits: &[LimitStatus]) -> Value {
    let of = |status: &LimitStatus| (status.limit.clone(), json!(status.available));
    Value::Object(limits.iter().map(of).collect())
}

fn limits_of(limits: &Value) -> Result<Vec<Limit>, Error> {
    serde_json::from_value(limits.clone()).map_err(|error| Error::Invalid(error.to_string()))
}

fn milli(amount: &Value) -> MilliTokens {
    serde_json::from_value(amount.clone()).expect("an amount")
}

fn span(request: &Request, field: &str) -> Option<Duration> {
    request
        .get(field)
        .and_then(Value::as_u64)
        .map(Duration::from_millis)
}

const fn worse(one: Settlement, other: Settlement) -> Settlement {
    match (one, other) {
        (Settlement::Applied, Settlement::Applied) => Settlement::Applied,
        _ => Settlement::LeaseGone,
    }
}

const fn word(settlement: Settlement) -> &'static str {
    match settlement {
        Settlement::Applied => "settled",
        Settlement::LeaseGone => "lease_gone",
    }
}

fn merge(mut one: Value, other: Value) -> Value {
    let (Value::Object(into), Value::Object(from)) = (&mut one, other) else {
        return one;
    };
    into.extend(from);
    one
}
