//! Top-p as in ExLlamaV3, where the token that crosses goes.

use super::{BLOCK, Distribution, Kind, Store, Weigh, keys};
use crate::backend::cpu::view::View;
use crate::sampling::mass::{above_need, top_p_need};
use std::cell::Cell;

impl Distribution {
    /// The longest prefix with at most this share of the mass, and at least one token.
    pub(in crate::backend::cpu) fn within(view: &View<'_>, weigh: Weigh, top_p: f32, store: &mut Store) -> Self {
        let all = Cell::new(0);
        let asked = |total| {
            all.set(total);
            top_p_need(top_p, total)
        };
        let nucleus = Self::all(weigh).prefix(view, (f64::from(top_p), asked), 0, store);
        if nucleus.total < above_need(top_p, all.get()) { nucleus } else { nucleus.without_last(store) }
    }

    /// Without the last token of a prefix that has no other limit, unless it is the only one.
    fn without_last(self, store: &mut Store) -> Self {
        let mass = self.mass(keys::logit(self.last_key));
        // What precedes the last token of a prefix has a mass, since that has one.
        if mass == self.total {
            return self;
        }
        match self.kind {
            Kind::List => store.truncate(store.keys.len() - 1),
            _ => store.sums[keys::token(self.last_key) as usize / BLOCK] -= mass,
        }
        // All keys before it, those of a larger logit too.
        Self { last_key: self.last_key - 1, total: self.total - mass, ..self }
    }
}
