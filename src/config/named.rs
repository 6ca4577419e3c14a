//! Parameters in files that are words: an order of samplers, and what has a choice of a few names.

use super::file::nearest;
use super::parts::{Read, list, shown, wrong};
use crate::params::{EngineOrder, Sampler, SamplerOrder};
use toml::Value;

/// `"llama_cpp"`: its order and rules, or its rules for a list.
pub(super) fn engine_order(order: &mut SamplerOrder, value: &Value) -> Read<()> {
    let engine = named("an engine", value, &EngineOrder::ALL.map(|engine| (engine.name(), engine)))?;
    match order {
        SamplerOrder::Engine(of) | SamplerOrder::Custom(_, of) => *of = engine,
    }
    Ok(())
}

/// `["top_k", "temperature"]`, with the rules that are there.
pub(super) fn sampler_order(order: &mut SamplerOrder, value: &Value) -> Read<()> {
    let known = Sampler::ALL.map(|sampler| (sampler.kind_name(), sampler));
    let samplers =
        list(value, r#"samplers, such as ["top_k", "temperature"]"#, |value| named("a sampler", value, &known))?;
    *order = SamplerOrder::Custom(samplers, order.engine());
    Ok(())
}

/// The value that goes by this name.
pub(super) fn named<T: Copy>(what: &str, value: &Value, known: &[(&'static str, T)]) -> Read<T> {
    let names = || known.iter().map(|(name, _)| *name);
    let name = value.as_str();
    if let Some((_, found)) = known.iter().find(|(known, _)| Some(*known) == name) {
        return Ok(*found);
    }
    let given = shown(value);
    wrong(match name.and_then(|name| nearest(name, names())) {
        Some(near) => format!("{given} is not {what}; did you mean {near}?"),
        None => format!("{given} is not {what}; there are {}", names().collect::<Vec<_>>().join(", ")),
    })
}
