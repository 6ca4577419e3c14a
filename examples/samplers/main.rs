//! One row of real logits through every sampler: how many tokens are left, how much entropy, and which tokens are the
//! most likely.
//!
//! ```text
//! cargo run --release --example samplers
//! cargo run --release --example samplers -- --text "Once upon a" --temperature 1.5
//! ```

#[path = "../support/mod.rs"]
mod support;

mod table;

use clap::Parser;
use croupier::params::chain::SamplerParams;
use croupier::params::watermark::{GumbelParams, KgwParams, SynthidParams, Watermark};
use croupier::params::{EngineOrder, SamplerOrder, SamplingParams};
use croupier::sampling::distribution::Distribution;
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::philox::Purpose;
use croupier::sequence::Sequence;
use croupier::sequence::rules::Rules;
use croupier::vocabulary::Vocabulary;
use std::path::PathBuf;
use std::sync::Arc;
use support::corpus::{self, END_OF_TEXT, Learned};
use support::ngram::MAX_ORDER;
use support::screen::Style;
use support::{Result, say};
use table::Line;

/// One row of real logits through every sampler
///
/// An n-gram model over the 200,019 tokens of o200k_base reads a text and says
/// what may come next. Each line of the table takes the same row through one
/// sampler, or one order of several, as the server would, and shows how many
/// tokens are left, their entropy in bits, the token that the seed draws, and
/// the likeliest ones with their probabilities.
#[derive(Debug, Parser)]
#[command(name = "samplers", verbatim_doc_comment)]
struct Args {
    /// The text before the row
    #[arg(long, default_value = "The fox said to the")]
    text: String,
    /// Temperature of every line that does not set its own, above 0
    #[arg(long, value_name = "T", default_value_t = 1.0, value_parser = temperature)]
    temperature: f32,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How many tokens the model looks at, the next one included
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=MAX_ORDER as i64))]
    order: u8,
    /// Learn from this text instead of the examples' own; may be repeated
    #[arg(long, value_name = "FILE")]
    corpus: Vec<PathBuf>,
}

fn temperature(text: &str) -> std::result::Result<f32, String> {
    let value: f32 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (1e-5..=1e5).contains(&value) { Ok(value) } else { Err(format!("{value} is not in 1e-5 ..= 1e5")) }
}

/// The lines of the table: a name, and the parameters.
fn lines(temperature: f32) -> Vec<(&'static str, SamplingParams)> {
    let plain = SamplingParams { temperature, ..SamplingParams::default() };
    let with = |change: fn(&mut SamplingParams)| {
        let mut params = plain.clone();
        change(&mut params);
        params
    };
    let marked = |mark, top_k| {
        let mut params = SamplingParams { top_k, ..plain.clone() };
        params.history.watermark = Some(Arc::new(mark));
        params
    };
    let usual = |engine| SamplingParams {
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        temperature: 1.8,
        samplers: SamplerParams { sampler_order: SamplerOrder::Engine(engine), ..SamplerParams::default() }.into(),
        ..SamplingParams::default()
    };
    vec![
        ("as it is", plain.clone()),
        ("greedy", with(|p| p.temperature = 0.0)),
        ("temperature 0.5", with(|p| p.temperature = 0.5)),
        ("temperature 2", with(|p| p.temperature = 2.0)),
        ("dynatemp 0.5 .. 2", with(|p| (p.samplers.dynatemp_low, p.samplers.dynatemp_high) = (0.5, 2.0))),
        ("smoothing 0.2", with(|p| p.samplers.smoothing_factor = 0.2)),
        ("smoothing 0.2, curve 2", with(|p| (p.samplers.smoothing_factor, p.samplers.smoothing_curve) = (0.2, 2.0))),
        ("top_k 40", with(|p| p.top_k = 40)),
        ("top_p 0.9", with(|p| p.top_p = 0.9)),
        ("min_p 0.05", with(|p| p.min_p = 0.05)),
        ("top_p 0.95, decaying", with(|p| (p.top_p, p.samplers.top_p_decay) = (0.95, 0.9))),
        (
            "temperature 0.5 .. 2",
            with(|p| (p.temperature, p.samplers.temperature_end, p.samplers.temperature_tokens) = (0.5, 2.0, 10)),
        ),
        ("typical_p 0.9", with(|p| p.samplers.typical_p = 0.9)),
        ("tfs 0.95", with(|p| p.samplers.tfs = 0.95)),
        ("top_a 0.2", with(|p| p.samplers.top_a = 0.2)),
        ("top_n_sigma 8", with(|p| p.samplers.top_n_sigma = 8.0)),
        ("min_k", with(|p| p.samplers.min_k = true)),
        ("epsilon_cutoff 3e-4", with(|p| p.samplers.epsilon_cutoff = 3e-4)),
        ("eta_cutoff 3e-4", with(|p| p.samplers.eta_cutoff = 3e-4)),
        ("top_h 0.4", with(|p| p.samplers.top_h = 0.4)),
        ("p_less", with(|p| p.samplers.p_less = true)),
        ("p_less, normalized", with(|p| (p.samplers.p_less, p.samplers.p_less_norm) = (true, true))),
        ("min_eos_p 1e-7", with(|p| p.samplers.min_eos_p = 1e-7)),
        ("infill, k 40, p .9", with(|p| (p.samplers.infill, p.top_k, p.top_p) = (true, 40, 0.9))),
        ("infill, k 40, T 0.3", with(|p| (p.samplers.infill, p.top_k, p.temperature) = (true, 40, 0.3))),
        ("mirostat 1, tau 3", with(|p| (p.samplers.mirostat, p.samplers.mirostat_tau) = (1, 3.0))),
        ("mirostat 2, tau 3", with(|p| (p.samplers.mirostat, p.samplers.mirostat_tau) = (2, 3.0))),
        ("adaptive_p 0.1, min_p 0.01", with(|p| (p.min_p, p.samplers.adaptive_target) = (0.01, 0.1))),
        ("xtc, always", with(|p| (p.samplers.xtc_probability, p.samplers.xtc_threshold) = (1.0, 0.03))),
        (
            "xtc, on average",
            with(|p| {
                (p.samplers.xtc_probability, p.samplers.xtc_threshold, p.samplers.xtc_expected) =
                    (0.5, 0.03, Some(true))
            }),
        ),
        ("skew 0.5", with(|p| p.samplers.skew = 0.5)),
        ("kgw", marked(Watermark::Kgw(KgwParams::default()), 0)),
        ("synthid, top_k 40", marked(Watermark::Synthid(SynthidParams::new((1..=30).collect())), 40)),
        ("gumbel, top_k 40", marked(Watermark::Gumbel(GumbelParams::new(7)), 40)),
        ("top_k 1, min_keep 3", with(|p| (p.top_k, p.samplers.min_keep) = (1, 3))),
        ("k 40, p .95, min .05, T 1.8", usual(EngineOrder::Croupier)),
        ("  the same as llama.cpp", usual(EngineOrder::LlamaCpp)),
        ("  the same as vLLM", usual(EngineOrder::Vllm)),
    ]
}

