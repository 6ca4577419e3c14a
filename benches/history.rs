//! What the tools that look back at a text cost: DRY and `no_repeat_ngram`, compared with a scan that follows their
//! definition.
//!
//!   cargo bench --bench history
//!   cargo bench --bench history -- --quick    texts of 4,096 tokens only
//!
//! The time for opening a text is per token of the prompt, so it should not depend on the prompt's length. The scan
//! shows what a token costs without memory: each earlier place is compared with the end of the text, and each token
//! that followed is looked up in the whitelist.

#![allow(clippy::print_stdout)] // it prints a table

use clap::Parser;
use croupier::params::SamplingParams;
use croupier::params::steering::NoRepeatNgram;
use croupier::sampling::philox::Purpose;
use croupier::sequence::Sequence;
use croupier::sequence::rules::Rules;
use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

#[path = "support/options.rs"]
mod options;

#[derive(Parser)]
#[command(about = "What tools that look back at a text cost")]
struct Options {
    #[command(flatten)]
    common: options::Common,
}

const PASSES: usize = 7;
/// Number of tokens that are committed at the end.
const TAIL: usize = 200;
/// Number of breakers that match everywhere except for their first token.
const BREAKERS: usize = 1024;

/// A tool, with a function that computes its effect on the next row by its definition.
struct Tool {
    name: &'static str,
    params: SamplingParams,
    scan: fn(&SamplingParams, &[u32]) -> usize,
}

fn main() {
    let quick = Options::parse().common.quick();
    println!(
        "{:24} {:18} {:>7} {:>14} {:>12} {:>12}",
        "tool", "text", "tokens", "open ns/token", "token us", "scan us"
    );
    for tool in tools() {
        for (name, text) in texts() {
            for len in if quick { vec![4096] } else { vec![4096, 8192, 16_384, 32_768] } {
                costs(&tool, name, &text(len + TAIL), len);
            }
        }
    }
}

fn costs(tool: &Tool, name: &str, text: &[u32], len: usize) {
    let rules = Arc::new(Rules::new(tool.params.clone(), &[]));
    let (prompt, tail) = text.split_at(len);
    let [mut open, mut token] = [f64::MAX; 2];
    for _ in 0..PASSES {
        let (mut sequence, opening) = timed(|| Sequence::open(Arc::clone(&rules), 1, black_box(prompt), &[]));
        let ((), going_on) = timed(|| {
            for &token in tail {
                sequence.commit(token);
                black_box(sequence.spec(sequence.draw(Purpose::Sample)).banned.len());
            }
        });
        open = open.min(opening / len as f64);
        token = token.min(going_on / TAIL as f64);
    }
    let scan =
        (0..3).map(|_| timed(|| black_box((tool.scan)(&tool.params, black_box(text)))).1).fold(f64::MAX, f64::min);
    println!("{:24} {name:18} {len:7} {:14.1} {:12.2} {:12.1}", tool.name, open * 1e9, token * 1e6, scan * 1e6);
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed().as_secs_f64())
}

fn tools() -> Vec<Tool> {
    let dry = |change: fn(&mut SamplingParams)| {
        let mut params = SamplingParams::default();
        (params.history.dry_multiplier, params.history.dry_allowed_length) = (0.8, 2);
        change(&mut params);
        params
    };
    let ngram = |size, whitelist: Vec<u32>| {
        let mut params = SamplingParams::default();
        params.history.no_repeat_ngram = Some(Box::new(NoRepeatNgram { size, whitelist, ..Default::default() }));
        params
    };
    let breakers = |params: &mut SamplingParams| {
        params.history.dry_sequence_breakers = vec![[vec![9], vec![1; 63]].concat(); BREAKERS];
    };
    vec![
        Tool { name: "DRY", params: dry(|_| ()), scan: scan_dry },
        Tool { name: "DRY, 1,024 breakers", params: dry(breakers), scan: scan_breakers },
        Tool { name: "no_repeat_ngram 3", params: ngram(3, vec![]), scan: scan_ngram },
        Tool { name: "no_repeat_ngram 2, list", params: ngram(2, (2..4098).collect()), scan: scan_ngram },
    ]
}

/// Makes a text of this length.
type Written = fn(usize) -> Vec<u32>;

/// Kinds of texts.
fn texts() -> [(&'static str, Written); 4] {
    [
        ("ordinary", |len| {
            (0..len)
                .map({
                    let mut unit = unit();
                    move |_| 50_000f64.powf(unit()) as u32
                })
                .collect()
        }),
        ("one token", |len| vec![1; len]),
        ("seven in a loop", |len| (0..len as u32).map(|i| i % 7).collect()),
        ("two by chance", |len| {
            (0..len)
                .map({
                    let mut unit = unit();
                    move |_| (unit() * 2.0) as u32
                })
                .collect()
        }),
    ]
}

/// Random numbers in 0 .. 1, the same in each run.
fn unit() -> impl FnMut() -> f64 {
    let mut state = 12_345u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1u64 << 24) as f64
    }
}

fn scan_dry(params: &SamplingParams, text: &[u32]) -> usize {
    let mut longest: BTreeMap<u32, usize> = BTreeMap::new();
    for at in 1..text.len() {
        let len = (0..at).take_while(|&l| text[at - 1 - l] == text[text.len() - 1 - l]).count();
        if len >= params.history.dry_allowed_length as usize {
            let known = longest.entry(text[at]).or_default();
            *known = len.max(*known);
        }
    }
    longest.len()
}

fn scan_breakers(params: &SamplingParams, text: &[u32]) -> usize {
    let breakers = &params.history.dry_sequence_breakers;
    (0..text.len()).find(|&i| breakers.iter().any(|b| text[..text.len() - i].ends_with(b))).unwrap_or(text.len())
}

fn scan_ngram(params: &SamplingParams, text: &[u32]) -> usize {
    let Some(params) = &params.history.no_repeat_ngram else { return 0 };
    let before = params.size as usize - 1;
    let end = &text[text.len() - before..];
    let grams = text.windows(before + 1).filter(|gram| gram.starts_with(end));
    let banned: BTreeSet<u32> =
        grams.map(|gram| gram[before]).filter(|token| !params.whitelist.contains(token)).collect();
    banned.len()
}
