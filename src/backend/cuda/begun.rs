//! Chains of samplers that a kernel begins and the host ends.
//!
//! The filters at the beginning of a chain may be among the kernels' own and leave only a few tokens. A mask may do the
//! same, whatever chain follows. The kernel then reports these tokens, and the host takes them through the rest of the
//! chain as a [listed row](crate::sampling::listed). So the row stays on the device, instead of being brought to the
//! host whole for a few logits.
//!
//! If raw logprobs are wanted, a second launch scores the token that the host drew. They depend on the row as it was
//! sent and on nothing else, so the list is not needed for them.
//!
//! If more tokens are left than are reported, the other backend samples the whole row.

use super::abi;
use super::ask::{Asked, NoKernel};
use super::read::Answer;
use crate::backend::{Backend, RowJob};
use crate::params::MAX_TEMPERATURE;
use crate::sampling::adjust::Adjusts;
use crate::sampling::chain::{Chain, ChainStep};
use crate::sampling::listed::{BeyondTopN, Listed};
use crate::sampling::logits::Logits;
use crate::sampling::order::Candidate;
use crate::sampling::row::{
    Action, Filters, LogprobsMode, LogprobsSpec, Penalties, RowError, RowOutput, RowResult, RowSpec,
};
use crate::sampling::samplers::xtc;

/// The most tokens that are reported of a row that is cut by mass and not by top-k. Most such rows leave few, and room
/// for all is copied.
const MAX_BY_MASS: u32 = 256;
/// The most rows whose lists exist at once, except for those of a single draft, which may have one more: 16 bytes for
/// each token, 4 MiB if all lists have the maximum length, beside 8 bytes for each token that kernels reported.
pub(super) const AT_ONCE: usize = 256;

/// A chain whose beginning a kernel does, even if that is only a mask that leaves a few tokens.
#[derive(Debug)]
pub(super) struct Begun {
    /// The filters that the kernel applies.
    filters: Filters,
    /// The most tokens that masks leave, if a kernel can report so many.
    masked: Option<u32>,
    /// The steps that the host applies.
    steps: Vec<ChainStep>,
}

impl Begun {
    /// How a row's chain is divided; `None` if it has no chain, or if the host cannot end it.
    pub(super) fn of(job: &RowJob<'_>) -> Option<Self> {
        let spec = job.logits.is_on_device().then_some(&job.spec)?;
        let has_logprobs = spec.logprobs.is_none_or(|wanted| match wanted.mode {
            LogprobsMode::Processed => true,
            LogprobsMode::Raw => wanted.top_n <= abi::LISTED,
            LogprobsMode::Tempered => false,
        });
        if !has_logprobs || spec.report.is_some() || spec.mark.is_some() || matches!(spec.action, Action::Score { .. })
        {
            return None;
        }
        // Infill may emit a token that ends the text, even one that the kernel did not leave.
        let chain = spec.chain.as_ref().filter(|chain| chain.infill.is_none() && spec.filters.temperature != 0.0)?;
        let begun = Self::split(chain, spec);
        (begun.cuts_by_mass() || begun.is_counted() || begun.masked.is_some()).then_some(begun)
    }

    /// Takes the longest beginning that kernels can do, in their order: top-k, top-p, min-p.
    fn split(chain: &Chain<'_>, spec: &RowSpec<'_>) -> Self {
        // If nothing is weighed, the highest temperature gives all tokens a mass.
        let filters = Filters { temperature: MAX_TEMPERATURE, ..Filters::OFF };
        let mut begun = Self { filters, masked: masked(spec), steps: vec![] };
        let mut taken = 0;
        for step in chain.steps {
            if !begun.take(step, chain, spec) {
                break;
            }
            taken += 1;
        }
        begun.steps.extend(&chain.steps[taken..]);
        begun
    }

