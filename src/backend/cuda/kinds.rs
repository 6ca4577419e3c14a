//! The rows on which a device proves itself before it serves: what they ask for, what is known about their tokens, and
//! their logits.

use crate::params::Decay;
use crate::sampling::adjust::{Penalties, TokenAdjust};
use crate::sampling::logits::Dtype;
use crate::sampling::philox::{Purpose, uniform};
use crate::sampling::row::{Action, Filters, LogprobsMode, LogprobsSpec, RowSpec};

/// What rows draw with: temperature, top-k, top-p and min-p. Each path through the filters is there once.
const FILTERS: [(f32, u32, f32, f32); 7] = [
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.7, 50, 0.9, 0.02),
    (1.0, 0, 0.9, 0.0),
    (1.5, 0, 1.0, 0.05),
    (1.0, 500, 1.0, 0.0),
    (1.0, 900, 0.999, 0.0),
];
/// The number of kinds. It is odd, so that each kind meets both rows of logits in turn.
pub(super) const KINDS: usize = FILTERS.len() + 4;
/// The kind that broken rows ask for: few first tokens and the first logits as sent, which blocks exchange while they
/// detect the error.
pub(super) const OF_BROKEN: usize = 2;
/// How many tokens of a row are known about in a short list, and in a long one. A block's slice has more of the long
/// list's than it has threads.
const FEW: usize = 64;
const MANY: usize = 1500;
/// Tokens that are banned in every row.
const BANNED: [u32; 2] = [3, 700];

/// What is known about single tokens, spread over the whole row.
pub(super) struct Known {
    few: Vec<TokenAdjust>,
    many: Vec<TokenAdjust>,
    allowed: Vec<u32>,
}

impl Known {
    pub(super) fn of(vocab_size: usize) -> Self {
        let many = adjusts(MANY.min(vocab_size), vocab_size);
        let allowed = many.iter().step_by(5).map(|adjust| adjust.token + 1).filter(|&token| token < vocab_size as u32);
        Self { few: adjusts(FEW, vocab_size), allowed: allowed.collect(), many }
    }
}

fn adjusts(count: usize, vocab_size: usize) -> Vec<TokenAdjust> {
    let late = TokenAdjust::SEEN | TokenAdjust::LATE;
    let known = [TokenAdjust::SEEN, TokenAdjust::SEEN | TokenAdjust::PROMPT, TokenAdjust::END, late];
    let apart = (vocab_size / count) as u32;
    let adjust = |i: u32| TokenAdjust {
        token: i * apart,
        flags: known[i as usize % known.len()],
        bias: 0.5,
        output_count: i % 4,
    };
    (0..count as u32).map(|i| adjust(i).at(i as u16)).collect()
}

/// What rows ask for. Each path through the kernels is there once.
pub(super) fn specs(known: &Known) -> impl Iterator<Item = RowSpec<'_>> {
    let penalties = Penalties { repetition: 1.1, frequency: 0.2, presence: 0.1, ..Penalties::OFF };
    let decay = Decay { place: FEW as u16, last_n: 8, decay_n: 40 };
    let of_history = Penalties { encoder: 1.2, decay, length: 0.3, ..penalties };
    // As SGLang and mistral.rs do it. Raw and processed logprobs come in turn.
    let subtracting =
        move |i: usize| Penalties { subtract_first: i % 4 > 1, ..if i > 0 { of_history } else { penalties } };
    let drawn = move |i: usize| {
        let (temperature, top_k, top_p, min_p) = FILTERS[i % FILTERS.len()];
        let mode = if i.is_multiple_of(2) { LogprobsMode::Raw } else { LogprobsMode::Processed };
        RowSpec {
            filters: Filters { temperature, top_k, top_p, min_p },
            chain: None,
            penalties: subtracting(i),
            adjusts: if i.is_multiple_of(3) { known.few.as_slice().into() } else { [].as_slice().into() },
            banned: &BANNED,
            allowed: None,
            mask: None,
            mark: None,
            action: Action::Draw { uniform: uniform(11, i as u64, Purpose::Sample) },
            logprobs: Some(LogprobsSpec { top_n: 20, mode, tokens: &[1, 2] }),
            report: None,
        }
    };
    let others = [
        // Rows that draw from listed tokens alone, and with many known tokens; with and without filters.
        RowSpec { allowed: Some(&known.allowed), ..drawn(1) },
        RowSpec { adjusts: known.many.as_slice().into(), ..drawn(2) },
        // Rows that draw nothing: they score a known token, and a banned one.
        RowSpec { action: Action::Score { token: 5 }, ..drawn(4) },
        RowSpec { action: Action::Score { token: BANNED[0] }, ..drawn(3) },
    ];
    (0..FILTERS.len()).map(drawn).chain(others)
}

/// Bell-shaped logits.
pub(super) fn row(vocab_size: usize) -> Vec<f32> {
    let number = |token: u64| (uniform(7, token, Purpose::Sample) >> 40) as f32 / (1 << 24) as f32;
    (0..vocab_size as u64).map(|token| (0..4).map(|i| number(4 * token + i)).sum::<f32>() * 6.0 - 12.0).collect()
}

/// The same row with a NaN, with +∞, and with no token that can be drawn.
pub(super) fn broken(dtype: Dtype, row: &[f32]) -> [Vec<u8>; 3] {
    let with =
        |at: usize, logit| row.iter().enumerate().map(|(i, &x)| if i == at { logit } else { x }).collect::<Vec<_>>();
    let rows = [with(row.len() / 2, f32::NAN), with(row.len() - 1, f32::INFINITY), vec![f32::NEG_INFINITY; row.len()]];
    rows.map(|row| dtype.encode(&row))
}

/// A distribution that a worker may send for a draft.
pub(super) fn probabilities(vocab_size: usize) -> Vec<f32> {
    let weight = |token: usize| (1 + token % 5) as f64;
    let sum: f64 = (0..vocab_size).map(weight).sum();
    (0..vocab_size).map(|token| (weight(token) / sum) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::super::ask::has_kernel;
    use super::*;
    use crate::sampling::logits::Logits;
    use crate::speculative::draft::{sent_mass, sums_to_one, tolerance};

    #[test]
    fn every_kind_has_a_kernel_and_tokens_of_its_row() {
        for vocab_size in [1000, 9192, 151_936] {
            let known = Known::of(vocab_size);
            assert_eq!((specs(&known).count(), KINDS % 2), (KINDS, 1));
            assert!(specs(&known).all(|spec| has_kernel(&spec) == Ok(())));
            let last = [known.few.last(), known.many.last()].map(|adjust| adjust.unwrap().token);
            let all = last.iter().chain(&known.allowed).chain(&BANNED);
            assert!(all.copied().all(|token| (token as usize) < vocab_size));
        }
    }

    /// Otherwise both sides would refuse them, and nothing would be verified.
    #[test]
    fn probabilities_are_taken_as_sent() {
        for (dtype, vocab_size) in Dtype::ALL.into_iter().flat_map(|dtype| [(dtype, 1000), (dtype, 32_000)]) {
            let bytes = dtype.encode(&probabilities(vocab_size));
            let logits = Logits::new(dtype, &bytes);
            let total = (0..vocab_size as u32).map(|token| sent_mass(logits.get(token))).sum();
            assert!(sums_to_one(total, tolerance(dtype, vocab_size)), "{dtype:?}: {total}");
        }
    }
}
