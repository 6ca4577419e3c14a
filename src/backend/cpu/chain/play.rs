//! SynthID's tournament. On a whole row it is played in floats, ten layers at a time: these layers depend only on what
//! tokens with the same pattern of bits weigh together. Tokens that are as far apart as a table is long have the same
//! bits in all layers, so they form one class. The token is the one that the specification draws, unless
//! [rounding](super::error_bound) might have changed it. Then, and wherever more than a token is wanted, a list of
//! integers plays the tournament.

use super::error_bound::ErrorBound;
use super::listing::WholeRow;
use super::{CandidateList, ChainStore};
use crate::backend::cpu::distribution::Wanted;
use crate::backend::cpu::level::Passes;
use crate::backend::cpu::passes::{BLOCK, LAYERS, PATTERNS, Values};
use crate::sampling::mass;
use crate::sampling::watermark::tournament::{self, TOKENS, Tournament};

/// How many sums are kept in parallel, since an addition waits for the one before.
const LANES: usize = 4;

/// If more than one token in this many is on a list, the bits of all tokens are looked up.
const FEW: usize = 16;

/// Storage of a tournament.
#[derive(Debug, Default)]
pub(super) struct Field {
    /// The bit patterns of classes, for some layers.
    patterns: Vec<u16>,
    /// The mass of each class at first.
    masses: Vec<f64>,
    /// The product of each class's factors so far.
    products: Vec<f64>,
    /// Weights by block after the last layer.
    sums: Vec<f64>,
}

/// How many classes the tokens of whole blocks have.
fn classes(turned: &[u8], tokens: usize) -> usize {
    (turned.len() - TOKENS).max(BLOCK).min(tokens)
}

/// Plays some layers. Takes the weight of all tokens of each pattern; returns the factor of each pattern.
fn play(mut sums: [f64; PATTERNS], layers: usize, error_bound: &mut ErrorBound) -> [f64; PATTERNS] {
    let (mut factors, mut left) = ([1.0; PATTERNS], 1 << layers);
    for layer in 0..layers {
        left /= 2;
        let (mut clear, mut set) = ([0.0; LANES], [0.0; LANES]);
        for at in 0..left {
            clear[at % LANES] += sums[2 * at];
            set[at % LANES] += sums[2 * at + 1];
        }
        let clear: f64 = clear.into_iter().sum();
        let f = clear / (clear + set.into_iter().sum::<f64>());
        error_bound.play(f);
        for at in 0..left {
            sums[at] = f * sums[2 * at] + (1.0 + f) * sums[2 * at + 1];
        }
        for at in 0..1 << layer {
            factors[at | 1 << layer] = factors[at] * (1.0 + f);
            factors[at] *= f;
        }
    }
    factors
}

impl Field {
    /// Plays all layers on these masses of whole blocks, -1 for masked tokens. Afterwards a token's weight is its mass
    /// times the product of its class.
    fn play(&mut self, passes: Passes, turned: &[u8], begins: &[u32], masses: &[f32]) -> ErrorBound {
        let (classes, mut error_bound) = (classes(turned, masses.len()), ErrorBound::new(masses.len()));
        // All entries are written, so old ones need not be cleared.
        self.patterns.resize(classes, 0);
        self.masses.resize(classes, 0.0);
        passes.merge(masses, &mut self.masses);
        self.products.clear();
        self.products.resize(classes, 1.0);
        for begins in begins.chunks(LAYERS) {
            passes.patterns(turned, begins, &mut self.patterns);
            let (mut sums, weights) = ([0.0; PATTERNS], self.masses.iter().zip(&self.products));
            for (&pattern, (mass, product)) in self.patterns.iter().zip(weights) {
                sums[pattern as usize % PATTERNS] += mass * product;
            }
            let factors = play(sums, begins.len(), &mut error_bound);
            for (product, &pattern) in self.products.iter_mut().zip(&self.patterns) {
                *product *= factors[pattern as usize % PATTERNS];
            }
        }
        error_bound
    }

