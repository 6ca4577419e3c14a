//! Before a device serves it samples rows of every kind and verifies drafts by every rule, and each result must be that of
//! the other backend: so its kernels are loaded and compiled, and a device or driver that computes something else is found
//! before it answers anybody.

use super::{CudaBackend, OpenError};
use crate::backend::{Backend, RowJob, VerifyJob};
use crate::params::Decay;
use crate::params::acceptance::{AcceptanceRule, Relaxed, Synthetic, Typical};
use crate::sampling::adjust::{Penalties, TokenAdjust};
use crate::sampling::logits::{Dtype, Logits};
use crate::sampling::philox::{Purpose, uniform};
use crate::sampling::row::{Action, Filters, LogprobsMode, LogprobsSpec, RowOutput, RowSpec};
use crate::speculative::job::{DraftSource, DraftToken};
use crate::speculative::numbers::Numbers;
use crate::speculative::tree::Tree;

/// Sizes of real vocabularies, and one that leaves threads without a token.
const VOCAB_SIZES: [usize; 4] = [1000, 32_000, 128_256, 151_936];

/// Samples rows of every kind on the device.
///
/// # Errors
/// When a result differs.
pub(super) fn prove(backend: &mut CudaBackend) -> Result<(), OpenError> {
    let known = [TokenAdjust::SEEN, TokenAdjust::SEEN | TokenAdjust::PROMPT, TokenAdjust::END];
    let adjust = |i: u32| TokenAdjust { token: i * 15, flags: known[i as usize % 3], bias: 0.5, output_count: i % 4 };
    let adjusts: Vec<TokenAdjust> = (0..64).map(|i| adjust(i).at(i as u16)).collect();
    for dtype in Dtype::ALL {
        for vocab_size in VOCAB_SIZES {
            let bytes = dtype.encode(&row(vocab_size));
            let logits = Logits::new(dtype, &bytes);
            let jobs: Vec<RowJob<'_>> = specs(&adjusts).map(|spec| RowJob { logits, spec }).collect();
            let got = backend.try_run(&jobs)?;
            let expected = backend.other.run(&jobs);
            if let Some(at) = (0..jobs.len()).find(|&at| got[at] != expected[at]) {
                return Err(OpenError::Wrong(format!("row kind {at} of {vocab_size} {} logits", dtype.name())));
            }
            // One alone is laid over the device in another way.
            if backend.try_run(&jobs[..1])? != got[..1] {
                return Err(OpenError::Wrong(format!("a single row of {vocab_size} {} logits", dtype.name())));
            }
            prove_drafts(backend, &jobs)?;
        }
    }
    // Every row was one for the device.
    if let Some((reason, _)) = backend.handed_over().iter().find(|(_, rows)| *rows > 0) {
        return Err(OpenError::Wrong(format!("rows were handed over: {reason}")));
    }
    Ok(())
}

/// Every rule.
const RULES: [AcceptanceRule; 6] = [
    AcceptanceRule::Rejection,
    AcceptanceRule::Block,
    AcceptanceRule::Greedy,
    AcceptanceRule::Typical(Typical { epsilon: 0.1, alpha: 0.3 }),
    AcceptanceRule::Relaxed(Relaxed { top_n: 20, delta: 0.5 }),
    AcceptanceRule::Synthetic(Synthetic { rate: 0.5 }),
];

