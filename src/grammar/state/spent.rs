//! What work on a text has taken, for work that nobody may want: it stops far from the limits that would end its text.

use super::{MOST_BYTES, State};
use crate::grammar::compile::MOST_STATES;

/// Nothing is looked at ahead beyond this share of a limit, which is that of a text's own masks.
const SHARE: usize = 4;
/// Fuel of the lexer that looking ahead takes at once; a mask gets 200,000, for some 14 ms.
const MOST_FUEL: usize = 20_000;
/// Items of the grammar that it makes at once; a mask may make 50,000, in some 2.5 ms.
const MOST_ITEMS: usize = 5_000;

/// What an automaton has taken so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Spent {
    pub(super) fuel: usize,
    pub(super) items: usize,
    states: usize,
    bytes: usize,
}

impl Spent {
    pub(super) fn of(state: &State) -> Self {
        let lexer = state.parser.parser.lexer_stats();
        let items = state.parser.parser.stats().all_items;
        Self { fuel: lexer.total_fuel_spent, items, states: lexer.num_states, bytes: state.bytes() }
    }

    /// Whether it was little since `before`, and the text is far from its limits.
    pub(super) fn is_little(self, before: Self) -> bool {
        self.fuel.saturating_sub(before.fuel) < MOST_FUEL
            && self.items.saturating_sub(before.items) < MOST_ITEMS
            && self.states < MOST_STATES / SHARE
            && self.bytes < MOST_BYTES / SHARE
    }
}
