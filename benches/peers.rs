//! Compares these samplers with llama.cpp's own in one run: the same rows on one core, alternately.
//!
//!   scripts/peers-bench                  the whole table; downloads llama.cpp's library
//!   scripts/peers-bench --quick          fewer rounds
//!   scripts/peers-bench --job typical
//!
//! Or run `CROUPIER_LIBLLAMA=.../libllama.so cargo bench --bench peers`. Without the library it measures nothing and
//! says so.

#![allow(clippy::print_stdout)] // it prints a table

use clap::Parser;
use croupier::backend::cpu::{CpuBackend, Level};
use croupier::backend::{Backend, RowJob};
use croupier::params::chain::SamplerParams;
use croupier::params::{EngineOrder, SamplerOrder, SamplingParams};
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::row::Action;
use croupier::sequence::Sequence;
use croupier::sequence::rules::Rules;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;

#[path = "support/llama.rs"]
mod llama;
#[path = "support/options.rs"]
mod options;
#[path = "support/rows.rs"]
mod rows;
#[path = "support/timing.rs"]
mod timing;
use llama::{Llama, Step};
use rows::{Shape, reference_max};
use timing::{Placed, measure};

const VOCAB: usize = 128_256;

#[derive(Parser)]
#[command(about = "The samplers beside llama.cpp's own, in one run")]
struct Options {
    #[command(flatten)]
    common: options::Common,
    /// Only jobs whose name holds this.
    #[arg(long, value_name = "TEXT")]
    job: Option<String>,
}

/// The same job for both sides: parameters in llama.cpp's order here, and the samplers of llama.cpp's chain.
struct Job {
    name: &'static str,
    params: SamplingParams,
    chain: Vec<Step>,
}

fn job(name: &'static str, chain: &[Step], change: impl FnOnce(&mut SamplingParams)) -> Job {
    let order = SamplerOrder::Engine(EngineOrder::LlamaCpp);
    let samplers = SamplerParams { sampler_order: order, ..SamplerParams::default() };
    let mut params = SamplingParams { temperature: 0.8, samplers: samplers.into(), ..SamplingParams::default() };
    change(&mut params);
    Job { name, params, chain: chain.to_vec() }
}

fn jobs() -> Vec<Job> {
    use Step::*;
    let t = Temperature(0.8);
    let few = |p: &mut SamplingParams| (p.top_k, p.top_p, p.min_p) = (40, 0.95, 0.05);
    let penalised = |p: &mut SamplingParams| {
        (p.repetition_penalty, p.frequency_penalty, p.presence_penalty) = (1.1, 0.1, 0.1);
        p.history.penalty_last_n = 64;
    };
    vec![
        job("greedy", &[Greedy], |p| p.temperature = 0.0),
        job("temperature", &[t, Dist], |_| ()),
        job("top-k 40", &[TopK(40), t, Dist], |p| p.top_k = 40),
        job("top-p .95", &[TopP(0.95), t, Dist], |p| p.top_p = 0.95),
        job("min-p .05", &[MinP(0.05), t, Dist], |p| p.min_p = 0.05),
        job("k 40, p .95, min-p .05", &[TopK(40), TopP(0.95), MinP(0.05), t, Dist], few),
        job(
            "the same with penalties of 64",
            &[Penalties(64, [1.1, 0.1, 0.1]), TopK(40), TopP(0.95), MinP(0.05), t, Dist],
            |p| {
                few(p);
                penalised(p);
            },
        ),
        job("typical .95", &[Typical(0.95), t, Dist], |p| p.samplers.typical_p = 0.95),
        job("top-n-sigma 1", &[TopNSigma(1.0), t, Dist], |p| p.samplers.top_n_sigma = 1.0),
        job("xtc always", &[Xtc(0.1), t, Dist], |p| {
            (p.samplers.xtc_probability, p.samplers.xtc_threshold) = (1.0, 0.1);
        }),
        job("dynamic temperature", &[DynamicTemperature(1.0, 0.5), Dist], |p| {
            (p.samplers.dynatemp_low, p.samplers.dynatemp_high) = (0.5, 1.5);
        }),
        job("mirostat 1, tau 5", &[t, MirostatV1(5.0)], |p| p.samplers.mirostat = 1),
        job("mirostat 2, tau 5", &[t, MirostatV2(5.0)], |p| p.samplers.mirostat = 2),
        job("adaptive-p .5 behind min-p .05", &[MinP(0.05), AdaptiveP(0.5)], |p| {
            (p.temperature, p.min_p, p.samplers.adaptive_target) = (1.0, 0.05, 0.5);
        }),
    ]
}

