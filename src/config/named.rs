//! Parameters in files that are words: an order of samplers, and parameters with a few named values.

use super::file::nearest;
use super::parts::{Read, list, shown, wrong};
use crate::params::{EngineOrder, Sampler, SamplerOrder};
use toml::Value;

/// Such as `"llama_cpp"`: sets that engine's order and rules, or only its rules if a list is already set.
pub(super) fn engine_order(order: &mut SamplerOrder, value: &Value) -> Read<()> {
    let engine = named("an engine", value, &EngineOrder::ALL.map(|engine| (engine.name(), engine)))?;
    match order {
        SamplerOrder::Engine(of) | SamplerOrder::Custom(_, of) => *of = engine,
    }
    Ok(())
}

/// Such as `["top_k", "temperature"]`: sets a list, and keeps the rules that are already set.
pub(super) fn sampler_order(order: &mut SamplerOrder, value: &Value) -> Read<()> {
    let known = Sampler::ALL.map(|sampler| (sampler.kind_name(), sampler));
    let samplers =
        list(value, r#"samplers, such as ["top_k", "temperature"]"#, |value| named("a sampler", value, &known))?;
    *order = SamplerOrder::Custom(samplers, order.engine());
    Ok(())
}

/// The value that has this name.
pub(super) fn named<T: Copy>(what: &str, value: &Value, known: &[(&'static str, T)]) -> Read<T> {
    let names = || known.iter().map(|(name, _)| *name);
    let name = value.as_str();
    if let Some((_, found)) = known.iter().find(|(known, _)| Some(*known) == name) {
        return Ok(*found);
    }
    let given = shown(value);
    wrong(match name.and_then(|name| nearest(name, names())) {
        Some(near) => format!("{given} is not {what}; did you mean {near}?"),
        None => format!("{given} is not {what}; known: {}", names().collect::<Vec<_>>().join(", ")),
    })
}
