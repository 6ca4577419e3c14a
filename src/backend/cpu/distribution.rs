//! The distribution that a row's token is drawn from: temperature and the filters, each by the cheapest exact
//! algorithm.
//!
//! | filters | algorithm |
//! |---|---|
//! | temperature 0 | the first token of the order |
//! | top-k up to [`LIST_K`] | the k first tokens as a list; the other filters work on the list |
//! | top-p | the list of the largest blocks if it reaches p of the total mass, else a search |
//! | larger top-k | a search by count, then as min-p |
//! | min-p | masses by block, of a list of the tokens that may reach it if these are few |
//! | none | masses by block |
//! | a chain of samplers | a list, step by step: [`chain`] |

mod known;
mod race;
mod reach;
mod store;

pub(super) use known::KeptBy;
pub(super) use race::RaceLeader;
pub(super) use reach::{least_reaching, reach_of};

use super::chain::{self, ChainStore, Chained, Outcome};
use super::keys;
use super::passes::{BLOCK, Keep, Range, Sample, Weigh, blocks};
use super::search::{self, Anchor, Guess, PrefixGoal, SearchStore};
use super::select;
use super::simd::sums::BLOCKS_PER_LOT;
use super::view::View;
use crate::sampling::chain::Chain;
use crate::sampling::mass::{self, MASS_ONE, min_p_need, top_p_need};
use crate::sampling::row::Filters;

/// Largest top-k that is kept as a list.
pub(super) const LIST_K: usize = 1024;
/// The list that top-p tries first holds the tokens at or above the maximum of this many blocks.
const TOP_P_BLOCKS: usize = 64;
/// Longer lists are not tried: a search is faster than sorting them.
const TOP_P_LIST: usize = 2048;

/// If more than one token in this many is kept, all are weighed; if fewer, these are listed first.
const LIST_SHARE: usize = 8;

/// Storage of a distribution's lists, kept from row to row.
#[derive(Debug, Default)]
pub(super) struct Store {
    /// Kept tokens of a list in order.
    keys: Vec<u64>,
    /// Their masses.
    masses: Vec<u64>,
    logits: Vec<f32>,
    /// Kept mass by block.
    sums: Vec<u64>,
    search: SearchStore,
    pub(super) chain: ChainStore,
}

/// The tokens that are left, and how they are weighed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Distribution {
    weigh: Weigh,
    /// Tokens with a larger key are cut off.
    last_key: u64,
    /// Tokens with a smaller mass are cut off.
    need: u64,
    total: u64,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Greedy.
    One,
    /// `Store::keys` and `masses` are all that is left.
    List,
    /// `Store::sums` is the kept mass by block.
    Blocks,
    /// `Store::sums` is the mass of each lot of blocks. All tokens are left, and only a draw is wanted.
    Lots,
    /// `Store::chain` holds all that is left.
    Chain,
    /// `Store::sums` is the mass by block of the row as a chain reshaped it, and only a draw is wanted.
    Shaped,
}

/// What a distribution is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A token is drawn by this uniform number, and its mass may be asked for.
    Token(u64),
    /// Anything.
    All,
}

impl Distribution {
    /// All tokens at a temperature. Raw logprobs use 1.
    pub(super) fn tempered(view: &View<'_>, temperature: f32) -> Self {
        let weigh = Weigh { max: view.max, scale: mass::scale(temperature) };
        Self { weigh, last_key: u64::MAX, need: 0, total: view.total(weigh), kind: Kind::Blocks }
    }

    /// Every token. The total is not computed yet.
    pub(super) fn all(weigh: Weigh) -> Self {
        Self { weigh, last_key: u64::MAX, need: 0, total: 0, kind: Kind::Blocks }
    }

    /// A single token, the only one that is left.
    pub(super) fn one(view: &View<'_>, token: u32) -> Self {
        let last_key = keys::key(token, view.value(token));
        let weigh = Weigh { max: view.max, scale: 1.0 };
        Self { weigh, last_key, need: 0, total: MASS_ONE, kind: Kind::One }
    }

