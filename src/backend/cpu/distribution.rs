//! What a row's token is drawn from: temperature and the filters, each by the cheapest exact road.
//!
//! | filters | road |
//! |---|---|
//! | temperature 0 | the first token of the order |
//! | top-k up to [`LIST_K`] | the k first tokens as a list; the other filters work on the list |
//! | top-p | the list of the largest blocks if it reaches p of the total mass, else a search |
//! | larger top-k | a search by count, then as min-p |
//! | min-p | masses by block, of a list of the tokens that may reach it if these are few |
//! | none | masses by block |

use super::keys;
use super::passes::{BLOCK, Keep, PAD, Range, Sample, Weigh};
use super::search::{self, Anchor, Goal, Guess, SearchStore};
use super::select;
use super::view::View;
use crate::sampling::mass::{self, MASS_ONE, min_p_need, top_p_need};
use crate::sampling::row::{Filters, LogprobsSpec, TokenLogprobs};

/// Largest top-k that is kept as a list.
const LIST_K: usize = 1024;
/// The list that top-p tries first holds the tokens at or above the maximum of this many blocks.
const TOP_P_BLOCKS: usize = 64;
/// ... unless that are more tokens than this, which a search finds faster than a sort.
const TOP_P_LIST: usize = 2048;

/// With more than one token in this many kept, all are weighed; fewer are listed first.
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
}

/// The tokens that are left and how they are weighed.
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
}

impl Distribution {
    /// All tokens at temperature 1: what raw logprobs are taken from.
    pub(super) fn raw(view: &View<'_>) -> Self {
        let weigh = Weigh { max: view.max, scale: mass::scale(1.0) };
        Self { weigh, last_key: u64::MAX, need: 0, total: view.total(weigh), kind: Kind::Blocks }
    }

    /// After temperature and filters.
    pub(super) fn processed(view: &View<'_>, filters: &Filters, store: &mut Store) -> Self {
        let one = Weigh { max: view.max, scale: 1.0 };
        if filters.temperature == 0.0 {
            let last_key = keys::key(select::first(view), view.max);
            return Self { weigh: one, last_key, need: 0, total: MASS_ONE, kind: Kind::One };
        }
        let weigh = Weigh { scale: mass::scale(filters.temperature), ..one };
        let need = if filters.min_p > 0.0 { min_p_need(filters.min_p) } else { 0 };
        let all = Self { weigh, last_key: u64::MAX, need: 0, total: 0, kind: Kind::Blocks };
        let top_k = if (filters.top_k as usize) < view.vocab_size() { filters.top_k as usize } else { 0 };
        if top_k > 0 && top_k <= LIST_K.min(view.blocks()) {
            select::top(view, top_k, &mut store.keys);
            store.weigh_keys(view, weigh);
            return all.list(filters.top_p, None, need, store);
        }
        let all = if top_k > 0 { all.first(top_k, view, store) } else { all };
        if filters.top_p < 1.0 { all.top_p(view, filters.top_p, need, store) } else { all.keep(view, need, store) }
    }

    /// Top-p (with `reach`, that weight) and min-p on the whole list in the store.
    fn list(self, top_p: f32, reach: Option<u64>, need: u64, store: &mut Store) -> Self {
        let reach = reach.unwrap_or_else(|| top_p_need(top_p, store.masses.iter().sum()));
        if top_p < 1.0 {
            let kept = store.reaching(reach).map_or(store.keys.len(), |at| at + 1);
            store.truncate(kept);
        }
        let last_key = store.keys.last().copied().unwrap_or(u64::MAX);
        if need > 0 {
            store.retain(need);
        }
        Self { last_key, need, total: store.masses.iter().sum(), kind: Kind::List, ..self }
    }

    /// Top-k beyond lists: the cut, no masses yet.
    fn first(self, top_k: usize, view: &View<'_>, store: &mut Store) -> Self {
        let goal = Goal { count: true, need: top_k as u64 };
        let guess = Guess::new(view, self.weigh, true, Anchor::TOP, &mut store.search.sample);
        let logit = guess.logit(&store.search.sample, top_k as f64);
        let at = search::weighed(view, &guess, logit, &mut store.search);
        let last_key = search::crossing(view, &guess, goal, at, &mut store.search).unwrap_or(u64::MAX);
        Self { last_key, ..self }
    }