    /// Takes a step if kernels can do it after the earlier ones.
    fn take(&mut self, step: &ChainStep, chain: &Chain<'_>, spec: &RowSpec<'_>) -> bool {
        let (is_cut, cooled) = (self.cuts_by_mass(), self.steps.len());
        let (own, of) = (&mut self.filters, &spec.filters);
        match *step {
            ChainStep::TopP if of.top_p >= 1.0 => {}
            ChainStep::Xtc { rule, probability, .. } if !rule.expected && !xtc::happens(probability, chain.xtc) => {}
            // The host takes this step too, because its weights need it.
            ChainStep::Temperature if !is_cut => self.steps.push(*step),
            ChainStep::TopK if !is_cut => own.top_k = fewer(own.top_k, of.top_k.max(chain.min_keep)),
            ChainStep::AtMost(most) if !is_cut => own.top_k = fewer(own.top_k, most.max(chain.min_keep)),
            ChainStep::TopP if chain.min_keep <= 1 && cooled <= 1 && !is_cut => {
                (own.temperature, own.top_p) = (temperature(cooled, of), of.top_p);
            }
            // A rank counts all tokens before one, and min-p may not leave all of them.
            ChainStep::MinP if chain.min_keep <= 1 && cooled <= 1 && own.min_p <= 0.0 && !is_ranked(spec) => {
                (own.temperature, own.min_p) = (temperature(cooled, of), of.min_p);
            }
            _ => return false,
        }
        true
    }

    /// Whether a filter by mass cuts the row.
    fn cuts_by_mass(&self) -> bool {
        self.filters.top_p < 1.0 || self.filters.min_p > 0.0
    }

    /// Whether a top-k leaves at most as many tokens as a kernel can report. The host handles these faster than the row
    /// could be brought.
    fn is_counted(&self) -> bool {
        can_be_told(self.filters.top_k)
    }

    /// Whether no token that the kernel leaves has one before it in the order that it does not leave. Min-p may leave
    /// such tokens, since masses do not quite fall with logits.
    pub(super) fn leaves_the_first(&self) -> bool {
        self.filters.min_p <= 0.0
    }

    /// How many tokens a kernel has to report.
    fn told(&self) -> u32 {
        let counted = Some(self.filters.top_k).filter(|_| self.is_counted());
        counted.into_iter().chain(self.masked).min().unwrap_or(MAX_BY_MASS)
    }

    /// Whether `told` reported tokens are all that is left.
    fn is_all(&self, told: usize) -> bool {
        let most = self.told();
        told < most as usize || most == self.filters.top_k || Some(most) == self.masked
    }

    /// What a kernel is asked about the row.
    pub(super) fn asked<'a>(&self, job: &RowJob<'a>) -> Asked<'a> {
        let logprobs = LogprobsSpec { top_n: self.told(), mode: LogprobsMode::Processed, tokens: &[] };
        let (action, logprobs) = (Action::Draw { uniform: 0 }, Some(logprobs));
        let spec = RowSpec { filters: self.filters, chain: None, action, logprobs, ..job.spec };
        Asked::unranked(RowJob { spec, ..*job })
    }

    /// What the host is asked about a list, whose logits are already adjusted.
    pub(super) fn rest<'a>(&'a self, spec: &RowSpec<'a>) -> RowSpec<'a> {
        let chain = spec.chain.map(|chain| Chain { steps: &self.steps, ..chain });
        let (penalties, adjusts) = (Penalties::OFF, Adjusts::default());
        let logprobs = spec.logprobs.filter(|_| is_ranked(spec));
        RowSpec { chain, penalties, adjusts, banned: &[], allowed: None, mask: None, logprobs, ..*spec }
    }

    /// The tokens that a kernel reported, as a row without others.
    pub(super) fn list(&self, job: &RowJob<'_>, answer: &Answer) -> KernelList {
        if let Err(error) = answer.status().ok_or(NoKernel::Contradiction)? {
            return Ok(Err(error));
        }
        let (top, _) = answer.reported(self.told());
        let entries = top.iter().map(|told| Candidate { token: told.token, logit: told.logit }).collect();
        // No other token has weight.
        let rest = f32::NEG_INFINITY;
        let list = Listed::new(job.logits.vocab_size() as u32, entries, rest, true, BeyondTopN::Refuse);
        let list = list.map_err(|_| NoKernel::Contradiction)?;
        if self.is_all(top.len()) { Ok(Ok(list)) } else { Err(NoKernel::Chain) }
    }
}

/// Whether logprobs of what the token is drawn from are wanted, which the list gives.
fn is_ranked(spec: &RowSpec<'_>) -> bool {
    spec.logprobs.is_some_and(|wanted| wanted.mode == LogprobsMode::Processed)
}

/// The most tokens that masks leave, if a kernel can report so many.
fn masked(spec: &RowSpec<'_>) -> Option<u32> {
    let left = [spec.allowed.map(<[u32]>::len), spec.mask.map(|mask| mask.count())];
    left.into_iter().flatten().filter_map(|left| u32::try_from(left).ok()).min().filter(|&left| can_be_told(left))
}

