//! Relaxed acceptance (TensorRT-LLM, multi-token prediction in thinking phases): a draft token is accepted if it is among the target's
//! first `top_n` tokens and its probability is at least the largest minus `delta`. Not lossless.
//!
//! TensorRT-LLM relaxes in thinking phases only; `in_thinking_only` asks for the same here. Rows outside thinking are
//! then [strict](super::plan::Plan::strict): a draft token is accepted only if it is the one that a plain row would
//! draw, with that row's own number. Otherwise the plain row's token is emitted. So outside thinking the text is, token
//! for token, that of plain rows.
//!
//! The rule judges the processed distribution, after the whole chain of samplers. For greedy sequences it judges the
//! distribution at temperature 1 (see [`Relaxed::filters`]), because a greedy distribution has only one token. The
//! token after the accepted ones is drawn as in a plain row.

use super::weights::share;
use crate::params::Filters;
pub use crate::params::acceptance::Relaxed;

impl Relaxed {
    /// The filters of the judged distribution, for a row with these filters.
    #[must_use]
    pub fn filters(filters: Filters) -> Filters {
        Filters { temperature: if filters.temperature == 0.0 { 1.0 } else { filters.temperature }, ..filters }
    }

    /// How many of the first `top_n` tokens are accepted. `masses` are those of the judged distribution, in order. The
    /// first token that is too unlikely ends the search: those after it are no likelier, except for rounding.
    pub fn accepted(&self, masses: impl Iterator<Item = u64>, total: u64) -> usize {
        let mut masses = masses.take(self.top_n as usize).map(|mass| share(mass, total)).peekable();
        let most = masses.peek().copied().unwrap_or(0.0);
        masses.take_while(|&share| share > 0.0 && share >= most - f64::from(self.delta)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_just_so_likely_is_accepted() {
        let accepted =
            |top_n, delta| Relaxed { top_n, delta, ..Relaxed::default() }.accepted([4, 2, 2, 0].into_iter(), 8);
        // Shares 1/2, 1/4 and 1/4: tokens that are behind by at most delta. A token without a share is excluded, whatever delta is.
        assert_eq!([accepted(9, 0.25), accepted(9, 0.249), accepted(2, 0.25), accepted(9, 1.0)], [3, 1, 2, 3]);
    }
}