    /// The weights of a block's tokens after the last layer.
    fn block(&self, block: usize, masses: &[f32]) -> impl Iterator<Item = f64> {
        let (from, classes) = (block * BLOCK, self.products.len());
        let products = &self.products[from % classes..][..BLOCK];
        masses[from..][..BLOCK].iter().zip(products).map(|(&mass, product)| f64::from(mass.max(0.0)) * product)
    }

    /// The token that is drawn at this share of the weights after the last layer; `None` if an error of `off` could
    /// change it.
    fn token(&mut self, passes: Passes, masses: &[f32], share: f64, off: f64) -> Option<u32> {
        self.sums.resize(masses.len() / BLOCK, 0.0);
        passes.weigh_classes(masses, &self.products, &mut self.sums);
        let total: f64 = self.sums.iter().sum();
        let (point, off, mut before) = (share * total, off * total, 0.0);
        let block = self.sums.iter().position(|sum| {
            let here = before + sum > point;
            before += if here { 0.0 } else { *sum };
            here
        })?;
        for (i, weight) in self.block(block, masses).enumerate() {
            let after = before + weight;
            if after > point {
                // The first token with weight begins at 0, without any error.
                let is_sure = (before == 0.0 || before <= point - off) && after > point + off;
                return is_sure.then_some((block * BLOCK + i) as u32);
            }
            before = after;
        }
        None
    }
}

impl WholeRow<'_, '_> {
    /// The token that is drawn after a tournament of all candidates, where nothing else is wanted. `None`: the
    /// tournament has to be played on a list.
    pub(super) fn play(&self, played: &Tournament<'_>, store: &mut ChainStore) -> Option<u32> {
        let Wanted::Token(uniform) = self.wanted else { return None };
        let (turned, begins) = (played.table.turned()?, played.begins().collect::<Vec<u32>>());
        let ChainStore { field, weights: masses, .. } = store;
        self.view.weights(self.weigh, masses);
        let error_bound = field.play(self.view.passes(), turned, &begins, masses);
        let share = uniform as f64 / 18_446_744_073_709_551_616.0;
        field.token(self.view.passes(), masses, share, error_bound.of_a_share())
    }
}

