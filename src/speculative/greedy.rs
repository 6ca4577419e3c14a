//! Greedy match: a draft token is accepted if it is the target's most likely one (ties: smallest id).
//!
//! Whatever comes after the accepted tokens is the most likely token too, so verified text is that of greedy
//! decoding at any temperature: lossless for temperature 0 only.

use crate::sampling::distribution::Distribution;

/// The target's most likely token.
pub(super) fn choice(target: &Distribution) -> u32 {
    target.kept()[0].candidate.token
}
