//! The sampling parameters of a load's sequences.

use crate::proto;
use crate::sampling::row::Filters;

/// A named set of sampling parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// Always the largest logit.
    Greedy,
    /// Top-k 50 with top-p and temperature, as most requests use.
    TopK,
    /// Temperature only: any token may be drawn.
    Temperature,
    /// Top-p 0.9 of the whole vocabulary.
    TopP,
    /// Min-p 0.05 only.
    MinP,
    /// Penalties, raw logprobs with the 20 most likely tokens, temperature, top-k and top-p.
    Full,
    /// All of these in turn: each sequence uses the next one.
    Mixed,
}

impl Mix {
    /// Names and values, for the command line.
    pub const NAMES: [(&str, Mix); 7] = [
        ("greedy", Mix::Greedy),
        ("top-k", Mix::TopK),
        ("temperature", Mix::Temperature),
        ("top-p", Mix::TopP),
        ("min-p", Mix::MinP),
        ("full", Mix::Full),
        ("mixed", Mix::Mixed),
    ];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|&&(_, mix)| mix == self).map_or("", |&(name, _)| name)
    }

    /// The parameters of sequence number `sequence`.
    pub(super) fn params(self, sequence: u64, seed: u64) -> proto::SamplingParams {
        let base = proto::SamplingParams { seed: Some(seed.wrapping_add(sequence)), ..Default::default() };
        let warm = proto::SamplingParams { temperature: Some(0.8), ..base.clone() };
        match self {
            Mix::Greedy => proto::SamplingParams { temperature: Some(0.0), ..base },
            Mix::TopK => proto::SamplingParams { top_k: Some(50), top_p: Some(0.95), ..warm },
            Mix::Temperature => warm,
            Mix::TopP => proto::SamplingParams { top_p: Some(0.9), ..warm },
            Mix::MinP => proto::SamplingParams { min_p: Some(0.05), ..warm },
            Mix::Full => full(warm),
            Mix::Mixed => {
                let kinds = Self::NAMES.len() as u64 - 1; // all but Mixed, the last
                Self::NAMES[(sequence % kinds) as usize].1.params(sequence, seed)
            }
        }
    }

    /// The same parameters for a row without a sequence. `None`: they need a sequence, for its history or for what it
    /// reports.
    pub(super) fn filters(self) -> Option<Filters> {
        let warm = Filters { temperature: 0.8, top_k: 0, top_p: 1.0, min_p: 0.0 };
        match self {
            Mix::Greedy => Some(Filters { temperature: 0.0, ..warm }),
            Mix::TopK => Some(Filters { top_k: 50, top_p: 0.95, ..warm }),
            Mix::Temperature => Some(warm),
            Mix::TopP => Some(Filters { top_p: 0.9, ..warm }),
            Mix::MinP => Some(Filters { min_p: 0.05, ..warm }),
            Mix::Full | Mix::Mixed => None,
        }
    }
}

fn full(warm: proto::SamplingParams) -> proto::SamplingParams {
    let logprobs = proto::LogprobsParams { top_n: 20, mode: proto::LogprobsMode::Raw.into(), token_ids: Vec::new() };
    proto::SamplingParams {
        repetition_penalty: Some(1.1),
        frequency_penalty: Some(0.1),
        presence_penalty: Some(0.1),
        top_k: Some(50),
        top_p: Some(0.95),
        logprobs: Some(logprobs),
        ..warm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixed_uses_every_other_mix() {
        let seen: Vec<_> = (0..6).map(|s| Mix::Mixed.params(s, 0)).collect();
        for (s, &(name, mix)) in Mix::NAMES[..6].iter().enumerate() {
            assert_eq!(seen[s], mix.params(s as u64, 0), "{name}");
        }
    }
}
