//! Recognises a row that is sent again, by a few of its logits. These distinguish it from any other row of a model,
//! since after another text every logit is different.

use super::listed::Listed;
use super::logits::Logits;
use std::num::NonZeroU64;

/// How many logits are read, at places spread over the row.
const SPOTS: usize = 8;
/// How many of these must not be masked. Rows that a worker masks are equal wherever both are masked, so fewer would
/// say nothing.
const LEAST: usize = 4;
/// Logits at least this far from 0 count as masked. No model's logits are; masks that are not infinite are, such as
/// -10,000, or the least number of a format.
pub const MASKED: f32 = 1e3;

/// Some logits of a row, mixed into one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fingerprint(NonZeroU64);

impl Fingerprint {
    /// The fingerprint of a row. `None` where too little of it can be read: the row is on a device, masked, or the same
    /// everywhere.
    #[must_use]
    pub fn of(row: &Logits<'_>) -> Option<Self> {
        let spots = spots(row)?;
        let seen = spots.iter().filter(|(_, logit)| is_seen(*logit)).count();
        if seen < LEAST || are_alike(&spots) {
            return None;
        }
        let mix = |all: u64, &(token, logit): &(u32, f32)| {
            let spot = u64::from(token) << 32 | u64::from(logit.to_bits());
            (all ^ spot).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
        };
        Some(Self(NonZeroU64::new(spots.iter().fold(1, mix) | 1)?))
    }
}

/// Whether all logits that are read are one number, and the logit of the drawn token is that number too, as in a buffer
/// that nobody has written. The drawn token counts because otherwise a row with all but a few logits cut to some least
/// number would be flat. Always false for listed rows, and for vocabularies smaller than the number of logits read.
#[must_use]
pub fn is_flat(row: &Logits<'_>, drawn: u32) -> bool {
    let (size, drawn) = (row.vocab_size(), drawn as usize);
    let has_all = row.listed().is_none() && size >= SPOTS && drawn < size;
    let is_one_number = |spots: [(u32, f32); SPOTS]| {
        let first = spots[0].1;
        is_seen(first) && are_alike(&spots) && logit(row, drawn).to_bits() == first.to_bits()
    };
    has_all && spots(row).is_some_and(is_one_number)
}

/// Whether a logit is a number, and not masked.
fn is_seen(logit: f32) -> bool {
    logit.abs() < MASKED
}

/// The logits that are read, each with its token; NaN where the row has none. `None`: a foreign row that cannot be read
/// in parts.
fn spots(row: &Logits<'_>) -> Option<[(u32, f32); SPOTS]> {
    let (of, mut spots) = (row.vocab_size(), [(0, f32::NAN); SPOTS]);
    if row.is_foreign() && !row.in_parts() {
        return None;
    }
    let listed = row.listed().map_or(&[][..], Listed::entries);
    for (spot, seen) in spots.iter_mut().enumerate() {
        let at = (2 * spot + 1) * of / (2 * SPOTS);
        *seen = match listed.get(spot) {
            Some(entry) => (entry.token, entry.logit),
            None if row.listed().is_some() || at >= of => continue,
            None => (at as u32, logit(row, at)),
        };
    }
    Some(spots)
}

fn are_alike(spots: &[(u32, f32)]) -> bool {
    spots.iter().all(|(_, logit)| logit.to_bits() == spots[0].1.to_bits())
}

/// One logit, also of a foreign row.
fn logit(row: &Logits<'_>, at: usize) -> f32 {
    let (size, mut bytes) = (row.dtype().size(), [0; 4]);
    row.copy_from(at * size, &mut bytes[..size]);
    Logits::new(row.dtype(), &bytes[..size]).get(0)
}

#[cfg(test)]
mod tests {
    use super::super::logits::Dtype;
    use super::*;

    fn fingerprint(dtype: Dtype, row: &[f32]) -> Option<Fingerprint> {
        Fingerprint::of(&Logits::new(dtype, &dtype.encode(row)))
    }

    #[test]
    fn the_same_row_has_the_same_and_another_one_another() {
        for dtype in Dtype::ALL {
            for size in [4, 7, 8, 100, 4096] {
                let row: Vec<f32> = (0..size).map(|at| ((at * 37 + 5) % 101) as f32 / 8.0).collect();
                let other: Vec<f32> = row.iter().map(|logit| logit + 0.25).collect();
                let found = fingerprint(dtype, &row);
                assert!(found.is_some() && found == fingerprint(dtype, &row), "{dtype:?} {size}");
                assert_ne!(found, fingerprint(dtype, &other), "{dtype:?} {size}");
            }
        }
    }

    #[test]
    fn rows_of_which_little_is_seen_have_none() {
        for mask in [f32::NEG_INFINITY, f32::MIN, -1e4] {
            let mut masked = vec![mask; 800];
            masked[50..150].fill(1.0);
            masked[151] = 2.0;
            assert_eq!(fingerprint(Dtype::F32, &masked), None, "a few are left");
        }
        assert_eq!(fingerprint(Dtype::F32, &[3.0; 800]), None, "all are alike");
        assert_eq!(fingerprint(Dtype::F32, &[1.0]), None);
        assert_eq!(fingerprint(Dtype::F32, &[]), None);
    }

    #[test]
    fn a_row_that_nobody_wrote_is_flat() {
        let flat = |dtype: Dtype, row: &[f32]| is_flat(&Logits::new(dtype, &dtype.encode(row)), 5);
        for dtype in Dtype::ALL {
            assert!(flat(dtype, &[0.0; 800]) && flat(dtype, &[3.0; SPOTS]), "{dtype:?}");
            assert!(!flat(dtype, &[0.0; SPOTS - 1]), "{dtype:?}: so few tokens may be alike");
            for mask in [f32::NEG_INFINITY, -1e4] {
                assert!(!flat(dtype, &[mask; 800]), "{dtype:?}: it is masked");
            }
            let row: Vec<f32> = (0..800).map(|at| (at % 7) as f32).collect();
            assert!(!flat(dtype, &row), "{dtype:?}");
            let mut cut = vec![-23.0_f32; 800];
            assert!(flat(dtype, &cut), "{dtype:?}");
            cut[5] = 0.0;
            assert!(!flat(dtype, &cut), "{dtype:?}: what is unlikely is cut at one number");
        }
    }
}
