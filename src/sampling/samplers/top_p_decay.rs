//! Top-p that decays (factual nucleus sampling, Lee et al. 2022; TensorRT-LLM `top_p_decay`, `top_p_min`, `top_p_reset_ids`).
//!
//! Each token makes `p = max(p * decay, least)`, one f32 operation; but after a token of the list that ends sentences
//! `p` begins anew at `top_p`. The value depends on the output alone, so a sequence that is opened again gets it from
//! its tokens. A `least` above `top_p` raises it, as in TensorRT-LLM. Decay 1 is off.

/// How top-p decays.
#[derive(Debug, Clone, Copy)]
pub struct Decay<'a> {
    /// The value that it begins at.
    pub top_p: f32,
    /// The factor per token.
    pub decay: f32,
    /// The value never falls below this.
    pub least: f32,
    /// Tokens after which the value begins anew.
    pub reset: &'a [u32],
}

impl Decay<'_> {
    /// The value after one more token.
    #[must_use]
    pub fn next(&self, now: f32, token: u32) -> f32 {
        if self.decay >= 1.0 || self.reset.contains(&token) { self.top_p } else { (now * self.decay).max(self.least) }
    }

    /// The value after an output.
    #[must_use]
    pub fn after(&self, output: &[u32]) -> f32 {
        let reset = output.iter().rposition(|token| self.reset.contains(token));
        let since = if self.decay < 1.0 { output.len() - reset.map_or(0, |at| at + 1) } else { 0 };
        let mut now = self.top_p;
        for _ in 0..since {
            let next = (now * self.decay).max(self.least);
            if next == now {
                break;
            }
            now = next;
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_decays_within_a_sentence() {
        let decay = Decay { top_p: 0.8, decay: 0.5, least: 0.15, reset: &[9] };
        let mut now = decay.after(&[]);
        let text = [1, 2, 3, 4, 9, 1, 9, 9, 5];
        let expected = [0.4, 0.2, 0.15, 0.15, 0.8, 0.4, 0.8, 0.8, 0.4];
        for (i, (&token, expected)) in text.iter().zip(expected).enumerate() {
            now = decay.next(now, token);
            assert_eq!((now, decay.after(&text[..=i])), (expected, expected), "after {i}");
        }
        assert_eq!(Decay { decay: 1.0, ..decay }.after(&text), 0.8);
        assert_eq!(Decay { decay: 1.0, ..decay }.next(0.8, 1), 0.8, "off, whatever the least");
        assert_eq!(Decay { top_p: 0.1, ..decay }.after(&[1]), 0.15, "the least raises it");
    }
}
