//! What a million requests cost, for seven profiles of use: write and read units as DynamoDB
//! reports them, on virtual time, and dollars by the prices of `docs/scaling.md`.
//!
//! # Layout
//!
//! - [`profile`]: the seven profiles
//! - [`stack`]: a table and the aggregator, with what each of them consumes

pub mod profile;
pub mod stack;

use profile::{PROFILES, Profile};
use stack::Consumed;

use super::harness::on_virtual_time;
use super::row::Rounds;
use crate::number::count;
use crate::scaling;
use crate::scaling::facts::{READ_UNIT_PRICE, WRITE_UNIT_PRICE};

/// Returns the rows of all profiles.
pub async fn rows() -> Vec<Rounds> {
    let mut rows = vec![];
    for profile in PROFILES {
        let consumed = on_virtual_time(move || profile.run()).await;
        let requests = count(consumed.requests);
        let of = [
            ("units", consumed.callers / requests),
            ("usage-units", consumed.aggregator / requests),
            ("read-units", consumed.reads / requests),
            ("dollars", dollars(profile, &consumed)),
        ];
        rows.extend(of.map(|(name, value)| (format!("cost/{}/{name}", profile.id()), vec![value])));
    }
    rows
}

/// Units at their prices, and calls of the aggregator.
fn dollars(profile: Profile, consumed: &Consumed) -> f64 {
    const DOLLAR: f64 = 1e12;
    let calls = profile.records_of_a_call().map_or_else(
        || consumed.calls.clone(),
        |records| vec![(records, count(consumed.records()) / count(records))],
    );
    let of_calls: f64 =
        calls.iter().map(|(records, calls)| calls * count(scaling::call(*records).0)).sum();
    let writes = (consumed.callers + consumed.aggregator) * count(WRITE_UNIT_PRICE);
    let reads = consumed.reads * count(READ_UNIT_PRICE);
    (writes + reads + of_calls) / count(consumed.requests) * 1e6 / DOLLAR
}
