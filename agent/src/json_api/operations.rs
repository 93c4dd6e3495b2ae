//! The operations: acquire, settle, report, peek and usage, each from its body to its answer, and health.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};
use weirgate::http::{Policies, PolicyNames};
use weirgate::{
    ClassName, Decision, Degraded, Denied, EntityId, EpochMillis, Error, Granularity, Limit,
    LimitName, LimitStatus, MilliTokens, NameError, PageToken, PlanName, RateLimiter, Resource,
    Settlement, UsageScope, VendorReport,
};

use super::request_body::{
    DAY_MS, Invalid, Object, bool, limits, list, millis, on_unavailable, status, text,
    text_or_list, tokens, whole, whole_tokens, word,
};
use super::responses::{Refusal, json};
use crate::gated::{
    BucketRequest, End, GatedLimiter, Granted, Permit, Report, Request, Settle, Take, TakeMore,
};

/// Most buckets in a request.
const MAX_BUCKETS: usize = 100;
/// Largest sum of a header's names and values, in bytes.
const MAX_HEADERS: usize = 8 * 1024;
/// Most values of one field.
const MAX_VALUES: usize = 100;
/// Longest time for a decision, and longest queue, in ms.
const HOUR_MS: u64 = 3_600_000;

const OF_BUCKET: [&str; 7] =
    ["entity", "resource", "take", "limits", "limits_version", "cascading", "class"];
const OF_REQUEST: [&str; 7] =
    ["wait_ms", "queue_ms", "answer", "lease_ms", "timeout_ms", "on_unavailable", "bypass"];

