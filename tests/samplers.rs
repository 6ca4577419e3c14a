//! What a chain of samplers leaves, against definitions in f64 written from the papers, not from the code under test.
//!
//! Rows are random. Where a definition compares two reals that are nearer to one another than rounding can tell, the case
//! decides nothing and is left out; how many were left out is printed and bounded.

#![allow(clippy::print_stdout)] // what was measured or skipped is worth reading

use croupier::backend::cpu::CpuBackend;
use croupier::backend::{Backend, RowJob};
use croupier::params::state::{Average, SamplerState};
use croupier::sampling::adjust::{Adjusts, Penalties};
use croupier::sampling::chain::{self, Chain, Step};
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::order::Candidate;
use croupier::sampling::philox::{Purpose, uniform};
use croupier::sampling::row::{Action, Filters, RowSpec};

#[path = "support/chi_square.rs"]
mod chi_square;
use chi_square::{DEVIATE, FALSE_ALARM, deviate};

/// Reals that are nearer than this, relative to the larger, are not told apart.
const NEAR: f64 = 2e-5;
/// What samplers remember.
const STATE: SamplerState = SamplerState { mirostat_mu: Some(3.5), adaptive: Some(Average { sum: 3.0, weight: 10.0 }) };
const FILTERS: Filters = Filters { temperature: 0.7, top_k: 20, top_p: 0.9, min_p: 0.03 };

/// A row as the definitions see it: logits of the tokens that are left, and whether any comparison was too near.
struct Naive {
    logits: Vec<Option<f64>>,
    near: bool,
    /// Whether tokens that are not equal are so near to one another that their order cannot be told.
    close: bool,
}

impl Naive {
    fn new(logits: &[f32]) -> Self {
        Self { logits: logits.iter().map(|&x| Some(f64::from(x))).collect(), near: false, close: false }
    }