/// Whether a kernel can report so many tokens.
fn can_be_told(tokens: u32) -> bool {
    (1..=abi::LISTED).contains(&tokens)
}

/// The top-k of two in a row, where 0 means all for the first.
fn fewer(top_k: u32, most: u32) -> u32 {
    if top_k == 0 { most } else { top_k.min(most) }
}

/// The temperature of weights after so many temperature steps.
fn temperature(cooled: usize, of: &Filters) -> f32 {
    if cooled == 0 { 1.0 } else { of.temperature }
}

/// A row with a chain, and what a kernel reported about it.
pub(super) type PartialRow<'a> = (RowJob<'a>, Begun, Answer);

/// The tokens that are left, what is wrong with their row, or why they are not known.
pub(super) type KernelList = Result<Result<Listed, RowError>, NoKernel>;

/// The results of rows, or why they have none.
pub(super) fn ended(partial_rows: &[PartialRow<'_>], host: &mut dyn Backend) -> Vec<Result<RowResult, NoKernel>> {
    partial_rows.chunks(AT_ONCE).flat_map(|partial_rows| ended_together(partial_rows, host)).collect()
}

fn ended_together(partial_rows: &[PartialRow<'_>], host: &mut dyn Backend) -> Vec<Result<RowResult, NoKernel>> {
    let lists: Vec<KernelList> = partial_rows.iter().map(|(job, begun, answer)| begun.list(job, answer)).collect();
    let jobs = partial_rows.iter().zip(&lists).filter_map(|((job, begun, _), list)| {
        let logits = Logits::of_list(list.as_ref().ok()?.as_ref().ok()?);
        Some(RowJob { logits, spec: begun.rest(&job.spec) })
    });
    let jobs: Vec<RowJob<'_>> = jobs.collect();
    let mut results = if jobs.is_empty() { vec![] } else { host.run(&jobs) }.into_iter();
    let mut end = |list: &KernelList| match list {
        Ok(Ok(_)) => results.next().ok_or(NoKernel::Chain),
        Ok(Err(error)) => Ok(Err(*error)),
        Err(reason) => Err(*reason),
    };
    lists.iter().map(&mut end).collect()
}

/// A row's index among the jobs, and its result or why it has none.
pub(super) type Outcome = (usize, Result<RowResult, NoKernel>);

/// Adds the raw logprobs that results of [`ended`] lack, by what `launch` answers.
///
/// # Errors
/// Those of `launch`.
pub(super) fn score<'a, E>(
    jobs: &[RowJob<'a>],
    outcomes: &mut [Outcome],
    launch: impl FnOnce(&[Asked<'a>]) -> Result<Vec<Answer>, E>,
) -> Result<(), E> {
    let unscored = outcomes.iter().enumerate().filter_map(|(place, outcome)| Some((place, unscored(jobs, outcome)?)));
    let (places, asked): (Vec<usize>, Vec<Asked<'_>>) = unscored.unzip();
    if asked.is_empty() {
        return Ok(());
    }
    let answers = launch(&asked)?;
    for ((place, asked), answer) in places.into_iter().zip(&asked).zip(answers) {
        let outcome = &mut outcomes[place].1;
        *outcome = match (std::mem::replace(outcome, Err(NoKernel::Contradiction)), answer.result(&asked.row)) {
            (Ok(Ok(output)), Some(Ok(scored))) => Ok(Ok(RowOutput { logprobs: scored.logprobs, ..output })),
            (_, Some(Err(error))) => Ok(Err(error)),
            _ => Err(NoKernel::Contradiction),
        };
    }
    Ok(())
}

/// What kernels are asked about a row whose result lacks raw logprobs.
fn unscored<'a>(jobs: &[RowJob<'a>], (at, outcome): &Outcome) -> Option<Asked<'a>> {
    let (job, output) = (jobs[*at], outcome.as_ref().ok()?.as_ref().ok()?);
    let wanted = job.spec.logprobs.filter(|_| output.logprobs.is_none())?;
    let action = Action::Score { token: output.token };
    let spec = RowSpec { logprobs: Some(wanted), ..RowSpec::plain(Filters::OFF, action) };
    Some(Asked::row(RowJob { spec, ..job }))
}
