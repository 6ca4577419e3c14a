//! How far back penalties look: `penalty_last_n`, `penalty_decay_n`, `prompt_ignore_length`.
//!
//! The text is the prompt and the output; its last token is at distance 1. A token of the text counts for a penalty
//! while its distance `d` is at most `penalty_last_n + penalty_decay_n`: for the repetition penalty wherever it stands,
//! but for the first `prompt_ignore_length` tokens of the prompt; for frequency and presence penalty in the output.
//! With `penalty_last_n` 0 everything counts, as without a window.
//!
//! A penalty has its full strength, s = 1, up to `penalty_last_n`, and falls off behind it in a straight line, as in
//! ExLlama (`sustain` and `decay`; KoboldCpp's `rep_pen_slope` has two steps instead of a line). The distance is that
//! of the latest occurrence of the penalised token:
//!
//! ```text
//! s = 1 - (d - penalty_last_n) / (penalty_decay_n + 1)
//! ```
//!
//! The strength scales what is off by how far it is from off: the repetition penalty r is 1 + (r - 1) * s, a
//! frequency or presence penalty p is p * s ([`TokenAdjust::apply`]).
//!
//! Costs: a token adds one entry and takes one away. Only while the prompt leaves the window it is searched for another
//! occurrence of what leaves.

use super::text::Text;
use crate::params::SamplingParams;
use crate::sampling::adjust::TokenAdjust;

/// How far back penalties look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    /// Distance of the last token that counts.
    pub(super) len: usize,
    /// Whether strength depends on distance.
    pub(super) decays: bool,
    /// Tokens at the start of the prompt that do not count.
    ignored: u64,
}

/// A token that is too far away from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) token: u32,
    /// It was one of the output; otherwise it was counted in the prompt.
    pub(super) output: bool,
    /// A prompt token that does not stand in the window again.
    pub(super) gone: bool,
}

impl Window {
    /// The window of these parameters; `None`: everything counts.
    pub(super) fn of(params: &SamplingParams) -> Option<Self> {
        let (last_n, decay_n) = (params.history.penalty_last_n as usize, params.history.penalty_decay_n as usize);
        (last_n > 0 && !params.penalties().is_off()).then(|| Self {
            len: last_n + decay_n,
            decays: decay_n > 0,
            ignored: params.history.prompt_ignore_length.into(),
        })
    }

    /// What the token that was just appended to `text` pushed out. The text has `len` tokens in all, `output` of them
    /// emitted.
    pub(super) fn left(&self, text: &Text<'_>, len: u64, output: u64) -> Option<Left> {
        let at = text.len().checked_sub(self.len + 1)?;
        let token = text.get(at)?;
        let distance = self.len as u64 + 1;
        if distance <= output {
            return Some(Left { token, output: true, gone: false });
        }
        // Later tokens of the prompt count too.
        let counted = len - distance >= self.ignored;
        counted.then(|| Left { token, output: false, gone: !text.last(self.len).any(|other| other == token) })
    }
}

/// What is known of a token at this place of a text: the places are numbered from 1.
pub(super) fn stamped(adjust: TokenAdjust, place: u64, window: Option<Window>) -> TokenAdjust {
    match window {
        Some(window) if window.decays => adjust.at(place as u16),
        _ => adjust,
    }
}