    fn probabilities(&self) -> Vec<f64> {
        let max = self.max();
        let weights = self.logits.iter().map(|x| x.map_or(0.0, |x| (x - max).exp()));
        let weights: Vec<f64> = weights.collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|w| w / total).collect()
    }

    fn max(&self) -> f64 {
        self.logits.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    fn left(&self) -> Vec<usize> {
        (0..self.logits.len()).filter(|&t| self.logits[t].is_some()).collect()
    }

    /// Tokens that are left, by a number, largest first, then by id.
    fn by(&self, number: impl Fn(usize) -> f64) -> Vec<usize> {
        let mut left = self.left();
        left.sort_by(|&a, &b| number(b).total_cmp(&number(a)).then(a.cmp(&b)));
        left
    }

    fn entropy(&self) -> f64 {
        self.probabilities().iter().filter(|&&p| p > 0.0).map(|p| -p * p.ln()).sum()
    }

    /// Whether `a >= b`.
    fn at_least(&mut self, a: f64, b: f64) -> bool {
        self.near |= (a - b).abs() <= NEAR * a.abs().max(b.abs()).max(1e-9);
        a >= b
    }

    fn keep(&mut self, kept: &[usize]) {
        (0..self.logits.len()).filter(|t| !kept.contains(t)).for_each(|t| self.logits[t] = None);
    }

    fn keep_from(&mut self, least: f64) {
        let p = self.probabilities();
        let first = self.by(|t| p[t])[0];
        let kept: Vec<usize> = self.left().into_iter().filter(|&t| t == first || self.at_least(p[t], least)).collect();
        self.keep(&kept);
    }

    /// The fewest of `order` whose probability reaches `share`.
    fn keep_reaching(&mut self, order: &[usize], share: f64) {
        let p = self.probabilities();
        let (mut sum, mut kept) = (0.0, 0);
        for &token in order {
            sum += p[token];
            kept += 1;
            if self.at_least(sum, share) {
                break;
            }
        }
        self.keep(&order[..kept]);
    }

    fn map(&mut self, of: impl Fn(f64) -> f64) {
        self.logits.iter_mut().flatten().for_each(|x| *x = of(*x));
    }

    fn apply(&mut self, step: Step) {
        let p = self.probabilities();
        let most = p.iter().copied().fold(0.0, f64::max);
        let real = f64::from;
        // Equal masses are ties for a cutoff too.
        self.near |= self.close;
        match step {
            Step::Temperature => self.map(|x| x / real(FILTERS.temperature)),
            Step::DynamicTemperature { low, high, exponent } => {
                let share = self.entropy() / (self.left().len() as f64).ln().max(1e-300);
                let temperature = real(low) + real(high - low) * share.clamp(0.0, 1.0).powf(real(exponent));
                self.map(|x| x / temperature);
            }
            Step::Smoothing { factor, curve } => {
                let (max, f, c) = (self.max(), real(factor), real(curve));
                let (k, s) = ((3.0 - c) / 2.0, (c - 1.0) / 2.0);
                self.map(|x| -k * f * (x - max).powi(2) + s * f * (x - max).powi(3));
            }
            // Random rows have no ties.
            Step::TopK | Step::TopKTies => {
                let order = self.by(|t| p[t]);
                self.keep(&order[..order.len().min(FILTERS.top_k as usize)]);
            }
            Step::TopP => self.keep_reaching(&self.by(|t| p[t]), real(FILTERS.top_p)),
            Step::MinP => self.keep_from(real(FILTERS.min_p) * most),
            Step::TopA(a) => self.keep_from(real(a) * most * most),
            Step::EpsilonCutoff(epsilon) => self.keep_from(real(epsilon)),
            Step::EtaCutoff(e) => self.keep_from(real(e).min(real(e).sqrt() * (-self.entropy()).exp())),
            Step::TypicalP(share) | Step::TypicalAbove(share) | Step::TypicalTies(share) => {
                let entropy = self.entropy();
                let order = self.by(|t| -(-p[t].ln() - entropy).abs());
                self.keep_reaching(&order, real(share));
            }
            Step::Tfs(z) => self.tail_free(real(z)),
            Step::TopNSigma(n) => self.top_n_sigma(real(n)),
            Step::TopH(share) => self.top_h(real(share)),
            Step::Xtc { threshold, .. } | Step::XtcUnlessIgnored { threshold, .. } => self.exclude(real(threshold)),
            Step::XtcExpected { probability, threshold } => self.expect(real(probability), real(threshold)),
            Step::Skew(by) => self.skew(real(by).exp()),
            Step::PLess => self.keep_from(p.iter().map(|p| p * p).sum()),
            Step::MirostatV1 { .. } => self.mirostat(STATE.mirostat_mu.unwrap_or_default()),
            Step::MirostatV2 { .. } => self.keep_from((-STATE.mirostat_mu.unwrap_or_default()).exp2()),
            // None is played here: src/sampling/mark/tournament.rs compares it with its formula.
            Step::Tournament => {}
            Step::AdaptiveP { target, .. } => {
                let average = STATE.adaptive.map_or(0.0, |average| average.sum / average.weight);
                let wanted = (2.0 * real(target) - average).clamp(0.0, 1.0);
                let curve = |p: f64| {
                    let distance = (p - wanted).abs() / 0.3;
                    5.0 - 10.0 * distance * distance / (1.0 + distance)
                };
                let logits = self.logits.iter().zip(&p);
                self.logits = logits.map(|(x, &p)| x.map(|_| curve(p))).collect();
                self.look_for_close();
            }
        }
    }

    /// Notes whether two tokens are so near that their order cannot be told.
    fn look_for_close(&mut self) {
        let mut sorted: Vec<f64> = self.logits.iter().flatten().copied().collect();
        sorted.sort_by(f64::total_cmp);
        self.close = sorted.windows(2).any(|pair| pair[1] - pair[0] < 1e-5);
    }

    /// Draws by the uniform number to the power 1 / `power`, along falling probabilities.
    fn skew(&mut self, power: f64) {
        let p = self.probabilities();
        let order = self.by(|t| p[t]);
        let mut before = 0.0;
        for token in order {
            // Such a one may have no mass.
            self.near |= p[token] < 1e-10;
            let up_to: f64 = before + p[token];
            self.logits[token] = Some((up_to.powf(power) - f64::powf(before, power)).ln());
            before = up_to;
        }
        self.look_for_close();
    }

    /// XTC's probabilities, that it happens and that it does not taken together.
    fn expect(&mut self, probability: f64, threshold: f64) {
        let without = self.probabilities();
        let mut happened = Naive { logits: self.logits.clone(), near: false, close: false };
        happened.exclude(threshold);
        self.near |= happened.near;
        let with = happened.probabilities();
        if happened.left() == self.left() {
            return;
        }
        for token in self.left() {
            self.logits[token] = Some((probability * with[token] + (1.0 - probability) * without[token]).ln());
        }
        self.look_for_close();
    }

    /// The first mirostat, as the paper estimates: by the logits' own differences.
    fn mirostat(&mut self, mu: f64) {
        let p = self.probabilities();
        let order = self.by(|t| p[t]);
        let places = 0..order.len().min(100) - 1;
        let t = |i: usize| ((i as f64 + 2.0) / (i as f64 + 1.0)).ln();
        let b = |i: usize| (p[order[i]] / p[order[i + 1]]).ln();
        let s = places.clone().map(|i| t(i) * b(i)).sum::<f64>() / places.map(|i| t(i) * t(i)).sum::<f64>();
        let n = order.len() as f64;
        let k = ((s - 1.0) * mu.exp2() / (1.0 - n.powf(1.0 - s))).powf(1.0 / s);
        self.near |= (k - k.round()).abs() < 1e-3 * k || (s - 1.0).abs() < 1e-6;
        self.keep(&order[..order.len().min((k as usize).max(1))]);
    }

    fn tail_free(&mut self, z: f64) {
        let p = self.probabilities();
        let order = self.by(|t| p[t]);
        if order.len() < 3 {
            return;
        }
        let first: Vec<f64> = order.windows(2).map(|w| p[w[0]] - p[w[1]]).collect();
        let second: Vec<f64> = first.windows(2).map(|w| (w[0] - w[1]).abs()).collect();
        let total: f64 = second.iter().sum();
        let (mut sum, mut kept) = (0.0, 1);
        for d in second {
            sum += d / total;
            if !self.at_least(z, sum) {
                break;
            }
            kept += 1;
        }
        self.keep(&order[..kept]);
    }

    fn top_n_sigma(&mut self, n: f64) {
        let logits: Vec<f64> = self.logits.iter().flatten().copied().collect();
        let mean = logits.iter().sum::<f64>() / logits.len() as f64;
        let sigma = (logits.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / logits.len() as f64).sqrt();
        let least = self.max() - n * sigma;
        // Distances are in units of 2^-8.
        self.near |= logits.iter().any(|x| (x - least).abs() < n / 256.0);
        let kept: Vec<usize> = self.left().into_iter().filter(|&t| self.logits[t] >= Some(least)).collect();
        self.keep(&kept);
    }

    fn top_h(&mut self, share: f64) {
        let order = self.by(|t| self.logits[t].unwrap_or(f64::NEG_INFINITY));
        self.keep(&order[..order.len().min(100)]);
        let (p, most) = (self.probabilities(), share * self.entropy());
        let (mut sum, mut kept) = (0.0, 0);
        for &token in order.iter().take(100) {
            sum += -p[token] * p[token].ln();
            if !self.at_least(most, sum) {
                break;
            }
            kept += 1;
        }
        self.keep(&order[..kept.max(1)]);
    }

    fn exclude(&mut self, threshold: f64) {
        let p = self.probabilities();
        let choices: Vec<usize> = self.by(|t| p[t]).into_iter().filter(|&t| self.at_least(p[t], threshold)).collect();
        if let Some((_, out)) = choices.split_last() {
            let kept: Vec<usize> = self.left().into_iter().filter(|t| !out.contains(t)).collect();
            self.keep(&kept);
        }
    }
}

