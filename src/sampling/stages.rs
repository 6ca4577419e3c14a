//! A row stage by stage: what each left. For people who ask why a token was drawn, or was not.

use super::chain::{self, Chain};
use super::distribution::{self, AdjustedLogits, Distribution};
use super::entropy::{entropy, entropy_term};
use super::filters::Weighted;
use super::logits::Logits;
use super::order::Candidate;
use super::report;
use super::row::{RowError, RowSpec};
use crate::params::{ChainStep, Sampler};

/// What happened to a row in a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageKind {
    /// Nothing: this is the row as it was sent.
    Sent,
    /// Masks, bans, bias and penalties were applied, and a watermark's bias.
    Adjusted,
    /// The maximum was taken.
    Greedy,
    /// A sampler's step.
    Sampler(Sampler),
    /// An engine's rule kept this many of the most likely tokens, whatever top-k is.
    AtMost(u32),
    /// A watermark's step, which belongs to no sampler: a tournament, or the race that takes the place of the draw.
    Watermark,
}

/// What is left of a row after a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stage {
    /// What happened in it.
    pub kind: StageKind,
    /// How many tokens are left.
    pub left: usize,
    /// The share of the probability before this stage that these tokens had, 0 to 1.
    pub kept: f64,
    /// Entropy in nats of the tokens that are left.
    pub entropy: f64,
}

/// The stages of a row, the first of them [`StageKind::Sent`].
///
/// # Errors
/// [`RowError`] when the row has no distribution.
pub fn stages(logits: &Logits<'_>, spec: &RowSpec<'_>) -> Result<Vec<Stage>, RowError> {
    let raw = distribution::widened(logits)?;
    let row = distribution::adjusted(&raw, spec)?;
    let AdjustedLogits { logits: ref adjusted, best } = row;
    let sent = Distribution::raw(&raw);
    let mut before = Shares::of(sent.kept());
    let first = Stage { kind: StageKind::Sent, left: sent.kept().len(), kept: 1.0, entropy: report::entropy_of(&sent) };
    let plain = Distribution::raw(adjusted);
    let kept = before.held_by(plain.kept());
    let second =
        Stage { kind: StageKind::Adjusted, left: plain.kept().len(), kept, entropy: report::entropy_of(&plain) };
    before = Shares::of(plain.kept());
    let mut stages = vec![first, second];
    if spec.filters.temperature == 0.0 {
        let only = Weighted { candidate: best, mass: 1 };
        stages.push(Stage { kind: StageKind::Greedy, left: 1, kept: before.held_by(&[only]), entropy: 0.0 });
        return Ok(stages);
    }
    let filter_steps = report::filter_steps(spec);
    let chain = spec.chain.unwrap_or(Chain::of_filters(&filter_steps));
    chain::watched(distribution::finite(adjusted).collect(), adjusted.len(), &spec.filters, &chain, |step, left| {
        // A temperature of 1 does nothing, so it has no place of its own: an order may have it last, and the filters that
        // are done in its place first.
        let Some(step) = step.filter(|step| **step != ChainStep::Temperature || spec.filters.temperature != 1.0) else {
            return;
        };
        let terms = left.kept().iter().map(|w| entropy_term(left.exponent(w), w.mass)).sum();
        stages.push(Stage {
            kind: stage_kind(step),
            left: left.kept().len(),
            kept: before.held_by(left.kept()),
            entropy: entropy(terms, left.total()),
        });
        before = Shares::of(left.kept());
    });
    stages.extend(race_stage(&row, spec, &before));
    Ok(stages)
}

/// The stage of a race, if one decides the draw. No sampler removes the tokens that lost it, but none of them can be drawn.
fn race_stage(row: &AdjustedLogits, spec: &RowSpec<'_>, before: &Shares) -> Option<Stage> {
    let token = Distribution::processed(row, spec).first_of(spec.race()?);
    let only = Weighted { candidate: Candidate { token, logit: row.logits[token as usize] }, mass: 1 };
    Some(Stage { kind: StageKind::Watermark, left: 1, kept: before.held_by(&[only]), entropy: 0.0 })
}

fn stage_kind(step: &ChainStep) -> StageKind {
    match *step {
        ChainStep::AtMost(most) => StageKind::AtMost(most),
        step => step.sampler().map_or(StageKind::Watermark, StageKind::Sampler),
    }
}

/// Masses by token before a stage, to compute which share a later stage keeps.
struct Shares {
    /// Ascending by token.
    masses: Vec<(u32, u64)>,
    total: u64,
}

