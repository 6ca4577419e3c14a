//! How much work on a text has taken. Work that nobody has asked for stops far from the limits that would end the text.

use super::{MAX_BYTES, State};
use crate::grammar::compile::{MASK_FUEL, MASK_ITEMS, MAX_STATES};

/// Between two checks, work may take this fraction of what a mask may take: one in so many.
const AT_ONCE: usize = 10;
/// In all, work may take this fraction of the limits that end a text: one in so many.
const SHARE: usize = 4;

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

    /// Whether little was taken since `before`, and the text is far from its limits.
    pub(super) fn is_little(self, before: Self) -> bool {
        self.fuel.saturating_sub(before.fuel) < MASK_FUEL / AT_ONCE
            && self.items.saturating_sub(before.items) < MASK_ITEMS / AT_ONCE
            && self.states < MAX_STATES / SHARE
            && self.bytes < MAX_BYTES / SHARE
    }
}
