//! What a sequence does to single logits before any filter: masks, bias, penalties.
//!
//! Each is a function of one token's logit and of what the sequence knows about that token. So a row needs only the
//! tokens that something is known about; all others keep their logit. The order is: ban, bias, repetition penalty,
//! encoder repetition penalty, frequency penalty, presence penalty, length penalty. Some engines subtract the frequency
//! and presence penalties first ([`Penalties::subtract_first`]), and some add a bias, or what DRY subtracts, last of all
//! ([`TokenAdjust::LATE`], [`Nudge::late`]).

mod adjusts;

pub use crate::params::Penalties;
pub use adjusts::{Adjusted, Adjusts, Nudge};

/// What a sequence knows about one token. Plain data, with the same layout on the device.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C)]
pub struct TokenAdjust {
    /// The token.
    pub token: u32,
    /// [`TokenAdjust::BANNED`], [`TokenAdjust::SEEN`], [`TokenAdjust::PROMPT`], [`TokenAdjust::END`],
    /// [`TokenAdjust::LATE`]; above these, where penalties fall off with distance, the [place](TokenAdjust::at) of the
    /// token's latest occurrence.
    pub flags: u32,
    /// Added to the logit; 0 for none.
    pub bias: f32,
    /// Occurrences that frequency and presence penalties count: those in the output, and those in the prompt too where
    /// [they count](crate::params::SamplingParams::counts_prompt).
    pub output_count: u32,
}

impl TokenAdjust {
    /// The token may not be emitted.
    pub const BANNED: u32 = 1;
    /// The token is in the prompt or the output.
    pub const SEEN: u32 = 2;
    /// The token is in the prompt.
    pub const PROMPT: u32 = 4;
    /// The token ends the text.
    pub const END: u32 = 8;
    /// The bias is added after all penalties.
    pub const LATE: u32 = 16;
    /// The bit at which the place of the latest occurrence begins.
    pub(crate) const PLACE: u32 = 16;

    /// The same adjustment, with this place as that of the latest occurrence, modulo 2^16.
    #[must_use]
    pub fn at(self, place: u16) -> Self {
        Self { flags: self.flags & ((1 << Self::PLACE) - 1) | u32::from(place) << Self::PLACE, ..self }
    }

    /// The place of the latest occurrence, modulo 2^16.
    #[must_use]
    #[inline]
    pub fn place(&self) -> u16 {
        (self.flags >> Self::PLACE) as u16
    }

    /// Marks the token as not seen.
    pub fn forget(&mut self) {
        self.output_count = 0;
        self.flags &= !Self::SEEN;
        *self = self.at(0);
    }

    /// Whether the entry changes no logit.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.flags == 0 && self.output_count == 0 && self.bias == 0.0
    }

    /// Whether some penalty applies to the token. Only then does it matter whether something is added before the
    /// penalties or after them.
    #[must_use]
    pub fn is_penalised(&self, penalties: &Penalties) -> bool {
        let has = |flag| self.flags & flag != 0;
        let counts = penalties.frequency != 0.0 || penalties.presence != 0.0;
        !has(Self::BANNED)
            && (has(Self::SEEN) && penalties.repetition != 1.0
                || has(Self::PROMPT) && penalties.encoder != 1.0
                || self.output_count > 0 && counts
                || has(Self::END) && penalties.length != 0.0)
    }

    /// The adjusted logit. −∞ stays −∞ whatever the bias.
    #[must_use]
    #[inline]
    pub fn apply(&self, logit: f32, penalties: &Penalties) -> f32 {
        if self.flags & Self::BANNED != 0 {
            return f32::NEG_INFINITY;
        }
        // A bias of 0 is added too, so that a zero has the same sign wherever the bias is added.
        let is_late = self.flags & Self::LATE != 0;
        let biased = logit + if is_late { 0.0 } else { self.bias };
        let x = self.penalised(biased, penalties);
        // An infinity stays as it is, since +∞ - ∞ would be NaN. The minimum keeps a mask that is the least finite
        // number from becoming +∞.
        let lengthened = self.flags & Self::END != 0 && penalties.length != 0.0 && x.is_finite();
        let x = if lengthened { (x + x.abs() * penalties.length).min(f32::MAX) } else { x };
        if is_late { x + self.bias } else { x }
    }

    /// All penalties but that on length.
    #[inline]
    fn penalised(&self, x: f32, penalties: &Penalties) -> f32 {
        let (mut strength, mut repetition) = (1.0, penalties.repetition);
        if penalties.decay.decay_n > 0 {
            strength = penalties.decay.strength(self.place());
            repetition = 1.0 + (repetition - 1.0) * strength;
        }
        let repeats = self.flags & Self::SEEN != 0 && penalties.repetition != 1.0;
        let is_prompt = self.flags & Self::PROMPT != 0 && penalties.encoder != 1.0;
        let scaled = |x: f32| {
            let x = if repeats { shrunk(x, repetition) } else { x };
            if is_prompt { grown(x, penalties.encoder) } else { x }
        };
        let lowered = |x: f32| {
            if self.output_count == 0 {
                return x;
            }
            // At full strength this multiplies by 1, which is exact.
            let x = x - self.output_count as f32 * penalties.frequency * strength;
            x - penalties.presence * strength
        };
        if penalties.subtract_first { scaled(lowered(x)) } else { lowered(scaled(x)) }
    }
}

/// The repetition penalty.
#[inline]
fn shrunk(x: f32, by: f32) -> f32 {
    if x > 0.0 { x / by } else { x * by }
}

