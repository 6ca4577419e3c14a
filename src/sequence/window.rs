//! How far back penalties look: `penalty_last_n`, `penalty_decay_n`, `prompt_ignore_length`.
//!
//! The text is the prompt and the output; its last token is at distance 1. A token of the text counts for a penalty
//! while its distance `d` is at most `penalty_last_n + penalty_decay_n`. For the repetition penalty, all tokens count
//! except the first `prompt_ignore_length` of the prompt. For frequency and presence penalty, only output tokens count,
//! as for OpenAI and vLLM. With `penalties_count_prompt` they count the same tokens as the repetition penalty, as in
//! llama.cpp (`llama_sampler_penalties`), ExLlamaV2 (`apply_rep_penalty_cpu`), text-generation-webui and TensorRT-LLM
//! (`batchApplyPenalty`). With `penalty_last_n` 0 there is no window, and everything counts.
//!
//! A penalty has its full strength, s = 1, up to `penalty_last_n`, and falls off linearly beyond it, as in ExLlama
//! (`sustain` and `decay`; KoboldCpp's `rep_pen_slope` has two steps instead of a line). The distance is that of the
//! latest occurrence of the penalised token:
//!
//! ```text
//! s = 1 - (d - penalty_last_n) / (penalty_decay_n + 1)
//! ```
//!
//! The strength scales how far a penalty is from off: a repetition penalty r becomes 1 + (r - 1) * s, a frequency or
//! presence penalty p becomes p * s ([`TokenAdjust::apply`]).
//!
//! Costs: a token adds one entry and removes one. While prompt tokens that are not counted leave the window, it is also
//! searched for another occurrence of the token that leaves.

use super::text::TextView;
use crate::params::SamplingParams;
use crate::sampling::adjust::TokenAdjust;

/// How far back penalties look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    /// The distance of the farthest token that counts.
    pub(super) len: usize,
    /// Whether strength depends on distance.
    pub(super) decays: bool,
    /// How many tokens at the start of the prompt do not count.
    ignored: u64,
    /// Whether frequency and presence penalties count the prompt's other tokens.
    counts_prompt: bool,
}

/// A token that just left the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EvictedToken {
    pub(super) token: u32,
    /// Whether the token was counted, as output tokens are. Then every later occurrence is counted too. Otherwise it is
    /// a prompt token that was only seen.
    pub(super) counted: bool,
    /// Whether the token was only seen and does not occur in the window again.
    pub(super) gone: bool,
}

impl Window {
    /// The window of these parameters; `None` means that everything counts.
    pub(super) fn of(params: &SamplingParams) -> Option<Self> {
        let (last_n, decay_n) = (params.history.penalty_last_n as usize, params.history.penalty_decay_n as usize);
        (last_n > 0 && !params.penalties().is_off()).then(|| Self {
            len: last_n + decay_n,
            decays: decay_n > 0,
            ignored: params.history.prompt_ignore_length.into(),
            counts_prompt: params.counts_prompt(),
        })
    }

    /// The token that was pushed out when the last token of `text` was appended. The text has `len` tokens in all, of
    /// which `output` were emitted.
    pub(super) fn left(&self, text: &TextView<'_>, len: u64, output: u64) -> Option<EvictedToken> {
        let at = text.len().checked_sub(self.len + 1)?;
        let token = text.get(at)?;
        let distance = self.len as u64 + 1;
        let seen = distance <= output || len - distance >= self.ignored;
        let counted = distance <= output || self.counts_prompt;
        // Later prompt tokens count as seen too.
        let gone = || !counted && !text.last(self.len).any(|other| other == token);
        seen.then(|| EvictedToken { token, counted, gone: gone() })
    }
}

/// The entry of a token at this place of the text. Places are numbered from 1.
pub(super) fn stamped(adjust: TokenAdjust, place: u64, window: Option<Window>) -> TokenAdjust {
    match window {
        Some(window) if window.decays => adjust.at(place as u16),
        _ => adjust,
    }
}

