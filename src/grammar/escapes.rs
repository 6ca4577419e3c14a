//! Names of properties have one spelling. With `\u` a name could be spelled otherwise, and then the schema of other names
//! would hold for it: `{"role": "user", "\u0072ole": "admin"}`.

use super::idle;
use super::lark::SCHEMA;
use serde_json::{Map, Value, json};

/// What may stand behind a backslash. Each of these has no other spelling.
const ALLOWED: &str = "nrbtf\\\"";
/// The options of a schema, and the one for this.
const OPTIONS: &str = "x-guidance";
const OPTION: &str = "json_allowed_escapes";

/// A schema that allows only these escapes, if it has names and allows others beside them.
pub(super) fn of_schema(mut schema: Value) -> Value {
    let is_open = has_names_and_others(&schema);
    let options = schema.as_object_mut().filter(|_| is_open).map(|object| object.entry(OPTIONS).or_insert(json!({})));
    if let Some(Value::Object(options)) = options {
        options.entry(OPTION).or_insert(json!(ALLOWED));
    }
    schema
}

/// A Lark grammar whose schemas are such, and have no keywords that restrict nothing.
pub(super) fn of_lark(text: &str) -> String {
    let (mut written, mut left) = (String::with_capacity(text.len()), text);
    while let Some((before, behind)) = left.split_once(SCHEMA) {
        written.extend([before, SCHEMA]);
        let mut values = serde_json::Deserializer::from_str(behind).into_iter::<Value>();
        let Some(Ok(mut schema)) = values.next() else {
            left = behind;
            continue;
        };
        let (own, rest) = behind.split_at(values.byte_offset());
        if idle::remove(&mut schema) || has_names_and_others(&schema) {
            let schema = of_schema(schema).to_string();
            // What follows stays in its line, which the compiler's messages name.
            let lines = "\n".repeat(own.matches('\n').count());
            written.extend([" ", &schema[..schema.len() - 1], &lines, "}"]);
        } else {
            written.push_str(own);
        }
        left = rest;
    }
    written + left
}

/// Whether some object in a schema names properties or patterns of names, and does not exclude all others.
fn has_names_and_others(schema: &Value) -> bool {
    let named = |object: &Map<String, Value>, key: &str| match object.get(key) {
        Some(Value::Object(names)) => !names.is_empty(),
        Some(Value::Array(names)) => !names.is_empty(),
        _ => false,
    };
    let is_open = |object: &Map<String, Value>| {
        ["properties", "patternProperties", "required"].iter().any(|key| named(object, key))
            && object.get("additionalProperties") != Some(&Value::Bool(false))
    };
    match schema {
        Value::Object(object) => is_open(object) || object.values().any(has_names_and_others),
        Value::Array(list) => list.iter().any(has_names_and_others),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_schemas_with_names_and_others_get_the_option() {
        let stamped = |text: &str| of_schema(serde_json::from_str(text).expect("JSON")).to_string().contains(OPTION);
        for open in [
            r#"{"properties": {"a": {}}}"#,
            r#"{"items": [{"patternProperties": {"^a": false}}]}"#,
            r#"{"required": ["a"], "x-guidance": {"whitespace_flexible": false}}"#,
        ] {
            assert!(stamped(open), "{open}");
        }
        for closed in [
            r#"{"properties": {"a": {}}, "additionalProperties": false}"#,
            r#"{"type": "object", "additionalProperties": {"type": "integer"}}"#,
            r#"{"properties": {}}"#,
            "true",
        ] {
            assert!(!stamped(closed), "{closed}");
        }
        let own = of_schema(json!({"required": ["a"], OPTIONS: {OPTION: "u"}}));
        assert_eq!(own[OPTIONS][OPTION], "u", "who sets it has it");
    }

    #[test]
    fn the_schemas_of_a_lark_grammar_keep_their_places() {
        let text = "start: a %json {\n\"required\":\n [\"b\"]} c\na: %json {\"const\": \"%json\"} %json";
        let expected = format!(
            "start: a %json {{\"required\":[\"b\"],\"{OPTIONS}\":{{\"{OPTION}\":\"nrbtf\\\\\\\"\"}}\n\n}} c\n\
             a: %json {{\"const\": \"%json\"}} %json"
        );
        assert_eq!(of_lark(text), expected);
    }
}
