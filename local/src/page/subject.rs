//! What a viewer looks at.

use weirgate::{EntityId, Error, Resource};

/// The buckets of a resource, or those of an entity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The buckets of all entities on a resource.
    Resource(Resource),
    /// The buckets of an entity.
    Entity(EntityId),
}

impl Subject {
    /// Reads a subject from a query: `resource=gpt-4` or `entity=user-1`, percent-encoded. Returns
    /// `None` for an empty query.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the query has another form, or the name is invalid.
    pub fn from_query(query: &str) -> Result<Option<Self>, Error> {
        if query.is_empty() {
            return Ok(None);
        }
        let wrong = || {
            let text = format!("a query is resource=NAME or entity=NAME, got {query:?}");
            Error::Invalid(text)
        };
        let (kind, name) = query.split_once('=').ok_or_else(wrong)?;
        let name = decoded(name).ok_or_else(wrong)?;
        match kind {
            "resource" => Ok(Some(Self::Resource(Resource::new(name)?))),
            "entity" => Ok(Some(Self::Entity(EntityId::new(name)?))),
            _ => Err(wrong()),
        }
    }
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
        assert_eq!(
            read,
            Some(Subject::Resource(Resource::new("gpt-4").unwrap()))
        );
        assert_eq!(Subject::from_query("").unwrap(), None);
        for query in [
            "gpt-4",
            "table=x",
            "entity=%4",
            "entity=%ff",
            "entity=%zz",
            "entity=",
        ] {
            assert!(Subject::from_query(query).is_err(), "{query}");
        }
    }
}
