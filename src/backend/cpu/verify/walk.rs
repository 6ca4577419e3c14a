//! Answers what the acceptance rules ask, from rows as they are.

use super::current_row::{self, CurrentRow, MAX_SUSPENDED_BYTES, SuspendedRow, Weighed};
use super::passes::Passes;
use super::proposed::{Cut, Proposed, read_from};
use super::residual::{Blocks, ResidualStore, RowResidual};
use crate::backend::cpu::ReadFrom;
use crate::backend::cpu::distribution::{Distribution, KeptBy, RaceLeader, Store, Wanted};
use crate::backend::cpu::keys;
use crate::backend::cpu::level::Level;
use crate::backend::cpu::passes::BLOCK;
use crate::backend::cpu::row::{Scratch, prepare};
use crate::backend::cpu::view::{View, ViewStore};
use crate::backend::{RowJob, VerifyJob};
use crate::params::state::SamplerState;
use crate::sampling::mass::MASS_ONE;
use crate::sampling::order::Candidate;
use crate::sampling::row::{Action, RowError, RowSpec};
use crate::sampling::watermark::race::Race;
use crate::speculative::positions::Positions;
use crate::speculative::relaxed::Relaxed;
use crate::speculative::rule::AcceptanceRule;
use crate::speculative::states::States;
use crate::speculative::typical;
use crate::speculative::weights::{ONE, OwnProbability, Weights, share};

/// A job's rows and draft tokens, and the position of the walk.
pub(super) struct Walk<'a> {
    level: Level,
    job: &'a VerifyJob<'a>,
    drafts: &'a [Proposed<'a>],
    maxima: &'a mut Vec<f32>,
    view: &'a mut ViewStore,
    store: &'a mut Store,
    other: &'a mut Store,
    keys: &'a mut Vec<u64>,
    left: &'a mut ResidualStore,
    read_from: ReadFrom,
    current: Option<CurrentRow>,
    /// Rows that the walk will come to again, set aside, with their bytes.
    suspended: Vec<(usize, SuspendedRow)>,
    /// How many bytes there is room for besides these.
    room_suspended: usize,
    states: States,
    /// Whether a watermark's key decides draws.
    raced: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        level: Level,
        job: &'a VerifyJob<'a>,
        drafts: &'a [Proposed<'a>],
        scratch: &'a mut Scratch,
    ) -> Self {
        let Scratch { maxima, view, processed, other, keys, left } = scratch;
        let (read_from, suspended, states) = (read_from(job), Vec::new(), States::new(job));
        let (store, current, room_suspended, raced) = (processed, None, MAX_SUSPENDED_BYTES, job.is_raced());
        Self {
            level,
            job,
            drafts,
            maxima,
            view,
            store,
            other,
            keys,
            left,
            read_from,
            current,
            suspended,
            room_suspended,
            states,
            raced,
        }
    }

    fn current(&self) -> &CurrentRow {
        self.current.as_ref().expect("a rule comes to a row first; this is a bug")
    }

    fn current_mut(&mut self) -> &mut CurrentRow {
        self.current.as_mut().expect("a rule comes to a row first; this is a bug")
    }

    fn view(&self) -> View<'_> {
        self.current().view(self.level, self.job, self.maxima, self.view)
    }

    /// The current position, whose target is not a list, and the store of its residuals.
    fn blocks(&mut self) -> (Blocks<'_>, &mut ResidualStore) {
        let current = self.current.as_ref().expect("a rule comes to a row first; this is a bug");
        let KeptBy { weigh, last_key, need } = current.target.kept_by();
        let last = Candidate { token: keys::token(last_key), logit: keys::logit(last_key) };
        let blocks = Blocks {
            passes: Passes::of(self.level),
            view: current.view(self.level, self.job, self.maxima, self.view),
            target: &current.target,
            sums: self.store.sums(),
            cut: Cut { last: (last_key != u64::MAX).then_some(last), weigh, need },
            drafts: self.drafts,
            left: current.left,
        };
        (blocks, self.left)
    }

    /// What is left beyond a draft token's distribution, if the target is a list.
    fn residual(&self, factor: f64, node: usize) -> Option<Weights> {
        let draft = &self.drafts[node];
        let [_, left] = self.current().list.as_ref()?;
        Some(left.residual(factor, draft.total, |token| draft.mass_of(token)))
    }

    /// The job for a row as it is prepared. For a draw, tokens that it cannot reach may be left out. But the ranks of
    /// rejected tokens, and relaxed acceptance, may depend on these tokens too, so then nothing may be left out.
    fn looked_at(&self, row: usize) -> RowJob<'a> {
        let RowJob { logits, spec } = self.job.rows[row];
        let is_drawn_from = !self.job.measure && !matches!(self.job.rule, AcceptanceRule::Relaxed(_));
        let action = if is_drawn_from { spec.action } else { Action::Score { token: 0 } };
        RowJob { logits, spec: RowSpec { action, ..spec } }
    }

    /// Leaves the current row. Block verification comes to rows again, and preparing a row is most of its cost.
    fn leave(&mut self) {
        let comes_again = self.job.rule == AcceptanceRule::Block && self.job.tree.is_chain();
        let Some(current) = self.current.take().filter(|current| comes_again && current.is_small()) else { return };
        let bytes = current.bytes(self.maxima, self.view, self.store);
        if bytes <= self.room_suspended {
            self.room_suspended -= bytes;
            self.suspended.push((bytes, SuspendedRow::new(current, self.maxima, self.view, self.store)));
        }
    }

    /// Takes back a row that was set aside.
    fn taken_back(&mut self, row: usize) -> Option<CurrentRow> {
        let at = self.suspended.iter().position(|(_, suspended)| suspended.current.row == row)?;
        let (bytes, suspended) = self.suspended.swap_remove(at);
        self.room_suspended += bytes;
        Some(suspended.back(self.maxima, self.view, self.store))
    }

    /// The sum of what is left beyond a draft token's distribution, if the target is not a list.
    fn weigh(&mut self, factor: f64, node: usize) -> u64 {
        match self.current().weighed {
            Some(weighed) if weighed.node == node && weighed.factor == factor => weighed.total,
            _ => {
                let (blocks, store) = self.blocks();
                let total = blocks.weigh(factor, node, false, store);
                self.current_mut().weighed = Some(Weighed { factor, node, total });
                total
            }
        }
    }
}

