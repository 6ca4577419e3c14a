//! Rows and filters that aim at the boundaries, for property tests of backends.

use croupier::params::state::{Average, SamplerState};
use croupier::params::watermark::{KgwParams, SeedingScheme, SynthidParams};
use croupier::params::{MirostatVersion, TfsRule, TypicalRule, XtcRule};
use croupier::sampling::chain::{Chain, ChainStep};
use croupier::sampling::mask::TokenMask;
use croupier::sampling::row::Filters;
use croupier::sampling::samplers::infill::Infill;
use croupier::sampling::watermark::RowWatermark;
use croupier::sampling::watermark::greenlist::{Greenlist, Seeds};
use croupier::sampling::watermark::race::Race;
use croupier::sampling::watermark::tournament::{Table, Tournament};
use croupier::vocabulary::Vocabulary;
use proptest::prelude::*;
use std::sync::{Arc, LazyLock};

/// A small generator for rows, so that proptest does not record every value of a long row.
pub(crate) struct Lcg(pub(crate) u64);

impl Lcg {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.0;
        (x ^ x >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD) >> 16
    }

    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 8 & 0xFF_FFFF) as f32 / (1 << 24) as f32
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Shapes of rows: spread, ties, peaks, masks, zeros of both signs, neighbours one bit apart.
pub(crate) fn row(shape: u8, vocab: usize, seed: u64) -> Vec<f32> {
    let mut rng = Lcg(seed);
    let normal = |rng: &mut Lcg| (0..6).map(|_| rng.unit()).sum::<f32>() - 3.0;
    (0..vocab)
        .map(|_| match shape {
            0 => normal(&mut rng) * 1.4,
            1 => normal(&mut rng) * 3.5,
            2 => {
                if rng.below(200) == 0 {
                    12.0 + 4.0 * normal(&mut rng)
                } else {
                    normal(&mut rng) * 2.0
                }
            }
            3 => rng.below(3) as f32,
            4 => 2.5,
            5 => {
                if rng.below(2) == 0 {
                    0.0
                } else {
                    -0.0
                }
            }
            6 => {
                if rng.below(10) == 0 {
                    normal(&mut rng)
                } else {
                    f32::NEG_INFINITY
                }
            }
            7 => f32::from_bits(0x4120_0000 + rng.below(4) as u32),
            8 => normal(&mut rng) * 40.0,
            9 => -(rng.below(1000) as f32) * 0.05,
            10 => {
                if rng.below(100) == 0 {
                    f32::MAX
                } else {
                    -f32::MAX
                }
            }
            _ => f32::from_bits((rng.next() as u32) & 0x00FF_FFFF),
        })
        .collect()
}

pub(crate) const SHAPES: u8 = 12;

pub(crate) fn filters() -> impl Strategy<Value = Filters> {
    let temperature = prop_oneof![Just(0.0f32), Just(1.0), 0.05f32..3.0, Just(1e-5), Just(1e5)];
    let top_k = prop_oneof![3 => Just(0u32), 1 => 1..100u32, 1 => Just(1), 1 => 100..6000u32, 1 => Just(u32::MAX)];
    let top_p = prop_oneof![2 => Just(1.0f32), 1 => 0.0f32..1.0, 1 => Just(0.0), 1 => Just(0.5), 1 => Just(0.9), 1 => Just(0.999_999)];
    let min_p = prop_oneof![2 => Just(0.0f32), 1 => 0.0f32..1.0, 1 => Just(1.0), 1 => Just(1e-13), 1 => 1e-6f32..1e-2];
    (temperature, top_k, top_p, min_p).prop_map(|(temperature, top_k, top_p, min_p)| Filters {
        temperature,
        top_k,
        top_p,
        min_p,
    })
}

pub(crate) fn ascending(mut tokens: Vec<u32>, vocab: usize) -> Vec<u32> {
    tokens.iter_mut().for_each(|t| *t %= vocab as u32);
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

/// A chain of samplers with everything it borrows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chained {
    pub(crate) steps: Vec<ChainStep>,
    pub(crate) min_keep: u32,
    pub(crate) protected: Vec<u32>,
    pub(crate) eos: Vec<u32>,
    pub(crate) xtc: u64,
    pub(crate) state: SamplerState,
    /// Tokens that end a text.
    pub(crate) infill: Option<Vec<u32>>,
    pub(crate) tournament: Option<Played>,
}

/// A tournament with everything it borrows.
#[derive(Debug, Clone)]
pub(crate) struct Played {
    context: u64,
    keys: Vec<u64>,
    table: Arc<Table>,
}

