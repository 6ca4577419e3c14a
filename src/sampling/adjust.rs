//! What a sequence does to single logits before any filter: masks, bias, penalties.
//!
//! Each is a function of one token's logit and of what the sequence knows about that token, so a row
//! needs only the tokens it knows something about; all others keep their logit. The order is fixed:
//! ban, bias, repetition penalty, encoder repetition penalty, frequency penalty, presence penalty,
//! length penalty.

pub use crate::params::Penalties;
use std::cmp::Ordering;
use std::iter::Peekable;

/// What a sequence knows about one token. Plain data, the same on the device.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C)]
pub struct TokenAdjust {
    /// The token.
    pub token: u32,
    /// [`TokenAdjust::BANNED`], [`TokenAdjust::SEEN`], [`TokenAdjust::PROMPT`], [`TokenAdjust::END`]; above these,
    /// where penalties fall off with distance, the [place](TokenAdjust::at) of the token's latest occurrence.
    pub flags: u32,
    /// Added to the logit; 0 for none.
    pub bias: f32,
    /// Occurrences in the output.
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
    /// The bit at which the place of the latest occurrence begins.
    pub(crate) const PLACE: u32 = 16;

    /// The same with its latest occurrence at this place, modulo 2^16.
    #[must_use]
    pub fn at(self, place: u16) -> Self {
        Self { flags: self.flags & ((1 << Self::PLACE) - 1) | u32::from(place) << Self::PLACE, ..self }
    }

    /// Where its latest occurrence is, modulo 2^16.
    #[must_use]
    #[inline]
    pub fn place(&self) -> u16 {
        (self.flags >> Self::PLACE) as u16
    }

    /// Makes the token one that was not seen.
    pub fn forget(&mut self) {
        self.output_count = 0;
        self.flags &= !Self::SEEN;
        *self = self.at(0);
    }

    /// Whether it changes no logit.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.flags == 0 && self.output_count == 0 && self.bias == 0.0
    }

    /// The adjusted logit. −∞ stays −∞ whatever the bias.
    #[must_use]
    #[inline]
    pub fn apply(&self, logit: f32, penalties: &Penalties) -> f32 {
        if self.flags & Self::BANNED != 0 {
            return f32::NEG_INFINITY;
        }
        let biased = logit + self.bias;
        let x = if penalties.decay.decay_n > 0 {
            self.decayed(biased, penalties)
        } else {
            self.penalised(biased, penalties)
        };
        // An infinity stays what it is: +∞ - ∞ would be no number.
        let lengthened = self.flags & Self::END != 0 && penalties.length != 0.0 && x.is_finite();
        if lengthened { x + x.abs() * penalties.length } else { x }
    }

    /// The penalties at full strength.
    #[inline]
    fn penalised(&self, mut x: f32, penalties: &Penalties) -> f32 {
        if self.flags & Self::SEEN != 0 && penalties.repetition != 1.0 {
            x = if x > 0.0 { x / penalties.repetition } else { x * penalties.repetition };
        }
        x = self.encoder(x, penalties);
        if self.output_count > 0 {
            x -= self.output_count as f32 * penalties.frequency;
            x -= penalties.presence;
        }
        x
    }

    /// The encoder repetition penalty: the repetition penalty the other way round.
    #[inline]
    fn encoder(&self, x: f32, penalties: &Penalties) -> f32 {
        if self.flags & Self::PROMPT == 0 || penalties.encoder == 1.0 {
            x
        } else if x > 0.0 {
            x * penalties.encoder
        } else {
            x / penalties.encoder
        }
    }

    /// The penalties where their strength depends on distance.
    fn decayed(&self, mut x: f32, penalties: &Penalties) -> f32 {
        let strength = penalties.decay.strength(self.place());
        if self.flags & Self::SEEN != 0 && penalties.repetition != 1.0 {
            let repetition = 1.0 + (penalties.repetition - 1.0) * strength;
            x = if x > 0.0 { x / repetition } else { x * repetition };
        }
        x = self.encoder(x, penalties);
        if self.output_count > 0 {
            x -= self.output_count as f32 * penalties.frequency * strength;
            x -= penalties.presence * strength;
        }
        x
    }
}

/// Something more that is added to one token's logit, at one position only: [`TokenAdjust::bias`] and this are added
/// up first, and their sum is added to the logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Nudge {
    /// The token.
    pub token: u32,
    /// What is added; finite.
    pub bias: f32,
}

