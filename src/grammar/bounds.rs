//! Rejects grammars that would be too costly to compile. If many patterns or options have to hold at once for the same
//! text, the automaton grows with their product, and nothing stops that: a dozen take gigabytes. These checks cover the
//! known ways; there may be others.

use super::place::{self, Wrong};
use super::{exact, lark};
use crate::params::grammar::{GrammarKind, GrammarParams};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// How many patterns may have to hold for the same text.
pub(super) const MAX_PATTERNS: u64 = 8;
/// The largest product of their lengths, if there are several.
const MAX_LENGTH: u64 = 1_000_000;
/// The largest product of one value's options and the size of the whole schema.
const MAX_OPTIONS: u64 = 1_000_000;
/// Keywords of a schema that become a pattern for the value's text.
const PATTERNS: [&str; 5] = ["pattern", "format", "multipleOf", "minLength", "maxLength"];
/// The assumed length of a keyword's pattern if it is not written in the schema.
const LENGTH: u64 = 16;
/// Keywords with a schema for a part of the value, or with a list of these.
const PARTS: [&str; 5] = ["additionalProperties", "items", "prefixItems", "additionalItems", "unevaluatedProperties"];
/// Keywords with such schemas by name.
const BY_NAME: [&str; 2] = ["properties", "patternProperties"];
const DEEPEST: usize = 128;

/// Whether a grammar may be compiled.
///
/// # Errors
/// What would have to be changed.
pub(super) fn check(params: &GrammarParams) -> Result<(), String> {
    match params.kind {
        // GBNF cannot require that several things hold at once.
        GrammarKind::Regex | GrammarKind::Gbnf | GrammarKind::Choices => Ok(()),
        GrammarKind::Lark => lark::check(&params.text),
        // The compiler reports a text that is not JSON.
        GrammarKind::JsonSchema => serde_json::from_str(&params.text).map_or(Ok(()), |schema| json(&[schema])),
    }
}

/// Checks the schemas of one grammar.
///
/// # Errors
/// What would have to be changed.
pub(super) fn json(schemas: &[Value]) -> Result<(), String> {
    let size = schemas.iter().map(size).fold(0, u64::saturating_add).max(1);
    for schema in schemas {
        let mut weights = Weights { root: schema, size, known: HashMap::new(), too_much: None };
        let most = weights.most(schema).map_err(|wrong| place::told(schema, wrong))?;
        if let Some(told) = most.too_much(size) {
            return Err(weights.too_much.map_or(told, |wrong| place::told(schema, wrong)));
        }
    }
    schemas.iter().try_for_each(exact::check)
}

/// The number of values in a schema.
fn size(schema: &Value) -> u64 {
    let (mut count, mut left) = (0, vec![schema]);
    while let Some(value) = left.pop() {
        count += 1;
        match value {
            Value::Object(object) => left.extend(object.values()),
            Value::Array(list) => left.extend(list),
            _ => {}
        }
    }
    count
}

/// What has to hold at once for a value, or for one of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Weight {
    patterns: u64,
    /// The product of the lengths of these.
    length: u64,
    options: u64,
}

impl Weight {
    const NONE: Self = Self { patterns: 0, length: 1, options: 1 };

    fn pattern(length: usize) -> Self {
        Self { patterns: 1, length: length.max(1) as u64, options: 1 }
    }

    /// The weight if both have to hold.
    fn and(self, other: Self) -> Self {
        Self {
            patterns: self.patterns.saturating_add(other.patterns),
            length: self.length.saturating_mul(other.length),
            options: self.options.saturating_mul(other.options),
        }
    }

    /// What of it is too much in a grammar whose schemas have `size` values.
    fn too_much(self, size: u64) -> Option<String> {
        let Self { patterns, length, options } = self;
        if patterns > MAX_PATTERNS {
            Some(format!("has {patterns} patterns that must match the same text, at most {MAX_PATTERNS} are allowed"))
        } else if patterns > 1 && length > MAX_LENGTH {
            Some(format!("has {patterns} long patterns that must match the same text; shorten them"))
        } else if options > MAX_OPTIONS / size && options > 1 {
            Some(format!(
                "has a value with {options} options from anyOf, oneOf and allOf, too many for a schema of this size; \
                 use fewer"
            ))
        } else {
            None
        }
    }

