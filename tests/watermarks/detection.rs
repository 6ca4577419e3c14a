//! What detectors find, and what they do not find.

use crate::chi_square::{DEVIATE, deviate};
use crate::watermarks::texts::{KEYS, schemes, text, unmarked};
use croupier::params::watermark::{GumbelParams, KgwParams, SeedingScheme, SynthidParams, Watermark};
use croupier::sampling::watermark::greenlist::{Greenlist, Seeds};
use croupier::watermark::tails::binomial;
use croupier::watermark::{Detector, Text};
use std::collections::BTreeSet;

const PARTS: usize = 20;

fn p_value(mark: &Watermark, tokens: &[u32]) -> f64 {
    Detector::new(mark).look(&Text { tokens, prompt_tokens: 0 }).p_value
}

/// Counts texts by p-value, in twentieths from 0 to 1.
fn spread(values: impl Iterator<Item = f64>) -> [u64; PARTS] {
    let mut parts = [0; PARTS];
    values.for_each(|p| parts[((p * PARTS as f64) as usize).min(PARTS - 1)] += 1);
    parts
}

/// The p-values of unmarked text are uniform; those of counts are no smaller than that. Texts vary, and for greenlists keys too, since with
/// one key a common pair of tokens is green in all texts or in none. False alarms: 1e-6 for each comparison. The test has power: it notices
/// a list with 0.27 of the vocabulary instead of 0.25.
#[test]
fn text_without_a_mark_is_found_as_often_as_p_values_say() {
    const TEXTS: u64 = 1500;
    let seen = |name: &str, parts: [u64; PARTS]| {
        println!("{name}: {} of {TEXTS} below 1/{PARTS}, {parts:?}", parts[0]);
        binomial(parts[0] as usize, TEXTS as usize, 1.0 / PARTS as f64)
    };
    for (name, mark) in schemes() {
        let detector = Detector::new(&mark);
        let p = |seed| match &mark {
            Watermark::Kgw(kgw) => {
                p_value(&Watermark::Kgw(KgwParams { hashing_key: seed, ..kgw.clone() }), &unmarked(seed, 300))
            }
            _ => detector.look(&Text { tokens: &unmarked(seed, 300), prompt_tokens: 0 }).p_value,
        };
        let parts = spread((0..TEXTS).map(p));
        assert!(seen(name, parts) > 1e-6, "{name}: too many texts are found: {parts:?}");
        if matches!(mark, Watermark::Synthid(_) | Watermark::Gumbel(_)) {
            let found = deviate(&parts, &[1.0 / PARTS as f64; PARTS]);
            assert!(found < DEVIATE, "{name}: p-values are not uniform: {found:.1} deviations, {parts:?}");
        }
    }
    let off = spread((0..TEXTS).map(|hashing_key| {
        let params = KgwParams { hashing_key, greenlist_ratio: 0.27, ..KgwParams::default() };
        let tokens = unmarked(hashing_key, 300);
        let pairs: BTreeSet<&[u32]> = tokens.windows(2).collect();
        let green = |pair: &&&[u32]| Greenlist::new(&params, Seeds::new(&params, [pair[0]])).is_green(pair[1]);
        binomial(pairs.iter().filter(green).count(), pairs.len(), 0.25)
    }));
    assert!(seen("0.27 instead of 0.25", off) < 1e-6, "a list that is too long is not seen: {off:?}");
}

/// Marked text of 200 tokens is found with p < 1e-4. With another key, context or scheme it is not. On unmarked tokens, one of the latter
/// tests would be below 1e-5 with probability 2e-4.
#[test]
fn marked_text_is_found_by_its_key_alone() {
    for (name, mark) in schemes() {
        let mut most: f64 = 0.0;
        for seed in 0..4 {
            let tokens = text(Some(&mark), seed, 200);
            most = most.max(p_value(&mark, &tokens));
            for (wrong, other) in wrong(&mark) {
                let p = p_value(&other, &tokens);
                assert!(p > 1e-5, "{name}: found with {wrong}, p = {p:e}");
            }
            let p = p_value(&mark, &text(None, seed, 200));
            assert!(p > 1e-5, "{name}: found without a mark, p = {p:e}");
        }
        println!("{name}: p <= {most:e}");
        assert!(most < 1e-4, "{name}: p = {most:e}");
    }
}

/// Watermarks that are similar to this one, but not equal.
fn wrong(mark: &Watermark) -> Vec<(&'static str, Watermark)> {
    match mark {
        Watermark::Kgw(kgw) => {
            let width = kgw.context_width + 1;
            vec![
                ("another key", Watermark::Kgw(KgwParams { hashing_key: 78, ..kgw.clone() })),
                ("the key's upper half", Watermark::Kgw(KgwParams { hashing_key: 77 | 1 << 32, ..kgw.clone() })),
                (
                    "another context",
                    Watermark::Kgw(KgwParams {
                        context_width: width,
                        seeding_scheme: SeedingScheme::Lefthash,
                        ..kgw.clone()
                    }),
                ),
            ]
        }
        Watermark::Synthid(synthid) => {
            let keys: Vec<u64> = KEYS.iter().map(|key| key ^ 0x5A5A).collect();
            vec![
                ("other keys", Watermark::Synthid(SynthidParams { keys, ..synthid.clone() })),
                ("another context", Watermark::Synthid(SynthidParams { ngram_len: 4, ..synthid.clone() })),
                ("another table", Watermark::Synthid(SynthidParams { sampling_table_seed: 1, ..synthid.clone() })),
            ]
        }
        Watermark::Gumbel(gumbel) => vec![
            ("another key", Watermark::Gumbel(GumbelParams { key: 78, ..gumbel.clone() })),
            ("another context", Watermark::Gumbel(GumbelParams { context_width: 3, ..gumbel.clone() })),
        ],
    }
}

/// A part of the watermark is left if some tokens are changed, or if it covers only a part of the text.
#[test]
fn a_part_of_the_mark_is_enough() {
    for (name, mark) in schemes() {
        let mut tokens = text(Some(&mark), 3, 400);
        for at in (0..tokens.len()).step_by(12) {
            tokens[at] ^= 1;
        }
        let p = p_value(&mark, &[unmarked(9, 200), tokens, unmarked(10, 200)].concat());
        println!("{name}: p = {p:e}");
        assert!(p < 1e-4, "{name}: {p:e}");
    }
}

/// A loop repeats the same n-gram, which counts once.
#[test]
fn loops_are_not_found() {
    for (name, mark) in schemes() {
        for token in 0..200 {
            let p = p_value(&mark, &[token, token + 1, token + 2].repeat(500));
            // There are about three different n-grams. None of 200 texts is very unlikely (false alarms: 4e-4 for each scheme, with the
            // check below).
            assert!(p > 1e-6, "{name}: a loop is found, p = {p:e}");
            // With selfhash, the same token often decides about the same token, whatever else comes before it.
            let p = p_value(&mark, &(0..300).flat_map(|at| [token, token + 1, 1000 + at]).collect::<Vec<_>>());
            assert!(p > 1e-6, "{name}: a pair that comes again and again is found, p = {p:e}");
        }
    }
}
