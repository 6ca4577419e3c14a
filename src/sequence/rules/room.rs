//! How much memory rules take.

use super::Rules;
use crate::permits::{Counter, Permit};
use crate::sampling::adjust::TokenAdjust;
use crate::sampling::watermark::tournament::Table;
use crate::sequence::history::HistoryView;
use std::sync::Arc;

impl Rules {
    /// The same rules with room taken for them, which is given back when they are dropped; `None` if there is too
    /// little.
    #[must_use]
    pub fn charged(mut self, counter: &Arc<Counter>) -> Option<Arc<Self>> {
        self.room = Some(counter.take(self.bytes())?);
        Some(Arc::new(self))
    }

    /// The room taken for these rules and for those they are based on.
    #[must_use]
    pub fn held(&self) -> usize {
        let own = self.room.as_ref().map_or(0, Permit::amount);
        own + self.base.as_ref().map_or(0, |base| base.held())
    }

    /// How many entries of biases, bans and penalties the row has that stands here.
    pub(in crate::sequence) fn entries(&self, here: HistoryView<'_>) -> usize {
        let nudges = here.now().map_or(0, |now| now.nudges().len());
        self.adjusts(here).len() + nudges + here.banned().len()
    }

    /// Bytes they take, without those of the base.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let adjusts = self.fixed.as_ref().map_or(0, Vec::capacity) * size_of::<TokenAdjust>();
        let lists = [self.allowed.as_ref(), self.eos.as_ref()];
        let tokens: usize = lists.into_iter().flatten().map(Vec::capacity).sum();
        let tokens = tokens + self.ends.len();
        let chain = self.chain.as_ref().map_or(0, |chain| chain.bytes());
        let is_own = |own: &&Arc<Table>| {
            self.base.as_ref().and_then(|base| base.table.as_ref()).is_none_or(|base| !Arc::ptr_eq(base, own))
        };
        let table = self.table.as_ref().filter(is_own).map_or(0, Table::bytes);
        let patterns = self.patterns.as_ref().map_or(0, |patterns| patterns.bytes());
        let grammar = self.grammar.as_ref().map_or(0, |grammar| grammar.bytes());
        size_of::<Self>()
            + grammar
            + self.params.bytes()
            + adjusts
            + chain
            + table
            + patterns
            + tokens * size_of::<u32>()
    }
}
