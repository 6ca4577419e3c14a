//! [`sample_row`](crate::sampling::sample_row) for a listed row, as far as the list determines the result.

use super::rest::{self, Rest};
use super::walk::{ChainStart, MayBeUnlisted, certain, run_chain};
use super::{Approximation, BeyondTopN, Listed, NeedsUnlisted, Ranks};
use crate::sampling::adjust::Adjusted;
use crate::sampling::candidates::{Candidates, Survivors};
use crate::sampling::chain::{self, Chain};
use crate::sampling::distribution::{Distribution, unless_greedy};
use crate::sampling::entropy::{entropy, entropy_term};
use crate::sampling::filters::Weighted;
use crate::sampling::kept::Kept;
use crate::sampling::logits::{Dtype, Logits};
use crate::sampling::mass::{self, MASS_ONE};
use crate::sampling::order::Candidate;
use crate::sampling::report::{self, Report, ReportSpec};
use crate::sampling::row::{
    Action, LogprobsMode, LogprobsSpec, RowError, RowOutput, RowResult, RowSpec, TokenLogprobs,
};
use crate::sampling::samplers::infill::Infill;

/// Samples or scores a listed row.
///
/// # Errors
/// [`RowError`]: the error of the whole row, or [`RowError::Beyond`].
pub(in crate::sampling) fn sample_row(row: &Listed, spec: &RowSpec<'_>) -> RowResult {
    strictly_or_marked(
        row,
        |strict| AdjustedRow::new(row, spec, strict)?.sampled(),
        |output| output.approximation.truncated = true,
    )
}

/// The distribution that a plain row would be drawn from.
///
/// # Errors
/// As [`sample_row`].
pub(in crate::sampling) fn distribution(row: &Listed, spec: &RowSpec<'_>) -> Result<Distribution, RowError> {
    strictly_or_marked(
        row,
        |strict| Ok(AdjustedRow::new(row, spec, strict)?.processed()?.distribution),
        Distribution::truncate,
    )
}

/// Calls `work` with `strict`. Where that reaches beyond the list, and such rows are to be marked, calls it again as if
/// there were no unlisted tokens, and marks the result.
fn strictly_or_marked<T>(
    row: &Listed,
    work: impl Fn(bool) -> Result<T, RowError>,
    mark: impl Fn(&mut T),
) -> Result<T, RowError> {
    match work(true) {
        Err(RowError::Beyond(_)) if row.beyond == BeyondTopN::Mark => {
            let mut result = work(false)?;
            mark(&mut result);
            Ok(result)
        }
        result => result,
    }
}

/// A row after masks, bias and penalties.
struct AdjustedRow<'a> {
    row: &'a Listed,
    spec: &'a RowSpec<'a>,
    /// Whether unlisted tokens may be emitted; else the row is taken as if there were none.
    strict: bool,
    adjusted: Ranks,
    /// Bounds on the unlisted tokens, if there are any.
    rest: Option<Rest>,
    /// No unlisted token comes before this in the order. Set even where the row is taken as if there were none.
    edge: Option<Candidate>,
}

/// The distribution that a token is drawn from.
struct Processed {
    distribution: Distribution,
    /// How many of its tokens come before all unlisted ones. `None`: there are no unlisted tokens in it. Otherwise they
    /// have no mass.
    certain: Option<usize>,
}

/// What is known of the token that ends a text where nothing else is certain.
#[derive(Default)]
struct TextEnd {
    known: Option<Candidate>,
    /// Whether it may be an unlisted token.
    is_open: bool,
}

impl<'a> AdjustedRow<'a> {
    fn new(row: &'a Listed, spec: &'a RowSpec<'a>, strict: bool) -> Result<Self, RowError> {
        if row.entries.iter().any(|entry| entry.logit.is_nan()) {
            return Err(RowError::Nan);
        }
        if row.entries.iter().any(|entry| entry.logit == f32::INFINITY) {
            return Err(RowError::PositiveInfinity);
        }
        let adjusted = adjusted(row, spec);
        if adjusted.iter().any(|entry| entry.logit == f32::INFINITY) {
            return Err(RowError::PositiveInfinity);
        }
        let others = Rest::bound(row, spec);
        let edge = others.as_ref().map(|rest| rest.edge);
        let rest = others.filter(|_| strict);
        let adjusted = Ranks::new(adjusted).until(edge.filter(|_| strict));
        match (adjusted.tokens().first(), &rest) {
            (None, None) => Err(RowError::AllMasked),
            (None, Some(_)) => Err(RowError::Beyond(NeedsUnlisted::First)),
            (_, Some(rest)) if rest.edge.logit == f32::INFINITY => Err(RowError::Beyond(NeedsUnlisted::First)),
            _ => Ok(Self { row, spec, strict, adjusted, rest, edge }),
        }
    }