    /// Top-p over many tokens, then min-p.
    fn top_p(self, view: &View<'_>, top_p: f32, need: u64, store: &mut Store) -> Self {
        let known = (self.last_key != u64::MAX).then(|| self.keep(view, 0, store).total);
        let from = store.list_largest(view, self.weigh);
        let guess = Guess::new(view, self.weigh, false, from, &mut store.search.sample);
        let about = f64::from(top_p) * guess.total();
        // The total, and at the same time what lies above the cut, if there will be a search.
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
        let reach = top_p_need(top_p, total);
        if store.reaching(reach).is_some() {
            return self.list(top_p, Some(reach), need, store);
        }
        // Share 0 still keeps the first token.
        let goal = Goal { count: false, need: reach.max(1) };
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

    /// Kept mass by block: tokens up to the cut with a mass of at least `need`.
    fn keep(self, view: &View<'_>, need: u64, store: &mut Store) -> Self {
        let kept = Self { need, ..self };
        if self.last_key == u64::MAX && need == 0 {
            return Self { total: view.sums(self.weigh, &mut store.sums), ..kept };
        }
        let (reach, all, kept_key) = (self.reach_of(need), self.last_key == u64::MAX, keys::up_to(self.last_key));
        let bound = if all { reach } else { keys::logit(self.last_key).max(reach) };
        let wanted = |token, logit, mass| (mass >= need) & kept_key(token, logit);
        let range = Range { low: bound.max(f32::MIN), high: f32::INFINITY };
        let inside = &mut store.search.inside;
        if self.is_rare(view, bound, &mut store.search.sample) {
            view.between(false, self.weigh, range, inside);
            if all {
                inside.by_block(view.blocks(), &mut store.sums, |_, _, mass| mass >= need);
            } else {
                inside.by_block(view.blocks(), &mut store.sums, wanted);
            }
            return Self { total: store.sums.iter().sum(), ..kept };
        }
        let mut total = view.kept_sums(self.weigh, Keep { above: bound, need }, &mut store.sums);
        if !all {
            // A comparison of logits cannot tell apart those that are equal to the cut.
            let ties = Range { high: search::next_up(bound), ..range };
            view.between(false, self.weigh, ties, inside);
            inside.by_block(view.blocks(), &mut store.search.sums, wanted);
            store.sums.iter_mut().zip(&store.search.sums).for_each(|(sum, ties)| *sum += ties);
            total = store.sums.iter().sum();
        }
        Self { total, ..kept }
    }

    /// Whether so few tokens reach `bound` that listing them is faster than weighing everything; a guess.
    fn is_rare(&self, view: &View<'_>, bound: f32, sample: &mut Sample) -> bool {
        let reaching = view.passes().count_ge(view.maxima, bound);
        if reaching * 2 < view.blocks() {
            return true;
        }
        view.sample(self.weigh, f32::INFINITY, sample);
        view.passes().count_ge(&sample.logits, bound) * LIST_SHARE < sample.taken
    }

    /// A logit at or below which no mass reaches `need`, so that only those above it are weighed. A little
    /// low, to be safe from rounding; the masses themselves decide.
    fn reach_of(&self, need: u64) -> f32 {
        if need == 0 {
            return f32::NEG_INFINITY;
        }
        let y = libm::log2(need as f64 / MASS_ONE as f64) - 1e-3;
        let logit = (f64::from(self.weigh.max) + y / f64::from(self.weigh.scale)) as f32;
        logit.next_down()
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
            Kind::Blocks => self.draw_from_blocks(view, point, store),
        }
    }

    fn draw_from_blocks(&self, view: &View<'_>, mut point: u64, store: &Store) -> u32 {
        let block = store.sums.iter().position(|&sum| {
            let here = point < sum;
            point -= if here { 0 } else { sum };
            here
        });
        let block = block.expect("the point is below the total; this is a bug");
        let values = view.block(block);
        let mut masses = [0; BLOCK];
        view.passes().masses(&values, self.weigh, &mut masses);
        for (i, (&logit, &mass)) in values.iter().zip(&masses).enumerate() {
            let token = (block * BLOCK + i) as u32;
            if mass >= self.need && keys::key(token, logit) <= self.last_key {
                if point < mass {
                    return token;
                }
                point -= mass;
            }
        }
        unreachable!("the block's kept masses sum to its sum")
    }

    /// The sum of all masses that are left.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// How a token is weighed, the key of the last one that is kept, and the least mass that is.
    pub(super) fn kept_by(&self) -> (Weigh, u64, u64) {
        (self.weigh, self.last_key, self.need)
    }

    /// The mass of a token with this logit; 0 if it is not left.
    pub(super) fn mass_of(&self, token: u32, logit: f32) -> u64 {
        if self.keeps(token, logit) { self.mass(logit) } else { 0 }
    }

    /// Keys of the tokens that are left, if they are a list; else their mass by block is in the store.
    pub(super) fn keys<'s>(&'s self, store: &'s Store) -> Option<&'s [u64]> {
        match self.kind {
            Kind::One => Some(std::slice::from_ref(&self.last_key)),
            Kind::List => Some(&store.keys),
            Kind::Blocks => None,
        }
    }

