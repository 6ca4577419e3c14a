//! What verifying a draft costs, compared with plain rows of the same parameters.
//!
//! Every figure is a ratio: the time of a verification of k draft tokens, divided by that of k + 1 plain rows with the
//! same parameters. Both are measured alternately in the same run on one core. For each of many drafts and seeds the
//! least of many rounds counts, and these are averaged. Each draft has rows of its own. Plain rows come one at a time,
//! as they would without speculation; "batch" is their time in one call, where they can be read from memory as a
//! verification reads them.
//!
//! "some" are drafts of a model whose tokens are mostly accepted (the share is printed; tokens after a rejected one
//! count as not accepted), "all" are drafts of the target itself. Lines with "stats" are verifications whose acceptance
//! is measured, as one in sixteen is; "of not" is their time divided by that of the same verifications without
//! measuring.
//!
//!   cargo bench --bench verification
//!   cargo bench --bench verification -- --quick "temperature; kept"

#![allow(clippy::print_stdout)] // it prints a table

use clap::Parser;
use croupier::backend::cpu::{CpuBackend, Level};
use croupier::backend::{Backend, RowJob, VerifyJob};
use croupier::sampling::adjust::{Adjusts, Penalties, TokenAdjust};
use croupier::sampling::kept::Kept;
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::row::{Action, Filters, RowSpec};
use croupier::speculative::job::{DraftSource, DraftToken};
use croupier::speculative::numbers::{Numbers, Spot};
use croupier::speculative::rule::AcceptanceRule;
use croupier::speculative::tree::Tree;
use std::hint::black_box;
use std::time::Instant;

#[path = "support/options.rs"]
mod options;
#[path = "support/rows.rs"]
#[allow(dead_code)] // The other table's reference is not used here.
mod rows;
use rows::Shape;

#[derive(Parser)]
#[command(about = "What verifying a draft costs over plain rows of the same parameters")]
struct Options {
    #[command(flatten)]
    common: options::Common,
    /// Only lines that hold all of these, such as "temperature; kept" or "; 8".
    wanted: Vec<String>,
}

const VOCAB: usize = 128_256;
/// Number of drafts that are verified in a round.
const DRAFTS: usize = 12;
/// The noise that makes draft logits differ from the target's: about 70 % of draft tokens are accepted.
const NOISE: f32 = 1.6;

/// Where draft distributions come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Kept,
    Dense,
    Sparse,
    None,
}

/// A parameter mix.
struct Mix {
    name: &'static str,
    filters: Filters,
    penalised: bool,
}

const OFF: Filters = Filters { temperature: 0.8, top_k: 0, top_p: 1.0, min_p: 0.0 };

fn mixes() -> Vec<Mix> {
    let mix = |name, filters, penalised| Mix { name, filters, penalised };
    vec![
        mix("temperature", OFF, false),
        mix("top-k 50", Filters { top_k: 50, ..OFF }, false),
        mix("top-k 50, top-p .9", Filters { top_k: 50, top_p: 0.9, ..OFF }, false),
        mix("full", Filters { top_k: 50, top_p: 0.9, min_p: 0.02, ..OFF }, true),
    ]
}

/// A draft and its target rows.
struct Draft {
    targets: Vec<Vec<u8>>,
    tokens: Vec<u32>,
    kept: Vec<Kept>,
    probs: Vec<Vec<u8>>,
    sparse: Vec<(Vec<u32>, Vec<f32>)>,
    seed: u64,
}

/// What is verified, and with which parameters.
struct Bench<'a> {
    mix: &'a Mix,
    source: Source,
    tree: Tree,
    rule: AcceptanceRule,
    measure: bool,
    adjusts: Vec<TokenAdjust>,
}

