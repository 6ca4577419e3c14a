//! Parameters in files that are lists, or words: an order of samplers, sequence breakers.

use super::file::nearest;
use crate::params::{EngineOrder, Sampler, SamplerOrder};
use toml::Value;

/// `"llama_cpp"`: its order and rules, or its rules for a list.
pub(super) fn engine_order(order: &mut SamplerOrder, value: &Value) -> Result<(), String> {
    let engine = named("an engine", value, &EngineOrder::ALL.map(|engine| (engine.name(), engine)))?;
    match order {
        SamplerOrder::Engine(of) | SamplerOrder::Custom(_, of) => *of = engine,
    }
    Ok(())
}

/// `["top_k", "temperature"]`, with the rules that are there.
pub(super) fn sampler_order(order: &mut SamplerOrder, value: &Value) -> Result<(), String> {
    let list = value.as_array().ok_or_else(|| not_a_list(value, r#"samplers, such as ["top_k", "temperature"]"#))?;
    let known = Sampler::ALL.map(|sampler| (sampler.kind_name(), sampler));
    let samplers = list.iter().map(|value| named("a sampler", value, &known));
    *order = SamplerOrder::Custom(samplers.collect::<Result<_, _>>()?, order.engine());
    Ok(())
}

/// `[198, [25, 220]]`: a token, and two in a row.
pub(super) fn breakers(value: &Value) -> Result<Vec<Vec<u32>>, String> {
    let list = value.as_array().ok_or_else(|| not_a_list(value, "token ids, such as [198, [25, 220]]"))?;
    let breaker = |value: &Value| match value {
        Value::Array(tokens) => tokens.iter().map(token).collect(),
        one => Ok(vec![token(one)?]),
    };
    list.iter().map(breaker).collect()
}

fn token(value: &Value) -> Result<u32, String> {
    let token = value.as_integer().and_then(|n| u32::try_from(n).ok());
    let hint = "a breaker is a token id, or a list of some in a row, as the model's tokenizer makes them of a text";
    token.ok_or_else(|| format!("{value} is not a token id; {hint}"))
}

fn not_a_list(value: &Value, of: &str) -> String {
    format!("{value} is not a list of {of}")
}

/// The value that goes by this name.
fn named<T: Copy>(what: &str, value: &Value, known: &[(&'static str, T)]) -> Result<T, String> {
    let names = || known.iter().map(|(name, _)| *name);
    let name = value.as_str();
    if let Some((_, found)) = known.iter().find(|(known, _)| Some(*known) == name) {
        return Ok(*found);
    }
    Err(match name.and_then(|name| nearest(name, names())) {
        Some(near) => format!("{value} is not {what}; did you mean {near}?"),
        None => format!("{value} is not {what}; there are {}", names().collect::<Vec<_>>().join(", ")),
    })
}