    /// Keys of the `n` first tokens that are left, in order, and 1 + the number of all that precede `token`.
    pub(super) fn first_kept(&self, view: &View<'_>, n: usize, token: Option<u32>, keys: &mut Vec<u64>) -> u32 {
        select::top(view, n, keys);
        // The listed tokens are the first of the order, so their places are their ranks.
        let place = |token| keys.iter().position(|&key| keys::token(key) == token);
        let rank = token.map_or(0, |token| place(token).map_or_else(|| view.rank(token), |place| place as u32 + 1));
        self.retain_kept(keys);
        if keys.len() < n && self.need > 0 {
            // Masses are not strictly ordered like logits, so a kept token may stand behind one that min-p cut.
            view.collect(self.reach_of(self.need).max(f32::MIN), keys);
            self.retain_kept(keys);
            keys.sort_unstable();
            keys.truncate(n);
        }
        rank
    }

    /// What is reported about a token.
    pub(super) fn report(
        &self,
        view: &View<'_>,
        token: u32,
        wanted: &LogprobsSpec<'_>,
        keys: &mut Vec<u64>,
    ) -> TokenLogprobs {
        let log_total = mass::log_total(self.total);
        let of_logit = |logit| mass::logprob(mass::exponent(logit, self.weigh.max, self.weigh.scale), log_total);
        let of_token = |token| {
            let logit = view.value(token);
            if self.keeps(token, logit) { of_logit(logit) } else { f32::NEG_INFINITY }
        };
        let n = (wanted.top_n as usize).min(view.vocab_size());
        let rank = self.first_kept(view, n, Some(token), keys);
        TokenLogprobs {
            logprob: of_token(token),
            rank,
            top: keys.iter().map(|&key| (keys::token(key), of_logit(keys::logit(key)))).collect(),
            requested: wanted.tokens.iter().map(|&token| of_token(token)).collect(),
        }
    }
}

impl Store {
    /// Kept mass by block, of a distribution that is no list.
    pub(super) fn sums(&self) -> &[u64] {
        &self.sums
    }

    /// Takes them out, for [`Store::give_sums`].
    pub(super) fn take_sums(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.sums)
    }

    /// Puts back what was taken.
    pub(super) fn give_sums(&mut self, sums: Vec<u64>) {
        self.sums = sums;
    }

    /// Masses of the keys.
    fn weigh_keys(&mut self, view: &View<'_>, weigh: Weigh) {
        let padded = self.keys.len().next_multiple_of(PAD);
        self.logits.clear();
        self.logits.extend(self.keys.iter().map(|&key| keys::logit(key)));
        self.logits.resize(padded, f32::NEG_INFINITY);
        self.masses.resize(padded, 0);
        view.passes().masses(&self.logits, weigh, &mut self.masses);
        self.masses.truncate(self.keys.len());
    }

    /// Lists the tokens at or above the maximum of [`TOP_P_BLOCKS`] blocks and their masses, unless they are
    /// too many. Returns where the list ends.
    fn list_largest(&mut self, view: &View<'_>, weigh: Weigh) -> Anchor {
        let bound = select::bound_of_top(view, TOP_P_BLOCKS.min(view.blocks()));
        view.collect(bound, &mut self.keys);
        if self.keys.len() > TOP_P_LIST {
            self.keys.clear();
            self.masses.clear();
            return Anchor::TOP;
        }
        self.keys.sort_unstable();
        self.weigh_keys(view, weigh);
        Anchor { logit: bound, weight: self.masses.iter().sum() }
    }

    /// Where the running mass reaches `need`.
    fn reaching(&self, need: u64) -> Option<usize> {
        let mut sum = 0;
        self.masses.iter().position(|&mass| {
            sum += mass;
            sum >= need
        })
    }

    fn truncate(&mut self, kept: usize) {
        self.keys.truncate(kept);
        self.masses.truncate(kept);
    }

    fn retain(&mut self, need: u64) {
        let mut masses = self.masses.iter();
        self.keys.retain(|_| masses.next().is_some_and(|&mass| mass >= need));
        self.masses.retain(|&mass| mass >= need);
    }

    /// Inverse CDF in token-id order over the list.
    fn draw(&mut self, mut point: u64) -> u32 {
        let mut by_token: Vec<(u32, u64)> =
            self.keys.iter().map(|&key| keys::token(key)).zip(self.masses.iter().copied()).collect();
        by_token.sort_unstable_by_key(|&(token, _)| token);
        for (token, mass) in by_token {
            if point < mass {
                return token;
            }
            point -= mass;
        }
        unreachable!("the point is below the total")
    }
}