fn random(seed: u64, index: u64) -> f64 {
    uniform(seed, index, Purpose::Sample) as f64 / 2f64.powi(64)
}

fn row(vocab: usize, spread: f64, seed: u64) -> Vec<f32> {
    (0..vocab as u64).map(|i| (spread * (0..3).map(|j| random(seed, 3 * i + j) - 0.5).sum::<f64>()) as f32).collect()
}

/// A step of a kind, with a random parameter.
fn step(kind: usize, seed: u64) -> Step {
    let share = random(seed, kind as u64) as f32;
    match kind {
        0 => Step::Temperature,
        1 => Step::DynamicTemperature { low: share, high: 1.5, exponent: 1.0 + share },
        2 => Step::Smoothing { factor: 0.1 + share, curve: 1.0 },
        3 => Step::Smoothing { factor: 0.05 + 0.1 * share, curve: 1.5 },
        4 => Step::TopK,
        5 => Step::TopP,
        6 => Step::MinP,
        7 => Step::TypicalP(0.05 + 0.9 * share),
        8 => Step::Tfs(0.05 + 0.9 * share),
        9 => Step::TopA(share),
        10 => Step::TopNSigma(0.3 + 2.0 * share),
        11 => Step::EpsilonCutoff(0.05 * share),
        12 => Step::EtaCutoff(0.05 * share),
        13 => Step::TopH(0.1 + 0.8 * share),
        14 => Step::PLess,
        15 => Step::MirostatV1 { tau: 3.0, eta: 0.1 },
        16 => Step::MirostatV2 { tau: 3.0, eta: 0.1 },
        17 => Step::AdaptiveP { target: share, decay: 0.9 },
        18 => Step::Skew(3.0 * share - 1.5),
        19 => Step::XtcExpected { probability: 0.9 * share, threshold: 0.02 + 0.1 * share },
        20 => Step::TopKTies,
        21 => Step::TypicalAbove(0.05 + 0.9 * share),
        22 => Step::TypicalTies(0.05 + 0.9 * share),
        23 => Step::XtcUnlessIgnored { probability: 1.0, threshold: 0.02 + 0.2 * share },
        _ => Step::Xtc { probability: 1.0, threshold: 0.02 + 0.2 * share },
    }
}

