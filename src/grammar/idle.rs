//! Keywords of a schema that restrict nothing as they stand, such as `"uniqueItems": false`. The compiler refuses them because
//! of what they could say, or goes astray on them.

use serde_json::{Map, Value};

/// Keywords that can be such.
const IDLE: [&str; 17] = [
    "uniqueItems",
    "not",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "additionalItems",
    "$recursiveAnchor",
    "$dynamicAnchor",
];
/// An annotation that the compiler takes for a restriction where it stands beside a `$ref`.
const DEPRECATED: &str = "deprecated";
/// Keywords that restrict nothing whatever they say.
const NOTES: [&str; 13] = [
    "title",
    "description",
    "$comment",
    "default",
    "examples",
    "readOnly",
    "writeOnly",
    "$schema",
    "$id",
    "$anchor",
    "$defs",
    "definitions",
    DEPRECATED,
];
/// Keywords whose value is a schema.
const SCHEMA: [&str; 11] = [
    "items",
    "additionalItems",
    "additionalProperties",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contains",
    "not",
    "if",
    "then",
    "else",
];
/// Keywords whose value has schemas in a list.
const SCHEMAS: [&str; 5] = ["allOf", "anyOf", "oneOf", "prefixItems", "items"];
/// Keywords whose value has schemas by name.
const BY_NAME: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];

/// Removes them from a schema and from those in it. Returns whether there were any.
pub(super) fn remove(schema: &mut Value) -> bool {
    removed(schema, false)
}

/// The parser of JSON bounds how deep this goes. `is_old` says that the schema is of a draft before 2019-09.
fn removed(schema: &mut Value, is_old: bool) -> bool {
    let Value::Object(object) = schema else { return false };
    let is_old = object.get("$schema").and_then(Value::as_str).map_or(is_old, |draft| draft.contains("/draft-0"));
    let mut any = false;
    for (key, part) in object.iter_mut() {
        let is = |keywords: &[&str]| keywords.contains(&key.as_str());
        match part {
            Value::Object(named) if is(&BY_NAME) => named.values_mut().for_each(|part| any |= removed(part, is_old)),
            Value::Array(list) if is(&SCHEMAS) => list.iter_mut().for_each(|part| any |= removed(part, is_old)),
            part if is(&SCHEMA) => any |= removed(part, is_old),
            _ => {}
        }
    }
    let idle: Vec<&str> = IDLE.into_iter().filter(|key| is_idle(object, key, is_old)).chain([DEPRECATED]).collect();
    let before = object.len();
    object.retain(|key, _| !idle.contains(&key.as_str()));
    any | (object.len() < before)
}

/// Whether a keyword of a schema is one of these.
fn is_idle(schema: &Map<String, Value>, key: &str, is_old: bool) -> bool {
    let has = |key: &str| schema.contains_key(key);
    let Some(value) = schema.get(key) else { return false };
    match key {
        "uniqueItems" | "not" => *value == Value::Bool(false),
        "unevaluatedItems" | "unevaluatedProperties" => is_anything(value),
        // It is about what follows a list of items.
        "additionalItems" => is_anything(value) || !schema.get("items").is_some_and(Value::is_array),
        "propertyNames" => is_any_name(value),
        "dependentRequired" | "dependentSchemas" | "dependencies" => {
            let is_nothing = |value: &Value| value.as_array().map_or_else(|| is_anything(value), Vec::is_empty);
            value.as_object().is_some_and(|named| named.values().all(is_nothing))
        }
        "then" | "else" => is_anything(value) || !has("if"),
        "if" => ["then", "else"].iter().all(|key| schema.get(*key).is_none_or(is_anything)),
        // Before draft 2019-09 there was no other number than one.
        "contains" => !is_old && schema.get("minContains").is_some_and(|least| *least == 0) && !has("maxContains"),
        "minContains" | "maxContains" => !has("contains") || is_idle(schema, "contains", is_old),
        // What refers to them is refused wherever it is followed.
        "$recursiveAnchor" | "$dynamicAnchor" => true,
        _ => false,
    }
}

/// Whether a schema from which these keywords are removed allows everything.
fn is_anything(schema: &Value) -> bool {
    match schema {
        Value::Bool(is_any) => *is_any,
        Value::Object(object) => object.keys().all(|key| NOTES.contains(&key.as_str())),
        _ => false,
    }
}

