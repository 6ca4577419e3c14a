//! Says what is wrong with a row that has no result, and where. Only people need that, so it is looked up when a row has
//! failed.

use super::logits::{Dtype, Logits, PIECE};
use super::row::RowError;

/// A logit that is no number.
#[derive(Debug, Clone, Copy)]
enum Special {
    Nan,
    PositiveInfinity,
    NegativeInfinity,
}

/// The logits at fault of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// How many there are.
    pub count: usize,
    /// The token of the first of them, if there is one.
    pub first: Option<u32>,
}

/// The error with where it lies in the row.
#[must_use]
pub fn told(error: RowError, row: &Logits<'_>) -> String {
    let (Some(Found { count, first }), size) = (find(error, row), row.vocab_size()) else { return error.to_string() };
    match (error, count, first) {
        (RowError::Nan, ..) if count == size => format!("all {size} logits of the row are NaN"),
        (RowError::Nan, 1, Some(token)) => format!("{error}, at token {token}"),
        (RowError::Nan, _, Some(token)) => format!("the row has {count} NaN logits, the first at token {token}"),
        (RowError::PositiveInfinity, 1, Some(token)) => {
            format!("the row has a +infinity logit as sent, at token {token}")
        }
        (RowError::PositiveInfinity, _, Some(token)) => {
            format!("the row has {count} +infinity logits as sent, the first at token {token}")
        }
        (RowError::PositiveInfinity, _, None) => {
            "the row has a +infinity logit after bias and penalties, none as sent".to_owned()
        }
        (RowError::AllMasked, ..) if count == size => {
            format!("no token of the row is left: all {size} logits are -infinity as sent")
        }
        (RowError::AllMasked, ..) if row.listed().is_none() => format!(
            "no token of the row is left: {} of its {size} logits are above -infinity, and a bias, a mask, the grammar, \
             bans or min_tokens forbid these tokens",
            size - count
        ),
        _ => error.to_string(),
    }
}

/// The logits that the error is about: those that are NaN, +infinity, or -infinity where no token is left. `None` for a
/// row that a device reads where it lies.
#[must_use]
pub fn find(error: RowError, row: &Logits<'_>) -> Option<Found> {
    let special = match error {
        RowError::Nan => Special::Nan,
        RowError::PositiveInfinity => Special::PositiveInfinity,
        RowError::AllMasked => Special::NegativeInfinity,
        RowError::Beyond(_) => return None,
    };
    if let Some(listed) = row.listed() {
        let mut found = listed.entries().iter().filter(|entry| special.is_in_f32(entry.logit.to_bits()));
        let first = found.next().map(|entry| entry.token);
        return Some(Found { count: usize::from(first.is_some()) + found.count(), first });
    }
    if row.device_address().is_some() {
        return None;
    }
    // Rows of ranks and of a draft model can only be copied whole.
    let mut own = vec![0; if row.is_foreign() && !row.in_parts() { row.byte_len() } else { 0 }];
    let row = if own.is_empty() { *row } else { row.taken(&mut own) };
    Some(count_all(&row, special))
}

fn count_all(row: &Logits<'_>, special: Special) -> Found {
    let (size, mut piece) = (row.dtype().size(), [0; PIECE]);
    let mut found = Found { count: 0, first: None };
    for from in (0..row.byte_len()).step_by(PIECE) {
        let part = &mut piece[..PIECE.min(row.byte_len() - from)];
        row.copy_from(from, part);
        let here = match row.dtype() {
            Dtype::F32 => count(part, |bytes| special.is_in_f32(u32::from_le_bytes(bytes))),
            Dtype::F16 => count(part, |bytes| special.is(u16::from_le_bytes(bytes).into(), 0x7c00, 1 << 15)),
            Dtype::Bf16 => count(part, |bytes| special.is(u16::from_le_bytes(bytes).into(), 0x7f80, 1 << 15)),
        };
        found.count += here.count;
        found.first = found.first.or(here.first.map(|first| (from / size) as u32 + first));
    }
    found
}

/// Counts the values of a piece that `is` accepts. A piece with one is searched for it again, so that counting is a loop
/// without a branch.
fn count<const N: usize>(piece: &[u8], is: impl Fn([u8; N]) -> bool) -> Found {
    let values = || piece.as_chunks::<N>().0.iter();
    let count: u32 = values().map(|&bytes| u32::from(is(bytes))).sum();
    let first = || values().zip(0..).find(|&(&bytes, _)| is(bytes)).map(|(_, at)| at);
    Found { count: count as usize, first: if count > 0 { first() } else { None } }
}

impl Special {
    fn is_in_f32(self, bits: u32) -> bool {
        self.is(bits, 0x7f80_0000, 1 << 31)
    }

    /// Whether a number with these bits is one, in a format with these bits of +infinity and this sign.
    fn is(self, bits: u32, infinity: u32, sign: u32) -> bool {
        match self {
            Self::Nan => bits & !sign > infinity,
            Self::PositiveInfinity => bits == infinity,
            Self::NegativeInfinity => bits == infinity | sign,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of 1,000 numbers with these at these places.
    fn message(error: RowError, dtype: Dtype, places: &[usize], number: f32) -> String {
        let mut row: Vec<f32> = (0..1000).map(|at| at as f32 / 16.0 - 30.0).collect();
        places.iter().for_each(|&at| row[at] = number);
        told(error, &Logits::new(dtype, &dtype.encode(&row)))
    }

    #[test]
    fn the_first_of_the_numbers_at_fault_is_named() {
        for dtype in Dtype::ALL {
            for nan in [f32::NAN, -f32::NAN] {
                let of = |places: &[usize]| message(RowError::Nan, dtype, places, nan);
                assert_eq!(of(&[999]), "the row has a NaN logit, at token 999");
                assert_eq!(of(&[300, 777, 301]), "the row has 3 NaN logits, the first at token 300");
                let all: Vec<usize> = (0..1000).collect();
                assert_eq!(of(&all), "all 1000 logits of the row are NaN");
                // The row was written over since.
                assert_eq!(of(&[]), "the row has a NaN logit");
            }
            let of = |places: &[usize]| message(RowError::PositiveInfinity, dtype, places, f32::INFINITY);
            assert_eq!(of(&[0]), "the row has a +infinity logit as sent, at token 0");
            assert_eq!(of(&[5, 4]), "the row has 2 +infinity logits as sent, the first at token 4");
            assert_eq!(of(&[]), "the row has a +infinity logit after bias and penalties, none as sent");
        }
    }

    #[test]
    fn a_row_masked_by_its_worker_is_told_from_one_masked_here() {
        for dtype in Dtype::ALL {
            let of = |places: &[usize]| message(RowError::AllMasked, dtype, places, f32::NEG_INFINITY);
            let all: Vec<usize> = (0..1000).collect();
            assert_eq!(of(&all), "no token of the row is left: all 1000 logits are -infinity as sent");
            let told = of(&all[2..]);
            assert!(told.contains("2 of its 1000 logits are above -infinity, and a bias, a mask"), "{told}");
        }
    }
}
