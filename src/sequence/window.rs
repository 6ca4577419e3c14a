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
