//! Where in a JSON schema something is wrong, as a pointer such as `/properties/age/maximum`.

use super::message;
use serde_json::{Map, Value};

/// Keywords whose values are expressions, and the option that has one.
const EXPRESSIONS: [&str; 3] = ["pattern", "patternProperties", "whitespace_pattern"];
/// Keywords of which the compiler says that their value must be a list, an object or a string.
const OF_ONE_KIND: [&str; 8] = ["enum", "allOf", "anyOf", "oneOf", "$ref", "properties", "prefixItems", "type"];

/// What is wrong, and the value it is about.
pub(super) type Wrong<'s> = (String, &'s Value);

/// What is wrong, with its place in the schema.
pub(super) fn told(root: &Value, (wrong, about): Wrong<'_>) -> String {
    let places = Places::of(root);
    let pointer = places.0.iter().position(|place| std::ptr::eq(place.value, about)).map(|at| places.pointer(at));
    message::placed(&wrong, pointer.as_deref())
}

/// What the compiler says of a schema, with the place of the keyword that it names, if the schema has this keyword only
/// once: the compiler does not say where.
pub(super) fn told_by_compiler(root: &Value, error: &impl std::fmt::Display) -> String {
    message::placed(&message::told(error), only_place(root, &error.to_string()).as_deref())
}

/// The only place that a compiler's message can be about. All objects count, also those that may be no schemas, since a
/// reference may lead to them.
fn only_place(root: &Value, error: &str) -> Option<String> {
    let named = Named::of(error)?;
    let places = Places::of(root);
    let mut found =
        (0..places.0.len()).filter(|&at| places.0[at].value.as_object().is_some_and(|own| named.is_in(own)));
    let at = found.next().filter(|_| found.next().is_none())?;
    let (pointer, own) = (places.pointer(at), places.0[at].value);
    let mut keywords = named.keywords.iter().filter(|keyword| own.get(keyword).is_some());
    match (keywords.next(), keywords.next()) {
        (Some(keyword), None) => Some(format!("{pointer}/{keyword}")),
        _ => Some(pointer),
    }
}

/// What a compiler's message names.
struct Named<'e> {
    keywords: Vec<String>,
    /// Whether it is about any one of these, and not about all.
    is_any: bool,
    /// The keyword's value, or one in its list.
    value: Option<&'e str>,
}

impl<'e> Named<'e> {
    fn of(error: &'e str) -> Option<Self> {
        // What follows is about the definition that the keyword is in.
        let error = error.split("\n  while processing ").next()?;
        if let Some(keys) = error.strip_prefix("Unimplemented keys: ") {
            return Some(Self { keywords: serde_json::from_str(keys).ok()?, is_any: false, value: None });
        }
        if ["regex parse error:", "lookarounds not supported"].iter().any(|start| error.starts_with(start)) {
            return Some(Self { keywords: EXPRESSIONS.map(str::to_owned).to_vec(), is_any: true, value: None });
        }
        let (keyword, value) = if let Some(format) = error.strip_prefix("Unknown format: ") {
            ("format", Some(format))
        } else if let Some(kind) = error.strip_prefix("Invalid type: ") {
            ("type", Some(kind))
        } else if error.starts_with("oneOf constraints are not supported") {
            ("oneOf", None)
        } else if error.starts_with("Expected ") || error.starts_with("Value ") {
            (error.split_once(" for '")?.1.split_once('\'')?.0, None)
        } else {
            let keyword = error.split_once(" must be a")?.0;
            (*OF_ONE_KIND.iter().find(|known| **known == keyword)?, None)
        };
        Some(Self { keywords: vec![keyword.to_owned()], is_any: false, value })
    }

    fn is_in(&self, object: &Map<String, Value>) -> bool {
        let is_value = |found: &Value| match (self.value, found) {
            (None, _) => true,
            (Some(value), Value::Array(list)) => list.iter().any(|one| one == value),
            (Some(value), found) => found == value,
        };
        let mut has = self.keywords.iter().map(|keyword| object.get(keyword).is_some_and(is_value));
        if self.is_any { has.any(|has| has) } else { has.all(|has| has) }
    }
}

/// All values of a JSON value, those further inside later.
struct Places<'v>(Vec<Place<'v>>);

struct Place<'v> {
    value: &'v Value,
    /// The place of the value that it is in, and where in that. The first one is in none.
    within: usize,
    key: Key<'v>,
}

#[derive(Clone, Copy)]
enum Key<'v> {
    Name(&'v str),
    Index(usize),
}

impl<'v> Places<'v> {
    fn of(root: &'v Value) -> Self {
        let mut places = vec![Place { value: root, within: 0, key: Key::Index(0) }];
        let mut within = 0;
        while within < places.len() {
            match places[within].value {
                Value::Object(object) => {
                    let parts = object.iter().map(|(name, value)| Place { value, within, key: Key::Name(name) });
                    places.extend(parts);
                }
                Value::Array(list) => {
                    let parts = list.iter().enumerate();
                    places.extend(parts.map(|(at, value)| Place { value, within, key: Key::Index(at) }));
                }
                _ => {}
            }
            within += 1;
        }
        Self(places)
    }

    fn pointer(&self, mut at: usize) -> String {
        let mut keys = Vec::new();
        while at != 0 {
            keys.push(match self.0[at].key {
                Key::Name(name) => name.replace('~', "~0").replace('/', "~1"),
                Key::Index(index) => index.to_string(),
            });
            at = self.0[at].within;
        }
        keys.iter().rev().flat_map(|key| ["/", key]).collect()
    }
}