impl Chained {
    pub(crate) fn chain(&self) -> Chain<'_> {
        let Self { steps, min_keep, protected, eos, xtc, state, infill, tournament } = self;
        let tournament =
            tournament.as_ref().map(|Played { context, keys, table }| Tournament { context: *context, keys, table });
        let infill = infill.as_ref().map(|ends| Infill { vocabulary: &TEXTS, ends });
        Chain { steps, min_keep: *min_keep, protected, eos, xtc: *xtc, state: *state, infill, tournament }
    }
}

/// Any step, edges included.
fn step() -> impl Strategy<Value = ChainStep> {
    let share = || prop_oneof![2 => 0.0f32..1.0, 1 => Just(0.0), 1 => Just(1.0), 1 => Just(0.5), 1 => 1e-6f32..1e-3];
    let xtc = |rule| {
        (share(), share()).prop_map(move |(probability, threshold)| ChainStep::Xtc { rule, probability, threshold })
    };
    prop_oneof![
        share().prop_map(ChainStep::MinEosP),
        Just(ChainStep::Temperature),
        (0.0f32..1.0, 1.0f32..4.0, prop_oneof![Just(1.0f32), 0.0f32..3.0])
            .prop_map(|(low, high, exponent)| ChainStep::DynamicTemperature { low, high, exponent }),
        (1e-3f32..3.0, prop_oneof![2 => Just(1.0f32), 1 => 1.0f32..10.0])
            .prop_map(|(factor, curve)| ChainStep::Smoothing { factor, curve }),
        Just(ChainStep::TopK),
        Just(ChainStep::TopKTies),
        (1u32..4000).prop_map(ChainStep::AtMost),
        Just(ChainStep::TopP),
        Just(ChainStep::MinP),
        Just(ChainStep::MinPAbove),
        share().prop_map(|p| ChainStep::TypicalP(TypicalRule::Reached, p)),
        share().prop_map(|p| ChainStep::TypicalP(TypicalRule::Above, p)),
        share().prop_map(|p| ChainStep::TypicalP(TypicalRule::Ties, p)),
        share().prop_map(|z| ChainStep::Tfs(TfsRule::Left, z)),
        share().prop_map(|z| ChainStep::Tfs(TfsRule::WithRemoved, z)),
        share().prop_map(|z| ChainStep::Tfs(TfsRule::OneFewer, z)),
        prop_oneof![share(), 1.0f32..100.0].prop_map(ChainStep::TopA),
        prop_oneof![share(), 1.0f32..5.0].prop_map(ChainStep::TopNSigma),
        prop_oneof![Just(3.0f32), share(), 3.0f32..3e3, Just(f32::MAX)].prop_map(ChainStep::MinK),
        share().prop_map(ChainStep::EpsilonCutoff),
        share().prop_map(ChainStep::EtaCutoff),
        share().prop_map(ChainStep::TopH),
        xtc(XtcRule::default()),
        xtc(XtcRule { expected: false, unless_ignored: true }),
        xtc(XtcRule::EXPECTED),
        xtc(XtcRule { expected: true, unless_ignored: true }),
        Just(ChainStep::PLess { norm: false }),
        Just(ChainStep::PLess { norm: true }),
        Just(ChainStep::Infill),
        (0.0f32..8.0, share()).prop_map(|(tau, eta)| ChainStep::Mirostat { version: MirostatVersion::One, tau, eta }),
        (0.0f32..8.0, share()).prop_map(|(tau, eta)| ChainStep::Mirostat { version: MirostatVersion::Two, tau, eta }),
        (share(), 0.0f32..0.99).prop_map(|(target, decay)| ChainStep::AdaptiveP { target, decay }),
        (-10.0f32..10.0).prop_map(ChainStep::Skew),
    ]
}

/// EOS tokens, in the order in which a stream lists them.
pub(crate) fn eos() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0..300u32, 0..4)
}

/// Any state, mostly a likely one.
fn state() -> impl Strategy<Value = SamplerState> {
    let mu = prop_oneof![6 => -1.0f64..20.0, 1 => Just(0.0), 1 => Just(-1e9), 1 => Just(1e9), 1 => Just(40.0)];
    let weight = prop_oneof![4 => 1.0f64..100.0, 1 => Just(0.0), 1 => Just(1e-300)];
    let average = (0.0f64..1.0, weight).prop_map(|(share, weight)| Average { sum: share * weight, weight });
    (prop::option::weighted(0.9, mu), prop::option::weighted(0.9, average))
        .prop_map(|(mirostat_mu, adaptive)| SamplerState { mirostat_mu, adaptive })
}