fn main() {
    let options = Options::parse();
    let wanted = options.job.as_deref();
    let rounds = if options.common.quick() { 3 } else { 9 };
    let Some(path) = std::env::var_os("CROUPIER_LIBLLAMA").filter(|path| !path.is_empty()).map(PathBuf::from) else {
        println!("nothing measured: CROUPIER_LIBLLAMA names no llama.cpp library; scripts/peers-bench downloads it");
        return;
    };
    let llama = Llama::open(&path).unwrap_or_else(|error| panic!("{error}"));
    println!("V = {VOCAB}, f32, one core, {}, least of {rounds} rounds, by turns", Level::detect().name());
    println!("x = times one SIMD max pass over the same rows; ahead = llama.cpp's time over this one's");
    for shape in [Shape::Peaked, Shape::Flat] {
        println!("\n{} rows", shape.name());
        println!("  {:32} {:>29}   {:>29}", "", "one row, hot", "64 rows");
        let columns = format!("{:>8} {:>11} {:>8}", "us", "llama us", "ahead");
        println!("  {:32} {columns}   {columns} {:>6} {:>8}", "job", "x", "llama x");
        let rows: Vec<Placed> = (0..64).map(|i| Placed::new(&Dtype::F32.encode(&rows::row(shape, VOCAB, i)))).collect();
        for job in jobs().iter().filter(|job| wanted.is_none_or(|wanted| job.name.contains(wanted))) {
            line(&llama, &rows, job, rounds);
        }
    }
}

fn line(llama: &Llama, rows: &[Placed], job: &Job, rounds: usize) {
    job.params.validate(VOCAB as u32, 0).expect("valid parameters");
    // 64 tokens from all over the vocabulary have been emitted.
    let history: Vec<u32> = (0..64).map(|i| i * (VOCAB as u32 / 64) + i * 7 % 50).collect();
    let sequence = Sequence::open(Arc::new(Rules::new(job.params.clone(), &[])), 1, &[], &history);
    let emitted: Vec<i32> = history.iter().map(|&token| token as i32).collect();
    let mut chain = llama.chain(VOCAB, &job.chain, &emitted);
    let (level, mut backend, mut uniform) = (Level::detect(), CpuBackend::with_level(1, Level::detect()), 1u64);
    let [[_, hot, hot_theirs], [max, b64, b64_theirs]] = [1, 64].map(|count| {
        let mut max = |row: usize| {
            black_box(reference_max(level, Dtype::F32, black_box(rows[row].bytes())));
        };
        let mut ours = |row: usize| {
            uniform = uniform.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let logits = Logits::new(Dtype::F32, black_box(rows[row].bytes()));
            black_box(backend.run(&[RowJob { logits, spec: sequence.spec(Action::Draw { uniform }) }]));
        };
        let mut theirs = |row: usize| {
            black_box(chain.sample(black_box(rows[row].bytes())));
        };
        measure(rounds, count, [&mut max, &mut ours, &mut theirs])
    });
    println!(
        "  {:32} {:8.1} {:11.1} {:8.1}   {:8.1} {:11.1} {:8.1} {:6.2} {:8.1}",
        job.name,
        hot * 1e6,
        hot_theirs * 1e6,
        hot_theirs / hot,
        b64 * 1e6,
        b64_theirs * 1e6,
        b64_theirs / b64,
        b64 / max,
        b64_theirs / max
    );
}
