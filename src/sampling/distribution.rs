//! The distribution that a row's token is drawn from: the tokens that masks and filters left, with their integer
//! masses.

use super::candidates::Survivors;
use super::chain;
use super::filters::{self, Weighted};
use super::listed::{self, Ranks};
use super::logits::Logits;
use super::mass;
use super::observed::{Observed, Seen, Share};
use super::order::{self, Candidate};
use super::row::{RowError, RowSpec};
use super::samplers::skew::Along;
use super::sort;
use super::watermark::race::{First, Race};

/// Tokens with probability, in order, and the numbers their logprobs come from.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// The row after masks, bias and penalties.
    row: Row,
    kept: Vec<Weighted>,
    total: u64,
    max: f32,
    scale: f32,
    seen: Option<Seen>,
    /// The candidates with cumulative masses, where the row is not drawn from by token ids.
    along: Option<Along>,
    /// Whether this is the distribution of a listed row that was [marked](listed::BeyondTopN::Mark).
    truncated: bool,
}

/// A row after masks, bias and penalties.
#[derive(Debug, Clone, PartialEq)]
enum Row {
    Whole(Vec<f32>),
    Listed(Ranks),
}

impl Distribution {
    /// The distribution that a plain row with these logits would be drawn from.
    ///
    /// # Errors
    /// [`RowError`] when the row has no distribution; see its variants.
    pub fn of(logits: &Logits<'_>, spec: &RowSpec<'_>) -> Result<Self, RowError> {
        if let Some(row) = logits.listed() {
            return listed::distribution(row, spec);
        }
        Ok(Self::processed(&adjusted(&widened(logits)?, spec)?, spec))
    }

    /// The distribution of a listed row.
    pub(super) fn listed(row: Ranks, survivors: Survivors, along: Option<Along>) -> Self {
        Self::new(Row::Listed(row), survivors, along)
    }

    fn new(row: Row, survivors: Survivors, along: Option<Along>) -> Self {
        let Survivors { kept, max, scale, seen } = survivors;
        Self { row, total: filters::total(&kept), kept, max, scale, seen, along, truncated: false }
    }

    /// Whether the row's parameters reach beyond the tokens of a listed row, and it was sampled as if no other tokens
    /// could be emitted.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    pub(super) fn truncate(&mut self) {
        self.truncated = true;
    }

    /// The tokens that are left, in [order]. A token far below the first may have mass 0.
    #[must_use]
    pub fn kept(&self) -> &[Weighted] {
        &self.kept
    }

    /// The sum of all masses.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The exponent of a token with this logit.
    #[must_use]
    pub fn exponent(&self, logit: f32) -> f32 {
        mass::exponent(logit, self.max, self.scale)
    }

    /// 1 + the number of tokens before this one in the order, among all tokens of the row; 0 where a listed row does
    /// not determine it.
    #[must_use]
    pub fn rank(&self, token: u32) -> u32 {
        match &self.row {
            Row::Whole(row) => order::rank(row, token),
            Row::Listed(ranks) => ranks.rank(token).unwrap_or(0),
        }
    }

    /// Every token with a finite logit, at temperature 1.
    pub(super) fn raw(raw: &[f32]) -> Self {
        Self::tempered(raw, 1.0)
    }

    /// Every token with a finite logit, at a temperature; greedy rows use 1.
    pub(super) fn tempered(row: &[f32], temperature: f32) -> Self {
        let max = order::first(row).map_or(0.0, |c| c.logit);
        let scale = mass::scale(unless_greedy(temperature));
        Self::new(Row::Whole(row.to_vec()), Survivors { kept: weigh(row, max, scale), max, scale, seen: None }, None)
    }

    /// The distribution after temperature and filters. Greedy keeps the first token alone.
    pub(super) fn processed(adjusted: &AdjustedLogits, spec: &RowSpec<'_>) -> Self {
        let AdjustedLogits { ref logits, best } = *adjusted;
        let row = Row::Whole(logits.clone());
        if spec.filters.temperature == 0.0 {
            return Self::new(row, Survivors::greedy(best), None);
        }
        if let Some(chain) = &spec.chain {
            let mut left = chain::run(finite(logits).collect(), logits.len(), &spec.filters, chain);
            let along = left.take_along();
            return Self::new(row, left.into_survivors(), along);
        }
        let scale = mass::scale(spec.filters.temperature);
        let mut kept = weigh(logits, best.logit, scale);
        filters::top_k(&mut kept, spec.filters.top_k);
        filters::top_p(&mut kept, spec.filters.top_p);
        filters::min_p(&mut kept, spec.filters.min_p);
        Self::new(row, Survivors { kept, max: best.logit, scale, seen: None }, None)
    }

    /// Inverse CDF in token-id order: the first token whose running mass exceeds the draw point. After a skew, in order
    /// of falling probability.
    ///
    /// # Panics
    /// Never: the point is below the total.
    #[must_use]
    pub fn draw(&self, uniform: u64) -> u32 {
        if let Some(along) = &self.along {
            return along.draw(uniform);
        }
        let point = mass::draw_point(uniform, self.total);
        let mut by_id = self.kept.clone();
        sort::by_token(&mut by_id, |w| w.candidate.token);
        let mut sum = 0;
        let drawn = by_id.iter().find(|w| {
            sum += w.mass;
            sum > point
        });
        drawn.expect("the point is below the total; this is a bug").candidate.token
    }

    /// The winner of a race.
    ///
    /// # Panics
    /// Never: the first token of the order has a mass.
    #[must_use]
    pub fn first_of(&self, race: Race) -> u32 {
        first_of(race, &self.kept).expect("some token has a mass; this is a bug")
    }

    /// Draws by the race if there is one, else as [`draw`](Self::draw).
    #[must_use]
    pub fn draw_by(&self, race: Option<Race>, uniform: u64) -> u32 {
        race.map_or_else(|| self.draw(uniform), |race| self.first_of(race))
    }

    /// What samplers learn from this token.
    #[must_use]
    pub fn observed(&self, token: u32) -> Observed {
        let mass = || self.kept.iter().find(|w| w.candidate.token == token).map_or(0, |w| w.mass);
        let along = self.along.as_ref().map(|along| along.share(token));
        let drawn = along.unwrap_or_else(|| Share { mass: mass(), total: self.total });
        Observed { drawn, seen: self.seen.as_ref().map_or(drawn, |seen| seen.share(token)) }
    }

    /// A token's logprob; −∞ if it is not kept.
    #[must_use]
    pub fn logprob(&self, token: u32) -> f32 {
        let kept = self.kept.iter().find(|w| w.candidate.token == token);
        kept.map_or(f32::NEG_INFINITY, |w| mass::logprob(self.exponent(w.candidate.logit), mass::log_total(self.total)))
    }

    pub(super) fn top(&self, n: u32) -> Vec<(u32, f32)> {
        self.kept.iter().take(n as usize).map(|w| (w.candidate.token, self.logprob(w.candidate.token))).collect()
    }
}

