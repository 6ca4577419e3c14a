//! What a Lark grammar may have. Its rules are told apart from the JSON schemas in it, which have limits of their own.

use super::bounds::{self, MAX_PATTERNS};
use serde_json::Value;

/// Signs for what has to match two things at once, or must not match one.
const SIGNS: [char; 2] = ['&', '~'];
/// What stands in front of a schema.
pub(super) const SCHEMA: &str = "%json";
/// What rules may not have, and why.
const NOT_IN_RULES: [(&str, &str); 3] = [
    ("capture", "captures are not returned; to match the word itself, write /captur[e]/"),
    ("stop=\"\"", "a token that ends a text always ends the whole text; leave it out"),
    ("stop = \"\"", "a token that ends a text always ends the whole text; leave it out"),
];

/// Whether a Lark grammar may be compiled.
///
/// # Errors
/// What would have to be changed.
pub(super) fn check(text: &str) -> Result<(), String> {
    let Parts { rules, schemas } = parts_of(text)?;
    let signs = rules.matches(SIGNS).count() as u64;
    if signs > MAX_PATTERNS {
        return Err(format!("has {signs} & and ~ operators, at most {MAX_PATTERNS} are allowed"));
    }
    if let Some((word, instead)) = NOT_IN_RULES.iter().find(|(word, _)| rules.contains(word)) {
        return Err(format!("has {word}, which is not allowed: {instead}"));
    }
    if sets_temperature(&rules) {
        return Err("has a temperature= of its own, which is not allowed: a text has one temperature; to match the \
                    word itself, write /temperatur[e]/"
            .to_owned());
    }
    bounds::json(&schemas).map_err(|message| format!("has a %json schema that {message}"))
}

/// A Lark grammar's text in parts.
pub(super) struct Parts {
    /// The text without its schemas.
    pub(super) rules: String,
    schemas: Vec<Value>,
}

/// Takes a Lark grammar's text apart. Whatever the compiler takes for a schema is found. So is the same in a comment or
/// in quotes, which costs nothing but a refusal where no JSON follows.
///
/// # Errors
/// No JSON follows.
pub(super) fn parts_of(text: &str) -> Result<Parts, String> {
    let (mut parts, mut left) = (Parts { rules: String::new(), schemas: Vec::new() }, text);
    while let Some((before, behind)) = left.split_once(SCHEMA) {
        let mut values = serde_json::Deserializer::from_str(behind).into_iter();
        let schema = values.next().unwrap_or_else(|| serde_json::from_str(""));
        parts.schemas.push(schema.map_err(|error| format!("has {SCHEMA} without a JSON schema behind it: {error}"))?);
        parts.rules += before;
        // Words on both sides are not joined.
        parts.rules.push(' ');
        left = &behind[values.byte_offset()..];
    }
    parts.rules += left;
    Ok(parts)
}

/// Whether a rule sets a temperature. The compiler knows that attribute, but nothing here asks for it.
fn sets_temperature(rules: &str) -> bool {
    let behind = rules.split("temperature").skip(1);
    behind.map(str::trim_start).any(|behind| behind.starts_with('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grammar_says_at_once_little() {
        assert_eq!(check("start: A\nA: /a.*/ & /.*b/ & ~/abb/"), Ok(()));
        assert!(
            check(&format!("start: A\nA: {}", ["/a/"; 10].join(" & ")))
                .expect_err("too many")
                .contains("9 & and ~ operators")
        );
        assert!(check("start[capture]: /a/").is_err() && check("start: a\na[stop=\"\"]: /a/").is_err());
    }

    #[test]
    fn a_temperature_is_refused_and_the_word_is_not() {
        for text in ["start: a\na[temperature=0.1]: /a/", "start: a\na[max_tokens=3, temperature \n = 0]: /a/"] {
            assert!(check(text).expect_err(text).starts_with("has a temperature= of its own"), "{text}");
        }
        for text in ["start: \"temperature\" /=/", "start: %json {\"const\": \"temperature=\"}"] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn the_schemas_in_it_have_the_limits_of_schemas() {
        let found = parts_of("start: %json{\"a\": \"}%json\"}b %json true\nb: %json\n [5]")
            .map(|parts| (parts.rules, parts.schemas));
        let schemas = [r#"{"a": "}%json"}"#, "true", "[5]"].map(|text| serde_json::from_str(text).expect("JSON"));
        assert_eq!(found, Ok(("start:  b  \nb:  ".to_owned(), schemas.to_vec())));
        let within = |schema: &str| format!("start: \"a\" %json {schema} \"&&&&&&&&\"");
        assert_eq!(check(&within(r#"{"const": "&&& capture ~~~ stop=\"\""}"#)), Ok(()));
        let patterns = |count: usize| vec![r#"{"pattern": "a"}"#; count].join(",");
        assert_eq!(check(&within(&format!(r#"{{"allOf": [{}]}}"#, patterns(8)))), Ok(()));
        let refused = check(&within(&format!(r#"{{"items": {{"allOf": [{}]}}}}"#, patterns(9)))).expect_err("nine");
        assert!(refused.starts_with("has a %json schema that has 9 patterns"), "{refused}");
        let options =
            |count: usize| format!(r#"%json {{"anyOf": [{}]}}"#, vec![r#"{"required": ["a"]}"#; count].join(","));
        assert_eq!(check(&format!("start: {}", options(300))), Ok(()));
        let refused =
            check(&format!("start: {}", vec![options(300); 4].join(" "))).expect_err("they are many together");
        assert!(refused.contains("300 options"), "{refused}");
        for text in ["start: %json", "start: %json {", "start: %json start"] {
            assert!(check(text).expect_err(text).starts_with("has %json without a JSON schema behind it"), "{text}");
        }
    }
}