impl Shares {
    fn of(kept: &[Weighted]) -> Self {
        let mut masses: Vec<(u32, u64)> = kept.iter().map(|w| (w.candidate.token, w.mass)).collect();
        masses.sort_unstable();
        Self { total: masses.iter().map(|(_, mass)| mass).sum(), masses }
    }

    /// The share of the total mass that these tokens have.
    fn held_by(&self, kept: &[Weighted]) -> f64 {
        let mass =
            |token| self.masses.binary_search_by_key(&token, |&(token, _)| token).map_or(0, |at| self.masses[at].1);
        let held: u64 = kept.iter().map(|w| mass(w.candidate.token)).sum();
        held as f64 / self.total as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::logits::Dtype;
    use crate::sampling::row::{Action, Filters};
    use crate::sampling::sample_row;
    use crate::sampling::watermark::RowWatermark;
    use crate::sampling::watermark::race::Race;

    fn of(logits: &[f32], filters: Filters) -> Vec<Stage> {
        let row = Dtype::F32.encode(logits);
        let spec = RowSpec { banned: &[3], ..RowSpec::plain(filters, Action::Draw { uniform: 0 }) };
        stages(&Logits::new(Dtype::F32, &row), &spec).unwrap()
    }

    #[test]
    fn every_stage_says_what_it_left() {
        // Probabilities 4 2 1 1 of 8. The last of these is banned, and one more token has no probability.
        let logits = [4f32.ln(), 2f32.ln(), 0.0, 0.0, f32::NEG_INFINITY];
        let filters = Filters { temperature: 0.5, top_k: 2, top_p: 0.7, min_p: 0.0 };
        let found = of(&logits, filters);
        let kinds: Vec<StageKind> = found.iter().map(|stage| stage.kind).collect();
        let samplers = [Sampler::Temperature, Sampler::TopK, Sampler::TopP].map(StageKind::Sampler);
        assert_eq!(kinds, [&[StageKind::Sent, StageKind::Adjusted][..], &samplers].concat());
        assert_eq!(found.iter().map(|stage| stage.left).collect::<Vec<_>>(), [4, 3, 3, 2, 1]);
        // At temperature 1/2 they are 16 4 1 of 21, of which top-k keeps 20 and top-p 16.
        let kept = [1.0, 7.0 / 8.0, 1.0, 20.0 / 21.0, 0.8];
        let entropy = |of: &[f64]| {
            let total: f64 = of.iter().sum();
            of.iter().map(|p| -(p / total) * (p / total).ln()).sum::<f64>()
        };
        let entropies = [
            entropy(&[4.0, 2.0, 1.0, 1.0]),
            entropy(&[4.0, 2.0, 1.0]),
            entropy(&[16.0, 4.0, 1.0]),
            entropy(&[16.0, 4.0]),
            0.0,
        ];
        for ((stage, kept), entropy) in found.iter().zip(kept).zip(entropies) {
            assert!((stage.kept - kept).abs() < 1e-6 && (stage.entropy - entropy).abs() < 1e-6, "{stage:?}");
        }
    }

    #[test]
    fn a_race_is_the_last_stage_and_leaves_its_winner() {
        let row = Dtype::F32.encode(&[4f32.ln(), 2f32.ln(), 0.0, 0.0]);
        let filters = Filters { temperature: 1.0, top_k: 2, top_p: 1.0, min_p: 0.0 };
        for key in 0..20 {
            let race = |race| Some(RowWatermark::Race(race));
            let spec = RowSpec {
                mark: race(Some(Race { key, context: 9 })),
                ..RowSpec::plain(filters, Action::Draw { uniform: 0 })
            };
            let logits = Logits::new(Dtype::F32, &row);
            let found = stages(&logits, &spec).unwrap();
            let (last, winner) = (found.last().unwrap(), sample_row(&logits, &spec).unwrap().token);
            assert_eq!((found.len(), last.kind, last.left, last.entropy), (4, StageKind::Watermark, 1, 0.0));
            // Top-k left 4 and 2 of 8.
            let share = [2.0 / 3.0, 1.0 / 3.0][winner as usize];
            assert!((last.kept - share).abs() < 1e-6, "{last:?}");
            let seeded = stages(&logits, &RowSpec { mark: race(None), ..spec }).unwrap();
            assert_eq!(seeded[..], found[..3], "a context that is not marked");
        }
    }

    #[test]
    fn greedy_leaves_one() {
        let found = of(&[0.0, 2f32.ln(), 0.0, 9.0], Filters { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0 });
        let last = found.last().unwrap();
        assert_eq!((found.len(), last.kind, last.left, last.entropy), (3, StageKind::Greedy, 1, 0.0));
        assert!((last.kept - 0.5).abs() < 1e-6, "{last:?}");
    }
}
