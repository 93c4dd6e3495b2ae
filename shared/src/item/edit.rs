//! The item of a change over all shards of a bucket.

use super::config::config;
use super::parse::{entries, integer, name};
use super::{Attr, ItemError};
use crate::{
    BalanceStep, BucketEdit, EditChange, EditId, EpochMillis, LimitName, LimitsVersion, attr,
};

/// Reads the change that is under way; `None` if the last one has ended.
///
/// # Errors
/// [`ItemError`] naming the attribute that is wrong or missing.
pub fn read_edit<'a>(
    item: impl Iterator<Item = (&'a str, Attr<'a>)>,
) -> Result<Option<BucketEdit>, ItemError> {
    let attributes: Vec<_> = item.collect();
    let find = |wanted: &str| attributes.iter().find(|(name, _)| *name == wanted);
    let Some((_, plan)) = find(attr::PLAN) else {
        return Ok(None);
    };
    let (_, id) = find(attr::EDIT).ok_or_else(|| ItemError::missing(attr::EDIT, "an id"))?;
    let plan = entries(attr::PLAN, plan)?;
    let planned = |wanted: &str| plan.iter().find(|(name, _)| *name == wanted);
    let number = |wanted| {
        let found = planned(wanted).map(|(name, value)| integer(name, value));
        found.transpose()
    };
    let boundary = EpochMillis(number(attr::BOUNDARY)?.unwrap_or_default());
    let change = match (planned(attr::OWN), planned(attr::PAUSED_UNTIL)) {
        (Some((_, Attr::Bool(is_own))), _) => EditChange::Limits {
            limits: config(plan)?.limits,
            version: number(attr::VERSION)?.map(|number| LimitsVersion { number, boundary }),
            is_own: *is_own,
        },
        (_, Some((_, Attr::N(_)))) => {
            let until = number(attr::PAUSED_UNTIL)?.filter(|until| *until > 0);
            EditChange::Pause(until.map(EpochMillis))
        }
        _ => EditChange::Balances(plan.iter().map(balance).collect::<Result<_, _>>()?),
    };
    let id = EditId(integer(attr::EDIT, id)?);
    Ok(Some(BucketEdit { id, change }))
}

fn balance((limit, value): &(&str, Attr<'_>)) -> Result<(LimitName, BalanceStep), ItemError> {
    let edit = match value {
        Attr::S(text) => BalanceStep::parse(text),
        _ => None,
    };
    let edit = edit.ok_or_else(|| ItemError::new(attr::PLAN, value, "fill, set or raise"))?;
    Ok((name(limit, &Attr::S(limit))?, edit))
}
