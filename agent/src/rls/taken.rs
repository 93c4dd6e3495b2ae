//! What a call took, for the refund after its response.
//!
//! Envoy keeps it as dynamic metadata of the request, which no client can set. A refund whose hits are
//! read from it exists only after a grant.

use std::collections::BTreeMap;

use super::decide::Decided;
use super::messages::{Struct, Value, value};
use super::plan::{Parcel, Plan, Step};

/// Field of the tokens that were taken.
const TAKEN: &str = "taken";

/// Returns the tokens that a call took, by resource and limit: `{taken: {llm: {tpd: 40000}}}`. Of
/// several buckets with the same resource and limit, the smallest amount counts; a trial counts only
/// where no other has the two. `None` if nothing was taken from the table.
pub(super) fn metadata(plan: &Plan, decided: &Decided) -> Option<Struct> {
    let mut taken = BTreeMap::<&str, BTreeMap<&str, u32>>::new();
    let parcels = decided
        .grants
        .iter()
        .filter_map(|(at, grant)| match &plan.steps[*at] {
            Step::Ask(parcel) => Some((parcel, grant)),
            _ => None,
        });
    let (trials, enforced): (Vec<_>, Vec<_>) =
        parcels.partition(|(parcel, _)| parcel.bucket.terms.is_shadow);
    let enforced_limits: Vec<_> = enforced
        .iter()
        .flat_map(|(parcel, _)| limits(parcel))
        .collect();
    for (parcel, grant) in enforced.into_iter().chain(trials) {
        for take in &parcel.bucket.terms.takes {
            let key = (&*parcel.bucket.resource, &*take.limit);
            if parcel.bucket.terms.is_shadow && enforced_limits.contains(&key) {
                continue;
            }
            // Without DynamoDB, a local bucket took it, or nothing did.
            let amount = match grant.degraded() {
                None => grant.amount(&take.limit).whole_tokens(),
                Some(_) => 0,
            };
            let amount = u32::try_from(amount.max(0)).unwrap_or(u32::MAX);
            let limits = taken.entry(&parcel.bucket.resource).or_default();
            let least = limits.entry(&take.limit).or_insert(amount);
            *least = amount.min(*least);
        }
    }
    let resources = taken.into_iter().filter_map(|(resource, limits)| {
        let limits = limits.into_iter().filter(|(_, amount)| *amount > 0);
        let limits = limits.map(|(limit, amount)| (limit, value::Kind::Number(amount.into())));
        Some((resource, value::Kind::Fields(fields(limits)?)))
    });
    fields([(TAKEN, value::Kind::Fields(fields(resources)?))])
}

/// Iterates over the resource and the limits that a parcel takes.
fn limits(parcel: &Parcel) -> impl Iterator<Item = (&str, &str)> {
    let takes = parcel.bucket.terms.takes.iter();
    takes.map(|take| (&*parcel.bucket.resource, &*take.limit))
}

/// Returns a message of these fields; `None` if there are none.
fn fields<'f>(fields: impl IntoIterator<Item = (&'f str, value::Kind)>) -> Option<Struct> {
    let field = |(name, kind): (&str, _)| (name.to_owned(), Value { kind: Some(kind) });
    let fields: BTreeMap<_, _> = fields.into_iter().map(field).collect();
    (!fields.is_empty()).then_some(Struct { fields })
}
