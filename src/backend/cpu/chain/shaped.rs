//! What a chain makes of a row without a list: masses by a rule, with exceptions for a few tokens. Only for draws:
//! whatever else may be asked of a distribution needs the list.

use super::ChainStore;
use super::after::After;
use super::listing::WholeRow;
use crate::backend::cpu::distribution::Store;
use crate::backend::cpu::keys;
use crate::backend::cpu::passes::{BLOCK, MAX_Y, Range, Shape, Weigh};
use crate::backend::cpu::view::View;
use crate::sampling::mass;
use crate::sampling::observed::Share;
use crate::sampling::samplers::adaptive_p;
use crate::sampling::samplers::smoothing::Curve;

/// At most this many tokens may be exceptions to the rule. If there are more, all tokens are listed.
const MAX_PATCHED: usize = 32;

/// A row whose tokens are weighed by a rule.
#[derive(Debug)]
pub(in crate::backend::cpu) struct Shaped {
    rule: Rule,
    /// Tokens with another mass than the rule's; ascending.
    patches: Vec<(u32, u64)>,
}

/// How a logit becomes its exponent.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rule {
    Plain(Weigh),
    Shape(Shape),
    Adapted(Adapted),
    Typical(Typical),
}

/// What typical sampling leaves of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Typical {
    pub(super) weigh: Weigh,
    /// Logits that are left, whatever the token.
    pub(super) inside: Range,
    /// Logits at both ends of that, which deviate as much as the last one: their tokens are left up to a key.
    pub(super) ties: [Range; 2],
    pub(super) last: u64,
}

impl Typical {
    /// Whether a token is left.
    pub(super) fn keeps(&self, token: u32, logit: f32) -> bool {
        let within = |range: Range| (range.low..range.high).contains(&logit);
        within(self.inside) || self.ties.into_iter().any(within) && keys::key(token, logit) <= self.last
    }
}

/// What adaptive-p makes of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Adapted {
    /// How the row was weighed before, and its total mass.
    pub(super) before: (Weigh, u64),
    /// The adapted target.
    pub(super) target: f64,
    /// How new logits are weighed.
    pub(super) weigh: Weigh,
}

impl Adapted {
    /// The mass that a logit had before.
    fn mass_before(&self, logit: f32) -> u64 {
        let (Weigh { max, scale }, _) = self.before;
        mass::mass(mass::exponent(logit, max, scale))
    }

    fn exponent(&self, logit: f32) -> f32 {
        if logit == f32::NEG_INFINITY {
            return logit;
        }
        let new = adaptive_p::curve(self.target, self.before.1)(self.mass_before(logit));
        mass::exponent(new, self.weigh.max, self.weigh.scale)
    }
}

impl Rule {
    /// The mass of a token with this logit.
    fn mass_of(&self, token: u32, logit: f32) -> u64 {
        match self {
            Self::Typical(typical) if !typical.keeps(token, logit) => 0,
            _ => self.mass(logit),
        }
    }

    /// The mass of a logit, even of one above the logit that masses are relative to.
    fn mass(&self, logit: f32) -> u64 {
        mass::mass(self.exponent(logit))
    }

    fn exponent(&self, logit: f32) -> f32 {
        match self {
            Self::Plain(weigh) => mass::exponent(logit, weigh.max, weigh.scale),
            Self::Shape(shape) => shape.exponent(logit),
            Self::Adapted(adapted) => adapted.exponent(logit),
            Self::Typical(Typical { weigh, .. }) => mass::exponent(logit, weigh.max, weigh.scale),
        }
    }

    fn sums(&self, view: &View<'_>, sums: &mut Vec<u64>) -> u64 {
        match *self {
            Self::Plain(weigh) => view.sums(weigh, sums),
            Self::Shape(shape) => view.shaped_sums(shape, sums),
            Self::Adapted(_) | Self::Typical(_) => unreachable!("its sums are made beside it; this is a bug"),
        }
    }
}

impl Default for Shaped {
    fn default() -> Self {
        Self { rule: Rule::Plain(Weigh { max: 0.0, scale: 1.0 }), patches: vec![] }
    }
}

impl Shaped {
    /// The mass of a token with this logit.
    pub(in crate::backend::cpu) fn mass_of(&self, token: u32, logit: f32) -> u64 {
        match self.patches.binary_search_by_key(&token, |patch| patch.0) {
            Ok(at) => self.patches[at].1,
            Err(_) => self.rule.mass_of(token, logit),
        }
    }

    /// A token's share of the distribution that adaptive-p saw, if it was on.
    pub(in crate::backend::cpu) fn seen(&self, logit: f32) -> Option<Share> {
        match self.rule {
            Rule::Adapted(adapted) => Some(Share { mass: adapted.mass_before(logit), total: adapted.before.1 }),
            Rule::Plain(_) | Rule::Shape(_) | Rule::Typical(_) => None,
        }
    }

    /// A row after typical sampling.
    pub(super) fn typical(typical: Typical) -> Self {
        Self { rule: Rule::Typical(typical), patches: vec![] }
    }

    /// A row after adaptive-p.
    pub(super) fn adapted(adapted: Adapted) -> Self {
        Self { rule: Rule::Adapted(adapted), patches: vec![] }
    }

