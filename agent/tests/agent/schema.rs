//! As much of JSON Schema as `openapi.yaml` uses. A word that is not known here fails the test.

use saphyr::{LoadableYamlNode, Yaml};
use serde_json::{Map, Value};

/// Reads YAML as JSON.
pub fn yaml(text: &str) -> Value {
    let documents = Yaml::load_from_str(text).expect("openapi.yaml is YAML");
    value(&documents[0])
}

fn value(yaml: &Yaml<'_>) -> Value {
    if let Some(mapping) = yaml.as_mapping() {
        let entry = |(name, of): (&Yaml<'_>, &Yaml<'_>)| {
            let name = name.as_str().map(str::to_owned);
            (name.expect("names are quoted"), value(of))
        };
        return Value::Object(mapping.iter().map(entry).collect());
    }
    if let Some(list) = yaml.as_sequence() {
        return list.iter().map(value).collect();
    }
    if let Some(text) = yaml.as_str() {
        return text.into();
    }
    if let Some(bool) = yaml.as_bool() {
        return bool.into();
    }
    if let Some(number) = yaml.as_integer() {
        return number.into();
    }
    if let Some(number) = yaml.as_floating_point() {
        return number.into();
    }
    assert!(yaml.is_null(), "{yaml:?}");
    Value::Null
}

/// Checks a value; says what is wrong, and where.
pub fn check(api: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let schema = resolve(api, schema);
    let empty = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&empty);
    for (word, rule) in schema.as_object().expect("a schema is an object") {
        let is_kept = match word.as_str() {
            "description" | "properties" | "$ref" => true,
            "type" => match rule {
                Value::Array(all) => all.iter().any(|kind| is_kind(kind, value)),
                kind => is_kind(kind, value),
            },
            "required" => names(rule).all(|name| value.get(name).is_some()),
            "minProperties" => value.as_object().is_none_or(|all| all.len() >= size(rule)),
            "minItems" => value.as_array().is_none_or(|all| all.len() >= size(rule)),
            "maxItems" => value.as_array().is_none_or(|all| all.len() <= size(rule)),
            "minLength" => value.as_str().is_none_or(|text| text.len() >= size(rule)),
            "minimum" => value
                .as_f64()
                .is_none_or(|number| number >= rule.as_f64().unwrap()),
            "maximum" => value
                .as_f64()
                .is_none_or(|number| number <= rule.as_f64().unwrap()),
            "enum" => rule.as_array().unwrap().contains(value),
            "const" => rule == value,
            "items" => {
                let elements = value.as_array().into_iter().flatten().enumerate();
                for (place, element) in elements {
                    check(api, rule, element, &format!("{at}[{place}]"))?;
                }
                true
            }
            "additionalProperties" => {
                for (name, field) in value.as_object().unwrap_or(&empty) {
                    match rule {
                        _ if properties.contains_key(name) => {}
                        Value::Bool(false) => return Err(format!("{at}.{name} is not described")),
                        rule => check(api, rule, field, &format!("{at}.{name}"))?,
                    }
                }
                true
            }
            "oneOf" => {
                let checked = rule.as_array().unwrap().iter();
                let checked = checked.map(|one| check(api, one, value, at));
                let wrong: Vec<_> = checked.filter_map(Result::err).collect();
                if wrong.len() + 1 != rule.as_array().unwrap().len() {
                    return Err(format!("{at} is not exactly one of: {wrong:?}"));
                }
                true
            }
            other => panic!("openapi.yaml uses {other}, which this test does not know"),
        };
        if !is_kept {
            return Err(format!("{at}: {word} is {rule}, got {value}"));
        }
    }
    for (name, rule) in properties {
        if let Some(field) = value.get(name) {
            check(api, rule, field, &format!("{at}.{name}"))?;
        }
    }
    Ok(())
}

/// Follows a reference.
pub fn resolve<'a>(api: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        None => schema,
        Some(path) => {
            let found = api.pointer(path.strip_prefix('#').unwrap());
            resolve(api, found.unwrap_or_else(|| panic!("{path} is not there")))
        }
    }
}

fn names(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap())
}

fn size(rule: &Value) -> usize {
    usize::try_from(rule.as_u64().unwrap()).unwrap()
}

fn is_kind(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("{other} is no type"),
    }
}

#[test]
fn a_value_that_differs_from_its_schema_is_found() {
    let schema = yaml(
        "{type: object, required: [a], additionalProperties: false, properties: {a: {type: integer, minimum: 1}, \
         b: {oneOf: [{type: string, minLength: 1}, {type: 'null'}]}}}",
    );
    let is = |json: &str| {
        let value = serde_json::from_str(json).unwrap();
        check(&Value::Null, &schema, &value, "$").is_ok()
    };
    for right in [
        r#"{"a": 1}"#,
        r#"{"a": 2, "b": "x"}"#,
        r#"{"a": 2, "b": null}"#,
    ] {
        assert!(is(right), "{right}");
    }
    for wrong in [
        "[]",
        "{}",
        r#"{"a": 0}"#,
        r#"{"a": 1.5}"#,
        r#"{"a": "1"}"#,
        r#"{"a": 1, "b": ""}"#,
        r#"{"a": 1, "b": 2}"#,
        r#"{"a": 1, "c": 1}"#,
    ] {
        assert!(!is(wrong), "{wrong}");
    }
}
