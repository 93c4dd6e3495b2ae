//! What a viewer looks at.

use weirgate::{EntityId, Error, Resource};

/// The buckets of a resource, or those of an entity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The buckets of all entities on a resource.
    Resource(Resource),
    /// Of those, the buckets of entities whose ids start with a text.
    Starting(Resource, EntityId),
    /// The buckets of an entity.
    Entity(EntityId),
}

impl Subject {
    /// Reads a subject from a query: `resource=gpt-4`, `resource=gpt-4&starting=user-` or
    /// `entity=user-1`, percent-encoded. Returns `None` for an empty query.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the query has another form, or a name is invalid.
    pub fn from_query(query: &str) -> Result<Option<Self>, Error> {
        if query.is_empty() {
            return Ok(None);
        }
        let parameters = parameters(query);
        let parameters = parameters.iter();
        let parameters: Vec<_> = parameters.map(|(name, value)| (*name, &**value)).collect();
        match parameters[..] {
            [("resource", resource)] => Ok(Some(Self::Resource(Resource::new(resource)?))),
            [("resource", resource), ("starting", start)] => {
                Ok(Some(Self::Starting(Resource::new(resource)?, EntityId::new(start)?)))
            }
            [("entity", entity)] => Ok(Some(Self::Entity(EntityId::new(entity)?))),
            _ => Err(Error::Invalid(format!(
                "a query is resource=NAME, resource=NAME&starting=TEXT or entity=NAME, got {query:?}"
            ))),
        }
    }
}

/// Reads which bucket a query names: `entity=user-1&resource=gpt-4`, percent-encoded.
///
/// # Errors
/// [`Error::Invalid`] if the query has another form, or a name is invalid.
pub(crate) fn bucket_of(query: &str) -> Result<(EntityId, Resource), Error> {
    match &parameters(query)[..] {
        [("entity", entity), ("resource", resource)] => {
            Ok((EntityId::new(&**entity)?, Resource::new(&**resource)?))
        }
        _ => Err(Error::Invalid(format!("a query is entity=NAME&resource=NAME, got {query:?}"))),
    }
}

/// Returns the names and values of a query; none if it has another form.
fn parameters(query: &str) -> Vec<(&str, String)> {
    let parameters = query.split('&').map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        Some((name, decoded(value)?))
    });
    parameters.collect::<Option<_>>().unwrap_or_default()
}

/// Returns percent-encoded text; `None` if it is not UTF-8, or a code is cut off.
fn decoded(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (vec![], text.as_bytes());
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let code = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_a_resource_or_an_entity_and_nothing_else() {
        let entity = Subject::Entity(EntityId::new("a@b.example").unwrap());
        let read = Subject::from_query("entity=a%40b.example").unwrap();
        assert_eq!(read, Some(entity));
        let read = Subject::from_query("resource=gpt-4").unwrap();
        assert_eq!(read, Some(Subject::Resource(Resource::new("gpt-4").unwrap())));
        let read = Subject::from_query("resource=gpt-4&starting=a%40").unwrap();
        let start = EntityId::new("a@").unwrap();
        let gpt4 = Resource::new("gpt-4").unwrap();
        assert_eq!(read, Some(Subject::Starting(gpt4.clone(), start.clone())));
        assert_eq!(Subject::from_query("").unwrap(), None);
        assert_eq!(bucket_of("entity=a%40&resource=gpt-4").unwrap(), (start, gpt4));
        for query in ["", "entity=a", "resource=a&entity=b", "entity=a&resource=b%23c"] {
            assert!(bucket_of(query).is_err(), "{query}");
        }
        for query in [
            "gpt-4",
            "table=x",
            "entity=%4",
            "entity=%ff",
            "entity=%zz",
            "entity=",
            "resource=a&starting=b%23c",
            "starting=a&resource=b",
            "resource=a&resource=b",
        ] {
            assert!(Subject::from_query(query).is_err(), "{query}");
        }
    }
}
