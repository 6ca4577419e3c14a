//! Texts, made by the backend with the sequence's own rules.

use croupier::backend::cpu::CpuBackend;
use croupier::backend::{Backend, RowJob};
use croupier::params::SamplingParams;
use croupier::params::watermark::{GumbelParams, KgwParams, SeedingScheme, SynthidParams, Watermark};
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::philox::{Purpose, uniform};
use croupier::sequence::Sequence;
use croupier::sequence::rules::Rules;
use std::sync::Arc;

pub(crate) const VOCAB: u64 = 500;

/// The keys in SynthID's documentation.
pub(crate) const KEYS: [u64; 30] = [
    654, 400, 836, 123, 340, 443, 597, 160, 57, 29, 590, 639, 13, 715, 468, 990, 966, 226, 324, 585, 118, 504, 421,
    521, 129, 669, 732, 225, 90, 960,
];

pub(crate) fn schemes() -> [(&'static str, Watermark); 4] {
    let own = KgwParams { hashing_key: 77, ..KgwParams::with_scheme(SeedingScheme::Selfhash) };
    [
        ("kgw, lefthash", Watermark::Kgw(KgwParams { hashing_key: 77, ..KgwParams::default() })),
        ("kgw, selfhash", Watermark::Kgw(own)),
        ("synthid", Watermark::Synthid(SynthidParams::new(KEYS.to_vec()))),
        ("gumbel", Watermark::Gumbel(GumbelParams::new(77))),
    ]
}

/// The logits of a text at a position: about 2.9 nats of entropy.
pub(crate) fn row(text: u64, position: u64) -> Vec<f32> {
    let unit = |i: u64| uniform(text, position << 20 | i, Purpose::Measure) as f64 / 2f64.powi(64);
    (0..VOCAB).map(|i| (9.0 * (unit(3 * i) + unit(3 * i + 1) + unit(3 * i + 2) - 1.5)) as f32).collect()
}

/// A text of this many tokens with this watermark, or without one.
pub(crate) fn text(mark: Option<&Watermark>, seed: u64, tokens: usize) -> Vec<u32> {
    let mut params = SamplingParams { top_p: 0.95, ..SamplingParams::default() };
    params.history.watermark = mark.map(|mark| Arc::new(mark.clone()));
    params.validate(VOCAB as u32, 0).unwrap();
    let mut sequence = Sequence::open(Arc::new(Rules::new(params, &[])), seed, &[1, 2, 3], &[]);
    let mut backend = CpuBackend::new(1);
    (0..tokens as u64)
        .map(|position| {
            let bytes = Dtype::F32.encode(&row(seed, position));
            let spec = sequence.spec(sequence.draw(Purpose::Sample));
            let token =
                backend.run(&[RowJob { logits: Logits::new(Dtype::F32, &bytes), spec }]).remove(0).unwrap().token;
            let _ = sequence.commit(token);
            token
        })
        .collect()
}

/// Tokens as in natural text, with frequent common ones, and without a key.
pub(crate) fn unmarked(seed: u64, tokens: u64) -> Vec<u32> {
    let unit = |i: u64| uniform(seed, i, Purpose::Measure) as f64 / 2f64.powi(64);
    (0..tokens).map(|i| (50_000f64.powf(unit(i)) - 1.0) as u32).collect()
}
