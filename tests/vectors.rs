//! Known answers: tokens and logprobs that never change, on any machine, backend or version.
//!
//! `tests/vectors/sampling.txt` says how each row is made, so another implementation can check itself. A change of a single bit breaks the
//! promise that a seed replays a text. If such a change is ever decided on, `UPDATE_VECTORS=1 cargo test --test numbers vectors::` writes
//! the file again, and the change log must say so.

use croupier::backend::cpu::{CpuBackend, Level};
use croupier::backend::{Backend, RowJob};
use croupier::params::{Filters, LogprobsMode, Penalties};
use croupier::sampling::adjust::{Adjusts, TokenAdjust};
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::philox::{Purpose, uniform};
use croupier::sampling::row::{Action, LogprobsSpec, RowResult, RowSpec};
use croupier::sampling::sample_row;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/sampling.txt");

const HEADER: &str = "\
# Known answers of Croupier's sampler. One case a line:
#   vocab dtype temperature top_k top_p min_p penalised mode seed position -> token logprob_bits rank
#
# Row: logit of token t is (w % 4096) / 256 - 8 in f32, then rounded to the dtype, where w is the low word of
#   philox4x32_10(counter = [t, 0, 0, 99], key = [vocab, 0]).
# penalised: tokens 0, 3, 6 .. 57 were seen, token t occurred t % 4 times in the output; repetition 1.3,
#   frequency 0.25, presence 0.5. Uniform: philox as in docs/numbers.md with this seed and position.
# logprob_bits: the f32 logprob of the token as hexadecimal; mode raw or processed.
";

struct Case {
    vocab: usize,
    dtype: Dtype,
    filters: Filters,
    penalised: bool,
    mode: LogprobsMode,
    seed: u64,
    position: u64,
}

fn cases() -> Vec<Case> {
    let filters = |temperature, top_k, top_p, min_p| Filters { temperature, top_k, top_p, min_p };
    let all = [
        filters(0.0, 0, 1.0, 0.0),
        filters(1.0, 0, 1.0, 0.0),
        filters(0.7, 0, 1.0, 0.0),
        filters(2.5, 0, 1.0, 0.0),
        filters(1.0, 50, 1.0, 0.0),
        filters(1.0, 0, 0.9, 0.0),
        filters(1.0, 0, 1.0, 0.05),
        filters(0.8, 40, 0.95, 0.02),
        filters(1.3, 3000, 0.5, 0.0),
    ];
    let mut cases = vec![];
    for (i, filters) in all.into_iter().enumerate() {
        for (j, vocab) in [1usize, 127, 5000, 50_257].into_iter().enumerate() {
            let dtype = Dtype::ALL[(i + j) % 3];
            let mode = if (i + j) % 2 == 0 { LogprobsMode::Raw } else { LogprobsMode::Processed };
            let (seed, position) = ((i as u64) << 33 | 0x5EED, 1000 * j as u64 + i as u64);
            cases.push(Case { vocab, dtype, filters, penalised: j % 2 == 1, mode, seed, position });
        }
    }
    cases
}

fn row(case: &Case) -> Vec<u8> {
    let word = |t: u32| croupier::sampling::philox::philox4x32_10([t, 0, 0, 99], [case.vocab as u32, 0])[0];
    let logits: Vec<f32> = (0..case.vocab as u32).map(|t| (word(t) % 4096) as f32 / 256.0 - 8.0).collect();
    case.dtype.encode(&logits)
}

fn run(case: &Case, sample: impl FnOnce(RowJob<'_>) -> RowResult) -> String {
    let seen = |t: u32| TokenAdjust { token: t, flags: TokenAdjust::SEEN, bias: 0.0, output_count: t % 4 };
    let adjusts: Vec<TokenAdjust> = (0..case.vocab.min(60) as u32).step_by(3).map(seen).collect();
    let bytes = row(case);
    let spec = RowSpec {
        penalties: if case.penalised {
            Penalties { repetition: 1.3, frequency: 0.25, presence: 0.5, ..Penalties::OFF }
        } else {
            Penalties::OFF
        },
        adjusts: if case.penalised { adjusts.as_slice().into() } else { Adjusts::default() },
        logprobs: Some(LogprobsSpec { top_n: 0, mode: case.mode, tokens: &[] }),
        ..RowSpec::plain(case.filters, Action::Draw { uniform: uniform(case.seed, case.position, Purpose::Sample) })
    };
    let output = sample(RowJob { logits: Logits::new(case.dtype, &bytes), spec }).expect("the row is fine");
    let logprobs = output.logprobs.expect("asked for");
    let Filters { temperature, top_k, top_p, min_p } = case.filters;
    format!(
        "{} {} {temperature} {top_k} {top_p} {min_p} {} {} {} {} -> {} {:08x} {}",
        case.vocab,
        case.dtype.name(),
        if case.penalised { "penalised" } else { "plain" },
        if case.mode == LogprobsMode::Raw { "raw" } else { "processed" },
        case.seed,
        case.position,
        output.token,
        logprobs.logprob.to_bits(),
        logprobs.rank,
    )
}

#[test]
fn known_answers_never_change() {
    let specification = |job: RowJob<'_>| sample_row(&job.logits, &job.spec);
    let lines: Vec<String> = cases().iter().map(|case| run(case, specification)).collect();
    if std::env::var_os("UPDATE_VECTORS").is_some() {
        std::fs::write(FILE, format!("{HEADER}{}\n", lines.join("\n"))).expect("the file can be written");
    }
    let file = std::fs::read_to_string(FILE).expect("the file is there");
    let known: Vec<&str> = file.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines, known, "the specification gives other answers than it did");
    for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
        let mut backend = CpuBackend::with_level(1, level);
        for (case, known) in cases().iter().zip(&known) {
            assert_eq!(&run(case, |job| backend.run(&[job]).remove(0)), known, "level {}", level.name());
        }
    }
}