impl CandidateList<'_> {
    /// Plays SynthID's tournament.
    pub(super) fn play(&mut self, played: &Tournament<'_>) {
        let (passes, bits) = (self.passes, self.bits(played));
        let Values { logits, masses: weights, .. } = &mut self.store.values;
        let mut total: u64 = weights.iter().sum();
        let shift = tournament::room(total);
        weights.iter_mut().for_each(|weight| *weight <<= shift);
        total <<= shift;
        let mut set = weights.iter().zip(&bits).map(|(weight, bits)| weight & (bits & 1).wrapping_neg()).sum();
        for layer in 0..played.keys.len() {
            [total, set] = passes.layer(weights, &bits, layer as u32, tournament::factor(total, set));
        }
        let total = libm::log(total as f64);
        for (logit, &weight) in logits.iter_mut().zip(weights.iter()).filter(|(_, weight)| **weight > 0) {
            *logit = tournament::logit_below(weight, total);
        }
        self.retain(|values, at| values.masses[at] > 0);
        (self.temperature, self.weigh.scale) = (1.0, mass::scale(1.0));
        self.weigh();
    }

    /// The bits of each token of the list.
    fn bits(&mut self, played: &Tournament<'_>) -> Vec<u64> {
        let ChainStore { values: Values { tokens, .. }, field, .. } = &mut *self.store;
        let most = tokens.iter().copied().max().unwrap_or_default() as usize;
        let turned = played.table.turned().filter(|_| tokens.len() * FEW > most);
        let Some(turned) = turned else { return tokens.iter().map(|&token| played.bits(token)).collect() };
        let (classes, begins) =
            (classes(turned, (most + 1).next_multiple_of(BLOCK)), played.begins().collect::<Vec<u32>>());
        field.patterns.resize(classes, 0);
        let mut bits = vec![0; tokens.len()];
        for (ten, begins) in begins.chunks(LAYERS).enumerate() {
            self.passes.patterns(turned, begins, &mut field.patterns);
            for (bits, &token) in bits.iter_mut().zip(tokens.iter()) {
                *bits |= u64::from(field.patterns[token as usize % classes]) << (ten * LAYERS);
            }
        }
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::level::Level;
    use crate::params::watermark::SynthidParams;
    use crate::sampling::logits::Dtype;
    use crate::sampling::watermark::tournament::Table;

    const VOCAB: usize = 40 * BLOCK;

    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 20
    }

    /// Masses of a row with a given distribution. The largest is 2^40.
    fn masses(shape: usize, state: &mut u64) -> Vec<f32> {
        let mut masses: Vec<u64> = (0..VOCAB)
            .map(|token| {
                let any = random(state);
                match shape {
                    0 => any >> 4,
                    1 => (1 << 40) >> (any % 45),
                    2 => 1 << 40,
                    3 => any % 3,
                    4 => {
                        if token.is_multiple_of(97) {
                            any >> 6
                        } else {
                            1 << (any % 8)
                        }
                    }
                    _ => {
                        if (token / BLOCK).is_multiple_of(3) {
                            any >> (4 + any % 36)
                        } else {
                            0
                        }
                    }
                }
            })
            .collect();
        masses[VOCAB / 2 + 7] = 1 << 40;
        masses.into_iter().map(|mass| mass as f32).collect()
    }

    /// For each token, in order: the share of the specification's masses that the tokens up to it have.
    fn shares(played: &Tournament<'_>, masses: &[f32]) -> Vec<f64> {
        let (weights, total) = played.play((0..).zip(masses.iter().map(|&mass| mass as u64)));
        let logit = |&weight: &u64| if weight == 0 { f32::NEG_INFINITY } else { tournament::logit(weight, total) };
        let logits: Vec<f32> = weights.iter().map(logit).collect();
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let masses = logits.iter().map(|&logit| mass::mass(mass::exponent(logit, max, mass::scale(1.0))));
        let up_to: Vec<u64> = masses
            .scan(0, |sum, mass| {
                *sum += mass;
                Some(*sum)
            })
            .collect();
        let total = up_to[VOCAB - 1] as f64;
        up_to.into_iter().map(|mass| mass as f64 / total).collect()
    }

    #[test]
    fn shares_are_as_near_as_is_said() {
        let mut state = 5;
        let (passes, mut field) = (Level::detect().passes(Dtype::F32), Field::default());
        let (mut draws, mut sure) = (0, 0);
        for (shape, layers) in (0..6).flat_map(|shape| [1, 8, 9, 10, 11, 20, 30].map(|layers| (shape, layers))) {
            for sampling_table_size in [1 << 16, 1 << 10, 64] {
                let table = Table::of(&SynthidParams { sampling_table_size, ..SynthidParams::new(vec![]) });
                let masses = masses(shape, &mut state);
                let keys: Vec<u64> = (0..layers).map(|_| random(&mut state)).collect();
                let played = Tournament { context: random(&mut state), keys: &keys, table: &table };
                let begins: Vec<u32> = played.begins().collect();
                let error_bound = field.play(passes, table.turned().unwrap(), &begins, &masses);
                let off = error_bound.of_a_share();
                assert!(off < 1e-4, "{shape} {layers} {off}");
                let (expected, mut from) = (shares(&played, &masses), 0.0);
                let weights = (0..VOCAB / BLOCK).flat_map(|block| field.block(block, &masses));
                let found: Vec<f64> = weights
                    .map(|weight| {
                        from += weight;
                        from
                    })
                    .collect();
                for (token, (found, expected)) in found.into_iter().zip(expected).enumerate() {
                    assert!((found / from - expected).abs() <= off, "{shape} {layers} {token}");
                }
                let points = (0..32).map(|i| (f64::from(i) + 0.5) / 32.0);
                sure += points.filter(|&share| field.token(passes, &masses, share, off).is_some()).count();
                draws += 32;
            }
        }
        assert!(sure > draws * 97 / 100, "{sure} of {draws}");
    }
}
