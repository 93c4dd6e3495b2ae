//! A grant as text, from which another process restores it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weirgate_shared::{BucketKey, LimitName};
use weirgate_store::{base64, short_name};

use super::grant::{Grant, Uncounted, Vendor};
use super::targets::{MAX_BUCKETS, check_parts};
use crate::bucket::{BucketRegistry, Hold, HoldToken, check_namespace};
use crate::values::{Degraded, Error};

/// Version of the token's format.
const FORMAT: u8 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantToken {
    format: u8,
    /// Table of the buckets; `None` without any.
    table: Option<String>,
    holds: Vec<HoldToken>,
    has_unlimited: bool,
    /// The limits of which nothing is counted, if they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uncounted: Option<Vec<String>>,
    /// Those of them that shadow mode waived.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    waived: Vec<String>,
    /// Why the decision was made without DynamoDB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    degraded: Option<String>,
    /// Namespace, entity and resource of the last bucket of the request, if it has no hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vendor: Option<(String, String, String)>,
}

impl Grant {
    /// Turns the grant into a token: text from which
    /// [`RateLimiter::restore_grant`](crate::RateLimiter::restore_grant) makes it again, in this
    /// process or in another. Writes nothing, and releases nothing.
    ///
    /// It is of one table, by its name, and of one namespace. The token is not signed: a token that was
    /// changed can return tokens that were never taken.
    /// Accept tokens only from callers that may settle any grant of the namespace.
    ///
    /// Tokens taken from a [local bucket](crate::OnUnavailable) stay taken: the token has none of
    /// them.
    #[must_use = "only the token can still settle the grant"]
    pub fn into_token(self) -> String {
        let degraded = self.degraded().map(|why| why.reason.clone());
        let vendor = self.vendor.clone();
        let (holds, uncounted, waived) = self.into_holds();
        let session = holds.first().map(Hold::session);
        let session = session.or(vendor.as_ref().map(|vendor| &vendor.session));
        let table = session.map(|session| session.table.name());
        let token = GrantToken {
            format: FORMAT,
            table: table.map(str::to_owned),
            has_unlimited: !uncounted.is_empty(),
            uncounted: match uncounted {
                Uncounted::Limits(names) if !names.is_empty() => {
                    Some(names.iter().map(LimitName::to_string).collect())
                }
                Uncounted::Limits(_) | Uncounted::Any => None,
            },
            holds: holds.into_iter().map(Hold::into_token).collect(),
            waived: waived.iter().map(LimitName::to_string).collect(),
            degraded,
            vendor: vendor.map(|Vendor { bucket, .. }| {
                let BucketKey { namespace, entity, resource, .. } = &bucket.key;
                (namespace.to_string(), entity.to_string(), resource.to_string())
            }),
        };
        base64::encode(serde_json::to_vec(&token).expect("strings and numbers are JSON"))
    }
}

/// Restores a grant from its token.
///
/// # Errors
/// [`Error::Invalid`] for text that is no token, or a token of another table or namespace.
pub(crate) fn restore(token: &str, buckets: &BucketRegistry) -> Result<Grant, Error> {
    let json = base64::decode(token).ok();
    let parsed = json.and_then(|json| serde_json::from_slice::<GrantToken>(&json).ok());
    let parsed = parsed.filter(|token| token.format == FORMAT && token.holds.len() <= MAX_BUCKETS);
    let GrantToken { table, holds, has_unlimited, uncounted, waived, degraded, vendor, .. } =
        parsed.ok_or_else(|| {
            Error::Invalid(
                "the text is not a grant token of this version: pass the token as it was returned"
                    .to_owned(),
            )
        })?;
    let own = buckets.session.table.name();
    let is_of_table = !holds.is_empty() || vendor.is_some();
    if is_of_table && table.as_deref().map(short_name) != Some(short_name(own)) {
        let of = table.as_deref().unwrap_or_default();
        return Err(Error::Invalid(format!(
            "the grant token is of table {of:?}, this limiter's is {own:?}: use a limiter of the same table"
        )));
    }
    let holds = holds.into_iter().map(|hold| hold.restore(buckets));
    let holds = holds.collect::<Result<Vec<_>, _>>()?;
    check_parts(holds.iter().map(Hold::part_count).sum())?;
    let names = uncounted.map(|names| {
        let names = names.into_iter().map(LimitName::new);
        names.collect::<Result<_, _>>().map(Uncounted::Limits)
    });
    let uncounted = match names.transpose()? {
        _ if !has_unlimited => Uncounted::default(),
        Some(names) => names,
        None => Uncounted::Any,
    };
    let waived = waived.into_iter().map(LimitName::new);
    let waived = waived.collect::<Result<_, _>>()?;
    let degraded = degraded.map(|reason| Degraded { reason });
    let vendor = vendor.map(|(namespace, entity, resource)| {
        check_namespace(&namespace, &buckets.session)?;
        let bucket = buckets.bucket(entity.as_str().try_into()?, resource.as_str().try_into()?);
        Ok::<_, Error>(Vendor { session: Arc::clone(&buckets.session), bucket })
    });
    Ok(Grant::restored(holds, uncounted, waived, degraded, vendor.transpose()?))
}
