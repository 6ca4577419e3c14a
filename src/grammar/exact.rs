//! Rejects schemas of which the compiler would allow more than they say: numbers that an f64 does not hold, bounds that are
//! excluded and yet allowed, and names that count twice.

use super::place::{self, Wrong};
use serde_json::{Map, Value};
use std::collections::HashSet;

/// The largest integer such that it and all smaller ones are different as f64: 2^53 - 1.
const MOST: f64 = 9_007_199_254_740_991.0;
/// The keywords of bounds.
const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
/// Keywords whose value is no schema.
const VALUES: [&str; 4] = ["const", "enum", "default", "examples"];
/// Keywords whose value has schemas by name.
const BY_NAME: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// How deep options are followed from a schema.
const DEEPEST: usize = 16;

/// Checks all schemas in a schema.
///
/// # Errors
/// What would have to be changed.
pub(super) fn check(root: &Value) -> Result<(), String> {
    check_all(root).map_err(|wrong| place::told(root, wrong))
}

fn check_all(root: &Value) -> Result<(), Wrong<'_>> {
    let mut left = vec![root];
    while let Some(value) = left.pop() {
        match value {
            Value::Object(object) => {
                check_numbers(object)?;
                check_options(root, value, Holds::default(), 0)?;
                for (key, part) in object.iter().filter(|(key, _)| !VALUES.contains(&key.as_str())) {
                    match part {
                        Value::Object(named) if BY_NAME.contains(&key.as_str()) => left.extend(named.values()),
                        _ => left.push(part),
                    }
                }
            }
            Value::Array(list) => left.extend(list),
            _ => {}
        }
    }
    Ok(())
}

/// Checks the size of a schema's bounds, and of the whole numbers that it names.
fn check_numbers(object: &Map<String, Value>) -> Result<(), Wrong<'_>> {
    let too_large = |number: &&Value| number.as_f64().is_some_and(|number| number.abs() > MOST);
    for key in BOUNDS {
        if let Some(bound) = object.get(key).filter(too_large) {
            let wrong = format!(
                "has {key} {bound}, but bounds can be followed only from -{MOST} to {MOST} (2^53 - 1); use a smaller one, or leave it out"
            );
            return Err((wrong, bound));
        }
    }
    let mut left: Vec<&Value> = ["const", "enum"].iter().filter_map(|key| object.get(*key)).collect();
    while let Some(value) = left.pop() {
        match value {
            Value::Number(number) if number.as_f64().is_some_and(|own| own.abs() > MOST) && !number.is_f64() => {
                let wrong = format!(
                    "has the value {number}, but whole numbers can be followed only from -{MOST} to {MOST} (2^53 - 1)"
                );
                return Err((wrong, value));
            }
            Value::Object(object) => left.extend(object.values()),
            Value::Array(list) => left.extend(list),
            _ => {}
        }
    }
    Ok(())
}

/// A bound, and whether it is excluded.
type Bound = (f64, bool);

/// What has to hold at once for a value, as far as it is looked at here.
#[derive(Debug, Default, Clone)]
struct Holds<'s> {
    low: Option<Bound>,
    high: Option<Bound>,
    is_integer: bool,
    required: HashSet<&'s str>,
    min_properties: u64,
    /// Whether names are excluded that are not listed, and whether some are allowed by pattern.
    is_closed: bool,
    has_patterns: bool,
    /// The options of anyOf and oneOf, of which one holds too.
    options: Vec<&'s [Value]>,
    /// By their addresses, the schemas that all this is from.
    seen: HashSet<*const Map<String, Value>>,
}

/// Checks what holds at once for a value: the keywords of a schema, of all that it refers to, and of one option.
fn check_options<'s>(root: &'s Value, schema: &'s Value, mut holds: Holds<'s>, depth: usize) -> Result<(), Wrong<'s>> {
    let Value::Object(object) = schema else { return Ok(()) };
    let before = holds.options.len();
    holds.take(root, object);
    holds.check().map_err(|wrong| (wrong, schema))?;
    if depth < DEEPEST {
        let options: Vec<&Value> = holds.options[before..].iter().copied().flatten().collect();
        for option in options {
            check_options(root, option, Holds { options: vec![], ..holds.clone() }, depth + 1)?;
        }
    }
    Ok(())
}

