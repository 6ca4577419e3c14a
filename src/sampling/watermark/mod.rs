//! Watermarks. Whoever has the key can tell from the mark in a text that it was made here. Each is a rule for one row,
//! which depends on a *context*, the tokens before it.
//!
//! | mark | what it does | where |
//! |---|---|---|
//! | [`greenlist`] (KGW) | adds a bias to the logits of some tokens | after penalties, before temperature and filters |
//! | [`tournament`] (SynthID) | moves probability among the tokens that are left | after the last filter |
//! | [`race`] (Gumbel) | draws the token by the key | takes the place of the draw |
//!
//! Random words are [Philox](super::philox)'s, except for SynthID, whose hash is that of Hugging Face Transformers.

pub mod greenlist;
pub mod race;
pub mod tournament;
pub mod twister;

use super::philox::philox4x32_10;
use greenlist::Greenlist;
use race::Race;

/// A row's watermark, where it is not a step of the row's [chain](super::chain).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RowWatermark {
    /// A greenlist: some logits are raised.
    Green(Greenlist),
    /// The key decides draws of this text. `None`: not at this position, but at others.
    Race(Option<Race>),
}

/// What random words are used for. The numbers are part of what a key means: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// Reducing a context to one number.
    Context = 0,
    /// Whether a token is green.
    Green = 1,
    /// The number of a token in a race.
    Race = 2,
    /// The last bits of that number.
    RaceTail = 3,
}

/// Four random words, from a key, a context, a purpose and an index.
#[must_use]
pub fn words(key: u64, context: u64, purpose: Purpose, index: u32) -> [u32; 4] {
    philox4x32_10([index, purpose as u32, context as u32, (context >> 32) as u32], [key as u32, (key >> 32) as u32])
}

/// Reduces a context to one number, from its tokens in order, the oldest first.
#[must_use]
pub fn context(key: u64, tokens: impl IntoIterator<Item = u32>) -> u64 {
    tokens.into_iter().fold(0, |context, token| {
        let words = words(key, context, Purpose::Context, token);
        u64::from(words[0]) | u64::from(words[1]) << 32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From a short Python program that was written from the documentation. It never changes, since it is what a key
    /// means.
    #[test]
    fn known_contexts() {
        let key = 7 | 1 << 32;
        assert_eq!(context(key, []), 0);
        assert_eq!(context(key, [5]), 0xd56f_b66b_9e75_401a);
        assert_eq!(context(key, [5, 6]), 0x580c_773e_c4d7_f5d3);
        assert_eq!(context(key, [6, 5]), 0x142c_e67d_b850_3dc4);
    }

    #[test]
    fn every_part_of_a_context_matters() {
        let base = context(7, [1, 2, 3]);
        for other in [context(8, [1, 2, 3]), context(7 | 1 << 32, [1, 2, 3]), context(7, [1, 3, 2]), context(7, [2, 3])]
        {
            assert_ne!(base, other);
        }
        assert_ne!(words(7, base, Purpose::Green, 0), words(7, base, Purpose::Race, 0));
        assert_ne!(words(7, base, Purpose::Green, 0), words(7, base ^ 1 << 40, Purpose::Green, 0));
    }
}
