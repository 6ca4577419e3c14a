//! Parameters in files that are lists, words or tables: an order of samplers, sequence breakers, tools that work on the history.

use super::file::nearest;
use crate::params::steering::{LengthPenalty, NoRepeatNgram, RepetitionDetection};
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

/// `{ size = 3, window = 64 }`
pub(super) fn no_repeat_ngram(value: &Value) -> Result<Option<Box<NoRepeatNgram>>, String> {
    let of = fields(value, ["size", "window", "prompt_size"], "{ size = 3, window = 64 }")?;
    let [size, window, prompt_size] = [of[0].whole(0)?, of[1].whole(0)?, of[2].whole(0)?];
    Ok(Some(Box::new(NoRepeatNgram { size, window, prompt_size, whitelist: vec![] })))
}

/// `{ start = 200, factor = 1.02 }`
pub(super) fn length_penalty(value: &Value) -> Result<Option<LengthPenalty>, String> {
    let [start, factor] = fields(value, ["start", "factor"], "{ start = 200, factor = 1.02 }")?;
    Ok(Some(LengthPenalty { start: start.whole(0)?, factor: factor.float(0.0)? }))
}

/// `{ max_pattern_size = 32, min_count = 4 }`
pub(super) fn repetition_detection(value: &Value) -> Result<Option<RepetitionDetection>, String> {
    let names = ["max_pattern_size", "min_pattern_size", "min_count"];
    let [most, least, count] = fields(value, names, "{ max_pattern_size = 32, min_count = 4 }")?;
    let (max_pattern_size, min_pattern_size) = (most.whole(0)?, least.whole(1)?);
    Ok(Some(RepetitionDetection { max_pattern_size, min_pattern_size, min_count: count.whole(0)? }))
}

/// One value of a table, if it is there.
struct Field<'a>(&'static str, Option<&'a Value>);

impl Field<'_> {
    fn whole(&self, absent: u32) -> Result<u32, String> {
        self.read(absent, "a whole number", super::defaults::whole)
    }

    fn float(&self, absent: f32) -> Result<f32, String> {
        self.read(absent, "a number", super::defaults::float)
    }

    fn read<T>(&self, absent: T, what: &str, read: impl Fn(&Value) -> Option<T>) -> Result<T, String> {
        let Some(value) = self.1 else { return Ok(absent) };
        read(value).ok_or_else(|| format!("{} is {value}, which is not {what} that it can have", self.0))
    }
}

/// The fields of a table, which has no others.
fn fields<'a, const N: usize>(
    value: &'a Value,
    names: [&'static str; N],
    such: &str,
) -> Result<[Field<'a>; N], String> {
    let table = value.as_table().ok_or_else(|| format!("{value} is not a table, such as {such}"))?;
    match table.keys().find(|key| !names.contains(&key.as_str())) {
        Some(key) => Err(format!("has no {key}; there are {}", names.join(", "))),
        None => Ok(names.map(|name| Field(name, table.get(name)))),
    }
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
