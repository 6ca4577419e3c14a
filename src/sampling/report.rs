//! Which tokens a row's token could have been drawn from, and what became of the others: for training that needs the
//! support, and for debugging.
//!
//! Numbers are those of the distribution itself: its support is the tokens of nonzero mass, its entropy is
//! [that of integer masses](super::entropy). To find out why a token is not in the support, the row goes through all
//! steps once more, and each step's result is looked at.

use super::chain::{self, Chain, ChainStep};
use super::distribution::{self, AdjustedLogits, Distribution};
use super::entropy::{entropy, entropy_term};
use super::filters::{self, Weighted};
use super::logits::Logits;
use super::mass;
use super::row::{RowError, RowSpec};
use crate::params::Sampler;
use crate::params::report::ReportParams;
use crate::params::steering::TokenBanRange;

/// What to report, and what is needed to name the parameter that banned a token.
#[derive(Debug, Clone, Copy)]
pub struct ReportSpec<'a> {
    /// What to report.
    pub params: &'a ReportParams,
    /// Where bans come from.
    pub bans: Bans<'a>,
}

/// Where the bans of a position come from.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bans<'a> {
    /// Whether the position is forced to one token.
    pub forced: bool,
    /// The position in the output.
    pub position: u64,
    /// The tokens that `min_tokens` bans here; ascending.
    pub ends: &'a [u32],
    /// All bad words.
    pub words: &'a [Vec<u32>],
    /// The last output tokens, as many as the longest bad word needs.
    pub tail: &'a [u32],
    /// All ranges of positions with bans of their own.
    pub ranges: &'a [TokenBanRange],
}

/// The report on a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// How many tokens have a nonzero mass.
    pub support_size: u32,
    /// The first of these tokens, in order.
    pub surviving: Vec<u32>,
    /// Entropy in nats of the distribution that was drawn from, and of the row as sent.
    pub entropy: Option<(f64, f64)>,
    /// One for each token that was asked about.
    pub why_not: Vec<WhyNot>,
}

/// What became of a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WhyNot {
    /// The token.
    pub token: u32,
    /// What removed it first; `None`: nothing did, and it could have been drawn.
    pub removed: Option<Removed>,
    /// Its logit as sent.
    pub raw: f32,
    /// Its logit after masks, bias and penalties.
    pub adjusted: f32,
    /// Its probability; 0 if it was removed.
    pub probability: f32,
    /// 1 + the number of tokens of nonzero mass before it; 0 if it was removed.
    pub rank: u32,
}

/// What can remove a token. Each is explained at `RemovedBy` in the wire contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Removed {
    RawLogit,
    ForcedToken,
    AllowedTokenIds,
    BannedTokenIds,
    BadWords,
    MinTokens,
    TokenBanRanges,
    NoRepeatNgram,
    Penalties,
    Greedy,
    Sampler(Sampler),
    Precision,
    Watermark,
    TokenMask,
}

impl Removed {
    /// The name of the parameter or other cause, in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RawLogit => "raw_logit",
            Self::ForcedToken => "forced_token",
            Self::AllowedTokenIds => "allowed_token_ids",
            Self::BannedTokenIds => "banned_token_ids",
            Self::BadWords => "bad_words",
            Self::MinTokens => "min_tokens",
            Self::TokenBanRanges => "token_ban_ranges",
            Self::NoRepeatNgram => "no_repeat_ngram",
            Self::Penalties => "penalties",
            Self::Greedy => "greedy",
            Self::Sampler(sampler) => sampler.kind_name(),
            Self::Precision => "precision",
            Self::Watermark => "watermark",
            Self::TokenMask => "token_mask",
        }
    }
}