const KINDS: usize = 25;

/// Every sampler alone and behind every other: the tokens that are left and their probabilities are those of the
/// definitions.
#[test]
fn definitions() {
    let (mut decided, mut left_out) = (0, 0);
    for first in 0..KINDS {
        for second in 0..KINDS {
            for seed in 0..8u64 {
                let case = seed + 100 * first as u64 + 10_000 * second as u64;
                let logits = row(30 + 40 * seed as usize, 3.0 + seed as f64, case);
                let steps = [step(first, case), step(second, case + 50)];
                let mut naive = Naive::new(&logits);
                steps.iter().for_each(|&step| naive.apply(step));
                if naive.near {
                    left_out += 1;
                    continue;
                }
                let all = logits.iter().enumerate().map(|(t, &logit)| Candidate { token: t as u32, logit }).collect();
                let chain =
                    Chain { steps: &steps, min_keep: 1, protected: &[], xtc: 0, state: STATE, tournament: None };
                let left = chain::run(all, &FILTERS, &chain);
                let mut tokens: Vec<usize> = left.kept().iter().map(|w| w.candidate.token as usize).collect();
                tokens.sort_unstable();
                assert_eq!(tokens, naive.left(), "{steps:?}, case {case}");
                let (expected, total) = (naive.probabilities(), left.total() as f64);
                for weighted in left.kept() {
                    let (got, expected) = (weighted.mass as f64 / total, expected[weighted.candidate.token as usize]);
                    assert!(
                        (got - expected).abs() <= 1e-4 * expected + 1e-9,
                        "{steps:?}, case {case}: {got} {expected}"
                    );
                }
                decided += 1;
            }
        }
    }
    println!("{decided} cases decided, {left_out} too near to decide");
    assert!(left_out * 10 < decided, "too few cases decide anything");
}