impl Bench<'_> {
    fn row<'a>(&'a self, bytes: &'a [u8], action: Action) -> RowJob<'a> {
        let penalties = Penalties { repetition: 1.1, frequency: 0.1, presence: 0.1, ..Penalties::OFF };
        let penalised = self.mix.penalised;
        RowJob {
            logits: Logits::new(Dtype::F32, bytes),
            spec: RowSpec {
                penalties: if penalised { penalties } else { Penalties::OFF },
                adjusts: if penalised { self.adjusts.as_slice().into() } else { Adjusts::default() },
                ..RowSpec::plain(self.mix.filters, action)
            },
        }
    }

    /// A draft whose tokens are drawn from rows near those of the target.
    fn draft(&self, backend: &mut CpuBackend, k: usize, noise: f32, seed: u64) -> Draft {
        let target = |i: usize| rows::row(Shape::Peaked, VOCAB, seed * 100 + i as u64);
        let mut draft = Draft {
            targets: (0..=k).map(|i| Dtype::F32.encode(&target(i))).collect(),
            tokens: vec![],
            kept: vec![],
            probs: vec![],
            sparse: vec![],
            seed,
        };
        for node in 0..self.tree.len() {
            let above = self.above(node);
            let off = rows::row(Shape::Flat, VOCAB, seed * 100 + above as u64 + 50_000);
            let near: Vec<f32> = target(above).iter().zip(&off).map(|(x, e)| x + noise * e).collect();
            let uniform = Numbers { seed, start: 0 }.draft(self.tree.spot(node));
            let bytes = Dtype::F32.encode(&near);
            let result =
                backend.run(&[self.row(&bytes, Action::Propose { uniform })]).remove(0).expect("the row is fine");
            let kept = result.kept.expect("it was asked for");
            let entries = kept.entries();
            let prob = |mass: u64| (mass as f64 / kept.total() as f64) as f32;
            let mut all = vec![0.0; VOCAB];
            entries.iter().for_each(|&(token, mass)| all[token as usize] = prob(mass));
            draft.tokens.push(result.token);
            draft.probs.push(Dtype::F32.encode(&all));
            draft.sparse.push(most_likely(&entries, result.token));
            draft.kept.push(*kept);
        }
        draft
    }

    /// The index of the row that a draft token follows.
    fn above(&self, node: usize) -> usize {
        let parent = |above: Option<usize>| self.tree.children(above).contains(&node);
        if parent(None) { 0 } else { 1 + (0..node).find(|&above| parent(Some(above))).expect("a tree") }
    }

    /// Verifies a draft and returns the number of accepted tokens.
    fn verify(&self, backend: &mut CpuBackend, draft: &Draft, round: u64, measure: bool) -> usize {
        let rows: Vec<_> = draft.targets.iter().map(|bytes| self.row(bytes, Action::Score { token: 0 })).collect();
        let source = |i: usize| match self.source {
            Source::Kept => DraftSource::Kept(&draft.kept[i]),
            Source::Dense => DraftSource::Dense(Logits::new(Dtype::F32, &draft.probs[i])),
            Source::Sparse => DraftSource::Sparse { tokens: &draft.sparse[i].0, probs: &draft.sparse[i].1 },
            Source::None => DraftSource::Deterministic,
        };
        let drafts = draft.tokens.iter().enumerate();
        let drafts: Vec<_> = drafts.map(|(i, &token)| DraftToken { token, source: source(i) }).collect();
        let job = VerifyJob {
            rows: &rows,
            ends: &vec![false; drafts.len()],
            drafts: &drafts,
            tree: &self.tree,
            rule: self.rule,
            strict: &[],
            // Different numbers from those of the draws, so that each round decides differently.
            numbers: Numbers { seed: draft.seed + 1_000_003 * round, start: 0 },
            measure,
        };
        let result = backend.verify(&[black_box(job)]).remove(0).expect("the draft is fine");
        black_box(result).accepted_count()
    }

    /// Samples plain rows, one at a time or in one call.
    fn plain(&self, backend: &mut CpuBackend, draft: &Draft, round: u64, at_once: bool) {
        let row = |(i, bytes)| {
            let uniform = Numbers { seed: draft.seed + round, start: i as u64 }.draft(Spot::in_chain(0));
            self.row(bytes, Action::Draw { uniform })
        };
        let rows: Vec<_> = draft.targets.iter().map(Vec::as_slice).enumerate().map(row).collect();
        for rows in rows.chunks(if at_once { rows.len() } else { 1 }) {
            black_box(backend.run(black_box(rows)));
        }
    }
}

/// The 20 most likely tokens and the drawn one, with probabilities that sum to 1.
fn most_likely(entries: &[(u32, u64)], drawn: u32) -> (Vec<u32>, Vec<f32>) {
    let mut sorted = entries.to_vec();
    sorted.sort_unstable_by_key(|&(token, mass)| (token != drawn, u64::MAX - mass));
    sorted.truncate(20);
    let total: u64 = sorted.iter().map(|entry| entry.1).sum();
    (sorted.iter().map(|e| e.0).collect(), sorted.iter().map(|e| (e.1 as f64 / total as f64) as f32).collect())
}

/// Number of sets of random numbers with which each draft is verified. The acceptance differs between them, and so does
/// the time.
const SETS: usize = 4;

/// The result for one kind of drafts.
struct Measured {
    /// Microseconds for k + 1 plain rows, one at a time.
    plain: f64,
    /// The same rows in one call, as a multiple of `plain`.
    batch: f64,
    /// A verification, as a multiple of `plain`.
    verified: f64,
    /// If this verification is measured: its time as a multiple of the same verification without measuring.
    of_not_measured: Option<f64>,
    /// The share of draft tokens accepted.
    accepted: f64,
}

