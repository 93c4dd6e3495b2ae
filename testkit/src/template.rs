//! `template.yaml`, for the tests that tie it to the code.

use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Map, Value, json};

/// Returns the template, as [`read`] reads it.
#[must_use]
pub fn template() -> Value {
    read(include_str!("../../template.yaml"))
}

/// Returns the template's resources.
///
/// # Panics
/// If they are no mapping.
#[must_use]
pub fn resources() -> Map<String, Value> {
    match template()["Resources"].take() {
        Value::Object(resources) => resources,
        other => panic!("Resources must be a mapping, got {other}"),
    }
}

/// Returns the properties of the template's resource `name`.
///
/// # Panics
/// If there is no such resource.
#[must_use]
pub fn properties(name: &str) -> Value {
    match resources().remove(name) {
        Some(mut resource) => resource["Properties"].take(),
        None => panic!("the template has no resource {name}"),
    }
}

/// Returns a text of CloudFormation with its short forms written out: `!Ref X` is `{"Ref": "X"}`.
///
/// # Panics
/// If it is not YAML of the kinds that a template is made of.
#[must_use]
pub fn read(text: &str) -> Value {
    let documents = Yaml::load_from_str(text).expect("a template is YAML");
    plain(&documents[0])
}

fn plain(yaml: &Yaml<'_>) -> Value {
    match yaml {
        Yaml::Tagged(tag, value) => {
            let function = if tag.suffix == "Ref" {
                "Ref".to_owned()
            } else {
                format!("Fn::{}", tag.suffix)
            };
            json!({function: plain(value)})
        }
        Yaml::Sequence(items) => items.iter().map(plain).collect(),
        Yaml::Mapping(pairs) => {
            let text = |key: &Yaml<'_>| key.as_str().expect("keys are text").to_owned();
            Value::Object(
                pairs
                    .iter()
                    .map(|(key, value)| (text(key), plain(value)))
                    .collect::<Map<_, _>>(),
            )
        }
        Yaml::Value(Scalar::String(text)) => json!(text),
        Yaml::Value(Scalar::Integer(number)) => json!(number),
        Yaml::Value(Scalar::Boolean(is)) => json!(is),
        other => panic!("the template holds {other:?}"),
    }
}
