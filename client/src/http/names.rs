//! What limits are called in an answer: each name stands for one, and none gives away who else is
//! limited.

use weirgate_shared::{EntityId, Resource};

use crate::{LimitStatus, NeverFits};

/// PolicyNames a limit of an entity on a resource.
pub type PolicyName = fn(&EntityId, &Resource, &str) -> String;

/// How the limits of an answer are named.
///
/// A limit of the caller's own bucket has its own name, `rpm`; one on another resource has the
/// resource before it, `api/search/rpm`. PolicyNames of entities are not told, as a client need not know
/// whom it shares a limit with: a limit of another entity, as a parent, has a number, `rpm#2`. Of
/// several others the number is their place in the answer, so who has more than one parent names
/// them with [`PolicyNames::by`].
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
}

/// What is named: an entity's limit on a resource.
type Named<'a> = (&'a EntityId, &'a Resource, &'a str);

impl PolicyNames {
    /// PolicyNames limits by `name`. What no field can hold, which is all but printable ASCII, becomes
    /// `_`, and a name given twice gets a number.
    #[must_use]
    pub fn by(name: PolicyName) -> Self {
        Self {
            own: None,
            by: Some(name),
        }
    }

    /// The bucket whose limits are the caller's own: that of the first limit, if nothing is said. A
    /// denial tells of the buckets that denied only, so without this a parent's limit may be named
    /// like the caller's.
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
        self.of(&[(&never.entity, &never.resource, &never.limit)])
            .pop()
            .unwrap_or_default()
    }

    fn of(&self, limits: &[Named<'_>]) -> Vec<String> {
        let first = limits
            .first()
            .map(|(entity, resource, _)| (entity.as_str(), resource.as_str()));
        let Some(own) = self
            .own
            .as_ref()
            .map(|(entity, resource)| (&**entity, &**resource))
            .or(first)
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
            let name: String = name
                .chars()
                .map(|c| if matches!(c, ' '..='~') { c } else { '_' })
                .collect();
            let numbered = (2_u32..).map(|number| format!("{name}#{number}"));
            let mut candidates = (!is_foreign)
                .then(|| name.clone())
                .into_iter()
                .chain(numbered);
            taken.extend(candidates.find(|candidate| !taken.contains(candidate)));
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &PolicyNames, limits: &[(&str, &str, &str)]) -> Vec<String> {
        let id = |entity: &str, resource: &str| {
            (
                EntityId::new(entity).unwrap(),
                Resource::new(resource).unwrap(),
            )
        };
        let ids: Vec<_> = limits
            .iter()
            .map(|(entity, resource, _)| id(entity, resource))
            .collect();
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
        assert_eq!(
            named(&names, &[own, parent].concat()),
            ["rpm", "tpm", "rpm#2", "tpd#2"]
        );
        assert_eq!(
            named(&names, &parent),
            ["rpm#2", "tpd#2"],
            "where the parent alone denied"
        );
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
            [
                "rpm",
                "api/search/rpm",
                "rpm#2",
                "rpm#3",
                "api/search/rpm#2"
            ]
        );
    }

    #[test]
    fn names_given_by_the_server_are_kept_apart_and_printable() {
        let limits = [
            ("user-1", "gpt-4", "rpm"),
            ("org-1", "gpt-4", "rpm"),
            ("org-1", "gpt-4", "tpm"),
        ];
        let by_entity = PolicyNames::by(|entity, _, limit| format!("{entity}.{limit}"));
        assert_eq!(
            named(&by_entity, &limits),
            ["user-1.rpm", "org-1.rpm", "org-1.tpm"]
        );
        let all_alike = PolicyNames::by(|_, _, _| "früh\n".to_owned());
        assert_eq!(named(&all_alike, &limits), ["fr_h_", "fr_h_#2", "fr_h_#3"]);
    }
}
