//! The definitions, in f64.

mod tail_free;

use super::{ENDS, EOS, FILTERS, NEAR, STATE, text};
use croupier::params::{MirostatVersion, TfsRule};
use croupier::sampling::chain::ChainStep;

/// A row as the definitions see it: the logits of the tokens that are left, and whether any comparison was too close.
pub(super) struct Naive {
    pub(super) logits: Vec<Option<f64>>,
    /// The temperature by which the logits have been divided since they were new.
    pub(super) temperature: f64,
    pub(super) near: bool,
    /// Whether tokens that are not equal are so close that their order cannot be told.
    pub(super) close: bool,
    /// No filter leaves fewer tokens.
    pub(super) min_keep: usize,
    /// XTC does not exclude these tokens.
    pub(super) protected: &'static [u32],
}

impl Naive {
    pub(super) fn new(logits: &[f32]) -> Self {
        let logits = logits.iter().map(|&x| Some(f64::from(x))).collect();
        Self { logits, temperature: 1.0, near: false, close: false, min_keep: 1, protected: &[] }
    }

    pub(super) fn probabilities(&self) -> Vec<f64> {
        let max = self.max();
        let weights = self.logits.iter().map(|x| x.map_or(0.0, |x| (x - max).exp()));
        let weights: Vec<f64> = weights.collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|w| w / total).collect()
    }

    pub(super) fn max(&self) -> f64 {
        self.logits.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    pub(super) fn left(&self) -> Vec<usize> {
        (0..self.logits.len()).filter(|&t| self.logits[t].is_some()).collect()
    }

    /// The tokens that are left, by a number: largest first, then by id.
    pub(super) fn by(&self, number: impl Fn(usize) -> f64) -> Vec<usize> {
        let mut left = self.left();
        left.sort_by(|&a, &b| number(b).total_cmp(&number(a)).then(a.cmp(&b)));
        left
    }

    pub(super) fn entropy(&self) -> f64 {
        self.probabilities().iter().filter(|&&p| p > 0.0).map(|p| -p * p.ln()).sum()
    }

    /// Whether `a >= b`.
    pub(super) fn at_least(&mut self, a: f64, b: f64) -> bool {
        self.near |= (a - b).abs() <= NEAR * a.abs().max(b.abs()).max(1e-9);
        a >= b
    }

    pub(super) fn keep(&mut self, kept: &[usize]) {
        (0..self.logits.len()).filter(|t| !kept.contains(t)).for_each(|t| self.logits[t] = None);
    }

    /// Keeps the first `count` of an order, or `min_keep` if that is more.
    fn keep_first(&mut self, order: &[usize], count: usize) {
        self.keep(&order[..count.max(self.min_keep).min(order.len())]);
    }

    pub(super) fn keep_from(&mut self, least: f64) {
        let p = self.probabilities();
        let order = self.by(|t| p[t]);
        let count = order.iter().filter(|&&t| self.at_least(p[t], least)).count();
        self.keep_first(&order, count);
    }

    /// Keeps the fewest of `order` whose probability reaches `share`.
    pub(super) fn keep_reaching(&mut self, order: &[usize], share: f64) {
        let p = self.probabilities();
        let (mut sum, mut kept) = (0.0, 0);
        for &token in order {
            sum += p[token];
            kept += 1;
            if self.at_least(sum, share) {
                break;
            }
        }
        self.keep_first(order, kept);
    }

    pub(super) fn map(&mut self, of: impl Fn(f64) -> f64) {
        self.logits.iter_mut().flatten().for_each(|x| *x = of(*x));
    }

    fn cool(&mut self, temperature: f64) {
        self.temperature *= temperature;
        self.map(|x| x / temperature);
    }

    pub(super) fn apply(&mut self, step: ChainStep) {
        let p = self.probabilities();
        let most = p.iter().copied().fold(0.0, f64::max);
        let real = f64::from;
        // Equal masses are ties for a cutoff too.
        self.near |= self.close;
        match step {
            ChainStep::MinEosP(least) => self.min_eos_p(&p, real(least)),
            ChainStep::Temperature => self.cool(real(FILTERS.temperature)),
            ChainStep::DynamicTemperature { low, high, exponent } => {
                let share = self.entropy() / (self.left().len() as f64).ln().max(1e-300);
                let temperature = real(low) + real(high - low) * share.clamp(0.0, 1.0).powf(real(exponent));
                self.cool(temperature);
            }
            ChainStep::Smoothing { factor, curve } => {
                let (max, f, c) = (self.max(), real(factor), real(curve));
                let (k, s) = ((3.0 - c) / 2.0, (c - 1.0) / 2.0);
                self.temperature = 1.0;
                self.map(|x| -k * f * (x - max).powi(2) + s * f * (x - max).powi(3));
            }
            ChainStep::AtMost(most) => {
                let order = self.by(|t| p[t]);
                self.keep_first(&order, most as usize);
            }
            // Random rows have no ties.
            ChainStep::TopK | ChainStep::TopKTies => {
                let order = self.by(|t| p[t]);
                self.keep_first(&order, FILTERS.top_k as usize);
            }
            ChainStep::TopP => self.keep_reaching(&self.by(|t| p[t]), real(FILTERS.top_p)),
            // In random rows no token is equal to the threshold.
            ChainStep::MinP | ChainStep::MinPAbove => self.keep_from(real(FILTERS.min_p) * most),
            ChainStep::TopA(a) => self.keep_from(real(a) * most * most),
            ChainStep::EpsilonCutoff(epsilon) => self.keep_from(real(epsilon)),
            ChainStep::EtaCutoff(e) => self.keep_from(real(e).min(real(e).sqrt() * (-self.entropy()).exp())),
            ChainStep::TypicalP(_, share) => {
                let entropy = self.entropy();
                let order = self.by(|t| -(-p[t].ln() - entropy).abs());
                self.keep_reaching(&order, real(share));
            }
            ChainStep::Tfs(TfsRule::Left, z) => self.tail_free(real(z)),
            ChainStep::Tfs(TfsRule::WithRemoved, z) => self.tail_free_of_all(&p, real(z)),
            ChainStep::Tfs(TfsRule::OneFewer, z) => self.tail_free_of_kobold(real(z)),
            ChainStep::TopNSigma(n) => self.top_n_sigma(real(n)),
            ChainStep::MinK(tau) => self.min_k(real(tau)),
            ChainStep::TopH(share) => self.top_h(real(share)),
            ChainStep::Xtc { rule, threshold, .. } if !rule.expected => {
                self.exclude(real(threshold), rule.unless_ignored)
            }
            ChainStep::Xtc { rule, probability, threshold } => {
                self.expect(real(probability), real(threshold), rule.unless_ignored);
            }
            ChainStep::Skew(by) => self.skew(real(by).exp()),
            ChainStep::PLess { norm: false } => self.keep_from(p.iter().map(|p| p * p).sum()),
            ChainStep::PLess { norm: true } => {
                // For two random tokens: the probability that they are equal, less the probability that they differ
                // divided by the number of other tokens.
                let (same, others) = (p.iter().map(|p| p * p).sum::<f64>(), self.left().len() as f64 - 1.0);
                self.keep_from(if others > 0.0 { same - (1.0 - same) / others } else { 0.0 });
            }
            ChainStep::Mirostat { version: MirostatVersion::One, .. } => {
                self.mirostat(STATE.mirostat_mu.unwrap_or_default())
            }
            ChainStep::Mirostat { version: MirostatVersion::Two, .. } => {
                self.keep_from((-STATE.mirostat_mu.unwrap_or_default()).exp2())
            }
            ChainStep::Infill => self.infill(),
            // Nothing is played here: src/sampling/watermark/tournament.rs compares tournaments with their formula.
            ChainStep::Tournament => {}
            ChainStep::AdaptiveP { target, .. } => {
                let average = STATE.adaptive.map_or(0.0, |average| average.sum / average.weight);
                let wanted = (2.0 * real(target) - average).clamp(0.0, 1.0);
                let curve = |p: f64| {
                    let distance = (p - wanted).abs() / 0.3;
                    5.0 - 10.0 * distance * distance / (1.0 + distance)
                };
                let logits = self.logits.iter().zip(&p);
                self.logits = logits.map(|(x, &p)| x.map(|_| curve(p))).collect();
                self.temperature = 1.0;
                self.look_for_close();
            }
        }
    }

    /// If one EOS token is likely enough, only EOS tokens are kept, if there are enough of them.
    fn min_eos_p(&mut self, p: &[f64], least: f64) {
        let mut ends = self.left();
        ends.retain(|&token| EOS.contains(&(token as u32)));
        let mut is_likely = false;
        for &end in &ends {
            // A token exactly at the threshold is not above it, but that is too close to tell.
            is_likely |= self.at_least(p[end], least);
        }
        if is_likely && ends.len() >= self.min_keep {
            self.keep(&ends);
        }
    }

    /// Notes whether two tokens are so close that their order cannot be told.
    pub(super) fn look_for_close(&mut self) {
        let mut sorted: Vec<f64> = self.logits.iter().flatten().copied().collect();
        sorted.sort_by(f64::total_cmp);
        self.close = sorted.windows(2).any(|pair| pair[1] - pair[0] < 1e-5);
    }

    /// Draws with the uniform number to the power 1 / `power`, along decreasing probabilities.
    pub(super) fn skew(&mut self, power: f64) {
        let p = self.probabilities();
        let order = self.by(|t| p[t]);
        let mut before = 0.0;
        self.temperature = 1.0;
        for token in order {
            // Such a token may have no mass.
            self.near |= p[token] < 1e-10;
            let up_to: f64 = before + p[token];
            self.logits[token] = Some((up_to.powf(power) - f64::powf(before, power)).ln());
            before = up_to;
        }
        self.look_for_close();
    }

    /// The expected probabilities of XTC: a mixture of those if it happens and those if it does not.
    pub(super) fn expect(&mut self, probability: f64, threshold: f64, or_nothing: bool) {
        let without = self.probabilities();
        let mut happened = Naive { logits: self.logits.clone(), ..*self };
        happened.exclude(threshold, or_nothing);
        self.near |= happened.near;
        let with = happened.probabilities();
        if happened.left() == self.left() {
            return;
        }
        self.temperature = 1.0;
        for token in self.left() {
            self.logits[token] = Some((probability * with[token] + (1.0 - probability) * without[token]).ln());
        }
        self.look_for_close();
    }

    /// Mirostat 1, with the paper's estimate from differences of the logits.
    pub(super) fn mirostat(&mut self, mu: f64) {
        let p = self.probabilities();
        let order = self.by(|t| p[t]);
        let places = 0..order.len().min(100) - 1;
        let t = |i: usize| ((i as f64 + 2.0) / (i as f64 + 1.0)).ln();
        let b = |i: usize| (p[order[i]] / p[order[i + 1]]).ln();
        let s = places.clone().map(|i| t(i) * b(i)).sum::<f64>() / places.map(|i| t(i) * t(i)).sum::<f64>();
        let n = order.len() as f64;
        let k = ((s - 1.0) * mu.exp2() / (1.0 - n.powf(1.0 - s))).powf(1.0 / s);
        self.near |= (k - k.round()).abs() < 1e-3 * k || (s - 1.0).abs() < 1e-6;
        self.keep_first(&order, k as usize);
    }

    pub(super) fn top_n_sigma(&mut self, n: f64) {
        let logits: Vec<f64> = self.logits.iter().flatten().copied().collect();
        let mean = logits.iter().sum::<f64>() / logits.len() as f64;
        let sigma = (logits.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / logits.len() as f64).sqrt();
        let least = self.max() - n * sigma;
        self.near |= logits.iter().any(|x| (x - least).abs() < NEAR * n * sigma);
        let order = self.by(|t| self.logits[t].unwrap_or(f64::NEG_INFINITY));
        let count = order.iter().filter(|&&t| self.logits[t] >= Some(least)).count();
        self.keep_first(&order, count);
    }

    /// As in the paper, at temperature 1: each fall relative to the range, divided by its place, and the largest of
    /// these.
    fn min_k(&mut self, tau: f64) {
        let order = self.by(|t| self.logits[t].unwrap_or(f64::NEG_INFINITY));
        let logits: Vec<f64> = order.iter().flat_map(|&t| self.logits[t]).map(|x| x * self.temperature).collect();
        let range = logits[0] - logits[logits.len() - 1] + 1e-8;
        let falls: Vec<f64> =
            logits.windows(2).zip(1..).map(|(pair, place)| (pair[0] - pair[1]) / range / f64::from(place)).collect();
        let most = falls.iter().copied().fold(0.0, f64::max);
        let cliff = falls.iter().position(|&fall| fall == most).map_or(1, |at| at + 1);
        // If a step gave new logits, they were rounded to f32, by more than the smallest falls.
        let rounding = 1e-6 * logits.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
        self.near |= falls.iter().filter(|&&fall| most - fall < rounding / range).count() > 1;
        let least = tau / range;
        self.near |= (least - least.round()).abs() < 1e-4 * least;
        self.keep_first(&order, cliff.max(least as usize));
    }

    pub(super) fn top_h(&mut self, share: f64) {
        let order = self.by(|t| self.logits[t].unwrap_or(f64::NEG_INFINITY));
        self.keep_first(&order, 100);
        let (p, most) = (self.probabilities(), share * self.entropy());
        let (mut sum, mut kept) = (0.0, 0);
        for &token in order.iter().take(100) {
            sum += -p[token] * p[token].ln();
            if !self.at_least(most, sum) {
                break;
            }
            kept += 1;
        }
        self.keep_first(&order, kept);
    }

    /// Keeps these tokens, unless they are fewer than `min_keep`.
    fn keep_unless_few(&mut self, kept: &[usize]) {
        if kept.len() >= self.min_keep {
            self.keep(kept);
        }
    }

    pub(super) fn infill(&mut self) {
        let (mut p, is_end) = (self.probabilities(), |t: usize| ENDS.contains(&(t as u32)));
        let order = self.by(|t| p[t]);
        let (ends, others): (Vec<usize>, Vec<usize>) = order.iter().partition(|&&t| is_end(t));
        let sum = |p: &[f64], of: &[usize]| of.iter().map(|&t| p[t]).sum::<f64>();
        let (end, other) = (3.0 * order.len() as f64 * sum(&p, &ends), sum(&p, &others));
        if !self.at_least(other, end) {
            return self.keep_unless_few(&ends);
        }
        let mut merged = vec![false; p.len()];
        for &a in &others {
            for &b in &others {
                let is_pair = a != b && !merged[a] && !merged[b] && !text(a).is_empty();
                if is_pair && text(b).starts_with(&text(a)) {
                    let (to, from) = if self.at_least(p[a], p[b]) { (a, b) } else { (b, a) };
                    p[to] += p[from];
                    (p[from], merged[from]) = (0.0, true);
                }
            }
        }
        let mut left: Vec<usize> = others.into_iter().filter(|&t| self.at_least(p[t], 0.2)).collect();
        if left.is_empty() {
            if self.min_keep > 1 {
                return;
            }
            self.logits[ENDS[1] as usize] = Some(0.0);
            return self.keep(&[ENDS[1] as usize]);
        }
        let least = (sum(&p, &left) + sum(&p, &ends)) / (left.len() as f64 + 1.0);
        left.retain(|&t| self.at_least(p[t], least));
        self.keep_unless_few(&[left, ends].concat());
    }

    pub(super) fn exclude(&mut self, threshold: f64, or_nothing: bool) {
        let p = self.probabilities();
        let spared = |t: &usize| self.protected.contains(&(*t as u32));
        let mut choices = self.by(|t| p[t]);
        choices.retain(|&t| self.at_least(p[t], threshold) && (or_nothing || !spared(&t)));
        if let Some((_, out)) = choices.split_last()
            && !(or_nothing && out.iter().any(spared))
        {
            let kept: Vec<usize> = self.left().into_iter().filter(|t| !out.contains(t)).collect();
            self.keep_unless_few(&kept);
        }
    }
}