/// Whether it allows every string, as names are.
fn is_any_name(schema: &Value) -> bool {
    let Value::Object(object) = schema else { return is_anything(schema) };
    object.iter().all(|(key, value)| match value {
        Value::String(kind) if key == "type" => kind == "string",
        Value::Array(kinds) if key == "type" => kinds.iter().any(|kind| kind == "string"),
        _ => NOTES.contains(&key.as_str()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn without(mut schema: Value) -> (Value, bool) {
        let any = remove(&mut schema);
        (schema, any)
    }

    #[test]
    fn only_what_restricts_nothing_is_removed() {
        for idle in [
            json!({"uniqueItems": false}),
            json!({"not": false}),
            json!({"propertyNames": {"type": ["null", "string"], "title": "a"}}),
            json!({"propertyNames": {"not": false}}),
            json!({"unevaluatedItems": true, "unevaluatedProperties": {"description": "a"}}),
            json!({"dependentRequired": {"a": []}, "dependentSchemas": {"a": {}}, "dependencies": {"a": [], "b": true}}),
            json!({"if": {"type": "null"}}),
            json!({"if": {"type": "null"}, "then": true, "else": {}}),
            json!({"then": {"type": "null"}, "else": false}),
            json!({"contains": {"type": "null"}, "minContains": 0}),
            json!({"minContains": 2, "maxContains": 1}),
            json!({"additionalItems": false, "deprecated": true}),
            json!({"$recursiveAnchor": true, "$dynamicAnchor": "a"}),
        ] {
            assert_eq!(without(idle.clone()), (json!({}), true), "{idle}");
        }
        for kept in [
            json!({"uniqueItems": true}),
            json!({"uniqueItems": "false"}),
            json!({"not": {}}),
            json!({"not": {"not": true}}),
            json!({"propertyNames": {"type": "string", "minLength": 1}}),
            json!({"propertyNames": {"type": "null"}}),
            json!({"unevaluatedItems": false, "unevaluatedProperties": {"type": "null"}}),
            json!({"dependentRequired": {"a": [], "b": ["c"]}, "dependentSchemas": {"a": false}, "dependencies": {"a": ["b"]}}),
            json!({"dependentRequired": []}),
            json!({"if": {"type": "null"}, "then": {"const": 1}}),
            json!({"if": true, "else": false}),
            json!({"contains": {"type": "null"}}),
            json!({"contains": true, "minContains": 1}),
            json!({"contains": true, "minContains": 0, "maxContains": 1}),
            json!({"items": [true], "additionalItems": false}),
            json!({"$recursiveRef": "#", "$dynamicRef": "#a"}),
            json!({"patternProperties": {}, "minItems": 0, "title": "a", "x-guidance": {}}),
            json!(true),
        ] {
            assert_eq!(without(kept.clone()), (kept, false));
        }
        let partly = json!({"if": true, "then": {}, "else": {"type": "null"}, "type": "null"});
        assert_eq!(without(partly).0, json!({"if": true, "else": {"type": "null"}, "type": "null"}));
    }

    #[test]
    fn names_and_values_are_no_keywords() {
        let idle = json!({"uniqueItems": false, "not": false, "if": true, "deprecated": true});
        let kept = json!({"properties": idle, "patternProperties": idle, "enum": [idle], "const": idle, "default": idle,
            "examples": [idle], "required": ["not"], "x-other": {"a": idle}});
        assert_eq!(without(kept.clone()), (kept, false));
        let one = json!({"items": idle, "anyOf": [idle], "prefixItems": [idle], "properties": {"not": idle},
            "$defs": {"a": idle}, "additionalProperties": {"items": [idle]}});
        let expected = json!({"items": {}, "anyOf": [{}], "prefixItems": [{}], "properties": {"not": {}},
            "$defs": {"a": {}}, "additionalProperties": {"items": [{}]}});
        assert_eq!(without(one), (expected, true));
    }

    #[test]
    fn old_drafts_know_no_least_number_of_what_is_contained() {
        for draft in ["http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-06/schema#"] {
            let old = json!({"$schema": draft, "items": {"contains": true, "minContains": 0}});
            assert_eq!(without(old.clone()), (old, false));
        }
        let newer =
            json!({"$schema": "https://json-schema.org/draft/2019-09/schema", "contains": true, "minContains": 0});
        assert_eq!(without(newer).0.get("contains"), None);
    }
}