    /// Inverse CDF in token-id order, by the mass of each block.
    pub(in crate::backend::cpu) fn draw(&self, view: &View<'_>, mut point: u64, sums: &[u64]) -> u32 {
        let block = sums.iter().position(|&sum| {
            let here = point < sum;
            point -= if here { 0 } else { sum };
            here
        });
        let block = block.expect("the point is below the total; this is a bug");
        let mut tokens = ((block * BLOCK) as u32..).zip(view.block(block));
        let drawn = tokens.find(|&(token, logit)| {
            let mass = self.mass_of(token, logit);
            let here = point < mass;
            point -= if here { 0 } else { mass };
            here
        });
        drawn.expect("the block's masses sum to its sum; this is a bug").0
    }
}

impl WholeRow<'_, '_> {
    /// Weighs every token by a shape, at the current temperature. Returns the total mass.
    pub(super) fn shaped(&self, shape: Shape, lists: &mut Store, store: &mut ChainStore) -> u64 {
        self.shape_by(Rule::Shape(Shape { scale: self.weigh.scale, ..shape }), vec![], lists, store)
    }

    /// The shape of logits, with or without a curve, at the temperature so far, which then has been used up.
    pub(super) fn reshaped(&mut self, curve: Option<Curve>) -> Shape {
        let (max, per_temperature) = (self.view.max, (1.0 / self.temperature) as f32);
        let shape = Shape { max, per_temperature, curve, top: 0.0, scale: mass::scale(1.0) };
        (self.temperature, self.weigh.scale) = (1.0, shape.scale);
        Shape { top: shape.logit(max), ..shape }
    }

    /// XTC that removes these few tokens, and the temperatures that follow. The list holds the largest token that
    /// stays. Returns the total mass; `None`: all tokens have to be listed.
    pub(super) fn without(
        &mut self,
        out: &[u32],
        after: &After<'_>,
        lists: &mut Store,
        store: &mut ChainStore,
    ) -> Option<u64> {
        let before = (self.temperature, self.weigh.scale);
        self.cool_by(after);
        let listed = store.values.tokens.iter().zip(&store.values.logits);
        let left = listed.filter(|(token, _)| out.binary_search(token).is_err()).map(|(_, &logit)| logit);
        let rule = Rule::Plain(Weigh { max: left.fold(f32::NEG_INFINITY, f32::max), ..self.weigh });
        if !self.may_patch(rule, out) {
            (self.temperature, self.weigh.scale) = before;
            return None;
        }
        let patches = out.iter().map(|&token| (token, 0)).collect();
        Some(self.shape_by(rule, patches, lists, store))
    }

    /// XTC's expected form that lowers these few tokens, and the temperatures that follow. Returns the total mass;
    /// `None`: all tokens have to be listed.
    pub(super) fn with_less(
        &mut self,
        lowered: f32,
        out: &[u32],
        after: &After<'_>,
        lists: &mut Store,
        store: &mut ChainStore,
    ) -> Option<u64> {
        let before = (self.temperature, self.weigh.scale);
        let shape = self.reshaped(None);
        self.cool_by(after);
        let new = |(&token, &logit): (&u32, &f32)| {
            let (is_out, logit) = (out.binary_search(&token).is_ok(), shape.logit(logit));
            (token, if is_out { logit + lowered } else { logit }, is_out)
        };
        let listed: Vec<(u32, f32, bool)> = store.values.tokens.iter().zip(&store.values.logits).map(new).collect();
        let top = listed.iter().map(|&(_, logit, _)| logit).fold(f32::NEG_INFINITY, f32::max);
        let shape = Shape { top, scale: self.weigh.scale, ..shape };
        if !self.may_patch(Rule::Shape(shape), out) {
            (self.temperature, self.weigh.scale) = before;
            return None;
        }
        let lowered = listed.iter().filter(|&&(.., is_out)| is_out);
        let mass = |logit| mass::mass(mass::exponent(logit, top, shape.scale));
        let mut patches: Vec<(u32, u64)> = lowered.map(|&(token, logit, _)| (token, mass(logit))).collect();
        patches.sort_unstable();
        Some(self.shape_by(Rule::Shape(shape), patches, lists, store))
    }

    /// Whether there are few of these tokens, and the rule gives them no mass that is too large for the sums of blocks.
    fn may_patch(&self, rule: Rule, tokens: &[u32]) -> bool {
        tokens.len() <= MAX_PATCHED && rule.exponent(self.view.max) <= MAX_Y
    }

    /// Weighs the row by a rule with exceptions. Returns the total mass.
    fn shape_by(&self, rule: Rule, patches: Vec<(u32, u64)>, lists: &mut Store, store: &mut ChainStore) -> u64 {
        let mut sums = lists.take_sums();
        let mut total = rule.sums(self.view, &mut sums);
        for &(token, mass) in &patches {
            let unpatched = rule.mass(self.view.value(token));
            let sum = &mut sums[token as usize / BLOCK];
            *sum = *sum - unpatched + mass;
            total = total - unpatched + mass;
        }
        lists.give_sums(sums);
        store.shaped = Shaped { rule, patches };
        total
    }

    /// A logit below which no token has a mass on this curve.
    pub(super) fn reach_on(&self, curve: Curve) -> f32 {
        let (max, per_temperature) = (self.view.max, (1.0 / self.temperature) as f32);
        let shape = Shape { max, per_temperature, curve: Some(curve), top: 0.0, scale: mass::scale(1.0) };
        // The least float whose exponent may have a mass. There is one, because the curve never falls.
        keys::least(max, |logit| shape.exponent(logit) >= mass::Y_FLOOR)
    }
}
