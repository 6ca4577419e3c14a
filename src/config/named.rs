//! Parameters in files that are words: an order of samplers, and parameters with a few named values.

use super::file::nearest;
use super::meant;
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
    let sampler = |value: &Value| match value.as_str().and_then(meant::sampler) {
        Some(hint) => wrong(format!("{} is not a sampler; {hint}", shown(value))),
        None => named("a sampler", value, &known),
    };
    let samplers = list(value, r#"samplers, such as ["top_k", "temperature"]"#, sampler)?;
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
    wrong(match name.and_then(|name| same(name, names()).or_else(|| nearest(name, names()))) {
        Some(near) => format!("{given} is not {what}; did you mean {near}?"),
        None => format!("{given} is not {what}; known: {}", names().collect::<Vec<_>>().join(", ")),
    })
}

/// The known name that `name` is in another form: in capitals, with hyphens, or with the wire's prefix, as in
/// `ENGINE_ORDER_LLAMA_CPP`.
fn same<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_ascii_lowercase().replace('-', "_");
    let ends = |known: &str| name.strip_suffix(known).is_some_and(|rest| rest.is_empty() || rest.ends_with('_'));
    // Of `temperature` and `dynamic_temperature`, which both may be its end, the longer one.
    known.filter(|known| ends(known)).max_by_key(|known| known.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_another_form_is_known() {
        let engines = || EngineOrder::ALL.into_iter().map(EngineOrder::name);
        for given in ["LLAMA_CPP", "llama-cpp", "ENGINE_ORDER_LLAMA_CPP"] {
            assert_eq!(same(given, engines()), Some("llama_cpp"), "{given}");
        }
        assert_eq!([same("llamacpp", engines()), same("", engines())], [None, None]);
        let samplers = || Sampler::ALL.into_iter().map(Sampler::kind_name);
        assert_eq!(same("SAMPLER_KIND_DYNAMIC_TEMPERATURE", samplers()), Some("dynamic_temperature"));
        assert_eq!(same("SAMPLER_KIND_TOP_K", samplers()), Some("top_k"));
    }
}