/// Tokens that the backend draws after a chain have the definitions' probabilities.
#[test]
fn draws() {
    const DRAWS: u64 = 200_000;
    let chains: [(&str, &[Step]); 11] = [
        ("typical", &[Step::Temperature, Step::TypicalP(0.9)]),
        ("smoothing", &[Step::Smoothing { factor: 0.15, curve: 1.5 }]),
        ("dynamic temperature", &[Step::DynamicTemperature { low: 0.2, high: 2.0, exponent: 1.3 }]),
        ("top-n-sigma, temperature last", &[Step::TopNSigma(1.5), Step::Temperature]),
        ("p-less", &[Step::PLess]),
        ("mirostat", &[Step::MirostatV1 { tau: 3.0, eta: 0.1 }]),
        ("mirostat 2 at a temperature", &[Step::Temperature, Step::MirostatV2 { tau: 3.0, eta: 0.1 }]),
        ("adaptive-p behind min-p", &[Step::MinP, Step::AdaptiveP { target: 0.1, decay: 0.9 }]),
        ("skew behind top-p", &[Step::TopP, Step::Skew(0.7)]),
        ("xtc on average", &[Step::XtcExpected { probability: 0.5, threshold: 0.03 }]),
        ("xtc behind min-p", &[Step::MinP, Step::Xtc { probability: 1.0, threshold: 0.05 }]),
    ];
    for (i, (name, steps)) in chains.into_iter().enumerate() {
        let logits = row(300, 4.0, 77 + i as u64);
        let mut naive = Naive::new(&logits);
        steps.iter().for_each(|&step| naive.apply(step));
        assert!(!naive.near, "{name}: choose another row");
        let bytes = Dtype::F32.encode(&logits);
        let (mut backend, mut counts) = (CpuBackend::new(1), vec![0u64; logits.len()]);
        for position in 0..DRAWS {
            let spec = RowSpec {
                filters: FILTERS,
                chain: Some(Chain { steps, min_keep: 1, protected: &[], xtc: 0, state: STATE, tournament: None }),
                penalties: Penalties::OFF,
                adjusts: Adjusts::default(),
                banned: &[],
                allowed: None,
                mark: None,
                action: Action::Draw { uniform: uniform(0xD1CE, position, Purpose::Sample) },
                logprobs: None,
                report: None,
            };
            let result = backend.run(&[RowJob { logits: Logits::new(Dtype::F32, &bytes), spec }]).remove(0);
            counts[result.expect("the row is fine").token as usize] += 1;
        }
        let deviate = deviate(&counts, &naive.probabilities());
        println!("{name}: {deviate:+.2} standard deviations (alarm above {DEVIATE}, false alarms {FALSE_ALARM})");
        assert!(deviate < DEVIATE, "{name}: drawn tokens do not have their probabilities ({deviate:.1} deviations)");
    }
}

/// XTC happens at a share of positions, and draws are then from what it leaves.
#[test]
fn xtc_by_positions() {
    let happened = (0..100_000u64)
        .filter(|&position| croupier::sampling::samplers::xtc::happens(0.3, uniform(5, position, Purpose::Xtc)));
    let deviations = (happened.count() as f64 - 30_000.0) / (100_000f64 * 0.3 * 0.7).sqrt();
    println!("{deviations:+.2} standard deviations (alarm beyond 4.5, false alarms 7e-6)");
    assert!(deviations.abs() < 4.5);
}
