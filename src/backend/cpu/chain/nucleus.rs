//! Top-p before filters that look at no total. Top-p keeps a prefix of the order, and so do these filters: the shorter
//! prefix is left, whichever comes first. So the filters cut first, and the nucleus, which is most of a flat row, is
//! looked for in what they leave.

use super::after::is_idle;
use super::listing::{RowOperation, WholeRow};
use super::{CandidateList, ChainStore};
use crate::backend::cpu::distribution::least_reaching;
use crate::backend::cpu::passes::Weigh;
use crate::sampling::chain::{Chain, ChainStep};
use crate::sampling::mass::{min_p_above, min_p_need, top_p_need};
use crate::sampling::row::Filters;
use crate::sampling::samplers::cutoffs::Masses;

impl WholeRow<'_, '_> {
    /// Lists what top-p and such filters after it leave. Returns the weights, and the steps after these filters. `None`
    /// where there are no such filters, or where their list would hold all candidates.
    pub(super) fn nucleus_within<'c>(
        &mut self,
        behind: &'c [ChainStep],
        filters: &Filters,
        chain: &Chain<'_>,
        store: &mut ChainStore,
    ) -> Option<(Weigh, &'c [ChainStep])> {
        let least = |step: &ChainStep| match step {
            ChainStep::MinP => Some(min_p_need(filters.min_p)),
            ChainStep::MinPAbove => Some(min_p_above(filters.min_p)),
            _ => None,
        };
        let passes = |step: &&ChainStep| {
            matches!(step, ChainStep::TopK | ChainStep::TopKTies)
                || least(step).is_some()
                || is_idle(step, filters, chain)
        };
        let (cuts, rest) = behind.split_at(behind.iter().take_while(passes).count());
        let mut cuts = cuts.iter().filter(|step| !is_idle(step, filters, chain));
        for need in cuts.clone().filter_map(least) {
            // Only if there is such a logit does a least mass keep a prefix.
            least_reaching(self.weigh, need)?;
        }
        let RowOperation::Cut(cut) = self.operation(cuts.next()?, filters, chain) else { return None };
        let weigh = self.cut(cut, store)?;
        let mut left = CandidateList { weigh, ..self.left(store) };
        cuts.for_each(|step| left.apply(step, filters, chain));
        left.keep_prefix(top_p_need(filters.top_p, self.total()));
        Some((left.weigh, rest))
    }
}