/// Any chain, mostly a short one.
pub(crate) fn chained() -> impl Strategy<Value = Chained> {
    let steps = prop::collection::vec(step(), 0..6);
    let min_keep = prop_oneof![3 => Just(1u32), 1 => 1..20u32, 1 => 20..2000u32];
    let protected = (prop::collection::vec(0..300u32, 0..4), eos());
    let tournament = prop::option::weighted(0.3, prop::option::weighted(0.9, played()));
    (steps, min_keep, protected, any::<u64>(), (state(), infill()), tournament).prop_map(
        |(mut steps, min_keep, (protected, eos), xtc, (state, infill), tournament)| {
            // The last step, even if nothing is played.
            steps.extend(tournament.as_ref().map(|_| ChainStep::Tournament));
            let (protected, tournament) = (ascending(protected, 300), tournament.flatten());
            Chained { steps, min_keep, protected, eos, xtc, state, infill, tournament }
        },
    )
}

/// Texts of tokens: many are prefixes of others, and some tokens have none.
static TEXTS: LazyLock<Vocabulary> = LazyLock::new(|| {
    let mut rng = Lcg(5);
    let mut text = |_| {
        let length = rng.below(7);
        (length > 0).then(|| (0..length).map(|_| b"abbb"[rng.below(4) as usize]).collect())
    };
    Vocabulary::new(&(0..4000).map(&mut text).collect::<Vec<_>>(), b"")
});

/// Tokens that end a text, or `None` if texts are not known.
pub(crate) fn infill() -> impl Strategy<Value = Option<Vec<u32>>> {
    prop::option::weighted(0.9, prop::collection::vec(0..300u32, 0..4))
}

/// Any tournament, including tables whose size is not a power of two.
pub(crate) fn played() -> impl Strategy<Value = Played> {
    let size = prop_oneof![3 => Just(1u32 << 16), 1 => 2..3000u32, 1 => (1..18u32).prop_map(|bits| 1 << bits)];
    (any::<u64>(), prop::collection::vec(any::<u64>(), 1..65), size).prop_map(|(context, keys, size)| {
        let params = SynthidParams { sampling_table_size: size, ..SynthidParams::new(vec![]) };
        Played { context, keys, table: Table::of(&params) }
    })
}

/// Any watermark of a row.
pub(crate) fn mark() -> impl Strategy<Value = RowWatermark> {
    let scheme = prop_oneof![Just(SeedingScheme::Lefthash), Just(SeedingScheme::Selfhash)];
    let ratio = prop_oneof![Just(0.25f32), Just(0.5), 0.001f32..0.999];
    let bias = prop_oneof![3 => 0.0f32..10.0, 1 => Just(100.0)];
    let greens = (any::<u64>(), scheme, prop::collection::vec(any::<u32>(), 1..8), ratio, bias);
    let greens = greens.prop_map(|(hashing_key, seeding_scheme, context, greenlist_ratio, bias)| {
        let context_width = context.len() as u32;
        let params = KgwParams { hashing_key, greenlist_ratio, bias, seeding_scheme, context_width };
        RowWatermark::Green(Greenlist::new(&params, Seeds::new(&params, context)))
    });
    let race = prop::option::weighted(0.9, (any::<u64>(), any::<u64>()));
    let race = race.prop_map(|race| RowWatermark::Race(race.map(|(key, context)| Race { key, context })));
    prop_oneof![greens, race]
}

/// How a mask is made, independent of the vocabulary.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Masking {
    kind: u8,
    seed: u64,
}

pub(crate) fn masking() -> impl Strategy<Value = Masking> {
    (0..7u8, any::<u64>()).prop_map(|(kind, seed)| Masking { kind, seed })
}

impl Masking {
    /// The same kind of mask for another row.
    #[allow(dead_code)] // of drafts
    pub(crate) fn at(self, row: u64) -> Self {
        Self { seed: self.seed ^ row, ..self }
    }

    /// The mask's bytes. Bits beyond the vocabulary in the last word are arbitrary.
    pub(crate) fn words(self, vocab: usize) -> Vec<u8> {
        let mut rng = Lcg(self.seed);
        let block = |rng: &mut Lcg, at: usize| Lcg(self.seed ^ (at as u64 / 16) << 20).below(3) == rng.below(1);
        let few = 1 + vocab as u64 / 8 / 4;
        (0..TokenMask::bytes_for(vocab))
            .map(|at| match self.kind {
                0 => rng.next() as u8,
                // A few tokens are allowed, or removed.
                1 => u8::from(rng.below(few) == 0) << rng.below(8),
                2 => !(u8::from(rng.below(few) == 0) << rng.below(8)),
                3 => u8::MAX,
                // Whole blocks are removed.
                4 => {
                    if block(&mut rng, at) {
                        0
                    } else {
                        u8::MAX
                    }
                }
                5 => {
                    if block(&mut rng, at) {
                        rng.next() as u8
                    } else {
                        0
                    }
                }
                _ => 1 << (at % 8),
            })
            .collect()
    }
}