/// The winner of a race among the tokens of a list.
fn first_of(race: Race, target: &Weights) -> u32 {
    let mut leader = RaceLeader::new(race);
    leader.add_all(target.entries().iter().copied());
    leader.token()
}

impl Positions for Walk<'_> {
    fn token(&self, node: usize) -> u32 {
        self.drafts[node].token
    }

    fn ends(&self, node: usize) -> bool {
        self.job.ends[node]
    }

    fn is_certain(&self, node: usize) -> bool {
        self.raced || self.drafts[node].is_certain()
    }

    fn proposed(&self, node: usize) -> f64 {
        share(self.drafts[node].mass, self.drafts[node].total)
    }

    fn own_probability(&self, node: usize) -> OwnProbability {
        self.drafts[node].own_probability()
    }

    fn come_to(&mut self, row: usize) -> Result<(), RowError> {
        if self.current.as_ref().is_none_or(|current| current.row != row) {
            self.leave();
            let current = match self.taken_back(row) {
                Some(current) => current,
                None => {
                    let max = prepare(self.level, &self.looked_at(row), self.read_from, self.maxima, self.view)?;
                    let view = current_row::view(self.level, self.job, row, max, self.maxima, self.view);
                    let current = CurrentRow::new(row, max, &view, &self.states.spec(self.job, row), self.store);
                    self.states.learn(self.job, row, |token| current.observed(&view, token));
                    current
                }
            };
            self.current = Some(current);
        }
        self.current_mut().start();
        Ok(())
    }

    fn share(&mut self, token: u32) -> f64 {
        if let Some([_, left]) = &self.current().list {
            return left.share(token);
        }
        let (blocks, store) = self.blocks();
        share(blocks.mass_of(token, store), blocks.total())
    }

    fn draw(&mut self, uniform: u64) -> u32 {
        let race = self.job.rows[self.current().row].spec.race();
        if let Some([target, left]) = &self.current().list {
            let along = self.current().along.as_ref().filter(|_| !self.current().is_taken_from);
            return match (race, along) {
                (Some(race), _) => first_of(race, target),
                (None, Some(along)) => along.draw(uniform),
                (None, None) => left.draw(uniform),
            };
        }
        if race.is_none() && !matches!(self.current().left, RowResidual::Target) {
            let (blocks, store) = self.blocks();
            return blocks.draw(uniform, store);
        }
        let current = self.current.as_ref().expect("a rule comes to a row first; this is a bug");
        let view = current.view(self.level, self.job, self.maxima, self.view);
        current.target.draw_by(race, &view, uniform, self.store)
    }

    fn beyond(&mut self, factor: f64, node: usize) -> f64 {
        let total = match self.residual(factor, node) {
            Some(left) => left.total(),
            None => self.weigh(factor, node),
        };
        total as f64 / ONE
    }

    fn take(&mut self, factor: f64, node: usize) {
        if let Some(residual) = self.residual(factor, node) {
            let current = self.current_mut();
            if let Some([_, left]) = current.list.as_mut().filter(|_| residual.total() > 0) {
                (*left, current.is_taken_from) = (residual, true);
            }
            return;
        }
        let left = self.current().left;
        let left = match left {
            RowResidual::Target => RowResidual::Beyond { node, factor, total: self.weigh(factor, node) },
            RowResidual::Beyond { .. } => {
                let (blocks, store) = self.blocks();
                RowResidual::Dense { total: blocks.weigh(factor, node, true, store) }
            }
            // The weights now in the store would be lost, so this first checks that something remains.
            RowResidual::Dense { .. } if self.weigh(factor, node) == 0 => return,
            RowResidual::Dense { .. } => {
                let (blocks, store) = self.blocks();
                RowResidual::Dense { total: blocks.weigh(factor, node, true, store) }
            }
        };
        if matches!(left, RowResidual::Beyond { total, .. } | RowResidual::Dense { total } if total > 0) {
            self.left.take();
            let current = self.current_mut();
            (current.left, current.weighed) = (left, None);
        }
    }

    fn has_one(&mut self) -> bool {
        // The most likely token alone has this mass.
        self.current().target.total() == MASS_ONE
    }

    fn first(&mut self) -> u32 {
        self.current().target.first_token(&self.view(), self.store)
    }

    fn entropy(&mut self) -> f64 {
        let total = self.current().target.total();
        let weigh = self.current().target.kept_by().weigh;
        let exponent = |logit| crate::sampling::mass::exponent(logit, weigh.max, weigh.scale);
        if let Some(entropy) = self.current().target.entropy(self.store) {
            return entropy;
        }
        let (blocks, _) = self.blocks();
        let mut terms = 0;
        for (at, _) in blocks.sums.iter().enumerate().filter(|&(_, &sum)| sum > 0) {
            let (row, place) = blocks.view.place(at);
            terms += blocks.passes.entropy(&blocks.cut.block(row, place, at));
            blocks.cut.behind(row, place, at, |i| {
                let logit = row.get((place * BLOCK + i) as u32);
                let mass = crate::sampling::mass::mass(exponent(logit));
                terms -= if mass >= blocks.cut.need { typical::entropy_term(exponent(logit), mass) } else { 0 };
            });
        }
        typical::entropy(terms, total)
    }

    fn relaxed(&mut self, relaxed: &Relaxed) -> Result<Vec<u32>, RowError> {
        let current = self.current.as_ref().expect("a rule comes to a row first; this is a bug");
        let view = current.view(self.level, self.job, self.maxima, self.view);
        let spec = self.job.relaxed(current.row).spec.remembering(self.states.before(current.row));
        let judged = Distribution::processed(&view, &spec.filters, spec.chain.as_ref(), Wanted::All, self.other);
        let most = (relaxed.top_n as usize).min(view.vocab_size());
        let first = judged.first_masses(&view, most, self.keys, self.other);
        let accepted = relaxed.accepted(first.iter().map(|&(_, mass)| mass), judged.total());
        Ok(first[..accepted].iter().map(|&(token, _)| token).collect())
    }

    fn chance_of(&mut self, node: usize, tokens: &[u32]) -> f64 {
        let draft = &self.drafts[node];
        share(tokens.iter().map(|&token| draft.mass_of(token)).sum(), draft.total)
    }

    fn chance_from(&mut self, node: usize, least: f64) -> f64 {
        let draft = &self.drafts[node];
        let passes = |mass: u64, total: u64| mass > 0 && share(mass, total) >= least;
        let total = self.current().target.total();
        let mut sum = 0;
        if let Some([target, _]) = &self.current().list {
            let accepted = target.entries().iter().filter(|&&(_, mass)| passes(mass, total));
            sum = accepted.map(|&(token, _)| draft.mass_of(token)).sum();
        } else if let Some(list) = draft.list() {
            let (target, view) = (&self.current().target, self.view());
            let accepted = list.iter().filter(|&&(token, _)| passes(target.mass_of(token, view.value(token)), total));
            sum = accepted.map(|&(_, mass)| mass).sum();
        } else {
            let (blocks, _) = self.blocks();
            let (mut target, mut proposed) = ([0.0; BLOCK], [0.0; BLOCK]);
            for (at, _) in blocks.sums.iter().enumerate().filter(|&(_, &sum)| sum > 0) {
                blocks.target_reals(at, &mut target);
                draft.reals(at, blocks.passes, &mut proposed);
                let both = target.iter().zip(&proposed);
                sum += both.filter(|&(&t, _)| passes(t as u64, total)).map(|(_, &d)| d as u64).sum::<u64>();
            }
        }
        share(sum, draft.total)
    }

    fn rank(&mut self, token: u32) -> u32 {
        self.view().rank(token)
    }

    fn state_before(&self, row: usize) -> Option<SamplerState> {
        self.states.before(row)
    }

    fn state_after(&mut self, token: u32) -> Option<SamplerState> {
        let current = self.current();
        self.states.after(self.job, current.row, || current.observed(&self.view(), token))
    }
}
