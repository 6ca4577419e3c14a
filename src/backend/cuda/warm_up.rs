//! Before a device serves it samples rows of every kind, and each result must be that of the other backend: so its kernels
//! are loaded and compiled, and a device or driver that computes something else is found before it answers anybody.

use super::{CudaBackend, OpenError};
use crate::backend::{Backend, RowJob};
use crate::sampling::adjust::{Penalties, TokenAdjust};
use crate::sampling::logits::{Dtype, Logits};
use crate::sampling::philox::{Purpose, uniform};
use crate::sampling::row::{Action, Filters, LogprobsMode, LogprobsSpec, RowSpec};

/// Sizes of real vocabularies, and one that leaves threads without a token.
const VOCAB_SIZES: [usize; 4] = [1000, 32_000, 128_256, 151_936];

/// Samples rows of every kind on the device.
///
/// # Errors
/// When a result differs.
pub(super) fn prove(backend: &mut CudaBackend) -> Result<(), OpenError> {
    let adjusts: Vec<TokenAdjust> = (0..64)
        .map(|i| TokenAdjust { token: i * 15, flags: TokenAdjust::SEEN, bias: 0.5, output_count: i % 3 })
        .collect();
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
        }
    }
    // Every row was one for the device.
    if let Some((reason, _)) = backend.handed_over().iter().find(|(_, rows)| *rows > 0) {
        return Err(OpenError::Wrong(format!("rows were handed over: {reason}")));
    }
    Ok(())
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
    let with = move |(i, (temperature, top_k, top_p, min_p))| {
        let mode = if i % 2 == 0 { LogprobsMode::Raw } else { LogprobsMode::Processed };
        RowSpec {
            filters: Filters { temperature, top_k, top_p, min_p },
            chain: None,
            penalties: Penalties { repetition: 1.1, frequency: 0.2, presence: 0.1, ..Penalties::OFF },
            adjusts: if i % 3 == 0 { adjusts.into() } else { [].as_slice().into() },
            banned: &[3, 700],
            allowed: None,
            action: Action::Draw { uniform: uniform(11, i as u64, Purpose::Sample) },
            logprobs: Some(LogprobsSpec { top_n: 20, mode, tokens: &[1, 2] }),
        }
    };
    filters.into_iter().enumerate().map(with)
}