    /// The distribution after temperature and filters.
    pub(super) fn processed(
        view: &View<'_>,
        filters: &Filters,
        chain: Option<&Chain<'_>>,
        wanted: Wanted,
        store: &mut Store,
    ) -> Self {
        let one = Weigh { max: view.max, scale: 1.0 };
        if filters.temperature == 0.0 {
            return Self::one(view, select::first(view));
        }
        if let Some(chain) = chain {
            return match chain::run(view, filters, chain, wanted, store) {
                Outcome::Whole(whole) => whole,
                Outcome::Shaped(total) => Self { total, kind: Kind::Shaped, ..Self::all(one) },
                Outcome::Listed(Chained { weigh, total }) => Self { total, kind: Kind::Chain, ..Self::all(weigh) },
            };
        }
        let weigh = Weigh { scale: mass::scale(filters.temperature), ..one };
        let need = if filters.min_p > 0.0 { min_p_need(filters.min_p) } else { 0 };
        let all = Self::all(weigh);
        let top_k = if (filters.top_k as usize) < view.vocab_size() { filters.top_k as usize } else { 0 };
        if let Some(top) = top_kept(filters, view.vocab_size()) {
            select::top(view, top, &mut store.keys);
            store.weigh_keys(view, weigh);
            let total = store.masses.iter().sum();
            return all.list((filters.top_p < 1.0).then(|| top_p_need(filters.top_p, total)), need, store);
        }
        let all = if top_k > 0 { all.first(top_k, view, store) } else { all };
        if filters.top_p < 1.0 {
            all.top_p(view, filters.top_p, need, store)
        } else {
            all.keep_for(wanted, view, need, store)
        }
    }

    /// The smallest prefix with this share of the mass.
    pub(super) fn nucleus(view: &View<'_>, weigh: Weigh, top_p: f32, store: &mut Store) -> Self {
        Self::all(weigh).top_p(view, top_p, 0, store)
    }

    /// Whether the tokens that are left are in the store of a chain.
    pub(super) fn is_chain(&self) -> bool {
        self.kind == Kind::Chain
    }

    /// Whether the tokens that are left are known by sums over the row's blocks.
    pub(super) fn is_whole(&self) -> bool {
        self.kind == Kind::Blocks
    }

    /// The tokens that are left, with other weights. For a distribution without a least mass.
    pub(super) fn weighed(self, view: &View<'_>, weigh: Weigh, store: &mut Store) -> Self {
        if self.weigh == weigh { self } else { Self { weigh, ..self }.keep(view, 0, store) }
    }

    /// The tokens that are left up to a key. The total is not computed yet.
    pub(super) fn up_to(self, last_key: u64) -> Self {
        Self { last_key, ..self }
    }

    /// The first `n` tokens and those with the same logit as the last of them. The total is not computed yet.
    pub(super) fn first_and_ties(self, n: usize, view: &View<'_>, store: &mut Store) -> Self {
        let first = self.first(n, view, store);
        if first.last_key == u64::MAX { first } else { first.down_to(keys::logit(first.last_key)) }
    }

    /// The tokens with at least this logit. The total is not computed yet.
    pub(super) fn down_to(self, least: f32) -> Self {
        Self { last_key: keys::key(u32::MAX, least), ..self }
    }

    /// Filters the list in the store, which is the whole distribution: the smallest prefix of mass `reach`, if there is
    /// one, then min-p.
    fn list(self, reach: Option<u64>, need: u64, store: &mut Store) -> Self {
        if let Some(reach) = reach {
            let kept = store.reaching(reach).map_or(store.keys.len(), |at| at + 1);
            store.truncate(kept);
        }
        let last_key = store.keys.last().copied().unwrap_or(u64::MAX);
        if need > 0 {
            store.retain(need);
        }
        Self { last_key, need, total: store.masses.iter().sum(), kind: Kind::List, ..self }
    }

    /// Top-k that is too large for a list. Finds the cut, and weighs nothing yet.
    pub(super) fn first(self, top_k: usize, view: &View<'_>, store: &mut Store) -> Self {
        let goal = PrefixGoal { count: true, need: top_k as u64 };
        let guess = Guess::new(view, self.weigh, true, Anchor::TOP, &mut store.search.sample);
        let logit = guess.logit(&store.search.sample, top_k as f64);
        let at = search::weighed(view, &guess, logit, &mut store.search);
        let last_key = search::crossing(view, &guess, goal, at, &mut store.search).unwrap_or(u64::MAX);
        Self { last_key, ..self }
    }

