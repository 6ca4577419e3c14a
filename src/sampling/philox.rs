//! Random numbers: Philox4x32-10, a counter-based generator (Salmon et al., "Parallel Random Numbers:
//! As Easy as 1, 2, 3", SC 2011). There is no state to keep or to lose: a number is a pure function of
//! the sequence's seed, the position in its output and the purpose it serves.

/// What a random number is for. Different purposes at the same position are independent streams.
/// The numbers are part of the promise that a seed replays a text: never renumber, only append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// The draw of an emitted token.
    Sample = 0,
    /// The draw of a proposed (draft) token.
    Draft = 1,
    /// Whether a draft token is accepted.
    Accept = 2,
    /// The recovered token after a rejection.
    Residual = 3,
    /// Not used: the bonus token after a fully accepted draft is drawn with [`Purpose::Sample`], so that it
    /// is the token that a plain row would have drawn there.
    Bonus = 4,
    /// Not used: which verifications are measured is drawn by lot, and no token depends on it.
    Measure = 5,
    /// Whether XTC happens at a position.
    Xtc = 6,
}

/// What the counter's words are multiplied by, each round.
pub const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// What is added to the key after each round.
pub const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
/// How many rounds there are.
pub const ROUNDS: usize = 10;

/// One block of the generator: four words from a counter and a key.
#[must_use]
pub fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let product = |word: u32, multiplier: u32| {
            let wide = u64::from(word) * u64::from(multiplier);
            ((wide >> 32) as u32, wide as u32)
        };
        let (high0, low0) = product(counter[0], MULTIPLIERS[0]);
        let (high1, low1) = product(counter[2], MULTIPLIERS[1]);
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// A uniform 64-bit number: key = `seed`, counter = (`position`, `purpose`, 0).
#[must_use]
pub fn uniform(seed: u64, position: u64, purpose: Purpose) -> u64 {
    uniform_at(seed, position, purpose, 0)
}

/// One of several uniform 64-bit numbers of a position and purpose: counter = (`position`, `purpose`,
/// `index`). Index 0 is [`uniform`].
#[must_use]
pub fn uniform_at(seed: u64, position: u64, purpose: Purpose, index: u32) -> u64 {
    let counter = [position as u32, (position >> 32) as u32, purpose as u32, index];
    let words = philox4x32_10(counter, [seed as u32, (seed >> 32) as u32]);
    u64::from(words[0]) | u64::from(words[1]) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with Random123 (kat_vectors, philox4x32 10).
    #[test]
    fn published_known_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox4x32_10(counter, key), expected);
        }
    }

    #[test]
    fn position_and_purpose_and_seed_all_matter() {
        let base = uniform(7, 3, Purpose::Sample);
        assert_ne!(base, uniform(8, 3, Purpose::Sample));
        assert_ne!(base, uniform(7 | 1 << 32, 3, Purpose::Sample));
        assert_ne!(base, uniform(7, 4, Purpose::Sample));
        assert_ne!(base, uniform(7, 3 | 1 << 32, Purpose::Sample));
        assert_ne!(base, uniform(7, 3, Purpose::Draft));
        assert_ne!(base, uniform_at(7, 3, Purpose::Sample, 1));
        assert_eq!(base, uniform_at(7, 3, Purpose::Sample, 0));
    }

    /// From a short Python program that was written from docs/numbers.md: the words and blocks for every position.
    #[test]
    fn known_numbers() {
        assert_eq!(uniform(7, 3, Purpose::Sample), 0x4008_6b6f_63e4_1616);
        assert_eq!(uniform(7, 4, Purpose::Sample), 0xfd55_fece_4a38_c322);
        assert_eq!(uniform(u64::MAX, 0, Purpose::Xtc), 0x3aa7_5c73_c426_786b);
        assert_eq!(uniform_at(7 | 5 << 32, 9 | 1 << 32, Purpose::Accept, 2 | 3 << 16), 0x9acc_60cd_a36b_374d);
    }
}