/// What a sequence knows about single tokens, in ascending order, each once: a list, a short one whose
/// entries take the place of the list's for the same tokens, and what is added to those of either. So rows that look
/// ahead of a long history, or differ from the last one in little, need no copy of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Adjusts<'a> {
    base: &'a [TokenAdjust],
    over: &'a [TokenAdjust],
    nudges: &'a [Nudge],
}

impl<'a> Adjusts<'a> {
    /// `base`, with the entries of `over` instead of its own for the same tokens; both in ascending order.
    #[must_use]
    pub fn new(base: &'a [TokenAdjust], over: &'a [TokenAdjust]) -> Self {
        Self { base, over, nudges: &[] }
    }

    /// The same with `nudges`, which are in ascending order, each token once.
    #[must_use]
    pub fn nudged(self, nudges: &'a [Nudge]) -> Self {
        Self { nudges, ..self }
    }

    /// At least as many entries as there are.
    #[must_use]
    pub fn len_bound(&self) -> usize {
        self.base.len() + self.over.len() + self.nudges.len()
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len_bound() == 0
    }

    /// What is known of one token, as among [all](Self::iter).
    #[must_use]
    pub fn get(&self, token: u32) -> Option<TokenAdjust> {
        let find = |list: &[TokenAdjust]| Some(list[list.binary_search_by_key(&token, |adjust| adjust.token).ok()?]);
        let known = find(self.over).or_else(|| find(self.base)).filter(|adjust| !adjust.is_idle());
        let Ok(nudged) = self.nudges.binary_search_by_key(&token, |nudge| nudge.token) else { return known };
        let bias = self.nudges[nudged].bias;
        Some(known.map_or(TokenAdjust { token, bias, ..TokenAdjust::default() }, |known| TokenAdjust {
            bias: known.bias + bias,
            ..known
        }))
    }

    /// The entries in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = TokenAdjust> + use<'a> {
        let (base, over) = (self.base.iter().copied().peekable(), self.over.iter().copied().peekable());
        let nudges = self.nudges.iter().map(|n| TokenAdjust { token: n.token, bias: n.bias, ..TokenAdjust::default() });
        // What was seen and is out of sight again may have left an entry that says nothing.
        let known = merged(base, over, |_, over| over).filter(|adjust| !adjust.is_idle());
        merged(known.peekable(), nudges.peekable(), |known, nudge| TokenAdjust {
            bias: known.bias + nudge.bias,
            ..known
        })
    }
}

/// Both lists in ascending order, `both` deciding where they meet.
fn merged(
    mut one: Peekable<impl Iterator<Item = TokenAdjust>>,
    mut other: Peekable<impl Iterator<Item = TokenAdjust>>,
    both: impl Fn(TokenAdjust, TokenAdjust) -> TokenAdjust,
) -> impl Iterator<Item = TokenAdjust> {
    std::iter::from_fn(move || match (one.peek(), other.peek()) {
        (Some(a), Some(b)) => match a.token.cmp(&b.token) {
            Ordering::Less => one.next(),
            Ordering::Equal => Some(both(one.next()?, other.next()?)),
            Ordering::Greater => other.next(),
        },
        (Some(_), None) => one.next(),
        (None, _) => other.next(),
    })
}