/// The encoder repetition penalty: the repetition penalty with multiplication and division exchanged.
#[inline]
fn grown(x: f32, by: f32) -> f32 {
    if x > 0.0 { x * by } else { x / by }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Decay;

    #[test]
    fn by_hand() {
        let off = Penalties::OFF;
        let rep2 = Penalties { repetition: 2.0, ..off };
        let freq = Penalties { frequency: 0.5, presence: 0.25, ..off };
        let all = Penalties { repetition: 2.0, frequency: 0.5, presence: 0.25, ..off };
        let encoder = Penalties { encoder: 2.0, ..off };
        let decay = Decay { place: 3, last_n: 2, decay_n: 3 };
        let faded = Penalties { decay, ..all };
        let first = Penalties { subtract_first: true, ..all };
        let [faded_first, encoder_first] = [Penalties { decay, ..first }, Penalties { encoder: 4.0, ..first }];
        let length = Penalties { length: 0.5, ..all };
        let shorter = Penalties { length: -0.5, ..off };
        let late = |adjust: TokenAdjust| TokenAdjust { flags: adjust.flags | TokenAdjust::LATE, ..adjust };
        let seen = TokenAdjust { flags: TokenAdjust::SEEN, ..TokenAdjust::default() };
        let twice = TokenAdjust { output_count: 2, ..seen };
        let biased = TokenAdjust { bias: 1.0, ..twice };
        let banned = TokenAdjust { flags: TokenAdjust::BANNED, bias: 100.0, ..twice };
        let prompt = TokenAdjust { flags: TokenAdjust::SEEN | TokenAdjust::PROMPT, ..seen };
        let end = TokenAdjust { flags: TokenAdjust::END, ..TokenAdjust::default() };
        // Distances 1, 2 and 4 in a text whose places have wrapped around at 2^16: strengths 1, 1 and 1/2.
        let [near, edge, far] = [2, 1, u16::MAX].map(|place| twice.at(place));
        let cases = [
            (seen, 3.0, off, 3.0),
            (seen, 3.0, rep2, 1.5),
            (seen, -3.0, rep2, -6.0),
            (seen, 0.0, rep2, 0.0),
            (seen, 3.0, freq, 3.0),
            (twice, 3.0, freq, 1.75),
            (twice, 3.0, all, 0.25),
            (biased, 3.0, all, 0.75),
            (banned, 3.0, all, f32::NEG_INFINITY),
            (biased, f32::NEG_INFINITY, all, f32::NEG_INFINITY),
            // No infinity is produced, neither from a finite mask nor from a logit that is already large.
            (end, -f32::MAX, Penalties { length: 1.59, ..off }, f32::MAX),
            (end, f32::MAX, Penalties { length: 1e30, ..off }, f32::MAX),
            (prompt, 3.0, encoder, 6.0),
            (prompt, -3.0, encoder, -1.5),
            (seen, 3.0, encoder, 3.0),
            (prompt, 3.0, Penalties { encoder: 2.0, ..all }, 3.0),
            (near, 3.0, faded, 0.25),
            (edge, 3.0, faded, 0.25),
            (far, 3.0, faded, 2.0 - 0.5 - 0.125),
            (far, -3.0, faded, -4.5 - 0.5 - 0.125),
            // As far away as possible: no penalty is left, and none changes its sign.
            (twice.at(4), 3.0, faded, 3.0),
            (twice.at(4), f32::NEG_INFINITY, faded, f32::NEG_INFINITY),
            (banned.at(9), 3.0, faded, f32::NEG_INFINITY),
            (end, 3.0, length, 4.5),
            (end, -3.0, length, -1.5),
            (end, 0.0, length, 0.0),
            (end, 3.0, shorter, 1.5),
            (end, -3.0, shorter, -4.5),
            (end, 3.0, all, 3.0),
            (seen, 3.0, length, 1.5),
            // At the very end: 3 becomes 1.5 by repetition, 0.25 by the others.
            (TokenAdjust { flags: twice.flags | TokenAdjust::END, ..twice }, 3.0, length, 0.375),
            (end, f32::NEG_INFINITY, length, f32::NEG_INFINITY),
            (end, f32::INFINITY, shorter, f32::INFINITY),
            // As in SGLang and mistral.rs: (3 - 1.25) / 2. The sign that counts is that of the difference.
            (twice, 3.0, first, 0.875),
            (twice, 1.0, first, -0.5),
            (twice, -1.0, first, -4.5),
            (biased, 3.0, first, 1.375),
            (far, 3.0, faded_first, (3.0 - 0.5 - 0.125) / 1.5),
            (TokenAdjust { flags: prompt.flags, ..twice }, 3.0, encoder_first, 3.5),
            (seen, 3.0, first, 1.5),
            (banned, 3.0, first, f32::NEG_INFINITY),
            // A bias behind the penalties, in either order.
            (late(biased), 3.0, all, 1.25),
            (late(biased), 3.0, first, 1.875),
            (late(biased), -3.0, all, -6.25),
            (late(biased), 3.0, off, 4.0),
            (late(banned), 3.0, all, f32::NEG_INFINITY),
            (late(biased), f32::NEG_INFINITY, all, f32::NEG_INFINITY),
            (late(TokenAdjust { bias: 1.0, ..end }), 3.0, length, 5.5),
        ];
        for (adjust, logit, penalties, expected) in cases {
            assert_eq!(adjust.apply(logit, &penalties), expected, "{adjust:?} on {logit} with {penalties:?}");
        }
    }
}