/// The temperature that probabilities are shown at where filters do not apply: 1 for greedy rows.
#[must_use]
pub fn unless_greedy(temperature: f32) -> f32 {
    if temperature == 0.0 { 1.0 } else { temperature }
}

/// The winner of a race among the tokens that have a mass.
pub(super) fn first_of(race: Race, kept: &[Weighted]) -> Option<u32> {
    let mut first = First::default();
    for weighted in kept.iter().filter(|w| w.mass > 0) {
        let token = weighted.candidate.token;
        first.add(token, race.arrival(token, weighted.mass));
    }
    first.token()
}

/// Tokens with a finite logit.
pub(super) fn finite(row: &[f32]) -> impl Iterator<Item = Candidate> {
    let all = row.iter().enumerate().map(|(token, &logit)| Candidate { token: token as u32, logit });
    all.filter(|c| c.logit > f32::NEG_INFINITY)
}

/// Tokens with a finite logit, in order, with their masses.
fn weigh(row: &[f32], max: f32, scale: f32) -> Vec<Weighted> {
    let mut kept: Vec<Weighted> = finite(row)
        .map(|candidate| Weighted { candidate, mass: mass::mass(mass::exponent(candidate.logit, max, scale)) })
        .collect();
    sort::in_order(&mut kept, |weighted| weighted.candidate);
    kept
}

/// The row as sent, widened to f32, if it can have a distribution.
pub(super) fn widened(logits: &Logits<'_>) -> Result<Vec<f32>, RowError> {
    let raw = logits.widen();
    if raw.iter().any(|x| x.is_nan()) {
        return Err(RowError::Nan);
    }
    if raw.contains(&f32::INFINITY) {
        return Err(RowError::PositiveInfinity);
    }
    Ok(raw)
}

/// A row after masks, bias and penalties.
pub(super) struct AdjustedLogits {
    pub(super) logits: Vec<f32>,
    /// The first token of its order.
    pub(super) best: Candidate,
}

/// The row after masks, bias and penalties.
pub(super) fn adjusted(raw: &[f32], spec: &RowSpec<'_>) -> Result<AdjustedLogits, RowError> {
    let mut row = raw.to_vec();
    for adjust in spec.adjusts.iter() {
        let logit = &mut row[adjust.token() as usize];
        *logit = adjust.apply(*logit, &spec.penalties);
    }
    if let Some(greens) = spec.greens() {
        (0..).zip(&mut row).for_each(|(token, logit)| *logit = greens.raise(token, *logit));
    }
    for &token in spec.banned {
        row[token as usize] = f32::NEG_INFINITY;
    }
    for (token, logit) in (0..).zip(&mut row) {
        if spec.forbids(token) {
            *logit = f32::NEG_INFINITY;
        }
    }
    if row.contains(&f32::INFINITY) {
        return Err(RowError::PositiveInfinity);
    }
    let best = order::first(&row).filter(|c| c.logit > f32::NEG_INFINITY).ok_or(RowError::AllMasked)?;
    Ok(AdjustedLogits { logits: row, best })
}
