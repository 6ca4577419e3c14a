//! The race (Aaronson 2022; Kuditipudi et al. 2024; also called Gumbel mark): the token is the one with the largest
//! `r^(1/p)`, `r` a uniform number of the key, the context and the token, `p` the token's probability after all filters.
//!
//! That is the token that comes first when each arrives after `-ln(r) / p`. So over all keys it has the probability
//! `p`, and the text is as good as without a mark. As long as contexts do not repeat, tokens are independent too.
//!
//! | | |
//! |---|---|
//! | number | `r = (2x + 1) / 2^53`, `x` of 52 bits: a word of the key, then 20 bits of another |
//! | arrival | `-ln(r) / mass` in f64, each operation rounded once, `ln` of the `libm` crate |
//! | token | the first to arrive among tokens with a mass; of two that arrive at once, the one with the smaller id |
//!
//! The word of token `t`: with `i = t mod 128`, it is word `i / 32` of the words (`super::words`) at index
//! `32 * (t / 128) + t mod 32`. The other bits are the upper 20 bits of word 0 at index `t`.

use super::{Purpose, words};

/// Philox blocks that give the first words of 128 tokens.
pub const LANES: usize = 32;
/// Tokens whose words are made together.
pub const TOKENS: usize = 128;

/// The race at one position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Race {
    /// The secret key.
    pub key: u64,
    /// The tokens before, as one number.
    pub context: u64,
}

impl Race {
    /// A token's random number, strictly between 0 and 1.
    #[must_use]
    pub fn number(&self, token: u32) -> f64 {
        self.number_of(token, self.word(token))
    }

    /// The same, where the token's word is known.
    #[must_use]
    pub fn number_of(&self, token: u32, word: u32) -> f64 {
        let tail = words(self.key, self.context, Purpose::RaceTail, token)[0] >> 12;
        let number = u64::from(word) << 20 | u64::from(tail);
        (2 * number + 1) as f64 / (1u64 << 53) as f64
    }

    /// A token's word: the first 32 bits of its number.
    #[must_use]
    pub fn word(&self, token: u32) -> u32 {
        let (tokens, lanes) = (TOKENS as u32, LANES as u32);
        let words = words(self.key, self.context, Purpose::Race, token / tokens * lanes + token % lanes);
        words[(token % tokens / lanes) as usize]
    }

    /// When a token of this mass arrives.
    #[must_use]
    pub fn arrival(&self, token: u32, mass: u64) -> f64 {
        arrival(self.number(token), mass)
    }
}

/// When a token with this number and mass arrives.
#[must_use]
pub fn arrival(number: f64, mass: u64) -> f64 {
    -libm::log(number) / mass as f64
}

/// The token that is first so far, with its arrival.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct First(Option<(f64, u32)>);

impl First {
    /// Takes in a token.
    pub fn add(&mut self, token: u32, arrival: f64) {
        let is_first = |&(first, of): &(f64, u32)| arrival < first || (arrival == first && token < of);
        if self.0.as_ref().is_none_or(is_first) {
            self.0 = Some((arrival, token));
        }
    }

    /// The arrival that the next token has to beat.
    #[must_use]
    pub fn arrival(&self) -> f64 {
        self.0.map_or(f64::INFINITY, |(arrival, _)| arrival)
    }

    /// The token that is first so far.
    #[must_use]
    pub fn token(&self) -> Option<u32> {
        self.0.map(|(_, token)| token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_uniform_and_inside() {
        let race = Race { key: 5, context: 9 };
        let numbers: Vec<f64> = (0..100_000).map(|token| race.number(token)).collect();
        assert!(numbers.iter().all(|&r| r > 0.0 && r < 1.0));
        for part in 0..10 {
            let here = numbers.iter().filter(|&&r| (r * 10.0) as usize == part).count();
            // Six standard deviations of a tenth of 100,000.
            assert!(here.abs_diff(10_000) < 570, "{part}: {here}");
        }
        assert_ne!(race.number(3), Race { context: 10, ..race }.number(3));
        assert_ne!(race.number(3), Race { key: 6, ..race }.number(3));
    }

    /// From a short Python program that was written from the table above.
    #[test]
    fn known_numbers() {
        let race = Race { key: 7 | 1 << 32, context: 0x580c_773e_c4d7_f5d3 };
        for (token, x) in [
            (0, 0xb_c043_be74_4e8du64),
            (31, 0x5_92dc_1797_69f4),
            (32, 0xc_0567_c444_2692),
            (127, 0x4_a622_90be_237a),
            (128, 0x1_2841_4263_fd2b),
            (50_000, 0x1_681f_7fab_530e),
            (128_255, 0x5ad5_f0f0_e8f1),
        ] {
            assert_eq!(race.number(token), (2 * x + 1) as f64 / 2f64.powi(53), "{token}");
        }
    }

    #[test]
    fn the_first_wins_and_the_smaller_id_among_equals() {
        let mut first = First::default();
        assert_eq!((first.token(), first.arrival()), (None, f64::INFINITY));
        for (token, arrival) in [(5, 2.0), (7, 1.0), (3, 1.0), (9, 1.0), (1, 3.0)] {
            first.add(token, arrival);
        }
        assert_eq!((first.token(), first.arrival()), (Some(3), 1.0));
        let certain = (2.0 * ((1u64 << 52) - 1) as f64 + 1.0) / (1u64 << 53) as f64;
        assert!(certain < 1.0 && arrival(certain, 1) > 0.0);
    }
}