/// The fields and the body of an answer.
pub(super) type Answer = (Vec<(&'static str, String)>, Vec<u8>);

#[derive(Serialize)]
struct GrantedBody<'a> {
    grant: &'a str,
    lease: Option<Lease>,
    #[serde(skip_serializing_if = "Option::is_none")]
    starts_at_ms: Option<EpochMillis>,
    amounts: &'a [BTreeMap<LimitName, MilliTokens>],
    limits: &'a [LimitStatus],
    would_deny: Option<Denied>,
    degraded: Option<Degraded>,
    #[serde(skip_serializing_if = "Option::is_none")]
    missing_plan: Option<PlanName>,
}

/// When the first lease of a grant expires.
#[derive(Serialize)]
pub(super) struct Lease {
    expires_at_ms: EpochMillis,
}

impl Lease {
    pub(super) fn until(expires: Option<EpochMillis>) -> Option<Self> {
        expires.map(|expires_at_ms| Self { expires_at_ms })
    }
}

/// Reads a request to acquire.
pub(super) fn read_acquire(body: &[u8]) -> Result<Request, Invalid> {
    let mut object = Object::parse(body)?;
    let mut request = Request {
        wait: object.optional("wait_ms", millis(0..=DAY_MS))?.unwrap_or_default(),
        queue: object.optional("queue_ms", millis(1..=HOUR_MS))?,
        is_now: object.optional("answer", answers_now)?.unwrap_or_default(),
        lease: object.optional("lease_ms", millis(1..=DAY_MS))?,
        timeout: object.optional("timeout_ms", millis(1..=HOUR_MS))?,
        on_unavailable: object.optional("on_unavailable", on_unavailable)?,
        is_bypass: object.optional("bypass", bool)?.unwrap_or_default(),
        buckets: vec![],
    };
    if object.has("buckets") {
        let each = |json| {
            let mut object = Object::of(json)?;
            let bucket = bucket(&mut object)?;
            object.end(&OF_BUCKET)?;
            Ok(bucket)
        };
        request.buckets = object.required("buckets", |json| list(json, MAX_BUCKETS, each))?;
        if request.buckets.is_empty() {
            return Err(Invalid::of("buckets", "must have 1 to 100 elements, got 0: add one"));
        }
    } else {
        request.buckets = vec![bucket(&mut object)?];
    }
    object.end(&[&["buckets"][..], &OF_BUCKET, &OF_REQUEST].concat())?;
    check_queue(&request)?;
    Ok(request)
}

/// Reads when a request that queues is answered. Returns whether that is at once.
fn answers_now(json: &RawValue) -> Result<bool, Invalid> {
    word(json, "\"start\" or \"now\"", |text| match text {
        "start" => Some(false),
        "now" => Some(true),
        _ => None,
    })
}

/// Requires that a request waits in one way, and that it queues if it is answered before its start.
fn check_queue(request: &Request) -> Result<(), Invalid> {
    match request.queue {
        Some(_) if !request.wait.is_zero() => {
            let wait = request.wait.as_millis();
            let what = format!("cannot be combined with wait_ms {wait}: leave one of them out");
            Err(Invalid::of("queue_ms", what))
        }
        None if request.is_now => {
            Err(Invalid::of("answer", "is \"now\" without queue_ms: add queue_ms, or leave it out"))
        }
        _ => Ok(()),
    }
}

fn bucket(object: &mut Object<'_>) -> Result<BucketRequest, Invalid> {
    Ok(BucketRequest {
        entity: object.required("entity", text)?,
        resource: object.required("resource", text)?,
        takes: object.required("take", |json| Object::of(json)?.each(take))?,
        limits: object.optional("limits", limits)?,
        limits_version: object.optional("limits_version", whole)?,
        is_cascading: object.optional("cascading", bool)?.unwrap_or_default(),
        class: object.optional("class", |json| named(ClassName::new, json))?,
    })
}

fn take(json: &RawValue) -> Result<Take, Invalid> {
    if !json.get().starts_with('{') {
        let range = ", or {\"at_least\": 1, \"at_most\": 10}";
        return tokens(json, range).map(Take::Exactly);
    }
    let mut range = Object::of(json)?;
    let at_least = range.required("at_least", whole_tokens)?;
    let at_most = range.required("at_most", whole_tokens)?;
    range.end(&["at_least", "at_most"])?;
    Ok(Take::UpTo { at_least, at_most })
}

/// Returns how limits of a request are named in fields: those of the first bucket without a prefix.
fn names(request: &Request) -> PolicyNames {
    let first = request.buckets.first();
    first.map_or_else(PolicyNames::default, |bucket| {
        PolicyNames::default().own(&bucket.entity, &bucket.resource)
    })
}

/// Answers a request to acquire.
pub(super) async fn acquire(gated: &GatedLimiter, request: &Request) -> Result<Answer, Refusal> {
    let decision = gated.acquire(request).await;
    match decision.map_err(|error| Refusal::no_decision(&error))? {
        Decision::Granted(granted) => {
            let (limits, amounts) = (granted.limits(), granted.amounts());
            let (lease, starts_at_ms) = (Lease::until(granted.expires_at()), granted.starts_at());
            let (would_deny, degraded) = (granted.would_deny(), granted.degraded().cloned());
            let missing_plan = granted.missing_plan().cloned();
            let fields = Policies::granted(&limits, &names(request))
                .with_degraded(degraded.is_some())
                .fields();
            // From here on only the token can settle; nothing awaits before the answer is written.
            let grant = granted.into_token();
            let body = json(&GrantedBody {
                grant: &grant,
                lease,
                starts_at_ms,
                amounts: &amounts,
                limits: &limits,
                would_deny,
                degraded,
                missing_plan,
            });
            Ok((fields, body))
        }
        Decision::Denied(denied) => Err(Refusal::denied(&denied, &names(request))),
        Decision::NeverFits(never) => Err(Refusal::never_fits(&never, &names(request))),
        Decision::Disabled(disabled) => Err(Refusal::disabled(&disabled)),
    }
}

/// What a request does with a grant.
#[derive(Debug)]
pub(super) enum Change {
    Settle(Settle),
    TakeMore(TakeMore),
}

#[derive(Serialize)]
struct SettledBody {
    grant: Option<String>,
    settlement: &'static str,
    lease: Option<Lease>,
    amounts: Vec<BTreeMap<LimitName, MilliTokens>>,
    #[serde(flatten)]
    paused: Paused,
}

/// When a pause ends.
#[derive(Serialize)]
struct Paused {
    paused_until_ms: Option<EpochMillis>,
}

/// Reads a request to settle.
pub(super) fn read_settle(body: &[u8]) -> Result<Change, Invalid> {
    const ALLOWED: [&str; 8] =
        ["grant", "bucket", "vendor", "adjust", "give_back", "renew_ms", "end", "take_more"];
    let mut object = Object::parse(body)?;
    let grant = object.required("grant", text)?;
    let bucket = object.optional("bucket", place)?;
    if object.has("take_more") {
        let amounts = |json| Object::of(json)?.each(whole_tokens);
        let amounts = object.required("take_more", amounts)?;
        object.end(&ALLOWED)?;
        if amounts.is_empty() {
            return Err(Invalid::of("take_more", "must name a limit, got {}: add one"));
        }
        return Ok(Change::TakeMore(TakeMore { grant, bucket, amounts }));
    }
    let amounts = |json| Object::of(json)?.each(|json| tokens(json, ""));
    let settle = Settle {
        grant,
        bucket,
        vendor: object.optional("vendor", vendor)?,
        adjust: object.optional("adjust", amounts)?.unwrap_or_default(),
        give_back: object.optional("give_back", amounts)?.unwrap_or_default(),
        renew: object.optional("renew_ms", millis(1..=DAY_MS))?,
        end: object.optional("end", end)?,
    };
    object.end(&ALLOWED)?;
    let has_amounts = !settle.adjust.is_empty() || !settle.give_back.is_empty();
    if !has_amounts && settle.renew.is_none() && settle.end.is_none() && settle.vendor.is_none() {
        return Err(Invalid::of(
            "",
            "changes nothing: add adjust, give_back, renew_ms, vendor, end or take_more",
        ));
    }
    Ok(Change::Settle(settle))
}

fn place(json: &RawValue) -> Result<usize, Invalid> {
    whole(json).map(|at| usize::try_from(at).unwrap_or(usize::MAX))
}

fn end(json: &RawValue) -> Result<End, Invalid> {
    word(json, "\"release\" or \"roll_back\"", |text| match text {
        "release" => Some(End::Release),
        "roll_back" => Some(End::RollBack),
        _ => None,
    })
}

/// Answers a request to settle. The change runs to its end even if the client goes.
pub(super) async fn settle(
    gated: &GatedLimiter,
    change: Change,
    permit: Permit,
) -> Result<Answer, Refusal> {
    let settled = match change {
        Change::Settle(request) => gated.settle(request, permit).await,
        Change::TakeMore(request) => match gated.take_more(request, permit).await {
            Ok(Decision::Granted(settled)) => Ok(settled),
            Ok(Decision::Denied(denied)) => {
                return Err(Refusal::denied(&denied, &PolicyNames::default()));
            }
            Ok(Decision::NeverFits(never)) => {
                return Err(Refusal::never_fits(&never, &PolicyNames::default()));
            }
            Ok(Decision::Disabled(disabled)) => return Err(Refusal::disabled(&disabled)),
            Err(error) => Err(error),
        },
    };
    let settled = settled.map_err(Refusal::unsettled)?;
    let expires = settled.granted.as_ref().and_then(Granted::expires_at);
    let body = SettledBody {
        lease: Lease::until(expires),
        grant: settled.granted.map(Granted::into_token),
        settlement: match settled.settlement {
            Settlement::Applied => "settled",
            Settlement::LeaseGone => "lease_gone",
        },
        amounts: settled.amounts,
        paused: Paused { paused_until_ms: settled.paused_until },
    };
    Ok((vec![], json(&body)))
}

/// Reads a report of what a vendor said.
pub(super) fn read_report(body: &[u8]) -> Result<Report, Invalid> {
    let mut object = Object::parse(body)?;
    let report = Report {
        entity: object.required("entity", text)?,
        resource: object.required("resource", text)?,
        vendor: object.required("vendor", vendor)?,
    };
    object.end(&["entity", "resource", "vendor"])?;
    Ok(report)
}

/// Reads what a vendor said: its status, and its header.
fn vendor(json: &RawValue) -> Result<VendorReport, Invalid> {
    let mut object = Object::of(json)?;
    let status = object.required("status", status)?;
    let fields = object.optional("headers", headers)?.unwrap_or_default();
    object.end(&["status", "headers"])?;
    let fields =
        fields.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
    Ok(VendorReport::read(status, fields))
}

/// Reads the fields of a header, each a value or a list of them.
fn headers(json: &RawValue) -> Result<Vec<(String, Vec<String>)>, Invalid> {
    let values = |json: &RawValue| match json.get().starts_with('[') {
        true => list(json, MAX_VALUES, text),
        false => text_or_list(json).map(|value| vec![value]),
    };
    let fields = Object::of(json)?.each(values)?;
    let size = |(name, values): &(String, Vec<String>)| {
        name.len() + values.iter().map(String::len).sum::<usize>()
    };
    let bytes: usize = fields.iter().map(size).sum();
    match bytes <= MAX_HEADERS {
        true => Ok(fields),
        false => Err(Invalid::of(
            "",
            format!(
                "must have at most {MAX_HEADERS} bytes, got {bytes}: send only the fields of limits"
            ),
        )),
    }
}

/// Answers a report.
pub(super) async fn report(gated: &GatedLimiter, report: &Report) -> Result<Answer, Refusal> {
    let paused_until_ms = gated.report(report).await;
    let paused_until_ms = paused_until_ms.map_err(|error| Refusal::no_decision(&error))?;
    Ok((vec![], json(&Paused { paused_until_ms })))
}

/// A request for balances.
#[derive(Debug)]
pub(super) struct Peek {
    entity: String,
    resource: String,
    limits: Option<Arc<[Limit]>>,
    need: Vec<(String, i64)>,
}

/// Reads a request for balances.
pub(super) fn read_peek(body: &[u8]) -> Result<Peek, Invalid> {
    let mut object = Object::parse(body)?;
    let peek = Peek {
        entity: object.required("entity", text)?,
        resource: object.required("resource", text)?,
        limits: object.optional("limits", limits)?,
        need: object
            .optional("need", |json| Object::of(json)?.each(whole_tokens))?
            .unwrap_or_default(),
    };
    // A bucket can be sent as it is acquired; a peek changes no limits, so none can be older.
    let _ = object.optional("limits_version", whole)?;
    object.end(&["entity", "resource", "limits", "limits_version", "need"])?;
    Ok(peek)
}

/// Answers a request for balances.
pub(super) async fn peek(gated: &GatedLimiter, request: &Peek) -> Result<Answer, Refusal> {
    let mut peek = gated.limiter.peek(&request.entity, &request.resource);
    if let Some(limits) = &request.limits {
        peek = peek.limits(limits);
    }
    for (limit, tokens) in &request.need {
        peek = peek.need(limit, *tokens);
    }
    let balances = peek.send().await;
    let balances = balances.map_err(|error| Refusal::no_decision(&error))?;
    let names = PolicyNames::default().own(&request.entity, &request.resource);
    let fields = Policies::granted(&balances.limits, &names).fields();
    Ok((fields, json(&balances)))
}

/// A request for usage.
#[derive(Debug)]
pub(super) struct Usage {
    scope: UsageScope,
    by: Granularity,
    from: EpochMillis,
    to: EpochMillis,
    /// The total, or a page of rows.
    rows: Rows,
}

#[derive(Debug)]
enum Rows {
    Total,
    Page(Option<PageToken>),
}

/// Reads a request for usage.
pub(super) fn read_usage(body: &[u8]) -> Result<Usage, Invalid> {
    let mut object = Object::parse(body)?;
    let scope = object.required("scope", scope)?;
    let by = object.required("by", granularity)?;
    let from = object.required("from_ms", whole).map(EpochMillis)?;
    let to = object.required("to_ms", whole).map(EpochMillis)?;
    let rows = if object.optional("total", bool)?.unwrap_or_default() {
        Rows::Total
    } else {
        Rows::Page(object.optional("page", page)?)
    };
    object.end(&["scope", "by", "from_ms", "to_ms", "page", "total"])?;
    Ok(Usage { scope, by, from, to, rows })
}

fn scope(json: &RawValue) -> Result<UsageScope, Invalid> {
    let mut object = Object::of(json)?;
    let entity = object.optional("entity", |json| named(EntityId::new, json))?;
    let plan = object.optional("plan", |json| named(PlanName::new, json))?;
    let resource = object.optional("resource", |json| named(Resource::new, json))?;
    object.end(&["entity", "plan", "resource"])?;
    match (entity, plan, resource) {
        (Some(_), Some(_), _) => Err(Invalid::of("", "has entity and plan: leave one of them out")),
        (Some(entity), None, Some(resource)) => Ok(UsageScope::Bucket(entity, resource)),
        (Some(entity), None, None) => Ok(UsageScope::Entity(entity)),
        (None, Some(plan), resource) => Ok(UsageScope::Plan(plan, resource)),
        (None, None, Some(resource)) => Ok(UsageScope::Resource(resource)),
        (None, None, None) => {
            Err(Invalid::of("", "must have entity or plan, resource or both, got {}: add one"))
        }
    }
}

/// Reads a name.
pub(super) fn named<T>(
    new: impl Fn(String) -> Result<T, NameError>,
    json: &RawValue,
) -> Result<T, Invalid> {
    new(text(json)?).map_err(|error| Invalid::of("", format!("is wrong: {error}")))
}

fn granularity(json: &RawValue) -> Result<Granularity, Invalid> {
    word(json, "\"hour\", \"day\" or \"month\"", |text| match text {
        "hour" => Some(Granularity::Hourly),
        "day" => Some(Granularity::Daily),
        "month" => Some(Granularity::Monthly),
        _ => None,
    })
}

fn page(json: &RawValue) -> Result<PageToken, Invalid> {
    let token = text(json)?.parse();
    token.map_err(|error: Error| Invalid::of("", format!("is no page: {error}")))
}

/// Answers a request for usage.
pub(super) async fn usage(gated: &GatedLimiter, request: Usage) -> Result<Answer, Refusal> {
    let range = request.from..request.to;
    let read = async {
        let report = gated.limiter.admin().usage_report(request.scope, request.by, range)?;
        match &request.rows {
            Rows::Total => report.total().await.map(|total| json(&total)),
            Rows::Page(after) => report.page(after.as_ref()).await.map(|page| json(&page)),
        }
    };
    let body = read.await;
    Ok((vec![], body.map_err(|error| Refusal::no_decision(&error))?))
}

/// Pause before the table is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether the table was reached since the start.
#[derive(Debug, Default)]
pub struct Health {
    is_reached: AtomicBool,
    last: Mutex<Option<LastRead>>,
}

/// The last read of the table.
#[derive(Debug)]
struct LastRead {
    /// Its end, or its beginning if the request was dropped.
    at: Instant,
    error: Option<Error>,
}

impl Health {
    /// Reads the table until it is reached, which also opens the connection to it.
    pub async fn reach(self: Arc<Self>, limiter: RateLimiter) {
        while let Err(error) = self.read(&limiter).await {
            tracing::error!(%error, "the table was not reached");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Returns the body, after a read of the table if it was not reached yet.
    pub(super) async fn check(&self, limiter: &RateLimiter) -> Result<Vec<u8>, Refusal> {
        let reached = self.read(limiter).await;
        reached.map_err(|error| Refusal::not_reached(&error))?;
        Ok(br#"{"status":"ok"}"#.to_vec())
    }

    /// Reads the table if it was not reached yet. There is one read at a time, and its error is
    /// kept for [`PAUSE`], so requests do not multiply reads.
    async fn read(&self, limiter: &RateLimiter) -> Result<(), Error> {
        if self.is_reached.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut last = self.last.lock().await;
        if self.is_reached.load(Ordering::Relaxed) {
            return Ok(());
        }
        if let Some(LastRead { at, error }) = &*last {
            let next = *at + PAUSE;
            match error {
                Some(error) if Instant::now() < next => return Err(error.clone()),
                _ => sleep_until(next).await,
            }
        }
        *last = Some(LastRead { at: Instant::now(), error: None });
        let read = limiter.check().await;
        *last = Some(LastRead { at: Instant::now(), error: read.as_ref().err().cloned() });
        self.is_reached.store(read.is_ok(), Ordering::Relaxed);
        read
    }
}
