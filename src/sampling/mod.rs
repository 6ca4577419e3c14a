//! The specification: what a row's result is, sequential and obvious.
//!
//! [`sample_row`] is the contract that every backend is compared with, bit for bit. Read it top to
//! bottom, then the rule you need: [`adjust`] (masks, bias, penalties), [`order`] (ties), [`mass`] (the
//! numbers), [`filters`] (top-k, top-p, min-p), [`philox`] (random numbers).

pub mod adjust;
pub mod filters;
pub mod logits;
pub mod mass;
pub mod order;
pub mod philox;
pub mod row;

use filters::Weighted;
use logits::Logits;
use order::Candidate;
use row::{Action, LogprobsMode, RowError, RowOutput, RowResult, RowSpec, TokenLogprobs};

/// Samples or scores one row.
///
/// # Errors
/// [`RowError`] when the row has no distribution; see its variants.
pub fn sample_row(logits: &Logits<'_>, spec: &RowSpec<'_>) -> RowResult {
    let raw = logits.widen();
    if raw.iter().any(|x| x.is_nan()) {
        return Err(RowError::Nan);
    }
    if raw.contains(&f32::INFINITY) {
        return Err(RowError::PositiveInfinity);
    }
    let adjusted = adjusted(&raw, spec);
    if adjusted.contains(&f32::INFINITY) {
        return Err(RowError::PositiveInfinity);
    }
    let best = order::first(&adjusted).filter(|c| c.logit > f32::NEG_INFINITY).ok_or(RowError::AllMasked)?;

    let processed = Distribution::processed(&adjusted, best, spec);
    let token = match spec.action {
        Action::Draw { uniform } => processed.draw(uniform),
        Action::Score { token } => token,
    };
    let logprobs = spec.logprobs.map(|wanted| {
        let (distribution, row) = match wanted.mode {
            LogprobsMode::Raw => (&Distribution::raw(&raw), &raw),
            LogprobsMode::Processed => (&processed, &adjusted),
        };
        TokenLogprobs {
            logprob: distribution.logprob(token),
            rank: order::rank(row, token),
            top: distribution.top(wanted.top_n),
            requested: wanted.tokens.iter().map(|&t| distribution.logprob(t)).collect(),
        }
    });
    Ok(RowOutput { token, logprobs })
}

/// The row after masks, bias and penalties.
fn adjusted(raw: &[f32], spec: &RowSpec<'_>) -> Vec<f32> {
    let mut row = raw.to_vec();
    for adjust in spec.adjusts {
        let logit = &mut row[adjust.token as usize];
        *logit = adjust.apply(*logit, &spec.penalties);
    }
    for &token in spec.banned {
        row[token as usize] = f32::NEG_INFINITY;
    }
    if let Some(allowed) = spec.allowed {
        for (token, logit) in row.iter_mut().enumerate() {
            if allowed.binary_search(&(token as u32)).is_err() {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    row
}

/// Tokens with probability, in order, and the numbers their logprobs come from.
struct Distribution {
    kept: Vec<Weighted>,
    total: u64,
    max: f32,
    scale: f32,
}

impl Distribution {
    /// Every token with a finite logit, at temperature 1.
    fn raw(raw: &[f32]) -> Self {
        let max = order::first(raw).map_or(0.0, |c| c.logit);
        let scale = mass::scale(1.0);
        let kept = weigh(raw, max, scale);
        Self { total: filters::total(&kept), kept, max, scale }
    }

    /// After temperature and filters. Greedy keeps the first token alone.
    fn processed(adjusted: &[f32], best: Candidate, spec: &RowSpec<'_>) -> Self {
        if spec.filters.temperature == 0.0 {
            let kept = vec![Weighted { candidate: best, mass: mass::MASS_ONE }];
            return Self { kept, total: mass::MASS_ONE, max: best.logit, scale: 1.0 };
        }
        let scale = mass::scale(spec.filters.temperature);
        let mut kept = weigh(adjusted, best.logit, scale);
        filters::top_k(&mut kept, spec.filters.top_k);
        filters::top_p(&mut kept, spec.filters.top_p);
        filters::min_p(&mut kept, spec.filters.min_p);
        Self { total: filters::total(&kept), kept, max: best.logit, scale }
    }

    /// Inverse CDF in token-id order: the first token whose running mass exceeds the draw point.
    fn draw(&self, uniform: u64) -> u32 {
        let point = mass::draw_point(uniform, self.total);
        let mut by_id = self.kept.clone();
        by_id.sort_unstable_by_key(|w| w.candidate.token);
        let mut sum = 0;
        let drawn = by_id.iter().find(|w| {
            sum += w.mass;
            sum > point
        });
        drawn.expect("the point is below the total; this is a bug").candidate.token
    }

    fn logprob(&self, token: u32) -> f32 {
        let kept = self.kept.iter().find(|w| w.candidate.token == token);
        kept.map_or(f32::NEG_INFINITY, |w| {
            let y = mass::exponent(w.candidate.logit, self.max, self.scale);
            mass::logprob(y, mass::log_total(self.total))
        })
    }

    fn top(&self, n: u32) -> Vec<(u32, f32)> {
        self.kept.iter().take(n as usize).map(|w| (w.candidate.token, self.logprob(w.candidate.token))).collect()
    }
}

/// Tokens with a finite logit, in order, with their masses.
fn weigh(row: &[f32], max: f32, scale: f32) -> Vec<Weighted> {
    let all = row.iter().enumerate().map(|(token, &logit)| Candidate { token: token as u32, logit });
    let mut kept: Vec<Weighted> = all
        .filter(|c| c.logit > f32::NEG_INFINITY)
        .map(|candidate| Weighted { candidate, mass: mass::mass(mass::exponent(candidate.logit, max, scale)) })
        .collect();
    kept.sort_unstable_by(|a, b| a.candidate.order(&b.candidate));
    kept
}