    /// Top-p over many tokens, then min-p.
    fn top_p(self, view: &View<'_>, top_p: f32, need: u64, store: &mut Store) -> Self {
        self.prefix(view, f64::from(top_p), |total| top_p_need(top_p, total), need, store)
    }

    /// The token with which the mass of all tokens up to it exceeds a point. The point is about this share of the
    /// total.
    pub(super) fn along(self, view: &View<'_>, share: f64, point: impl Fn(u64) -> u64, store: &mut Store) -> Self {
        let prefix = self.prefix(view, share, |total| point(total) + 1, 0, store);
        Self { kind: Kind::One, total: MASS_ONE, ..prefix }
    }

    /// The smallest prefix with the mass that `asked` computes from the total, which is about this share of it; then
    /// min-p.
    fn prefix(self, view: &View<'_>, share: f64, asked: impl Fn(u64) -> u64, need: u64, store: &mut Store) -> Self {
        let known = (self.last_key != u64::MAX).then(|| self.keep(view, 0, store).total);
        let from = store.list_largest(view, self.weigh);
        let guess = Guess::new(view, self.weigh, false, from, &mut store.search.sample);
        let about = share * guess.total();
        // The total and, if a search will follow, at the same time what lies above its first guess.
        let mut at = None;
        let total = if let Some(known) = known {
            known
        } else if about <= from.weight as f64 {
            view.total(self.weigh)
        } else {
            let logit = guess.logit(&store.search.sample, about);
            let split = view.split(self.weigh, logit, &mut store.search.sums);
            at = Some(Anchor { logit, weight: split.above });
            split.total
        };
        let reach = asked(total);
        if store.reaching(reach).is_some() {
            return self.list(Some(reach), need, store);
        }
        // Share 0 still keeps the first token.
        let goal = PrefixGoal { count: false, need: reach.max(1) };
        let at = at.unwrap_or_else(|| {
            let logit = guess.logit(&store.search.sample, goal.need as f64);
            search::weighed(view, &guess, logit, &mut store.search)
        });
        let cut = search::crossing(view, &guess, goal, at, &mut store.search);
        let last_key = cut.expect("the total reaches every share of itself; this is a bug");
        let cut = Self { last_key, ..self };
        if need > 0 {
            return cut.keep(view, need, store);
        }
        std::mem::swap(&mut store.sums, &mut store.search.sums);
        Self { total: store.sums.iter().sum(), ..cut }
    }

    /// Adds up what is left, as the purpose requires.
    pub(super) fn keep_for(self, wanted: Wanted, view: &View<'_>, need: u64, store: &mut Store) -> Self {
        match wanted {
            Wanted::Token(_) if self.last_key == u64::MAX && need == 0 => {
                Self { total: view.lot_sums(self.weigh, &mut store.sums), kind: Kind::Lots, ..self }
            }
            _ => self.keep(view, need, store),
        }
    }

    /// Kept mass by block: tokens up to the cut with a mass of at least `need`.
    pub(super) fn keep(self, view: &View<'_>, need: u64, store: &mut Store) -> Self {
        let kept = Self { need, ..self };
        if self.last_key == u64::MAX && need == 0 {
            return Self { total: view.sums(self.weigh, &mut store.sums), ..kept };
        }
        let (reach, all, kept_key) =
            (reach_of(self.weigh, need), self.last_key == u64::MAX, keys::up_to(self.last_key));
        // Whether comparing logits is enough: all tokens that are equal to the cut are left, or there is no cut.
        let is_between_logits = keys::token(self.last_key) == u32::MAX;
        let bound = if all { reach } else { keys::logit(self.last_key).max(reach) };
        let wanted = |token, logit, mass| (mass >= need) & kept_key(token, logit);
        let range = Range { low: bound.max(f32::MIN), high: f32::INFINITY };
        let inside = &mut store.search.inside;
        let keep = Keep { above: range.low, need };
        if self.is_rare(view, bound, &mut store.search.sample) {
            // Where few blocks have them, there is little to list.
            if is_between_logits && !reached_by_few(view, bound) {
                return Self { total: view.packed_sums(self.weigh, keep, inside, &mut store.sums), ..kept };
            }
            view.between(false, self.weigh, range, inside);
            inside.by_block(view.blocks(), &mut store.sums, wanted);
            return Self { total: store.sums.iter().sum(), ..kept };
        }
        let above = if is_between_logits && !all { bound.next_down() } else { bound };
        let mut total = view.kept_sums(self.weigh, Keep { above, ..keep }, &mut store.sums);
        if !is_between_logits {
            // Comparing logits cannot separate tokens that are equal to the cut.
            let ties = Range { high: search::next_up(bound), ..range };
            view.between(false, self.weigh, ties, inside);
            inside.by_block(view.blocks(), &mut store.search.sums, wanted);
            store.sums.iter_mut().zip(&store.search.sums).for_each(|(sum, ties)| *sum += ties);
            total = store.sums.iter().sum();
        }
        Self { total, ..kept }
    }

