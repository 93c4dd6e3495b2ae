//! Names of limits in a response. Each name is unique, and none reveals another entity.

use weirgate_shared::{EntityId, Resource};

use crate::{LimitStatus, NeverFits};

/// A function that names an entity's limit on a resource.
pub type PolicyName = fn(&EntityId, &Resource, &str) -> String;

/// A function that returns the quota unit of a limit, by its name; `None` for requests.
pub type PolicyUnit = fn(&str) -> Option<&'static str>;

/// Names the limits of a response, and their quota units.
///
/// A limit of the requested bucket has its own name, `rpm`. One on another resource has the
/// resource as a prefix, `api/search/rpm`. Entities are not named, because a client need not know
/// which other entities share its limits: a limit of another entity, such as a parent, has a
/// number, `rpm#2`. With several other entities the number is the place in the response; to name
/// more than one parent, use [`PolicyNames::by`].
///
/// ```
/// use weirgate::http::PolicyNames;
///
/// let names = PolicyNames::by(|entity, _, limit| match entity.as_str().split_once(':') {
///     Some(("org", _)) => format!("organization-{limit}"),
///     _ => limit.to_owned(),
/// });
/// ```
#[derive(Debug, Clone, Default)]
pub struct PolicyNames {
    own: Option<(String, String)>,
    by: Option<PolicyName>,
    units: Option<PolicyUnit>,
}

/// An entity's limit on a resource.
type Named<'a> = (&'a EntityId, &'a Resource, &'a str);

impl PolicyNames {
    /// Names limits by `name`. Characters other than printable ASCII become `_`, and a duplicate
    /// name gets a number.
    #[must_use]
    pub fn by(name: PolicyName) -> Self {
        Self::default().named(name)
    }

    /// Sets the names, and keeps the units.
    pub(crate) const fn named(mut self, name: PolicyName) -> Self {
        self.by = Some(name);
        self
    }

    /// Sets the quota unit of each limit, by its name. Default: `tokens` if a word of the name is
    /// `tokens`, `tpm` or the like, `content-bytes` if one is `bytes`, and otherwise requests.
    #[must_use]
    pub const fn units(mut self, units: PolicyUnit) -> Self {
        self.units = Some(units);
        self
    }

    /// Returns the quota unit of a limit; `None` for requests.
    pub(crate) fn unit(&self, limit: &str) -> Option<&'static str> {
        self.units.unwrap_or(unit_of)(limit)
    }

    /// Sets the requested bucket, whose limits need no prefix or number. Default: the bucket of the
    /// first limit. A denial has only the buckets that denied, so without this a parent's limit may
    /// get the requested bucket's name.
    #[must_use]
    pub fn own(mut self, entity: &str, resource: &str) -> Self {
        self.own = Some((entity.to_owned(), resource.to_owned()));
        self
    }

    pub(crate) fn of_statuses(&self, limits: &[&LimitStatus]) -> Vec<String> {
        let named: Vec<_> = limits
            .iter()
            .map(|status| (&status.entity, &status.resource, &*status.limit))
            .collect();
        self.of(&named)
    }

    pub(crate) fn of_never(&self, never: &NeverFits) -> String {
        self.of(&[(&never.entity, &never.resource, &never.limit)]).pop().unwrap_or_default()
    }

    fn of(&self, limits: &[Named<'_>]) -> Vec<String> {
        let first =
            limits.first().map(|(entity, resource, _)| (entity.as_str(), resource.as_str()));
        let Some(own) =
            self.own.as_ref().map(|(entity, resource)| (&**entity, &**resource)).or(first)
        else {
            return vec![];
        };
        let mut taken = vec![];
        for &(entity, resource, limit) in limits {
            let (name, is_foreign) = match self.by {
                Some(name) => (name(entity, resource, limit), false),
                None if resource.as_str() == own.1 => (limit.to_owned(), entity.as_str() != own.0),
                None => (format!("{resource}/{limit}"), entity.as_str() != own.0),
            };
            let name: String =
                name.chars().map(|c| if matches!(c, ' '..='~') { c } else { '_' }).collect();
            let numbered = (2_u32..).map(|number| format!("{name}#{number}"));
            let mut candidates = (!is_foreign).then(|| name.clone()).into_iter().chain(numbered);
            taken.extend(candidates.find(|candidate| !taken.contains(candidate)));
        }
        taken
    }
}

/// Returns the quota unit that a limit's name says.
fn unit_of(limit: &str) -> Option<&'static str> {
    const UNITS: [(&str, &str); 8] = [
        ("tokens", "tokens"),
        ("tps", "tokens"),
        ("tpm", "tokens"),
        ("tph", "tokens"),
        ("tpd", "tokens"),
        ("tpw", "tokens"),
        ("token", "tokens"),
        ("bytes", "content-bytes"),
    ];
    let mut words = limit.split(['_', '-', '.']);
    words.find_map(|word| {
        let mut known = UNITS.iter();
        let found = known.find(|(name, _)| word.eq_ignore_ascii_case(name));
        found.map(|(_, unit)| *unit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &PolicyNames, limits: &[(&str, &str, &str)]) -> Vec<String> {
        let id = |entity: &str, resource: &str| {
            (EntityId::new(entity).unwrap(), Resource::new(resource).unwrap())
        };
        let ids: Vec<_> = limits.iter().map(|(entity, resource, _)| id(entity, resource)).collect();
        let named = ids
            .iter()
            .zip(limits)
            .map(|((entity, resource), (_, _, limit))| (entity, resource, *limit));
        names.of(&named.collect::<Vec<_>>())
    }

    #[test]
    fn a_parents_limit_never_has_the_name_of_the_callers_own() {
        let names = PolicyNames::default().own("user-1", "gpt-4");
        let own = [("user-1", "gpt-4", "rpm"), ("user-1", "gpt-4", "tpm")];
        let parent = [("org-1", "gpt-4", "rpm"), ("org-1", "gpt-4", "tpd")];
        assert_eq!(named(&names, &[own, parent].concat()), ["rpm", "tpm", "rpm#2", "tpd#2"]);
        assert_eq!(named(&names, &parent), ["rpm#2", "tpd#2"], "where the parent alone denied");
        assert_eq!(
            named(&PolicyNames::default(), &[own, parent].concat()),
            ["rpm", "tpm", "rpm#2", "tpd#2"]
        );
    }

    #[test]
    fn names_tell_resources_and_not_entities() {
        let limits = [
            ("user-1", "gpt-4", "rpm"),
            ("user-1", "api/search", "rpm"),
            ("org-1", "gpt-4", "rpm"),
            ("root", "gpt-4", "rpm"),
            ("root", "api/search", "rpm"),
        ];
        assert_eq!(
            named(&PolicyNames::default(), &limits),
            ["rpm", "api/search/rpm", "rpm#2", "rpm#3", "api/search/rpm#2"]
        );
    }

    #[test]
    fn names_given_by_the_server_are_kept_apart_and_printable() {
        let limits =
            [("user-1", "gpt-4", "rpm"), ("org-1", "gpt-4", "rpm"), ("org-1", "gpt-4", "tpm")];
        let by_entity = PolicyNames::by(|entity, _, limit| format!("{entity}.{limit}"));
        assert_eq!(named(&by_entity, &limits), ["user-1.rpm", "org-1.rpm", "org-1.tpm"]);
        let all_alike = PolicyNames::by(|_, _, _| "früh\n".to_owned());
        assert_eq!(named(&all_alike, &limits), ["fr_h_", "fr_h_#2", "fr_h_#3"]);
    }
}