/// Removes a token that left the window from its entry.
pub(super) fn take_out(adjust: &mut TokenAdjust, left: EvictedToken) {
    let gone = if left.counted {
        adjust.output_count = adjust.output_count.saturating_sub(1);
        adjust.output_count == 0
    } else {
        left.gone
    };
    if gone {
        adjust.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sequence;
    use super::super::rules::Rules;
    use super::*;
    use crate::params::history::HistoryParams;
    use crate::sampling::philox::Purpose;
    use proptest::prelude::*;
    use std::sync::Arc;

    const VOCAB: u32 = 6;

    fn params(penalties: (f32, f32, f32, f32), window: (u32, u32, u32), counts_prompt: bool) -> SamplingParams {
        let history = HistoryParams {
            penalty_last_n: window.0,
            penalty_decay_n: window.1,
            prompt_ignore_length: window.2,
            penalties_count_prompt: Some(counts_prompt),
            encoder_repetition_penalty: penalties.3,
            ..HistoryParams::default()
        };
        let (repetition_penalty, frequency_penalty, presence_penalty) = (penalties.0, penalties.1, penalties.2);
        SamplingParams {
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            logit_bias: vec![(1, 0.5)],
            history: history.into(),
            ..SamplingParams::default()
        }
    }

    /// The result of this logit for each token.
    fn logits(sequence: &Sequence, logit: f32) -> Vec<f32> {
        let spec = sequence.spec(sequence.draw(Purpose::Sample));
        let mut row = vec![logit; VOCAB as usize];
        for adjust in spec.adjusts.iter() {
            row[adjust.token() as usize] = adjust.apply(logit, &spec.penalties);
        }
        row
    }

    /// From the definition, token by token and occurrence by occurrence.
    fn naive(params: &SamplingParams, (prompt, output): (&[u32], &[u32]), token: u32, logit: f32) -> f32 {
        let (text, history) = ([prompt, output].concat(), &params.history);
        let (last_n, decay_n) = (history.penalty_last_n as usize, history.penalty_decay_n as usize);
        let within = |distance: usize| last_n == 0 || distance <= last_n + decay_n;
        let strength = |distance: usize| match distance.saturating_sub(last_n) {
            over if last_n > 0 && over > 0 => 1.0 - over as f32 / (decay_n as f32 + 1.0),
            _ => 1.0,
        };
        let (mut seen, mut counted, mut count) = (None, None, 0);
        for (at, _) in text.iter().enumerate().filter(|&(_, &t)| t == token) {
            let (distance, in_output) = (text.len() - at, at >= prompt.len());
            let is_seen = within(distance) && (in_output || at >= history.prompt_ignore_length as usize);
            if is_seen {
                seen = Some(distance);
            }
            if is_seen && (in_output || history.penalties_count_prompt == Some(true)) {
                (counted, count) = (Some(distance), count + 1);
            }
        }
        let mut x = logit + if token == 1 { 0.5 } else { 0.0 };
        if let Some(distance) = seen {
            let penalty = 1.0 + (params.repetition_penalty - 1.0) * strength(distance);
            x = if x > 0.0 { x / penalty } else { x * penalty };
        }
        if prompt.contains(&token) {
            let penalty = history.encoder_repetition_penalty;
            x = if x > 0.0 { x * penalty } else { x / penalty };
        }
        if let Some(distance) = counted {
            x -= count as f32 * params.frequency_penalty * strength(distance);
            x -= params.presence_penalty * strength(distance);
        }
        x
    }

    #[test]
    fn by_hand() {
        // The text is 0 1 2 | 3 0 3, at distances 6 to 1. With a window of two tokens, two more count with 2/3 and 1/3.
        let halved = (2.0, 0.0, 0.0, 1.0);
        let rules = |penalties, window| Arc::new(Rules::new(params(penalties, window, false), &[]));
        let row = |penalties, window| logits(&Sequence::open(rules(penalties, window), 1, &[0, 1, 2], &[3, 0, 3]), 4.0);
        assert_eq!(row(halved, (0, 0, 0)), [2.0, 2.25, 2.0, 2.0, 4.0, 4.0]);
        assert_eq!(row(halved, (2, 0, 0)), [2.0, 4.5, 4.0, 2.0, 4.0, 4.0]);
        assert_eq!(row(halved, (0, 0, 2)), [2.0, 4.5, 2.0, 2.0, 4.0, 4.0], "the first two of the prompt");
        let faded = 4.0 / (1.0 + (1.0 - 2.0f32 / 3.0));
        assert_eq!(row(halved, (2, 2, 0)), [2.0, 4.5, faded, 2.0, 4.0, 4.0]);
        // Frequency counts only the output: 3 twice, then once.
        assert_eq!(row((1.0, 0.5, 0.25, 1.0), (0, 0, 0)), [3.25, 4.5, 4.0, 2.75, 4.0, 4.0]);
        assert_eq!(row((1.0, 0.5, 0.25, 1.0), (2, 0, 0)), [3.25, 4.5, 4.0, 3.25, 4.0, 4.0]);
        // The prompt's tokens are favoured, wherever penalties apply.
        assert_eq!(row((1.0, 0.0, 0.0, 2.0), (1, 0, 3)), [8.0, 9.0, 8.0, 4.0, 4.0, 4.0]);
    }

    /// llama.cpp, tests/test-sampling.cpp, `test_penalties` with frequency and presence 5: with the last tokens 0 and 0
    /// 1 2 0 0, in the prompt or the output, each has `count * 5 + 5` less. 2 and 3 stand for 1 and 2, since 1 has a
    /// bias here.
    #[test]
    fn prompts_count_as_in_llama_cpp() {
        let row = |penalties, window, counts, prompt: &[u32], output: &[u32]| {
            let rules = Arc::new(Rules::new(params(penalties, window, counts), &[]));
            let logits = logits(&Sequence::open(rules, 1, prompt, output), 20.0);
            [logits[0], logits[2], logits[3], logits[4], logits[5]]
        };
        let (subtracted, all) = ((1.0, 5.0, 5.0, 1.0), (0, 0, 0));
        for cut in 0..=5 {
            let (prompt, output) = [0].split_at(cut.min(1));
            assert_eq!(row(subtracted, all, true, prompt, output), [10.0, 20.0, 20.0, 20.0, 20.0], "{cut}");
            let (prompt, output) = [0, 2, 3, 0, 0].split_at(cut);
            assert_eq!(row(subtracted, all, true, prompt, output), [0.0, 10.0, 10.0, 20.0, 20.0], "{cut}");
            // `penalty_last_n` is 3: the last three tokens.
            assert_eq!(row(subtracted, (3, 0, 0), true, prompt, output), [5.0, 20.0, 10.0, 20.0, 20.0], "{cut}");
        }
        assert_eq!(row(subtracted, all, false, &[0, 2, 3], &[0, 0]), [5.0, 20.0, 20.0, 20.0, 20.0], "the output alone");
        assert_eq!(row(subtracted, (0, 0, 2), true, &[0, 2, 3], &[0, 0]), [5.0, 20.0, 10.0, 20.0, 20.0], "less two");
        // The repetition penalty comes first: 20 / 2 - 5 - 5.
        assert_eq!(row((2.0, 5.0, 5.0, 1.0), all, true, &[2], &[]), [20.0, 0.0, 20.0, 20.0, 20.0]);
        // With the strength of the latest occurrence: 20 - (5 + 5) / 2, and 20 - (2 * 5 + 5) * 3 / 4.
        assert_eq!(row(subtracted, (1, 1, 0), true, &[2, 3], &[]), [20.0, 15.0, 10.0, 20.0, 20.0]);
        assert_eq!(row(subtracted, (1, 3, 0), true, &[2, 2, 3], &[]), [20.0, 8.75, 10.0, 20.0, 20.0]);
    }

    #[test]
    fn an_engine_counts_the_prompt_unless_told_otherwise() {
        use crate::params::{EngineOrder, SamplerOrder};
        let counts = |engine, asked| {
            let mut params = SamplingParams { presence_penalty: 0.1, ..SamplingParams::default() };
            params.samplers.sampler_order = SamplerOrder::Engine(engine);
            params.history.penalties_count_prompt = asked;
            let counts = params.counts_prompt();
            params.presence_penalty = 0.0;
            assert!(!params.counts_prompt(), "there is nothing to count for");
            counts
        };
        use EngineOrder::*;
        for engine in [LlamaCpp, TextGenerationWebui, Exllama, KoboldCpp, ExllamaV3, Mlx, TensorrtLlm] {
            assert!(counts(engine, None) && !counts(engine, Some(false)) && counts(engine, Some(true)));
        }
        for engine in [Croupier, Vllm, Transformers, Sglang, MistralRs] {
            assert!(!counts(engine, None) && !counts(engine, Some(false)) && counts(engine, Some(true)));
        }
    }

    /// Tokens that no tool needs are dropped together, after some hundreds.
    #[test]
    fn what_left_the_window_of_a_long_text_is_forgotten() {
        let rules = Arc::new(Rules::new(params((1.5, 0.5, 0.25, 1.0), (3, 2, 0), false), &[]));
        let text: Vec<u32> = (0..1000).map(|at| at * at % 7 % VOCAB).collect();
        let mut sequence = Sequence::open(Arc::clone(&rules), 1, &[0, 1], &[]);
        for (at, &token) in text.iter().enumerate() {
            sequence.commit(token);
            let reopened = Sequence::open(Arc::clone(&rules), 1, &[0, 1], &text[..=at]);
            assert_eq!(logits(&sequence, 1.0), logits(&reopened, 1.0), "{at}");
            assert_eq!(sequence.entries(), reopened.entries(), "{at}");
        }
    }

    proptest! {
        #[test]
        fn penalties_are_those_of_the_definition(
            penalties in (0.5f32..2.0, -1.0f32..1.0, -1.0f32..1.0, prop_oneof![Just(1.0f32), 0.5f32..2.0]),
            on in (any::<bool>(), any::<bool>()),
            window in (0u32..7, 0u32..5, 0u32..5),
            counts_prompt in any::<bool>(),
            prompt in prop::collection::vec(0..VOCAB, 0..12),
            output in prop::collection::vec(0..VOCAB, 0..25),
            logit in -3.0f32..3.0,
        ) {
            let repetition = if on.0 { penalties.0 } else { 1.0 };
            let additive = if on.1 { (penalties.1, penalties.2) } else { (0.0, 0.0) };
            let window = if window.0 == 0 { (0, 0, window.2) } else { window };
            let params = params((repetition, additive.0, additive.1, penalties.3), window, counts_prompt);
            prop_assert!(params.validate(VOCAB, 0).is_ok());
            let rules = Arc::new(Rules::new(params.clone(), &[]));
            let mut sequence = Sequence::open(Arc::clone(&rules), 1, &prompt, &[]);
            for at in 0..=output.len() {
                let text = (prompt.as_slice(), &output[..at]);
                let expected: Vec<f32> = (0..VOCAB).map(|token| naive(&params, text, token, logit)).collect();
                prop_assert_eq!(&logits(&sequence, logit), &expected);
                if let Some(&token) = output.get(at) {
                    sequence.commit(token);
                }
            }
        }
    }
}