impl PartialEq for Adjusts<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a> From<&'a [TokenAdjust]> for Adjusts<'a> {
    fn from(base: &'a [TokenAdjust]) -> Self {
        Self::new(base, &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Decay;

    #[test]
    fn what_is_out_of_sight_is_left_out() {
        let seen = TokenAdjust { token: 4, flags: TokenAdjust::SEEN, output_count: 1, ..TokenAdjust::default() }.at(7);
        let mut forgotten = seen;
        forgotten.forget();
        assert!(forgotten.is_idle() && !seen.is_idle());
        assert_eq!(Adjusts::new(&[seen], &[forgotten]).iter().next(), None);
        let banned = TokenAdjust { flags: TokenAdjust::BANNED, ..forgotten };
        assert_eq!(Adjusts::new(&[banned], &[]).iter().next(), Some(banned));
    }

    #[test]
    fn entries_over_the_list_take_the_place_of_its_own() {
        let entry = |token, output_count| TokenAdjust { token, output_count, ..TokenAdjust::default() };
        let list = |entries: &[(u32, u32)]| entries.iter().map(|&(t, n)| entry(t, n)).collect::<Vec<_>>();
        let (base, over) = (list(&[(1, 1), (4, 1), (7, 1)]), list(&[(0, 2), (4, 2), (9, 2)]));
        let merged: Vec<_> = Adjusts::new(&base, &over).iter().collect();
        assert_eq!(merged, list(&[(0, 2), (1, 1), (4, 2), (7, 1), (9, 2)]));
        assert_eq!(Adjusts::new(&base, &[]).iter().collect::<Vec<_>>(), base);
        assert_eq!(Adjusts::new(&[], &over).iter().collect::<Vec<_>>(), over);
        assert!(Adjusts::default().is_empty() && !Adjusts::new(&[], &over).is_empty());
    }

    #[test]
    fn nudges_are_added_to_the_bias() {
        let entry = |token, bias| TokenAdjust { token, bias, ..TokenAdjust::default() };
        let (base, over) = ([entry(1, 1.0), entry(4, 2.0)], [entry(4, 8.0)]);
        let nudges = [(0, 0.25), (4, 0.5), (9, -1.0)].map(|(token, bias)| Nudge { token, bias });
        let adjusts = Adjusts::new(&base, &over).nudged(&nudges);
        let expected = [entry(0, 0.25), entry(1, 1.0), entry(4, 8.5), entry(9, -1.0)];
        assert_eq!(adjusts.iter().collect::<Vec<_>>(), expected);
        assert!(!Adjusts::new(&[], &[]).nudged(&nudges).is_empty() && adjusts.len_bound() >= expected.len());
        // What else is known of the token stays.
        let seen = [TokenAdjust { flags: TokenAdjust::SEEN, output_count: 3, ..entry(9, 1.0) }];
        let known: Vec<_> = Adjusts::new(&seen, &[]).nudged(&nudges[2..]).iter().collect();
        assert_eq!(known, [TokenAdjust { bias: 0.0, ..seen[0] }]);
        // One by one they are the same, those that say nothing too.
        let idle = [TokenAdjust { token: 1, ..TokenAdjust::default() }];
        for adjusts in
            [adjusts, Adjusts::new(&seen, &idle).nudged(&nudges[2..]), Adjusts::new(&base, &idle), Adjusts::default()]
        {
            (0..11)
                .for_each(|token| assert_eq!(adjusts.get(token), adjusts.iter().find(|a| a.token == token), "{token}"));
        }
    }

    #[test]
    fn by_hand() {
        let off = Penalties::OFF;
        let rep2 = Penalties { repetition: 2.0, ..off };
        let freq = Penalties { frequency: 0.5, presence: 0.25, ..off };
        let all = Penalties { repetition: 2.0, frequency: 0.5, presence: 0.25, ..off };
        let encoder = Penalties { encoder: 2.0, ..off };
        let decay = Decay { place: 3, last_n: 2, decay_n: 3 };
        let faded = Penalties { decay, ..all };
        let length = Penalties { length: 0.5, ..all };
        let shorter = Penalties { length: -0.5, ..off };
        let seen = TokenAdjust { flags: TokenAdjust::SEEN, ..TokenAdjust::default() };
        let twice = TokenAdjust { output_count: 2, ..seen };
        let biased = TokenAdjust { bias: 1.0, ..twice };
        let banned = TokenAdjust { flags: TokenAdjust::BANNED, bias: 100.0, ..twice };
        let prompt = TokenAdjust { flags: TokenAdjust::SEEN | TokenAdjust::PROMPT, ..seen };
        let end = TokenAdjust { flags: TokenAdjust::END, ..TokenAdjust::default() };
        // Distances 1, 2 and 4 of a text that has gone round 2^16: strengths 1, 1 and 1/2.
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
            (prompt, 3.0, encoder, 6.0),
            (prompt, -3.0, encoder, -1.5),
            (seen, 3.0, encoder, 3.0),
            (prompt, 3.0, Penalties { encoder: 2.0, ..all }, 3.0),
            (near, 3.0, faded, 0.25),
            (edge, 3.0, faded, 0.25),
            (far, 3.0, faded, 2.0 - 0.5 - 0.125),
            (far, -3.0, faded, -4.5 - 0.5 - 0.125),
            // As far away as may be: no penalty is left, and none turns round.
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
            // Last of all: 3 becomes 1.5 by repetition, 0.25 by the others.
            (TokenAdjust { flags: twice.flags | TokenAdjust::END, ..twice }, 3.0, length, 0.375),
            (end, f32::NEG_INFINITY, length, f32::NEG_INFINITY),
            (end, f32::INFINITY, shorter, f32::INFINITY),
        ];
        for (adjust, logit, penalties, expected) in cases {
            assert_eq!(adjust.apply(logit, &penalties), expected, "{adjust:?} on {logit} with {penalties:?}");
        }
    }
}