/// Makes the report on a row.
pub(super) fn report(
    raw: &[f32],
    adjusted: &AdjustedLogits,
    processed: &Distribution,
    spec: &RowSpec<'_>,
    wanted: &ReportSpec<'_>,
) -> Report {
    let left = processed.kept().iter().filter(|w| w.mass > 0);
    let most = wanted.params.max_surviving_token_ids as usize;
    Report {
        support_size: left.clone().count() as u32,
        surviving: left.take(most).map(|w| w.candidate.token).collect(),
        entropy: wanted.params.entropy.then(|| (entropy_of(processed), entropy_of(&Distribution::raw(raw)))),
        why_not: fates(raw, adjusted, spec, wanted),
    }
}

/// Entropy of a distribution in nats.
pub(super) fn entropy_of(distribution: &Distribution) -> f64 {
    let term = |w: &Weighted| entropy_term(distribution.exponent(w.candidate.logit), w.mass);
    entropy(distribution.kept().iter().map(term).sum(), distribution.total())
}

/// What became of the tokens that the spec asks about. Backends call this instead of computing it themselves: it need
/// not be fast.
///
/// # Errors
/// [`RowError`] when the row has no distribution.
pub fn why_not(logits: &Logits<'_>, spec: &RowSpec<'_>) -> Result<Vec<WhyNot>, RowError> {
    let Some(wanted) = spec.report.filter(|report| !report.params.why_not_token_ids.is_empty()) else {
        return Ok(Vec::new());
    };
    let raw = distribution::widened(logits)?;
    Ok(fates(&raw, &distribution::adjusted(&raw, spec)?, spec, &wanted))
}

fn fates(raw: &[f32], adjusted: &AdjustedLogits, spec: &RowSpec<'_>, wanted: &ReportSpec<'_>) -> Vec<WhyNot> {
    let asked = &wanted.params.why_not_token_ids;
    if asked.is_empty() {
        return Vec::new();
    }
    let (cut, left) = follow_samplers(adjusted, spec, asked);
    let total = filters::total(&left);
    let fate = |(&token, cut): (&u32, Option<Removed>)| {
        let (raw, logit) = (raw[token as usize], adjusted.logits[token as usize]);
        let mass = left.iter().find(|w| w.candidate.token == token).map_or(0, |w| w.mass);
        let before_samplers =
            removed_before_samplers(token, raw, logit, spec, &wanted.bans)
                .or((spec.filters.temperature == 0.0 && token != adjusted.best.token).then_some(Removed::Greedy));
        let removed = before_samplers.or(cut).or((mass == 0).then_some(Removed::Precision));
        let before = left.iter().take_while(|w| w.candidate.token != token).filter(|w| w.mass > 0);
        let rank = if removed.is_some() { 0 } else { 1 + before.count() as u32 };
        // A token that lost the race has a mass, but no chance of being drawn.
        let mass = if removed.is_some() { 0 } else { mass };
        WhyNot { token, removed, raw, adjusted: logit, probability: (mass as f64 / total as f64) as f32, rank }
    };
    asked.iter().zip(cut).map(fate).collect()
}

/// What removed a token before any sampler.
fn removed_before_samplers(
    token: u32,
    raw: f32,
    adjusted: f32,
    spec: &RowSpec<'_>,
    bans: &Bans<'_>,
) -> Option<Removed> {
    if raw == f32::NEG_INFINITY {
        return Some(Removed::RawLogit);
    }
    if spec.is_masked(token) {
        return Some(Removed::TokenMask);
    }
    if spec.allowed.is_some_and(|allowed| allowed.binary_search(&token).is_err()) {
        return Some(if bans.forced { Removed::ForcedToken } else { Removed::AllowedTokenIds });
    }
    if spec.adjusts.get(token).is_some_and(|adjust| adjust.is_banned()) {
        let is_word = bans.words.iter().any(|word| word[..] == [token]);
        return Some(if is_word { Removed::BadWords } else { Removed::BannedTokenIds });
    }
    if spec.banned.binary_search(&token).is_ok() {
        return Some(bans.source_of(token));
    }
    (adjusted == f32::NEG_INFINITY).then_some(Removed::Penalties)
}

