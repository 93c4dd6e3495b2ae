//! `template.yaml`, for the tests that tie it to the code.

use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Map, Value, json};

/// Returns the template, as [`read`] reads it, for a stack with a table of its own: each choice
/// by `OwnsTable` is decided, and a text with a name for the table's ARN names the attribute.
pub fn template() -> Value {
    own_table(read(include_str!("../../../template.yaml")))
}

fn own_table(node: Value) -> Value {
    match node {
        Value::Array(items) => items.into_iter().map(own_table).collect(),
        Value::Object(mut fields) => {
            let choice = fields.get_mut("Fn::If").filter(|of| of[0] == "OwnsTable");
            if let Some(choice) = choice {
                return choice[1].take();
            }
            let fields: Map<_, _> =
                fields.into_iter().map(|(name, value)| (name, own_table(value))).collect();
            match fields.get("Fn::Sub") {
                Some(Value::Array(of)) if of[1]["Table"]["Fn::GetAtt"] == "Table.Arn" => {
                    let text = of[0].as_str().expect("Fn::Sub has a text");
                    json!({"Fn::Sub": text.replace("${Table}", "${Table.Arn}")})
                }
                _ => Value::Object(fields),
            }
        }
        plain => plain,
    }
}

/// Returns the names of the resources that a deployment with all defaults makes.
pub fn default_resources() -> Vec<String> {
    let (template, all) = (template(), resources());
    let made = all.into_iter().filter(|(_, resource)| {
        let condition = resource["Condition"].as_str();
        condition.is_none_or(|name| is_met_by_default(&template, &template["Conditions"][name]))
    });
    made.map(|(name, _)| name).collect()
}

fn is_met_by_default(template: &Value, condition: &Value) -> bool {
    let text = |of: &Value| match of["Ref"].as_str() {
        Some(parameter) => as_text(&template["Parameters"][parameter]["Default"]),
        None => as_text(of),
    };
    let (function, of) = condition
        .as_object()
        .and_then(|function| function.iter().next())
        .expect("a condition is a function");
    let met = |condition: &Value| is_met_by_default(template, condition);
    match function.as_str() {
        "Fn::Equals" => text(&of[0]) == text(&of[1]),
        "Fn::Not" => !met(&of[0]),
        "Fn::And" => of.as_array().expect("a list").iter().all(met),
        "Fn::Condition" => met(&template["Conditions"][of.as_str().expect("a name")]),
        other => panic!("what is {other}?"),
    }
}

/// Returns a value as CloudFormation compares it.
fn as_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the template's resources.
pub fn resources() -> Map<String, Value> {
    match template()["Resources"].take() {
        Value::Object(resources) => resources,
        other => panic!("Resources must be a mapping, got {other}"),
    }
}

/// Returns the properties of the template's resource `name`.
pub fn properties(name: &str) -> Value {
    match resources().remove(name) {
        Some(mut resource) => resource["Properties"].take(),
        None => panic!("the template has no resource {name}"),
    }
}

/// Returns a text of CloudFormation with its short forms written out: `!Ref X` is `{"Ref": "X"}`.
pub fn read(text: &str) -> Value {
    let documents = Yaml::load_from_str(text).expect("a template is YAML");
    plain(&documents[0])
}

fn plain(yaml: &Yaml<'_>) -> Value {
    match yaml {
        Yaml::Tagged(tag, value) => {
            let function =
                if tag.suffix == "Ref" { "Ref".to_owned() } else { format!("Fn::{}", tag.suffix) };
            json!({function: plain(value)})
        }
        Yaml::Sequence(items) => items.iter().map(plain).collect(),
        Yaml::Mapping(pairs) => {
            let text = |key: &Yaml<'_>| key.as_str().expect("keys are text").to_owned();
            Value::Object(
                pairs.iter().map(|(key, value)| (text(key), plain(value))).collect::<Map<_, _>>(),
            )
        }
        Yaml::Value(Scalar::String(text)) => json!(text),
        Yaml::Value(Scalar::Integer(number)) => json!(number),
        Yaml::Value(Scalar::Boolean(is)) => json!(is),
        other => panic!("the template holds {other:?}"),
    }
}
