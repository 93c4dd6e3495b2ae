//! `POST /v1/settle`.

use std::collections::BTreeMap;

use serde::Serialize;
use weirgate::http::PolicyNames;
use weirgate::{Decision, LimitName, MilliTokens, Settlement};

use super::acquire::{Answer, Lease};
use super::fields::{DAY_MS, Invalid, Object, millis, text, tokens, whole, whole_tokens, wrong};
use super::json::Json;
use super::refusal::Refusal;
use super::response::json;
use crate::decide::{Decider, End, Permit, Settle, Settled, TakeMore};

const ALLOWED: [&str; 7] = [
    "grant",
    "bucket",
    "adjust",
    "give_back",
    "renew_ms",
    "end",
    "take_more",
];

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
}

/// Reads a request.
pub(super) fn read(body: &[u8]) -> Result<Change, Invalid> {
    let mut object = Object::parse(body)?;
    let grant = object.required("grant", text)?;
    let bucket = object.optional("bucket", place)?;
    if object.has("take_more") {
        let amounts = |json| Object::of(json)?.each(whole_tokens);
        let amounts = object.required("take_more", amounts)?;
        object.end(&ALLOWED)?;
        if amounts.is_empty() {
            return Err(Invalid::of(
                "take_more",
                "must name a limit, got {}: add one",
            ));
        }
        return Ok(Change::TakeMore(TakeMore {
            grant,
            bucket,
            amounts,
        }));
    }
    let amounts = |json| Object::of(json)?.each(tokens);
    let settle = Settle {
        grant,
        bucket,
        adjust: object.optional("adjust", amounts)?.unwrap_or_default(),
        give_back: object.optional("give_back", amounts)?.unwrap_or_default(),
        renew: object.optional("renew_ms", millis(1..=DAY_MS))?,
        end: object.optional("end", end)?,
    };
    object.end(&ALLOWED)?;
    let has_amounts = !settle.adjust.is_empty() || !settle.give_back.is_empty();
    if !has_amounts && settle.renew.is_none() && settle.end.is_none() {
        return Err(Invalid::of(
            "",
            "changes nothing: add adjust, give_back, renew_ms, end or take_more",
        ));
    }
    Ok(Change::Settle(settle))
}

fn place(json: Json<'_>) -> Result<usize, Invalid> {
    whole(json).map(|at| usize::try_from(at).unwrap_or(usize::MAX))
}

fn end(json: Json<'_>) -> Result<End, Invalid> {
    match &json {
        Json::Text(text) if text == "release" => Ok(End::Release),
        Json::Text(text) if text == "roll_back" => Ok(End::RollBack),
        other => Err(wrong("\"release\" or \"roll_back\"", other)),
    }
}

/// Answers a request. The change runs to its end even if the client goes.
pub(super) async fn answer(
    decider: &Decider,
    change: Change,
    permit: Permit,
) -> Result<Answer, Refusal> {
    let settled = match change {
        Change::Settle(request) => decider.settle(request, permit).await,
        Change::TakeMore(request) => match decider.take_more(request, permit).await {
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
    Ok((vec![], json(&body(settled))))
}

fn body(settled: Settled) -> SettledBody {
    let expires = settled.granted.as_ref().and_then(|all| all.expires_at());
    SettledBody {
        lease: Lease::until(expires),
        grant: settled.granted.map(crate::decide::Granted::into_token),
        settlement: match settled.settlement {
            Settlement::Applied => "settled",
            Settlement::LeaseGone => "lease_gone",
        },
        amounts: settled.amounts,
    }
}
