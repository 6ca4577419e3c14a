//! JSON schemas: keywords that restrict nothing, and what is said of those that cannot be followed.

use super::*;

/// The bytes that may follow.
fn next(schema: &str, so_far: &str) -> Vec<u8> {
    let text = opened(&grammar(GrammarKind::JsonSchema, schema), &tokens_of(so_far));
    allowed(&text).iter().filter_map(|token| u8::try_from(token.checked_sub(5)?).ok()).collect()
}

/// What is said of a schema on its own, and inside a Lark grammar.
fn refused(schema: &str) -> [String; 2] {
    let lark = format!("start: %json {schema}");
    [(GrammarKind::JsonSchema, schema), (GrammarKind::Lark, &lark)].map(|(kind, text)| {
        loop {
            match GRAMMARS.compile(&params(kind, text), &room(), &CompileDeadline::default()) {
                Err(CompileError::Busy) => {}
                Err(CompileError::Invalid(error)) => return error.message,
                other => panic!("{text}: {other:?}"),
            }
        }
    })
}

const IDLE: &str = r##"{"type": ["array", "object"], "uniqueItems": false, "not": false, "propertyNames": {"type": "string"},
    "unevaluatedItems": {"title": "any"}, "unevaluatedProperties": true, "dependentRequired": {"a": []},
    "dependentSchemas": {"a": true}, "dependencies": {}, "contains": {"type": "null"}, "minContains": 0,
    "if": {"type": "object"}, "then": {}, "additionalItems": true, "$recursiveAnchor": false, "$dynamicAnchor": "here",
    "items": {"$ref": "#/$defs/number"}, "additionalProperties": {"$ref": "#/$defs/number"},
    "$defs": {"number": {"type": "integer", "title": "n", "description": "d", "$comment": "c", "default": 1,
        "examples": [1], "deprecated": true, "readOnly": true, "writeOnly": false, "uniqueItems": false}},
    "patternProperties": {}, "minItems": 0, "minProperties": 0, "required": [],
    "x-guidance": {"whitespace_flexible": false}}"##;

#[test]
fn keywords_that_restrict_nothing_are_no_reason_to_refuse_a_schema() {
    let rest = r#"{"type": ["array", "object"], "items": {"type": "integer"}, "additionalProperties": {"type": "integer"},
        "x-guidance": {"whitespace_flexible": false}}"#;
    for so_far in ["", "[", "[-", "[12", "[12,", "{", "{\"a\":", "{\"a\":0", "{\"a\":0}"] {
        assert_eq!(next(IDLE, so_far), next(rest, so_far), "behind {so_far}");
    }
    compiled(GrammarKind::Lark, &format!("start: %json {IDLE}"));
    let within_itself = r##"{"type": "object", "properties": {"a": {"$ref": "#", "deprecated": true}}}"##;
    assert!(next(within_itself, "{\"a\":").contains(&b'{'));
}