impl<'s> Holds<'s> {
    /// Adds what a schema says.
    fn take(&mut self, root: &'s Value, object: &'s Map<String, Value>) {
        if !self.seen.insert(object) {
            return;
        }
        self.take_bounds(object);
        let required = object.get("required").and_then(Value::as_array).into_iter().flatten();
        self.required.extend(required.filter_map(Value::as_str));
        self.min_properties = self.min_properties.max(object.get("minProperties").and_then(Value::as_u64).unwrap_or(0));
        self.is_closed |= object.get("additionalProperties") == Some(&Value::Bool(false));
        self.has_patterns |=
            object.get("patternProperties").and_then(Value::as_object).is_some_and(|all| !all.is_empty());
        let lists = |keys: &'static [&str]| keys.iter().filter_map(|key| object.get(*key)?.as_array());
        self.options.extend(lists(&["anyOf", "oneOf"]).map(Vec::as_slice));
        let reference = object.get("$ref").and_then(Value::as_str).and_then(|to| super::bounds::target(root, to).ok());
        for part in lists(&["allOf"]).flatten().chain(reference).filter_map(Value::as_object) {
            self.take(root, part);
        }
    }

    fn take_bounds(&mut self, object: &Map<String, Value>) {
        let number = |key: &str| object.get(key).and_then(Value::as_f64);
        // In old drafts, exclusiveMinimum says whether minimum is excluded.
        let is_excluded = |key: &str| object.get(key) == Some(&Value::Bool(true));
        let lows = [
            number("minimum").map(|bound| (bound, is_excluded("exclusiveMinimum"))),
            number("exclusiveMinimum").map(|bound| (bound, true)),
        ];
        let highs = [
            number("maximum").map(|bound| (bound, is_excluded("exclusiveMaximum"))),
            number("exclusiveMaximum").map(|bound| (bound, true)),
        ];
        let tighter = |own: Bound, other: Bound, sign: f64| (other.0 * sign, other.1) > (own.0 * sign, own.1);
        for low in lows.into_iter().flatten() {
            self.low = Some(self.low.filter(|own| !tighter(*own, low, 1.0)).unwrap_or(low));
        }
        for high in highs.into_iter().flatten() {
            self.high = Some(self.high.filter(|own| !tighter(*own, high, -1.0)).unwrap_or(high));
        }
        self.is_integer |= object.get("type").is_some_and(|kind| kind == "integer");
    }

    fn check(&self) -> Result<(), String> {
        if let Some(allowed) = self.allowed_though_excluded() {
            return Err(format!(
                "has the bounds {} and {}, of which the excluded one, {allowed}, would be allowed; use a bound that is \
                 allowed itself, such as the nearest number that is wanted",
                told(self.low, ["minimum", "exclusiveMinimum"]),
                told(self.high, ["maximum", "exclusiveMaximum"])
            ));
        }
        let listed = self.required.len() as u64;
        if self.min_properties > listed + 1 && (!self.is_closed || self.has_patterns) {
            return Err(format!(
                "has minProperties {}, but of the names that it does not require only one can be counted, because others may \
                 repeat it; require as many names, or use at most {}",
                self.min_properties,
                listed + 1
            ));
        }
        Ok(())
    }

    /// The bound that the compiler's expression for a number allows though it is excluded: a whole one, if both bounds
    /// have the same whole part.
    fn allowed_though_excluded(&self) -> Option<f64> {
        let ((low, excludes_low), (high, excludes_high)) = (self.low?, self.high?);
        let wrong = |near: f64, is_excluded: bool, far: f64| {
            is_excluded && near.fract() == 0.0 && near.trunc().abs() == far.trunc().abs() && near != far
        };
        let is_low_wrong = low >= 0.0 && wrong(low, excludes_low, high);
        let is_high_wrong = high <= 0.0 && wrong(high, excludes_high, low);
        let found = if is_low_wrong { Some(low) } else { is_high_wrong.then_some(high) };
        found.filter(|_| !self.is_integer)
    }
}

