//! JSON of an entity's description.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{DescriptionError, EntityDescription};

/// A description as it is stored in JSON. An unknown field is refused.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DescriptionFields {
    #[serde(default)]
    display_name: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

impl TryFrom<DescriptionFields> for EntityDescription {
    type Error = DescriptionError;

    fn try_from(fields: DescriptionFields) -> Result<Self, DescriptionError> {
        let mut description = Self::default();
        if let Some(name) = fields.display_name {
            description = description.named(name)?;
        }
        for (name, value) in fields.labels {
            description = description.labelled(name, value)?;
        }
        Ok(description)
    }
}