    fn sampled(&self) -> Result<RowOutput, RowError> {
        let spec = self.spec;
        let raw_only = spec.is_scored_raw();
        // The result does not depend on the filters, so they may reach as far as they like.
        let without_filters = raw_only || spec.is_scored(LogprobsMode::Tempered) && !spec.has_state();
        let processed = if without_filters && spec.report.is_none() { None } else { Some(self.processed()?) };
        let token = match (spec.action, &processed) {
            (Action::Draw { uniform } | Action::Propose { uniform }, Some(processed)) => {
                processed.distribution.draw_by(spec.race(), uniform)
            }
            (Action::Draw { .. } | Action::Propose { .. }, None) => unreachable!("a draw has a distribution"),
            (Action::Score { token }, _) => token,
        };
        let mut approximation = Approximation::default();
        let logprobs = match (&spec.logprobs, &processed) {
            (Some(wanted), Some(processed)) if wanted.mode == LogprobsMode::Processed => {
                Some(self.processed_logprobs(processed, token, wanted)?)
            }
            (Some(wanted), _) if wanted.mode == LogprobsMode::Tempered => {
                Some(self.processed_logprobs(&self.tempered()?, token, wanted)?)
            }
            (Some(wanted), _) => {
                let (logprobs, rounded) = self.raw_logprobs(token, wanted)?;
                approximation.rounded = rounded;
                Some(logprobs)
            }
            (None, _) => None,
        };
        let distribution = processed.map(|processed| processed.distribution);
        let report = match (&spec.report, &distribution) {
            (Some(wanted), Some(distribution)) => Some(Box::new(self.report(distribution, wanted)?)),
            _ => None,
        };
        let observed =
            distribution.as_ref().filter(|_| spec.has_state() && !raw_only).map(|found| found.observed(token));
        let kept = distribution.filter(|_| matches!(spec.action, Action::Propose { .. }));
        let kept = kept.map(|found| Box::new(Kept::from(&found)));
        Ok(RowOutput { token, logprobs, kept, observed, report, approximation })
    }

    /// The distribution after temperature and filters.
    fn processed(&self) -> Result<Processed, RowError> {
        let Self { spec, rest, adjusted, .. } = self;
        let Some(&best) = adjusted.tokens().first() else { return Err(RowError::AllMasked) };
        if spec.filters.temperature == 0.0 {
            if rest.as_ref().is_some_and(|rest| !best.precedes(&rest.edge)) {
                return Err(RowError::Beyond(NeedsUnlisted::First));
            }
            let distribution = Distribution::listed(self.ranks(), Survivors::greedy(best), None);
            return Ok(Processed { distribution, certain: None });
        }
        let filter_steps = report::filter_steps(spec);
        let chain = spec.chain.unwrap_or(Chain::of_filters(&filter_steps));
        let end = chain.infill.map_or(TextEnd::default(), |infill| self.end(&infill));
        let (vocab_size, rest) = (self.row.vocab_size(), rest.as_ref());
        let start = ChainStart::new(adjusted.tokens(), &spec.filters, &chain, rest);
        let chain = Chain { steps: start.steps, ..chain };
        let left = Candidates::cooled(start.tokens.to_vec(), vocab_size, chain.min_keep as usize, start.temperature);
        let mut left = left.with_end(end.known);
        let eos = chain.eos.iter().any(|&token| self.may_be_unlisted(token));
        let unlisted = MayBeUnlisted { rest, end: end.is_open, eos };
        let has_unlisted = run_chain(&mut left, &spec.filters, &chain, unlisted).map_err(RowError::Beyond)?;
        let along = left.take_along().filter(|_| chain::draws_along(chain.steps));
        let certain = rest.filter(|_| has_unlisted).map(|rest| certain(&left, rest));
        Ok(Processed { distribution: Distribution::listed(self.ranks(), left.into_survivors(), along), certain })
    }