/// Takes what left the window out of what is known of its token.
pub(super) fn take_out(adjust: &mut TokenAdjust, left: Left) {
    let gone = if left.output {
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

    fn params(penalties: (f32, f32, f32, f32), window: (u32, u32, u32)) -> SamplingParams {
        let history = HistoryParams {
            penalty_last_n: window.0,
            penalty_decay_n: window.1,
            prompt_ignore_length: window.2,
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

    /// What becomes of this logit for each token.
    fn logits(sequence: &Sequence, logit: f32) -> Vec<f32> {
        let spec = sequence.spec(sequence.draw(Purpose::Sample));
        let mut row = vec![logit; VOCAB as usize];
        for adjust in spec.adjusts.iter() {
            row[adjust.token() as usize] = adjust.apply(logit, &spec.penalties);
        }
        row
    }

    /// From the definition, one token and one occurrence after the other.
    fn naive(params: &SamplingParams, (prompt, output): (&[u32], &[u32]), token: u32, logit: f32) -> f32 {
        let (text, history) = ([prompt, output].concat(), &params.history);
        let (last_n, decay_n) = (history.penalty_last_n as usize, history.penalty_decay_n as usize);
        let within = |distance: usize| last_n == 0 || distance <= last_n + decay_n;
        let strength = |distance: usize| match distance.saturating_sub(last_n) {
            over if last_n > 0 && over > 0 => 1.0 - over as f32 / (decay_n as f32 + 1.0),
            _ => 1.0,
        };
        let (mut seen, mut emitted, mut count) = (None, None, 0);
        for (at, _) in text.iter().enumerate().filter(|&(_, &t)| t == token) {
            let (distance, in_output) = (text.len() - at, at >= prompt.len());
            if within(distance) && (in_output || at >= history.prompt_ignore_length as usize) {
                seen = Some(distance);
            }
            if within(distance) && in_output {
                (emitted, count) = (Some(distance), count + 1);
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
        if let Some(distance) = emitted {
            x -= count as f32 * params.frequency_penalty * strength(distance);
            x -= params.presence_penalty * strength(distance);
        }
        x
    }

    #[test]
    fn by_hand() {
        // Distances 6 to 1 of the text 0 1 2 | 3 0 3, seen from two tokens, and two more at 2/3 and 1/3.
        let halved = (2.0, 0.0, 0.0, 1.0);
        let rules = |penalties, window| Arc::new(Rules::new(params(penalties, window), &[]));
        let row = |penalties, window| logits(&Sequence::open(rules(penalties, window), 1, &[0, 1, 2], &[3, 0, 3]), 4.0);
        assert_eq!(row(halved, (0, 0, 0)), [2.0, 2.25, 2.0, 2.0, 4.0, 4.0]);
        assert_eq!(row(halved, (2, 0, 0)), [2.0, 4.5, 4.0, 2.0, 4.0, 4.0]);
        assert_eq!(row(halved, (0, 0, 2)), [2.0, 4.5, 2.0, 2.0, 4.0, 4.0], "the first two of the prompt");
        let faded = 4.0 / (1.0 + (1.0 - 2.0f32 / 3.0));
        assert_eq!(row(halved, (2, 2, 0)), [2.0, 4.5, faded, 2.0, 4.0, 4.0]);
        // Frequency counts the output alone: twice 3, then once.
        assert_eq!(row((1.0, 0.5, 0.25, 1.0), (0, 0, 0)), [3.25, 4.5, 4.0, 2.75, 4.0, 4.0]);
        assert_eq!(row((1.0, 0.5, 0.25, 1.0), (2, 0, 0)), [3.25, 4.5, 4.0, 3.25, 4.0, 4.0]);
        // The prompt's tokens are favoured, wherever penalties look.
        assert_eq!(row((1.0, 0.0, 0.0, 2.0), (1, 0, 3)), [8.0, 9.0, 8.0, 4.0, 4.0, 4.0]);
    }

    proptest! {
        #[test]
        fn penalties_are_those_of_the_definition(
            penalties in (0.5f32..2.0, -1.0f32..1.0, -1.0f32..1.0, prop_oneof![Just(1.0f32), 0.5f32..2.0]),
            on in (any::<bool>(), any::<bool>()),
            window in (0u32..7, 0u32..5, 0u32..5),
            prompt in prop::collection::vec(0..VOCAB, 0..12),
            output in prop::collection::vec(0..VOCAB, 0..25),
            logit in -3.0f32..3.0,
        ) {
            let repetition = if on.0 { penalties.0 } else { 1.0 };
            let additive = if on.1 { (penalties.1, penalties.2) } else { (0.0, 0.0) };
            let window = if window.0 == 0 { (0, 0, window.2) } else { window };
            let params = params((repetition, additive.0, additive.1, penalties.3), window);
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
