//! [Infill](crate::sampling::samplers::infill) on a list of candidates.

use super::Left;
use crate::backend::cpu::keys;
use crate::backend::cpu::passes::Values;
use crate::sampling::samplers::infill::{Infill, Stay};

impl Left<'_> {
    pub(super) fn infill(&mut self, known: &Infill<'_>) {
        let Values { tokens, logits, masses, .. } = &self.store.values;
        let keys = tokens.iter().zip(logits).map(|(&token, &logit)| keys::key(token, logit));
        let mut order: Vec<(u64, usize)> = keys.enumerate().map(|(at, key)| (key, at)).collect();
        order.sort_unstable();
        let candidates: Vec<(u32, u64)> = order.iter().map(|&(_, at)| (tokens[at], masses[at])).collect();
        match known.stay(&candidates) {
            Stay::These(stay) => {
                if stay.iter().filter(|&&stays| stays).count() < self.min_keep {
                    return;
                }
                let mut stays = vec![false; order.len()];
                order.iter().zip(stay).for_each(|(&(_, at), stay)| stays[at] = stay);
                self.retain(|_, at| stays[at]);
            }
            Stay::End => match self.store.end.filter(|_| self.min_keep <= 1) {
                Some(end) => {
                    self.store.values.clear();
                    self.store.values.tokens.push(end.token);
                    self.store.values.logits.push(end.logit);
                    self.store.plain = 1;
                }
                None => return,
            },
        }
        self.weigh();
    }
}
