//! Applies greenlists to a row's values.

use super::level::Passes;
use crate::sampling::watermark::greenlist::Greenlist;

/// If at most one token in this many is allowed, the allowed tokens are looked up one by one.
const FEW_ALLOWED: usize = 32;

/// Adds the bias to green tokens. `values` are those of whole blocks; where there is a list of `allowed` tokens, all
/// others are -infinity.
pub(super) fn raise(passes: Passes, greens: &Greenlist, allowed: Option<&[u32]>, values: &mut [f32]) {
    match allowed.filter(|allowed| allowed.len() * FEW_ALLOWED <= values.len()) {
        None => passes.raise(greens, values),
        Some(allowed) => {
            for &token in allowed {
                let value = &mut values[token as usize];
                *value = greens.raise(token, *value);
            }
        }
    }
}