/// Verifies drafts by every rule: of two tokens, one after the other or beside each other, drawn from the second and third
/// kind of row or without chance.
fn prove_drafts(backend: &mut CudaBackend, rows: &[RowJob<'_>]) -> Result<(), OpenError> {
    let drafting = [proposing(rows[1]), proposing(rows[2])];
    let proposed: Vec<RowOutput> = backend.try_run(&drafting)?.into_iter().filter_map(Result::ok).collect();
    let expected: Vec<RowOutput> = backend.other.run(&drafting).into_iter().filter_map(Result::ok).collect();
    if !proposed.iter().map(drawn).eq(expected.iter().map(drawn)) {
        return Err(OpenError::Wrong("a draft token".to_owned()));
    }
    let trees = [Tree::chain(2), Tree::new(&[-1, -1], 2).expect("two tokens beside each other")];
    for (at, rule) in RULES.into_iter().enumerate() {
        for kept in [true, false] {
            let drafts: Vec<DraftToken<'_>> = proposed.iter().map(|row| draft_token(row, kept)).collect();
            let job = |(first, tree)| VerifyJob {
                rows: &rows[first..first + 3],
                ends: &[false; 2],
                drafts: &drafts,
                tree,
                rule,
                numbers: Numbers { seed: at as u64, start: 0 },
                measure: first == 1,
            };
            let jobs = [(1, &trees[0]), (3, &trees[0]), (0, &trees[1]), (4, &trees[1])].map(job);
            if backend.try_verify(&jobs)? != backend.other.verify(&jobs) {
                return Err(OpenError::Wrong(format!("a draft, verified by {rule:?}")));
            }
        }
    }
    Ok(())
}

fn proposing(row: RowJob<'_>) -> RowJob<'_> {
    let action = Action::Propose { uniform: uniform(13, 0, Purpose::Draft) };
    RowJob { spec: RowSpec { action, logprobs: None, ..row.spec }, ..row }
}

/// A draft token and what it was drawn from, in whatever form that is kept.
fn drawn(row: &RowOutput) -> Option<(u32, u64, Vec<(u32, u64)>)> {
    row.kept.as_ref().map(|kept| (row.token, kept.total(), kept.entries()))
}

fn draft_token(row: &RowOutput, is_kept: bool) -> DraftToken<'_> {
    let kept = row.kept.as_deref().filter(|_| is_kept);
    DraftToken { token: row.token, source: kept.map_or(DraftSource::Deterministic, DraftSource::Kept) }
}

fn row(vocab_size: usize) -> Vec<f32> {
    let number = |token: u64| (uniform(7, token, Purpose::Sample) >> 40) as f32 / (1 << 24) as f32;
    (0..vocab_size as u64).map(|token| (0..4).map(|i| number(4 * token + i)).sum::<f32>() * 6.0 - 12.0).collect()
}

/// What rows ask for: each road of the kernels once.
fn specs(adjusts: &[TokenAdjust]) -> impl Iterator<Item = RowSpec<'_>> {
    let filters = [
        (0.0, 0, 1.0, 0.0),
        (1.0, 0, 1.0, 0.0),
        (0.7, 50, 0.9, 0.02),
        (1.0, 0, 0.9, 0.0),
        (1.5, 0, 1.0, 0.05),
        (1.0, 500, 1.0, 0.0),
        (1.0, 900, 0.999, 0.0),
    ];
    let penalties = Penalties { repetition: 1.1, frequency: 0.2, presence: 0.1, ..Penalties::OFF };
    let decay = Decay { place: 64, last_n: 8, decay_n: 40 };
    let of_history = Penalties { encoder: 1.2, decay, length: 0.3, ..penalties };
    let with = move |(i, (temperature, top_k, top_p, min_p))| {
        let mode = if i % 2 == 0 { LogprobsMode::Raw } else { LogprobsMode::Processed };
        RowSpec {
            filters: Filters { temperature, top_k, top_p, min_p },
            chain: None,
            penalties: if i > 0 { of_history } else { penalties },
            adjusts: if i % 3 == 0 { adjusts.into() } else { [].as_slice().into() },
            banned: &[3, 700],
            allowed: None,
            mark: None,
            action: Action::Draw { uniform: uniform(11, i as u64, Purpose::Sample) },
            logprobs: Some(LogprobsSpec { top_n: 20, mode, tokens: &[1, 2] }),
            report: None,
        }
    };
    filters.into_iter().enumerate().map(with)
}