/// Measures all drafts. For each draft and set, its least time counts, of equally many rounds on each side.
fn measure(bench: &Bench<'_>, backend: &mut CpuBackend, drafts: &[Draft], rounds: usize) -> Measured {
    let mut least = vec![[f64::MAX; 4]; SETS * drafts.len()];
    let (mut accepted, mut tested) = (0, 0);
    for round in 0..rounds * SETS {
        let set = round % SETS;
        // All drafts are measured on one side, then on the next, so that none finds its rows in the cache because of
        // another side.
        for side in 0..3 + usize::from(bench.measure) {
            for (draft, least) in drafts.iter().zip(&mut least[set * drafts.len()..]) {
                let start = Instant::now();
                match side {
                    0 | 1 => bench.plain(backend, draft, set as u64, side == 1),
                    2 => accepted += bench.verify(backend, draft, set as u64, bench.measure),
                    _ => drop(bench.verify(backend, draft, set as u64, false)),
                }
                least[side] = least[side].min(start.elapsed().as_secs_f64());
            }
        }
        tested += drafts.iter().map(|draft| draft.tokens.len()).sum::<usize>();
    }
    let [plain, batch, verified, not_measured] =
        [0, 1, 2, 3].map(|side| least.iter().map(|sides| sides[side]).sum::<f64>());
    Measured {
        plain: plain * 1e6 / least.len() as f64,
        batch: batch / plain,
        verified: verified / plain,
        of_not_measured: bench.measure.then_some(verified / not_measured),
        accepted: accepted as f64 / tested as f64,
    }
}

fn main() {
    let Options { common, wanted } = Options::parse();
    let rounds = if common.quick() { 6 } else { 16 };
    let level = Level::detect();
    println!("one core, {}, V = {VOCAB} f32, peaked rows, {DRAFTS} drafts, least of {rounds} rounds", level.name());
    println!("x = times k + 1 plain rows of the same parameters, measured in turn\n");
    println!(
        "{:20} {:12} {:>2} {:>9} {:>7} {:>7} {:>7} {:>9} {:>7} {:>7}   goal",
        "parameters", "drafts", "k", "plain us", "batch x", "some x", "of not", "accepted", "all x", "of not"
    );
    let mut backend = CpuBackend::with_level(1, level);
    for mix in mixes() {
        for (name, source, rule, tree, measured, goal) in kinds() {
            for k in [1, 4, 8] {
                let tree = if tree { siblings(k) } else { Tree::chain(k) };
                let line = format!("{}; {name}; {k}", mix.name);
                if (tree.is_chain() && name == "kept, tree") || !wanted.iter().all(|part| line.contains(part)) {
                    continue;
                }
                let adjusts = (0..64).map(|i| TokenAdjust {
                    token: (i * (VOCAB / 64) + i * 7 % 50) as u32,
                    flags: TokenAdjust::SEEN,
                    bias: 0.0,
                    output_count: (i % 3) as u32,
                });
                let bench = Bench { mix: &mix, source, tree, rule, measure: measured, adjusts: adjusts.collect() };
                let mut drafts =
                    |noise| (0..DRAFTS as u64).map(|i| bench.draft(&mut backend, k, noise, i)).collect::<Vec<_>>();
                let (some, all) = (drafts(NOISE), drafts(0.0));
                let [some, all] = [some, all].map(|drafts| measure(&bench, &mut backend, &drafts, rounds));
                let of_not = [&some, &all].map(|m| m.of_not_measured.map_or("-".into(), |x| format!("{x:.2}")));
                let Measured { plain, batch, verified, accepted, .. } = some;
                println!(
                    "{:20} {name:12} {k:2} {plain:9.1} {batch:7.2} {verified:7.2} {:>7} {accepted:9.2} {:7.2} {:>7}   {goal}",
                    mix.name, of_not[0], all.verified, of_not[1]
                );
            }
        }
    }
}

fn kinds() -> [(&'static str, Source, AcceptanceRule, bool, bool, &'static str); 9] {
    use AcceptanceRule::{Block, Rejection};
    [
        ("kept", Source::Kept, Rejection, false, false, "1.3"),
        ("kept, tree", Source::Kept, Rejection, true, false, "1.3"),
        ("kept, block", Source::Kept, Block, false, false, "1.3"),
        ("kept, stats", Source::Kept, Rejection, false, true, "-"),
        ("dense", Source::Dense, Rejection, false, false, "1.6"),
        ("dense, stats", Source::Dense, Rejection, false, true, "-"),
        ("sparse", Source::Sparse, Rejection, false, false, "1.3"),
        ("none", Source::None, Rejection, false, false, "1.3"),
        ("none, stats", Source::None, Rejection, false, true, "-"),
    ]
}

/// A tree with two draft tokens at each position, of which the second has no children.
fn siblings(k: usize) -> Tree {
    let parent = |node: i32| if node < 2 { -1 } else { (node - 2) / 2 * 2 };
    let parents: Vec<i32> = (0..k as i32).map(parent).collect();
    Tree::new(&parents, k).expect("a tree")
}