    /// The places of tokens that are certain.
    fn ranks(&self) -> Ranks {
        self.adjusted.clone().until(self.edge)
    }

    /// The distribution after temperature alone. The others' total weight is known only for the row as sent.
    fn tempered(&self) -> Result<Processed, RowError> {
        let (tokens, rest) = (self.adjusted.tokens(), self.rest.as_ref());
        let max = tokens.first().map_or(0.0, |first| first.logit);
        let scale = mass::scale(unless_greedy(self.spec.filters.temperature));
        if rest.is_some_and(|rest| !rest.has_no_mass(max, scale)) {
            return Err(RowError::Beyond(NeedsUnlisted::Logprob));
        }
        let weighed = |&candidate: &Candidate| Weighted {
            candidate,
            mass: mass::mass(mass::exponent(candidate.logit, max, scale)),
        };
        let kept = tokens.iter().map(weighed).collect();
        let certain = rest.map(|rest| tokens.partition_point(|token| token.precedes(&rest.edge)));
        Ok(Processed {
            distribution: Distribution::listed(self.ranks(), Survivors { kept, max, scale, seen: None }, None),
            certain,
        })
    }

    /// The token that ends the text where nothing else is certain.
    fn end(&self, infill: &Infill<'_>) -> TextEnd {
        for &token in infill.ends {
            if let Some(&known) = self.adjusted.tokens().iter().find(|c| c.token == token) {
                return TextEnd { known: Some(known), is_open: false };
            }
            if self.may_be_unlisted(token) {
                return TextEnd { known: None, is_open: true };
            }
        }
        TextEnd::default()
    }

    /// Whether a token may be an unlisted one that can be emitted.
    fn may_be_unlisted(&self, token: u32) -> bool {
        self.rest.is_some() && self.row.find(token).is_none() && !rest::cannot_be(token, self.spec)
    }

    fn processed_logprobs(
        &self,
        Processed { distribution, certain }: &Processed,
        token: u32,
        wanted: &LogprobsSpec<'_>,
    ) -> Result<TokenLogprobs, RowError> {
        let logprob = |token: u32| match certain {
            Some(_) if self.row.find(token).is_none() => Err(RowError::Beyond(NeedsUnlisted::Logprob)),
            _ => Ok(distribution.logprob(token)),
        };
        let top_n = (wanted.top_n as usize).min(self.row.vocab_size());
        if certain.is_some_and(|certain| top_n > certain) {
            return Err(RowError::Beyond(NeedsUnlisted::TopLogprobs));
        }
        Ok(TokenLogprobs {
            logprob: logprob(token)?,
            rank: rank(&self.adjusted, token)?,
            top: distribution.top(wanted.top_n),
            requested: wanted.tokens.iter().map(|&token| logprob(token)).collect::<Result<_, _>>()?,
        })
    }

    /// Logprobs of the row as sent, and whether they are [rounded](Approximation::rounded).
    fn raw_logprobs(&self, token: u32, wanted: &LogprobsSpec<'_>) -> Result<(TokenLogprobs, bool), RowError> {
        let raw = Ranks::new(self.row.ranked().to_vec());
        let rest = self.raw_rest();
        let (max, scale) = (raw.tokens().first().map_or(0.0, |first| first.logit), mass::scale(1.0));
        let total: u64 = raw.tokens().iter().map(|c| mass::mass(mass::exponent(c.logit, max, scale))).sum();
        let rounded = rest.as_ref().is_some_and(|rest| !rest.has_no_mass(max, scale));
        let log_total = if rounded {
            let others = libm::exp(f64::from(self.row.rest) - f64::from(max));
            libm::log(total as f64 / MASS_ONE as f64 + others)
        } else {
            mass::log_total(total)
        };
        let of_logit = |logit: f32| mass::logprob(mass::exponent(logit, max, scale), log_total);
        let strict = rest.filter(|_| self.strict);
        let logprob = |token: u32| match (self.row.find(token), &strict) {
            (Some(at), _) if self.row.entries[at].logit > f32::NEG_INFINITY => Ok(of_logit(self.row.entries[at].logit)),
            (None, Some(_)) => Err(RowError::Beyond(NeedsUnlisted::Logprob)),
            _ => Ok(f32::NEG_INFINITY),
        };
        let top_n = (wanted.top_n as usize).min(self.row.vocab_size());
        let certain = |rest: &Rest| raw.tokens().partition_point(|c| c.precedes(&rest.edge));
        if strict.as_ref().is_some_and(|rest| top_n > certain(rest)) {
            return Err(RowError::Beyond(NeedsUnlisted::TopLogprobs));
        }
        let logprobs = TokenLogprobs {
            logprob: logprob(token)?,
            rank: rank(&raw.clone().until(strict.as_ref().map(|rest| rest.edge)), token)?,
            top: raw.tokens().iter().take(top_n).map(|c| (c.token, of_logit(c.logit))).collect(),
            requested: wanted.tokens.iter().map(|&token| logprob(token)).collect::<Result<_, _>>()?,
        };
        Ok((logprobs, rounded))
    }