impl Bans<'_> {
    /// What bans a token that is banned only at this position.
    fn source_of(&self, token: u32) -> Removed {
        let ends_word = |word: &Vec<u32>| {
            word.split_last().is_some_and(|(&last, before)| last == token && self.tail.ends_with(before))
        };
        let in_range = |range: &TokenBanRange| range.holds_at(self.position) && range.token_ids.contains(&token);
        if self.words.iter().any(ends_word) {
            Removed::BadWords
        } else if self.ends.binary_search(&token).is_ok() {
            Removed::MinTokens
        } else if self.ranges.iter().any(in_range) {
            Removed::TokenBanRanges
        } else {
            Removed::NoRepeatNgram
        }
    }
}

/// For each token, the first sampler after which it was gone, or the watermark that left it no mass. Also the
/// candidates that are drawn from.
fn follow_samplers(
    adjusted: &AdjustedLogits,
    spec: &RowSpec<'_>,
    asked: &[u32],
) -> (Vec<Option<Removed>>, Vec<Weighted>) {
    let mut cuts = vec![None; asked.len()];
    if spec.filters.temperature == 0.0 {
        return (cuts, vec![Weighted { candidate: adjusted.best, mass: mass::MASS_ONE }]);
    }
    let filter_steps = filter_steps(spec);
    let chain = spec.chain.unwrap_or(Chain::of_filters(&filter_steps));
    let mut ids = asked.to_vec();
    ids.sort_unstable();
    ids.dedup();
    // The mass of each token that is asked about; `None`: it is not among the candidates.
    let mut masses = vec![None; ids.len()];
    let candidates = distribution::finite(&adjusted.logits).collect();
    let left = chain::watched(candidates, adjusted.logits.len(), &spec.filters, &chain, |step, left| {
        let before = std::mem::replace(&mut masses, vec![None; ids.len()]);
        for w in left.kept() {
            ids.binary_search(&w.candidate.token).into_iter().for_each(|at| masses[at] = Some(w.mass));
        }
        let Some(step) = step else { return };
        for (token, cut) in asked.iter().zip(&mut cuts) {
            let (before, now) = ids.binary_search(token).map_or((None, None), |at| (before[at], masses[at]));
            *cut = match step.sampler() {
                // A sampler may bring back the token that ends a text.
                Some(sampler) => cut.or(Some(Removed::Sampler(sampler))).filter(|_| now.is_none()),
                None => cut.or((weighs(before) && !weighs(now)).then_some(Removed::Watermark)),
            };
        }
    });
    let left = left.into_survivors().kept;
    if let Some(race) = spec.race() {
        let mass_of = |token: u32| ids.binary_search(&token).ok().and_then(|at| masses[at]);
        cut_by_race(asked, &mut cuts, distribution::first_of(race, &left), mass_of);
    }
    (cuts, left)
}

/// Marks the tokens that have a mass but did not win the race as removed by the watermark.
fn cut_by_race(asked: &[u32], cuts: &mut [Option<Removed>], first: Option<u32>, mass_of: impl Fn(u32) -> Option<u64>) {
    for (&token, cut) in asked.iter().zip(cuts).filter(|(token, _)| first != Some(**token)) {
        *cut = cut.or(weighs(mass_of(token)).then_some(Removed::Watermark));
    }
}

fn weighs(mass: Option<u64>) -> bool {
    mass.is_some_and(|mass| mass > 0)
}

/// The filters as steps of a chain, for a row that has no chain.
pub(super) fn filter_steps(spec: &RowSpec<'_>) -> Vec<ChainStep> {
    let filters = &spec.filters;
    let on = [
        (true, ChainStep::Temperature),
        (filters.top_k > 0, ChainStep::TopK),
        (filters.top_p < 1.0, ChainStep::TopP),
        (filters.min_p > 0.0, ChainStep::MinP),
    ];
    on.into_iter().filter(|(on, _)| *on).map(|(_, step)| step).collect()
}

#[cfg(test)]
mod tests;
