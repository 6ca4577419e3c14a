//! What proposers inside the sidecar cost, and what they gain.
//!
//!   cargo bench --bench proposers               all tables
//!   cargo bench --bench proposers -- --quick    histories of up to 100,000 tokens
//!
//! Times in nanoseconds are the least of several passes over the same tokens. What matters are the ratios between
//! histories of different lengths.

#![allow(clippy::print_stdout)] // it prints tables

use clap::Parser;
use croupier::params::{ProposerKind, ProposerParams};
use croupier::speculative::propose::Proposer;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;
use tiktoken_rs::o200k_base_singleton;

#[path = "support/options.rs"]
mod options;

#[derive(Parser)]
#[command(about = "What proposers inside the sidecar cost, and what they gain")]
struct Options {
    #[command(flatten)]
    common: options::Common,
}

/// Number of tokens that are pushed, and proposed after, at the end of each history.
const TAIL: usize = 2000;
const PASSES: usize = 7;

fn main() {
    let quick = Options::parse().common.quick();
    let lengths = if quick { &[1_000, 10_000, 100_000][..] } else { &[1_000, 10_000, 100_000, 1_000_000] };
    println!("per token at the end of a history; open: per token of a prompt\n");
    println!(
        "{:12} {:7} {:>9} {:>9} {:>9} {:>11} {:>12}",
        "text", "kind", "history", "open ns", "push ns", "propose ns", "bytes/token"
    );
    for (name, text) in [("zipf", zipf as fn(usize) -> Vec<u32>), ("all equal", |len| vec![7; len])] {
        for &len in lengths {
            for kind in [ProposerKind::Ngram, ProposerKind::Suffix] {
                costs(name, kind, &text(len + TAIL));
            }
        }
    }
    println!("\ntokens per step when a text is decoded greedily with drafts of at most 8 tokens\n");
    for (name, text) in texts() {
        gains(name, &text);
    }
}

fn costs(name: &str, kind: ProposerKind, text: &[u32]) {
    let params = ProposerParams::new(kind);
    let (history, tail) = text.split_at(text.len() - TAIL);
    let [mut open, mut push, mut propose] = [f64::MAX; 3];
    let mut bytes = 0;
    for _ in 0..PASSES {
        let (mut proposer, opening) = timed(|| Proposer::new(&params, history, &[]));
        proposer.push(tail[0]); // This allocates room for more tokens.
        let ((), pushing) = timed(|| tail[1..].iter().for_each(|&token| proposer.push(black_box(token))));
        bytes = proposer.bytes();
        let mut proposer = Proposer::new(&params, history, &[]);
        let mut proposing = 0.0;
        for &token in tail {
            proposing += timed(|| black_box(proposer.propose(64))).1;
            proposer.push(token);
        }
        open = open.min(opening / history.len() as f64);
        push = push.min(pushing / TAIL as f64);
        propose = propose.min(proposing / TAIL as f64);
    }
    println!(
        "{name:12} {:7} {:9} {:9.1} {:9.1} {:11.0} {:12.1}",
        kind.label(),
        history.len(),
        open * 1e9,
        push * 1e9,
        propose * 1e9,
        bytes as f64 / text.len() as f64
    );
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed().as_secs_f64())
}

/// Replays a text. A draft is accepted as far as it equals the text that follows.
fn gains(name: &str, text: &[u32]) {
    for (kind, min_match, max_match) in [
        (ProposerKind::Ngram, 5, 5),
        (ProposerKind::Ngram, 2, 5),
        (ProposerKind::Ngram, 1, 5),
        (ProposerKind::Ngram, 1, 2),
        (ProposerKind::Suffix, 2, 24),
        (ProposerKind::Suffix, 1, 24),
    ] {
        let params = ProposerParams { min_match, max_match, ..ProposerParams::new(kind) };
        let mut proposer = Proposer::new(&params, &text[..1], &[]);
        let (mut at, mut steps, mut drafted, mut accepted) = (1, 0, 0, 0);
        while at < text.len() {
            let draft = proposer.propose(text.len() - at - 1).tokens;
            let right = draft.iter().zip(&text[at..]).take_while(|(a, b)| a == b).count();
            text[at..=at + right].iter().for_each(|&token| proposer.push(token));
            (steps, drafted, accepted) = (steps + 1, drafted + draft.len(), accepted + right);
            at += right + 1;
        }
        println!(
            "{name:24} {:7} {min_match:2} ..= {max_match:2}: {:5.3} tokens per step, {:4.2} drafted, acceptance {:5.3}",
            kind.label(),
            (text.len() - 1) as f64 / f64::from(steps),
            drafted as f64 / f64::from(steps),
            accepted as f64 / drafted.max(1) as f64
        );
    }
}

/// Tokens of a vocabulary of 100,000 by Zipf's law. A third of the text is copies of 5 to 60 earlier tokens, as in
/// answers about documents and in edits of code.
fn zipf(len: usize) -> Vec<u32> {
    let mut state = 12345u64;
    let mut unit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1u64 << 24) as f64
    };
    let mut text = Vec::with_capacity(len + 60);
    while text.len() < len {
        if unit() < 1.0 / 65.0 && text.len() > 60 {
            let from = (unit() * (text.len() - 60) as f64) as usize;
            let copied = 5 + (unit() * 56.0) as usize;
            text.extend_from_within(from..from + copied);
        } else {
            // The rank of a token is log-uniform.
            text.push(100_000f64.powf(unit()) as u32);
        }
    }
    text.truncate(len);
    text
}

/// Real texts: the tales of the examples, and the sources of this crate.
fn texts() -> Vec<(&'static str, Vec<u32>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("a file of the repository");
    let tokens = |text: &str| o200k_base_singleton().encode_ordinary(text);
    let tales = read("examples/data/fables.txt") + &read("examples/data/tales.txt");
    let sources = ["src/message/shape.rs", "src/engine/batch.rs", "src/engine/rows.rs", "src/engine/state.rs"];
    let source: String = sources.map(read).concat();
    // An answer that repeats its input with changes: the second time, every tenth line is left out.
    let lines: Vec<&str> = source.lines().collect();
    let edited: Vec<&str> = lines.iter().enumerate().filter(|(i, _)| i % 10 != 9).map(|(_, line)| *line).collect();
    let edit = format!("{source}\n{}", edited.join("\n"));
    vec![("tales", tokens(&tales)), ("source code", tokens(&source)), ("source code and an edit", tokens(&edit))]
}