/// Beside it, the compiler would not look at the items in front.
#[test]
fn additional_items_are_those_behind_a_list_of_items() {
    for additional in ["true", "false", "{\"type\": \"integer\"}"] {
        let schema =
            format!(r#"{{"type": "array", "prefixItems": [{{"type": "null"}}], "additionalItems": {additional}}}"#);
        let first = next(&schema, "[");
        assert!(first.contains(&b'n') && first.contains(&b']') && !first.contains(&b'1'), "{first:?}");
        let old = schema.replace("prefixItems", "items");
        let second = next(&old, "[null");
        assert_eq!(second.contains(&b','), additional != "false", "{second:?}");
    }
}

#[test]
fn what_is_wrong_with_a_schema_is_told_with_its_place() {
    for (schema, place) in [
        (r#"{"properties": {"age": {"maximum": 9007199254740992}}}"#, "/properties/age/maximum"),
        (r#"{"items": {"enum": [1, {"a/b": [9007199254740992]}]}}"#, "/items/enum/1/a~1b/0"),
        (r#"{"anyOf": [{}, {"minProperties": 2}]}"#, "/anyOf/1"),
        (r##"{"items": {"$ref": "#/$defs/none"}}"##, "/items/$ref"),
        (r#"{"$defs": {"~": {"$id": "b"}}}"#, "/$defs/~0/$id"),
        (r#"{"exclusiveMinimum": 0, "maximum": 0.5}"#, "the root"),
    ] {
        let told = refused(schema);
        let end = if place == "the root" { "(at the root)".to_owned() } else { format!("(at {place})") };
        assert!(told.iter().all(|told| told.ends_with(&end)), "{told:?}");
        assert!(told[0].starts_with("has ") && told[1] == format!("has a %json schema that {}", told[0]), "{told:?}");
    }
    let nine =
        format!(r#"{{"properties": {{"a": {{"items": {{"allOf": [{}]}}}}}}}}"#, [r#"{"pattern": "a"}"#; 9].join(","));
    assert!(refused(&nine)[0].ends_with("at most 8 are allowed (at /properties/a/items)"), "{:?}", refused(&nine));
}

/// The compiler names a keyword and not its place.
#[test]
fn the_place_of_what_the_compiler_refuses_is_told_if_it_can_be_only_one() {
    for (schema, start, place) in [
        (r#"{"items": {"uniqueItems": true}}"#, "has keywords that no grammar", "/items/uniqueItems"),
        (r#"{"items": {"uniqueItems": true, "not": {}}}"#, "has keywords that no grammar", "/items"),
        (
            r##"{"$ref": "#/definitions/a", "definitions": {"a": {"format": "no"}}}"##,
            "Unknown format",
            "/definitions/a/format",
        ),
        (r#"{"items": {"type": ["null", "no"]}, "type": "array"}"#, "Invalid type: no", "/items/type"),
        (r#"{"properties": {"a": {"minimum": "b"}}}"#, "Expected f64", "/properties/a/minimum"),
        (r#"{"properties": {"a": {"minItems": -1}}}"#, "Expected positive", "/properties/a/minItems"),
        (r#"{"properties": {"a": {"enum": 1}}}"#, "enum must be an array", "/properties/a/enum"),
        (r#"{"items": {"oneOf": [{}, {}]}}"#, "oneOf constraints", "/items/oneOf"),
        (r#"{"properties": {"a": {"pattern": "("}}}"#, "regex parse error", "/properties/a/pattern"),
        (r#"{"patternProperties": {"a\\b": {}}}"#, "lookarounds", "/patternProperties"),
    ] {
        let told = &refused(schema)[0];
        assert!(told.starts_with(start) && told.ends_with(&format!(" (at {place})")), "{told}");
    }
    for several in [
        r#"{"properties": {"a": {"uniqueItems": true}, "b": {"uniqueItems": true}}}"#,
        r#"{"properties": {"a": {"not": {}}, "not": {}}}"#,
        r#"{"patternProperties": {"a": {"pattern": "("}}}"#,
        r#"{"properties": {"schema": {}, "a": 3}}"#,
        r#"{"items": {"minimum": 2, "maximum": 1, "type": "number"}, "minItems": 1, "type": "array"}"#,
    ] {
        assert!(!refused(several)[0].contains("(at "), "{several}");
    }
}

#[test]
fn what_is_said_of_a_schema_is_of_bounded_length() {
    let long = "a".repeat(9000);
    for schema in [
        format!(r##"{{"items": {{"$ref": "#/{long}"}}}}"##),
        format!(r#"{{"properties": {{"{long}": {{"not": {{}}}}}}}}"#),
        format!(r#"{{"properties": {{"{long}": {{"maximum": 1e300}}}}}}"#),
    ] {
        let told = refused(&schema);
        assert!(told.iter().all(|told| told.len() <= 504), "{told:?}");
        assert!(told[0].contains("(at /"), "{told:?}");
    }
}

#[test]
fn an_object_may_have_hundreds_of_optional_properties() {
    let properties = (0..300).map(|i| format!(r#""p{i}": {{"type": "null"}}"#)).collect::<Vec<_>>().join(",");
    let grammar = grammar(GrammarKind::JsonSchema, &format!(r#"{{"type": "object", "properties": {{{properties}}}}}"#));
    let text = opened(&grammar, &tokens_of(r#"{"p299":null,"p"#));
    assert!(wanted(&text, Ahead::default()).is_ok());
}