    /// Whether so few tokens reach `bound` that listing them is faster than weighing everything. An estimate.
    pub(super) fn is_rare(&self, view: &View<'_>, bound: f32, sample: &mut Sample) -> bool {
        if reached_by_few(view, bound) {
            return true;
        }
        view.sample(self.weigh, f32::INFINITY, sample);
        view.passes().count_ge(&sample.logits, bound) * LIST_SHARE < sample.taken
    }

    fn mass(&self, logit: f32) -> u64 {
        mass::mass(mass::exponent(logit, self.weigh.max, self.weigh.scale))
    }

    /// Whether a token is left.
    fn keeps(&self, token: u32, logit: f32) -> bool {
        logit > f32::NEG_INFINITY
            && keys::key(token, logit) <= self.last_key
            && (self.need == 0 || self.mass(logit) >= self.need)
    }

    fn retain_kept(&self, keys: &mut Vec<u64>) {
        keys.retain(|&key| self.keeps(keys::token(key), keys::logit(key)));
    }

    /// Inverse CDF in token-id order.
    pub(super) fn draw(&self, view: &View<'_>, uniform: u64, store: &mut Store) -> u32 {
        let point = mass::draw_point(uniform, self.total);
        match self.kind {
            Kind::One => keys::token(self.last_key),
            Kind::List => store.draw(point),
            Kind::Blocks => self.draw_from_blocks(view, point, 1, store),
            Kind::Lots => self.draw_from_blocks(view, point, BLOCKS_PER_LOT, store),
            Kind::Chain => store.chain.draw(uniform, point),
            Kind::Shaped => store.chain.shaped().draw(view, point, &store.sums),
        }
    }

    /// Draws from sums of `each` blocks.
    fn draw_from_blocks(&self, view: &View<'_>, mut point: u64, each: usize, store: &Store) -> u32 {
        let at = store.sums.iter().position(|&sum| {
            let here = point < sum;
            point -= if here { 0 } else { sum };
            here
        });
        let first = at.expect("the point is below the total; this is a bug") * each;
        for block in first..view.blocks().min(first + each) {
            let values = view.block(block);
            let mut masses = [0; BLOCK];
            view.passes().masses(&values, self.weigh, &mut masses);
            let sum = masses.iter().sum();
            if each > 1 && point >= sum {
                point -= sum;
                continue;
            }
            for (i, (&logit, &mass)) in values.iter().zip(&masses).enumerate() {
                let token = (block * BLOCK + i) as u32;
                if mass >= self.need && keys::key(token, logit) <= self.last_key {
                    if point < mass {
                        return token;
                    }
                    point -= mass;
                }
            }
        }
        unreachable!("the blocks' kept masses sum to their sum")
    }
}

/// Whether most blocks have no value that reaches `bound`.
pub(super) fn reached_by_few(view: &View<'_>, bound: f32) -> bool {
    view.passes().count_ge(view.maxima, bound) * 2 < view.blocks()
}

/// How many of the first tokens are all that these filters look at; `None` if they look at more. For rows without a
/// chain.
pub(super) fn top_kept(filters: &Filters, vocab_size: usize) -> Option<usize> {
    let top_k = if filters.temperature == 0.0 { 1 } else { filters.top_k as usize };
    (top_k > 0 && top_k < vocab_size && top_k <= LIST_K.min(blocks(vocab_size))).then_some(top_k)
}
