//! Finds the first tokens of a row's order from its block maxima ("delegates", Dr. Top-k, arXiv 2109.08219).
//!
//! If k blocks have a maximum of at least t, then at least k tokens do. So the first k tokens all have logits of at
//! least t, and lie in blocks whose maximum is at least t. Only those blocks are read again.

use super::keys::{ascending, from_ascending, keep_first};
use super::level::Passes;
use super::view::View;

/// A bound that at least `k` tokens reach, and not many more. It is computed from the maxima of a row's blocks, padded,
/// and the largest of them. Where fewer than `k` blocks have a finite maximum it is `f32::MIN`, which every token with
/// a finite logit reaches.
pub(super) fn bound_of_top(passes: Passes, maxima: &[f32], max: f32, k: usize) -> f32 {
    let count = |bound| passes.count_ge(maxima, bound);
    if count(f32::MIN) < k {
        return f32::MIN;
    }
    // Invariant: at least k blocks reach `low`, and fewer reach `high`. Doubling strides find the scale of the row in a
    // few counts; halving the integers alone would spend eight on exponents.
    let (mut low, mut high) = (f32::MIN, ascending(max) + 1);
    let mut stride = 1.0f32;
    while low == f32::MIN && stride < f32::MAX {
        let reach = (max - stride).max(f32::MIN);
        if count(reach) >= k {
            low = reach
        } else {
            high = high.min(ascending(reach))
        }
        stride *= 2.0;
    }
    let mut low = ascending(low);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let blocks = count(from_ascending(middle));
        if blocks < k {
            high = middle;
        } else {
            low = middle;
            if blocks <= k + k / 8 {
                break;
            }
        }
    }
    from_ascending(low)
}

/// Keys of the first `k` tokens with a finite logit, in order; fewer if there are fewer.
pub(super) fn top(view: &View<'_>, k: usize, keys: &mut Vec<u64>) {
    if k == 0 {
        return keys.clear();
    }
    view.collect(bound_of_top(view.passes(), view.maxima, view.max, k), keys);
    keep_first(keys, k);
}

/// The first token of the order.
pub(super) fn first(view: &View<'_>) -> u32 {
    let position = |values: &[f32]| values.iter().position(|&x| x == view.max);
    let block = position(view.maxima).expect("some block holds the maximum; this is a bug");
    let values = view.block(block);
    let at = position(&values).expect("the block holds its maximum; this is a bug");
    (block * super::passes::BLOCK + at) as u32
}
