//! The one order of tokens: logit descending, then token id ascending. −0 and +0 are equal.
//! Every tie in the project is broken by this rule.

/// A token and its logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Token id.
    pub token: u32,
    /// Its logit, after any adjustments; never NaN.
    pub logit: f32,
}

impl Candidate {
    /// Whether this token comes before `other`; on equal ids, false.
    #[must_use]
    #[inline]
    pub fn precedes(&self, other: &Candidate) -> bool {
        self.logit > other.logit || (self.logit == other.logit && self.token < other.token)
    }

    /// The token's place in the order as one number: the first token has the least. The lower half is the token id.
    #[must_use]
    #[inline(always)]
    pub fn place(&self) -> u64 {
        u64::from(!ascending(self.logit)) << 32 | u64::from(self.token)
    }
}

/// Maps floats to integers that ascend with them. −0 counts as +0.
#[must_use]
#[inline(always)]
pub fn ascending(value: f32) -> u32 {
    let bits = (value + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// The first token of the order, which is the greedy choice; `None` for an empty row.
#[must_use]
pub fn first(logits: &[f32]) -> Option<Candidate> {
    let all = logits.iter().enumerate().map(|(token, &logit)| Candidate { token: token as u32, logit });
    all.reduce(|best, next| if next.precedes(&best) { next } else { best })
}

/// 1 + the number of tokens of the row that precede `token`.
#[must_use]
pub fn rank(logits: &[f32], token: u32) -> u32 {
    let own = Candidate { token, logit: logits[token as usize] };
    let before = logits.iter().enumerate().filter(|&(t, &logit)| Candidate { token: t as u32, logit }.precedes(&own));
    1 + before.count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_smaller_id_and_zeros_are_equal() {
        assert_eq!(first(&[1.0, 2.0, 2.0]).map(|c| c.token), Some(1));
        assert_eq!(first(&[-0.0, 0.0]).map(|c| c.token), Some(0));
        assert_eq!(first(&[0.0, -0.0]).map(|c| c.token), Some(0));
        assert_eq!(first(&[]), None);
    }

    #[test]
    fn rank_counts_what_comes_before() {
        let row = [1.0, 3.0, 1.0, f32::NEG_INFINITY];
        assert_eq!([0, 1, 2, 3].map(|t| rank(&row, t)), [2, 1, 3, 4]);
    }
}
