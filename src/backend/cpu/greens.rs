//! Greenlists on a row's values.

use super::level::Passes;
use crate::sampling::mark::greenlist::Greenlist;

/// With one token allowed in so many, they are looked up one by one.
const FEW_ALLOWED: usize = 32;

/// Gives green tokens their bias; `values` are those of whole blocks, all -infinity but those of `allowed` where there is
/// such a list.
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
