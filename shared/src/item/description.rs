//! The display name and the labels of an entity, in its item.

use std::collections::BTreeMap;

use super::attribute::Attr;
use super::error::ItemError;
use super::parse::entries;
use crate::write::Value;
use crate::{EntityDescription, attr};

/// Returns the attributes of a description; none for what is not set.
#[must_use]
pub fn write_description(description: &EntityDescription) -> BTreeMap<String, Value> {
    let name = description.display_name();
    let name = name.map(|name| (attr::DISPLAY_NAME.to_owned(), Value::text(name)));
    let labels = description.labels();
    let labels = (!labels.is_empty()).then(|| {
        let labels = labels.iter();
        let labels = labels.map(|(name, value)| (name.clone(), Value::text(value)));
        (attr::LABELS.to_owned(), Value::Map(labels.collect()))
    });
    name.into_iter().chain(labels).collect()
}

/// Reads the description of an entity from all attributes of its item.
///
/// # Errors
/// [`ItemError`] naming the attribute that is wrong.
pub fn read_description<'a, 'i>(
    item: impl IntoIterator<Item = &'i (&'a str, Attr<'a>)>,
) -> Result<EntityDescription, ItemError>
where
    'a: 'i,
{
    let mut description = EntityDescription::default();
    for (name, value) in item {
        let refused = |rule| ItemError::new(name, value, rule);
        match (*name, value) {
            (attr::DISPLAY_NAME, Attr::S(text)) => {
                let named = description.named(*text);
                description = named.map_err(|error| refused(error.rule))?;
            }
            (attr::DISPLAY_NAME, _) => return Err(refused("a string")),
            (attr::LABELS, labels) => {
                for (label, text) in entries(attr::LABELS, labels)? {
                    let Attr::S(text) = text else {
                        return Err(ItemError::new(attr::LABELS, text, "a map of strings"));
                    };
                    let labelled = description.labelled(*label, *text);
                    description = labelled.map_err(|error| refused(error.rule))?;
                }
            }
            _ => {}
        }
    }
    Ok(description)
}
