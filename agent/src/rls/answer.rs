//! Standings as statuses, headers and a body.

use weirgate::http::{Policies, PolicyNames, Problem};

use super::decide::Decided;
use super::messages::{Code, HeaderValue, RateLimitResponse};
use super::plan::{Plan, Step};
use super::refusal::Refusal;
use super::standing::Standing;
use super::taken;

/// Returns the answer to a call.
pub(super) fn answer(plan: &Plan, decided: &Decided) -> RateLimitResponse {
    let names = names(plan);
    let statuses = decided.standings.iter().map(Standing::message).collect();
    let (code, fields, problem) = match &decided.refusal {
        None => {
            let fields = Policies::granted(&decided.limits, &names).fields();
            (Code::Ok, fields, None)
        }
        Some(Refusal::Denied(denied)) => {
            let fields = Policies::denied(denied, &names).fields();
            (
                Code::OverLimit,
                fields,
                Some(Problem::denied(denied, &names)),
            )
        }
        Some(Refusal::NeverFits(never)) => {
            let problem = Problem::never_fits(never, &names);
            (Code::OverLimit, vec![], Some(problem))
        }
        Some(Refusal::Disabled(disabled)) => {
            let problem = Problem::disabled(disabled);
            (Code::OverLimit, vec![], Some(problem))
        }
    };
    let fields = fields.into_iter();
    let mut headers: Vec<_> = fields.map(|(name, value)| header(name, value)).collect();
    if problem.is_some() {
        headers.push(header(
            "content-type",
            "application/problem+json".to_owned(),
        ));
    }
    RateLimitResponse {
        overall_code: code.into(),
        statuses,
        response_headers_to_add: headers,
        raw_body: problem.map_or_else(Vec::new, |problem| problem.json().into_bytes()),
        dynamic_metadata: taken::metadata(plan, decided),
    }
}

/// Returns the names of the limits: those of the first bucket have their own. A trial is no bucket that
/// clients could know of.
fn names(plan: &Plan) -> PolicyNames {
    let mut asked = plan.steps.iter().filter_map(|step| match step {
        Step::Ask(parcel) | Step::Peek(parcel) => Some(&parcel.bucket),
        Step::Blocked(bucket, _) => Some(bucket),
        Step::Pass | Step::Unlimited | Step::Settle(_) | Step::Refund(_) | Step::Refused(_) => None,
    });
    let own = asked.find(|bucket| !bucket.terms.is_shadow);
    match own {
        Some(bucket) => PolicyNames::default().own(&bucket.entity, &bucket.resource),
        None => PolicyNames::default(),
    }
}

fn header(key: &str, value: String) -> HeaderValue {
    HeaderValue {
        key: key.to_owned(),
        value,
    }
}