/// What the samplers leave of a row after an output, and the token that the seed draws.
fn sample(
    (row, texts): (&[u8], &Arc<Vocabulary>),
    params: SamplingParams,
    seed: u64,
    output: &[u32],
) -> Result<(Distribution, u32)> {
    let logits = Logits::new(Dtype::F32, row);
    params.validate(logits.vocab_size() as u32, 20)?;
    let rules = Rules::new(params, &[END_OF_TEXT]).with_vocabulary(Some(Arc::clone(texts)));
    rules.validate()?;
    let sequence = Sequence::open(Arc::new(rules), seed, &[], output);
    let spec = sequence.spec(sequence.draw(Purpose::Sample));
    let token = croupier::sampling::sample_row(&logits, &spec)?.token;
    Ok((Distribution::of(&logits, &spec)?, token))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args = Args::parse();
    let Learned { tokenizer, model, .. } = corpus::learn(args.corpus, usize::from(args.order)).await?;
    let context = tokenizer.encode_ordinary(&args.text);
    let mut row = vec![0.0; model.vocab_size()];
    model.logits(&context, &mut row);
    let row = Dtype::F32.encode(&row);
    let text = |token: u32| Some(corpus::text(&tokenizer, &[token])).filter(|text| !text.is_empty());
    let texts = Arc::new(Vocabulary::new(&(0..model.vocab_size() as u32).map(text).collect::<Vec<_>>(), b""));

    let style = Style::detect();
    say(&format!("{:?}, and what may come next of {} tokens\n", args.text, model.vocab_size()))?;
    say(&style.bold(&table::head()))?;
    for (name, params) in lines(args.temperature) {
        let (left, token) = sample((&row, &texts), params, args.seed, &context)?;
        let piece = |token: u32| match token {
            END_OF_TEXT => "(the end)".to_owned(),
            token => table::shown(&corpus::text(&tokenizer, &[token])),
        };
        say(&Line::new(name, &left, token).show(style, piece))?;
    }
    say("\nEntropy in bits. \"draws\" is the token of this seed; the bars are the likeliest tokens' probabilities.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use croupier::params::Sampler;

    #[test]
    fn every_sampler_has_a_line() {
        for sampler in Sampler::ALL {
            assert!(lines(1.0).iter().any(|(_, params)| sampler.step(params).is_some()), "{sampler:?}");
        }
    }

    #[test]
    fn every_line_of_the_table_is_something_that_a_server_takes() {
        for (name, params) in lines(1.0) {
            assert_eq!(params.validate(200_019, 20), Ok(()), "{name}");
        }
    }
}