    /// The larger value of each field.
    fn most(self, other: Self) -> Self {
        Self {
            patterns: self.patterns.max(other.patterns),
            length: self.length.max(other.length),
            options: self.options.max(other.options),
        }
    }
}

/// The weights of schemas, and of what they refer to.
struct Weights<'s> {
    root: &'s Value,
    size: u64,
    /// By the address of a schema; `None` while its weight is being computed.
    known: HashMap<*const Value, Option<Weight>>,
    /// The first schema found of which too much has to hold, with nothing inside it of which this is so.
    too_much: Option<Wrong<'s>>,
}

impl<'s> Weights<'s> {
    /// The largest weight of all schemas in a value.
    fn most(&mut self, value: &'s Value) -> Result<Weight, Wrong<'s>> {
        let mut most = Weight::NONE;
        let mut left = vec![value];
        while let Some(value) = left.pop() {
            match value {
                Value::Object(object) => {
                    let id = object.get("$id").filter(|id| id.is_string() && !std::ptr::eq(value, self.root));
                    if let Some(id) = id {
                        let wrong = "has an $id below the root; refer to parts by #/$defs/name instead";
                        return Err((wrong.to_owned(), id));
                    }
                    most = most.most(self.of(value, 0)?);
                    left.extend(object.values());
                }
                Value::Array(list) => left.extend(list),
                _ => {}
            }
        }
        Ok(most)
    }

    /// The weight of a schema.
    fn of(&mut self, schema: &'s Value, depth: usize) -> Result<Weight, Wrong<'s>> {
        let Value::Object(object) = schema else { return Ok(Weight::NONE) };
        if depth > DEEPEST {
            return Err((format!("nests schemas more than {DEEPEST} deep; flatten it"), schema));
        }
        match self.known.get(&std::ptr::from_ref(schema)) {
            Some(Some(known)) => return Ok(*known),
            // It contains itself.
            Some(None) => return Ok(Weight::NONE),
            None => {}
        }
        self.known.insert(schema, None);
        let own = self.own(object, depth + 1)?;
        if self.too_much.is_none() {
            self.too_much = own.too_much(self.size).map(|wrong| (wrong, schema));
        }
        let found = own.most(self.parts(object, depth + 1)?);
        self.known.insert(schema, Some(found));
        Ok(found)
    }

    /// The weight of what holds for the value itself.
    fn own(&mut self, object: &'s Map<String, Value>, depth: usize) -> Result<Weight, Wrong<'s>> {
        let keyword = |key: &&str| object.get(*key);
        let own = PATTERNS.iter().filter_map(keyword);
        let own = own.map(|value| Weight::pattern(value.as_str().map_or(LENGTH as usize, str::len)));
        let names = object.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
        let mut found = own.chain(names.map(|name| Weight::pattern(name.len()))).fold(Weight::NONE, Weight::and);
        for part in list(object, "allOf") {
            found = found.and(self.of(part, depth)?);
        }
        for key in ["anyOf", "oneOf"] {
            let (mut most, mut options) = (Weight::NONE, 0u64);
            for part in list(object, key) {
                let part = self.of(part, depth)?;
                (most, options) = (most.most(part), options.saturating_add(part.options));
            }
            found = found.and(Weight { options: options.max(1), ..most });
        }
        let Some((value, reference)) = object.get("$ref").and_then(|value| Some((value, value.as_str()?))) else {
            return Ok(found);
        };
        let to = target(self.root, reference).map_err(|wrong| (wrong, value))?;
        Ok(found.and(self.of(to, depth)?))
    }

    /// The largest weight of what holds for its parts.
    fn parts(&mut self, object: &'s Map<String, Value>, depth: usize) -> Result<Weight, Wrong<'s>> {
        let by_name = BY_NAME.iter().filter_map(|key| object.get(*key)?.as_object()).flat_map(Map::values);
        let parts = PARTS.iter().filter_map(|key| object.get(*key));
        let parts = parts.flat_map(|part| part.as_array().map_or(std::slice::from_ref(part), Vec::as_slice));
        let mut most = Weight::NONE;
        for part in by_name.chain(parts) {
            most = most.most(self.of(part, depth)?);
        }
        Ok(most)
    }
}

/// What a reference in a schema refers to.
///
/// # Errors
/// Nothing in the schema.
pub(super) fn target<'s>(root: &'s Value, reference: &str) -> Result<&'s Value, String> {
    let pointer = reference.strip_prefix('#').map(unescaped);
    pointer.and_then(|pointer| root.pointer(&pointer)).ok_or_else(|| {
        format!("has the unknown reference {reference:?}; refer only to parts of this schema, such as #/$defs/name")
    })
}

/// The entries of a keyword whose value is a list.
fn list<'s>(object: &'s Map<String, Value>, key: &str) -> impl Iterator<Item = &'s Value> + use<'s> {
    object.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// A pointer in a reference, whose characters may be written as `%24`.
fn unescaped(pointer: &str) -> String {
    let mut bytes = Vec::with_capacity(pointer.len());
    let mut rest = pointer.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let digits = behind.get(..2).filter(|_| first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            None => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::grammar::GrammarStart;

    fn checked(kind: GrammarKind, text: &str) -> Result<(), String> {
        check(&GrammarParams { kind, text: text.to_owned(), start: GrammarStart::default() })
    }

    fn schema(text: &str) -> Result<(), String> {
        checked(GrammarKind::JsonSchema, text)
    }

    #[test]
    fn patterns_that_hold_at_once_are_counted_wherever_they_stand() {
        let parts = |count: usize| vec![r#"{"pattern": "a"}"#; count].join(",");
        let within = [
            format!(r#"{{"allOf": [{}]}}"#, parts(8)),
            format!(r#"{{"anyOf": [{}]}}"#, parts(100)),
            format!(r#"{{"properties": {{"allOf": {{"enum": [{}]}}}}}}"#, parts(100)),
            r##"{"$ref": "#/$defs/a", "$defs": {"a": {"pattern": "a", "anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#"}]}}}"##.to_owned(),
            r##"{"$ref": "#/$defs/a%20b~1c", "$defs": {"a b/c": {"type": "integer"}}}"##.to_owned(),
            "true".to_owned(),
            "{".to_owned(),
        ];
        for text in within {
            assert_eq!(schema(&text), Ok(()), "{text}");
        }
        let nine = [
            format!(r#"{{"items": {{"allOf": [{}]}}}}"#, parts(9)),
            format!(
                r#"{{"allOf": [{{"allOf": [{}]}}, {{"anyOf": [{}, {{"pattern": "b", "format": "date"}}]}}]}}"#,
                parts(7),
                parts(5)
            ),
            format!(
                r##"{{"$defs": {{"a": {{"allOf": [{}]}}}}, "items": {{"$ref": "#/$defs/a", "minLength": 3}}}}"##,
                parts(8)
            ),
            format!(r#"{{"allOf": [{}]}}"#, [r#"{"properties": {"a": {"pattern": "a"}}}"#; 9].join(",")),
        ];
        for text in nine {
            assert!(schema(&text).expect_err(&text).starts_with("has 9 patterns"), "{text}");
        }
        let long = format!(r#"{{"pattern": "{}"}}"#, "a".repeat(600));
        assert!(schema(&format!(r#"{{"allOf": [{long}, {long}]}}"#)).is_ok());
        assert!(schema(&format!(r#"{{"allOf": [{long}, {long}, {long}]}}"#)).is_err());
        let options = |count: usize| format!(r#"{{"anyOf": [{}]}}"#, vec![r#"{"required": ["a"]}"#; count].join(","));
        assert!(schema(&options(200)).is_ok());
        assert!(schema(&format!(r#"{{"allOf": [{}, {}]}}"#, options(200), options(180))).is_err());
        assert!(schema(r#"{"$id": "a", "$defs": {"b": {"$id": "c"}}}"#).is_err());
        let deep = r#"{"allOf": ["#.repeat(40) + "{}" + &"]}".repeat(40);
        assert_eq!(schema(&deep), Ok(()));
        for reference in ["#nowhere", "http://example.com/a.json", "#/$defs/none"] {
            let told = schema(&format!(r#"{{"items": {{"$ref": "{reference}"}}}}"#)).expect_err(reference);
            assert!(told.contains(reference), "{told}");
        }
    }
}