fn told(bound: Option<Bound>, [included, excluded]: [&str; 2]) -> String {
    bound.map_or_else(String::new, |(bound, is_excluded)| {
        format!("{} {bound}", if is_excluded { excluded } else { included })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<(), String> {
        check(&serde_json::from_str(text).expect("JSON"))
    }

    #[test]
    fn bounds_that_would_be_allowed_though_excluded_are_told() {
        for (wrong, allowed) in [
            (r#"{"exclusiveMinimum": 0, "maximum": 0.5}"#, "the excluded one, 0, would"),
            (r#"{"minimum": 1, "exclusiveMinimum": true, "exclusiveMaximum": 1.5}"#, "the excluded one, 1, would"),
            (r#"{"minimum": -1.5, "exclusiveMaximum": -1}"#, "the excluded one, -1, would"),
            (r#"{"minimum": -0.5, "exclusiveMaximum": 0}"#, "the excluded one, 0, would"),
            (r#"{"items": {"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]}}"#, "the excluded one, 0, would"),
            (r#"{"exclusiveMinimum": 0, "anyOf": [{"maximum": 7}, {"maximum": 0.5}]}"#, "the excluded one, 0, would"),
            (r##"{"$ref": "#/$defs/a", "maximum": 0.5, "$defs": {"a": {"exclusiveMinimum": 0}}}"##, "excluded one, 0,"),
        ] {
            let told = checked(wrong).expect_err(wrong);
            assert!(told.contains(allowed) && told.starts_with("has the bounds"), "{told}");
        }
        for right in [
            r#"{"exclusiveMinimum": 0, "maximum": 1}"#,
            r#"{"exclusiveMinimum": 0}"#,
            r#"{"minimum": 0, "exclusiveMaximum": 0.5}"#,
            r#"{"exclusiveMinimum": 0.25, "maximum": 0.5}"#,
            r#"{"exclusiveMinimum": -1, "maximum": 0.5}"#,
            r#"{"type": "integer", "exclusiveMinimum": 0, "maximum": 0.5}"#,
            r#"{"properties": {"maximum": {"exclusiveMinimum": 0}, "const": {"maximum": 0.5}}}"#,
            r#"{"exclusiveMinimum": 0, "minimum": 0.1, "maximum": 0.5}"#,
        ] {
            assert_eq!(checked(right), Ok(()), "{right}");
        }
    }

    #[test]
    fn numbers_that_an_f64_does_not_hold_are_told() {
        for (wrong, start) in [
            (r#"{"type": "integer", "minimum": -9223372036854775808}"#, "has minimum -9223372036854775808, but bounds"),
            (
                r#"{"exclusiveMaximum": 1e300}"#,
                "has exclusiveMaximum 1e+300, but bounds can be followed only from -90071",
            ),
            (r#"{"items": {"enum": [1, {"a": [9007199254740992]}]}}"#, "has the value 9007199254740992, but whole"),
        ] {
            let told = checked(wrong).expect_err(wrong);
            assert!(told.starts_with(start), "{told}");
        }
        let most = r#"{"minimum": -9007199254740991, "maximum": 9007199254740991, "const": 9007199254740991}"#;
        assert_eq!(checked(most), Ok(()));
        assert_eq!(checked(r#"{"enum": [1e300, "9007199254740992"], "default": 9007199254740992}"#), Ok(()));
    }

    #[test]
    fn names_that_may_repeat_are_not_counted() {
        for wrong in [
            r#"{"minProperties": 2}"#,
            r#"{"minProperties": 3, "required": ["a"], "properties": {"b": {}}}"#,
            r#"{"minProperties": 2, "additionalProperties": false, "patternProperties": {"^a": {}}}"#,
        ] {
            assert!(checked(wrong).expect_err(wrong).starts_with("has minProperties"), "{wrong}");
        }
        for right in [
            r#"{"minProperties": 1}"#,
            r#"{"minProperties": 3, "required": ["a", "b"]}"#,
            r#"{"minProperties": 2, "additionalProperties": false, "properties": {"a": {}, "b": {}}}"#,
            r#"{"minProperties": 2, "additionalProperties": false, "patternProperties": {}}"#,
            r#"{"allOf": [{"minProperties": 2, "required": ["a"]}, {"required": ["b"]}]}"#,
        ] {
            assert_eq!(checked(right), Ok(()), "{right}");
        }
    }

    #[test]
    fn a_schema_within_itself_is_followed_to_an_end() {
        let itself = [r##"{"$ref": "#"}"##; 12].join(",");
        assert_eq!(
            checked(&format!(r#"{{"anyOf": [{itself}], "allOf": [{itself}, {{"oneOf": [{itself}]}}]}}"#)),
            Ok(())
        );
    }
}
