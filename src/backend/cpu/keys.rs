//! The order of tokens as one integer: the smaller key comes first.

use crate::sampling::order::Candidate;
pub(super) use crate::sampling::order::ascending;

/// The key of a token: logit descending, then token id ascending, −0 equal to +0.
#[inline(always)]
pub(in crate::backend) fn key(token: u32, logit: f32) -> u64 {
    Candidate { token, logit }.place()
}

/// The token of a key.
#[inline(always)]
pub(in crate::backend) fn token(key: u64) -> u32 {
    key as u32
}

/// The logit of a key; +0 for −0.
#[inline(always)]
pub(in crate::backend) fn logit(key: u64) -> f32 {
    from_ascending(!((key >> 32) as u32))
}

/// Keeps the `n` first keys, in order.
pub(super) fn keep_first(keys: &mut Vec<u64>, n: usize) {
    if n < keys.len() && n > 0 {
        keys.select_nth_unstable(n - 1);
    }
    keys.truncate(n);
    keys.sort_unstable();
}

/// The tokens of the `n` first keys, in order.
pub(super) fn first(mut keys: Vec<u64>, n: usize) -> Vec<u32> {
    keep_first(&mut keys, n);
    keys.into_iter().map(token).collect()
}

/// Whether a token's key is at most `last`. For loops in which computing each key would take longer.
#[inline(always)]
pub(super) fn up_to(last: u64) -> impl Fn(u32, f32) -> bool + Copy {
    let (all, cut, last) = (last == u64::MAX, logit(last), token(last));
    move |token, logit| all | (logit > cut) | (logit == cut) & (token <= last)
}

/// The inverse of [`ascending`].
#[inline(always)]
pub(super) fn from_ascending(ordered: u32) -> f32 {
    f32::from_bits(if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered })
}

/// The least finite float that is `wanted`, or `most` if none is. If a float is wanted, all above it must be.
pub(super) fn least(most: f32, wanted: impl Fn(f32) -> bool) -> f32 {
    let (mut low, mut high) = (ascending(f32::MIN), ascending(most));
    while low < high {
        let middle = low + (high - low) / 2;
        if wanted(from_ascending(middle)) { high = middle } else { low = middle + 1 }
    }
    from_ascending(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_order() {
        let values = [f32::NEG_INFINITY, f32::MIN, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, f32::MAX];
        for (i, &a) in values.iter().enumerate() {
            for (j, &b) in values.iter().enumerate() {
                let (left, right) = (Candidate { token: i as u32, logit: a }, Candidate { token: j as u32, logit: b });
                assert_eq!(key(i as u32, a) < key(j as u32, b), left.precedes(&right), "{left:?} {right:?}");
                assert_eq!(up_to(key(j as u32, b))(i as u32, a), !right.precedes(&left), "{left:?} {right:?}");
            }
            assert_eq!(logit(key(7, a)), a);
            assert_eq!(token(key(7, a)), 7);
            assert!(up_to(u64::MAX)(7, a));
        }
    }

    #[test]
    fn the_least_is_found_by_its_neighbours() {
        for from in [f32::MIN, -3.5, -1e-45, 0.0, 1e-45, 7.0, f32::INFINITY] {
            assert_eq!(least(f32::INFINITY, |x| x >= from), from);
            assert_eq!(least(2.0, |x| x >= from), from.min(2.0));
        }
    }
}