    /// Bounds on the unlisted tokens in the row as sent.
    fn raw_rest(&self) -> Option<Rest> {
        let adjusts = [].as_slice().into();
        let untouched = RowSpec { adjusts, banned: &[], allowed: None, mask: None, mark: None, ..*self.spec };
        Rest::bound(self.row, &untouched)
    }

    fn report(&self, processed: &Distribution, wanted: &ReportSpec<'_>) -> Result<Report, RowError> {
        let asked = wanted.params;
        if self.strict && self.row.has_rest() && (asked.entropy || !asked.why_not_token_ids.is_empty()) {
            return Err(RowError::Beyond(NeedsUnlisted::Report));
        }
        let left = processed.kept().iter().filter(|w| w.mass > 0);
        let why_not = if asked.why_not_token_ids.is_empty() {
            Vec::new()
        } else {
            // This is for debugging, and a step limits how much it may have explained.
            report::why_not(&Logits::new(Dtype::F32, &self.row.expanded()), self.spec)?
        };
        Ok(Report {
            support_size: left.clone().count() as u32,
            surviving: left.take(asked.max_surviving_token_ids as usize).map(|w| w.candidate.token).collect(),
            entropy: asked.entropy.then(|| (report::entropy_of(processed), self.raw_entropy())),
            why_not,
        })
    }

    /// Entropy in nats of the row as sent, with all unlisted tokens at −∞.
    fn raw_entropy(&self) -> f64 {
        let raw = Ranks::new(self.row.ranked().to_vec());
        let max = raw.tokens().first().map_or(0.0, |first| first.logit);
        let (mut terms, mut total) = (0, 0);
        for token in raw.tokens() {
            let y = mass::exponent(token.logit, max, mass::scale(1.0));
            terms += entropy_term(y, mass::mass(y));
            total += mass::mass(y);
        }
        entropy(terms, total)
    }
}

/// 1 + the number of tokens before this one, where that is certain.
fn rank(ranks: &Ranks, token: u32) -> Result<u32, RowError> {
    ranks.rank(token).ok_or(RowError::Beyond(NeedsUnlisted::Rank))
}

/// The entries after masks, bias and penalties, as in [`distribution`](crate::sampling::distribution).
fn adjusted(row: &Listed, spec: &RowSpec<'_>) -> Vec<Candidate> {
    if spec.is_untouched() {
        return row.ranked().to_vec();
    }
    let mut entries = row.entries.clone();
    let mut apply = |at: usize, adjust: Adjusted| {
        let logit = &mut entries[at].logit;
        *logit = adjust.apply(*logit, &spec.penalties);
    };
    // Takes as many searches as the shorter side has entries.
    if spec.adjusts.len_bound() < row.entries.len() {
        spec.adjusts.iter().for_each(|adjust| row.find(adjust.token()).into_iter().for_each(|at| apply(at, adjust)));
    } else {
        let found = row.entries.iter().enumerate().filter_map(|(at, entry)| Some((at, spec.adjusts.get(entry.token)?)));
        found.for_each(|(at, adjust)| apply(at, adjust));
    }
    for entry in &mut entries {
        if let Some(greens) = spec.greens() {
            entry.logit = greens.raise(entry.token, entry.logit);
        }
        if spec.forbids(entry.token) || spec.banned.binary_search(&entry.token).is_ok() {
            entry.logit = f32::NEG_INFINITY;
        }
    }
    entries
}
