//! The first half of what a device proves before it serves. It samples rows of every [kind](super::kinds) and verifies
//! drafts by every rule, and each result must equal that of the other backend. This also loads and compiles its
//! kernels. A device or driver that computes anything else is found before it answers anybody. [`super::in_turn`] is
//! the second half: teams that take row after row.

use super::ask::Asked;
use super::costs::Costs;
use super::kinds::{Known, OF_BROKEN, broken, probabilities, row, specs};
use super::shape::sampling;
use super::{CudaBackend, Machine, OpenError};
use crate::backend::cpu::keys;
use crate::backend::{Backend, RowJob, VerifyJob, VerifyResult};
use crate::params::acceptance::{AcceptanceRule, Relaxed, Synthetic, Typical};
use crate::sampling::distribution::Distribution;
use crate::sampling::logits::{Dtype, Logits};
use crate::sampling::philox::{Purpose, uniform};
use crate::sampling::row::{Action, RowOutput, RowResult, RowSpec};
use crate::speculative::job::{DraftSource, DraftToken};
use crate::speculative::numbers::Numbers;
use crate::speculative::tree::Tree;

/// Sizes of real vocabularies, and one that leaves threads without a token.
const VOCAB_SIZES: [usize; 4] = [1000, 32_000, 128_256, 151_936];
/// How many kinds of rows are sampled by teams of each size, and how long these rows are. A team of one block has more
/// chunks of such a row in its slice than any team of [`super::in_turn`].
const SOME: usize = 3;
const OF_EACH_TEAM: usize = 151_936;
/// The longest rows with which drafts are verified. Longer ones take the same paths, but would take most of the time of
/// a start.
const MAX_DRAFT_VOCAB_SIZE: usize = 128_256;
/// The length of the rows whose drafts have sent probabilities, which are as long as the rows themselves; and how many
/// rules verify them: the first ones, which look at the probabilities.
const OF_SENT: usize = 32_000;
const RULES_OF_SENT: usize = 2;
/// The most characters of a value that is printed in an error.
const MAX_TOLD: usize = 400;

/// Samples rows of every kind on the device.
///
/// # Errors
/// If a result differs.
pub(super) fn prove(backend: &mut CudaBackend) -> Result<(), OpenError> {
    let most = backend.launches.limits().logits;
    for vocab_size in VOCAB_SIZES.into_iter().filter(|&vocab_size| vocab_size <= most) {
        let (row, known) = (row(vocab_size), Known::of(vocab_size));
        for dtype in Dtype::ALL {
            let bytes = dtype.encode(&row);
            let logits = Logits::new(dtype, &bytes);
            let jobs: Vec<RowJob<'_>> = specs(&known).map(|spec| RowJob { logits, spec }).collect();
            prove_rows(backend, &jobs)?;
            // A single row is laid over the device in another way.
            prove_rows(backend, &jobs[..1])?;
            if vocab_size == OF_EACH_TEAM {
                let broken = broken(dtype, &row);
                let broken = broken.iter().map(|bytes| RowJob { logits: Logits::new(dtype, bytes), ..jobs[OF_BROKEN] });
                prove_teams(backend, &jobs[..SOME].iter().copied().chain(broken).collect::<Vec<_>>())?;
            }
            if vocab_size <= MAX_DRAFT_VOCAB_SIZE {
                prove_drafts(backend, &jobs)?;
            }
            all_were_done(backend, &name(&jobs[0]))?;
        }
    }
    Ok(())
}

/// Checks that no row was handed over.
pub(super) fn all_were_done(backend: &mut CudaBackend, name: &str) -> Result<(), OpenError> {
    match backend.handed_over().iter().find(|(_, rows)| *rows > 0) {
        Some((reason, rows)) => {
            Err(OpenError::Wrong(format!("{rows} rows of {name} were handed over to the CPU: {reason}")))
        }
        None => Ok(()),
    }
}

/// The same rows with teams of every size, since the server uses whichever is fastest.
fn prove_teams(backend: &mut CudaBackend, jobs: &[RowJob<'_>]) -> Result<(), OpenError> {
    let (costs, most) = (*backend.costs(), backend.launches.machine.facts().most_blocks());
    let proved = (1..=most).try_for_each(|team_size| {
        backend.set_costs(Costs::only(team_size));
        prove_rows(backend, jobs)
    });
    backend.set_costs(costs);
    proved
}

fn prove_rows(backend: &mut CudaBackend, jobs: &[RowJob<'_>]) -> Result<(), OpenError> {
    let expected = backend.other.run(jobs);
    compare(backend, jobs, |at| &expected[at])
}

/// Has the device sample rows whose results are known.
pub(super) fn compare<'e>(
    backend: &mut CudaBackend,
    jobs: &[RowJob<'_>],
    expected: impl Fn(usize) -> &'e RowResult,
) -> Result<(), OpenError> {
    let got = backend.try_run(jobs)?;
    match (0..jobs.len()).find(|&at| got[at] != *expected(at)) {
        Some(at) => Err(OpenError::Wrong(difference(backend, jobs, at, expected(at), &got[at]))),
        None => Ok(()),
    }
}

/// Names the format of a row.
pub(super) fn name(row: &RowJob<'_>) -> String {
    format!("{} {} logits", row.logits.vocab_size(), row.logits.dtype().name())
}

/// Describes how a row of a batch differs, in enough detail to look for the cause without the device.
fn difference(
    backend: &mut CudaBackend,
    jobs: &[RowJob<'_>],
    at: usize,
    expected: &RowResult,
    got: &RowResult,
) -> String {
    let job = &jobs[at];
    let (rows, bytes) = (jobs.len() as u32, job.logits.dtype().size() as u32);
    let laid = sampling(rows, job.logits.vocab_size() as u32, bytes, &backend.launches.machine.facts());
    let specified = match Distribution::of(&job.logits, &job.spec) {
        Ok(distribution) => {
            let last = distribution.kept().last().map(|last| last.candidate);
            let last_key = last.map_or(0, |last| keys::key(last.token, last.logit));
            format!("total {} last_key {last_key:#x}", distribution.total())
        }
        Err(error) => format!("{error:?}"),
    };
    let asked: Vec<Asked<'_>> = jobs.iter().map(|job| Asked::row(*job)).collect();
    let again = match backend.launches.ask(&asked, || ()) {
        Ok(answers) => {
            let written = &answers[at].written;
            let (status, token, total) = (written.status, written.token, written.total);
            let (last_key, rank) = (written.last_key, written.rank);
            format!("status {status} token {token} total {total} last_key {last_key:#x} rank {rank}")
        }
        Err(error) => error.to_string(),
    };
    format!(
        "row {at} of {rows}, {}, {laid:?}: expected {} {specified}, got {}; asked again, the kernel wrote {again}{}",
        name(job),
        result(expected),
        result(got),
        reported(expected, got)
    )
}

fn result(row: &RowResult) -> String {
    match row {
        Ok(row) => {
            let of = row.logprobs.as_ref().map(|of| format!(" rank {} logprob {:?}", of.rank, of.logprob));
            format!("token {}{}", row.token, of.unwrap_or_default())
        }
        Err(error) => format!("{error:?}"),
    }
}

/// The first place at which two reports differ.
fn reported(expected: &RowResult, got: &RowResult) -> String {
    let tokens = |row: &RowResult| -> Vec<(u32, f32)> {
        let reported = row.as_ref().ok().and_then(|row| row.logprobs.as_ref());
        reported.map_or(vec![], |of| of.top.iter().copied().chain(of.requested.iter().map(|&p| (0, p))).collect())
    };
    let (expected, got) = (tokens(expected), tokens(got));
    let differs = (0..expected.len().max(got.len())).find(|&at| expected.get(at) != got.get(at));
    let told = |at| format!("; place {at} of its report: expected {:?}, got {:?}", expected.get(at), got.get(at));
    differs.map(told).unwrap_or_default()
}

/// The beginning of a value's debug text.
fn beginning(of: &impl std::fmt::Debug) -> String {
    format!("{of:?}").chars().take(MAX_TOLD).collect()
}

/// Every rule. Those that use the draft tokens' distributions come first.
const RULES: [AcceptanceRule; 6] = [
    AcceptanceRule::Rejection,
    AcceptanceRule::Block,
    AcceptanceRule::Greedy,
    AcceptanceRule::Typical(Typical { epsilon: 0.1, alpha: 0.3 }),
    AcceptanceRule::Relaxed(Relaxed { top_n: 20, delta: 0.5, in_thinking_only: false }),
    AcceptanceRule::Synthetic(Synthetic { rate: 0.5 }),
];

/// Draws draft tokens from the second and third of these rows.
pub(super) fn propose(backend: &mut CudaBackend, rows: &[RowJob<'_>]) -> Result<Vec<RowOutput>, OpenError> {
    let drafting = [proposing(rows[1]), proposing(rows[2])];
    let proposed: Vec<RowOutput> = backend.try_run(&drafting)?.into_iter().filter_map(Result::ok).collect();
    let expected: Vec<RowOutput> = backend.other.run(&drafting).into_iter().filter_map(Result::ok).collect();
    if !proposed.iter().map(drawn).eq(expected.iter().map(drawn)) {
        let (expected, got) = [&expected, &proposed].map(|rows| rows.iter().map(drawn).collect::<Vec<_>>()).into();
        let (expected, got) = (beginning(&expected), beginning(&got));
        return Err(OpenError::Wrong(format!("draft tokens of {}: expected {expected}, got {got}", name(&rows[0]))));
    }
    Ok(proposed)
}

/// Verifies drafts by every rule. Each draft has two tokens, one after the other or as siblings. They were drawn from
/// the second and third kind of row, count as without chance, or come with sent probabilities.
fn prove_drafts(backend: &mut CudaBackend, rows: &[RowJob<'_>]) -> Result<(), OpenError> {
    let proposed = propose(backend, rows)?;
    let trees = [Tree::chain(2), Tree::new(&[-1, -1], 2).expect("two tokens beside each other")];
    let (dtype, vocab_size) = (rows[0].logits.dtype(), rows[0].logits.vocab_size());
    let sent = dtype.encode(&probabilities(vocab_size));
    let sent = DraftSource::Dense(Logits::new(dtype, &sent));
    for (at, rule) in RULES.into_iter().enumerate() {
        let sent = (vocab_size == OF_SENT && at < RULES_OF_SENT).then_some(Some(sent));
        for source in [None, Some(DraftSource::Deterministic)].into_iter().chain(sent) {
            let drafts: Vec<DraftToken<'_>> = proposed.iter().map(|row| draft_token(row, source)).collect();
            let job = |(first, tree)| VerifyJob {
                rows: &rows[first..first + 3],
                ends: &[false; 2],
                strict: &[false, false, true],
                drafts: &drafts,
                tree,
                rule,
                numbers: Numbers { seed: at as u64, start: 0 },
                measure: first == 1,
            };
            let jobs = [(1, &trees[0]), (3, &trees[0]), (0, &trees[1]), (4, &trees[1])].map(job);
            let (got, expected) = (backend.verify_all(&jobs)?, backend.other.verify(&jobs));
            if let Some(at) = (0..jobs.len()).find(|&at| got[at] != expected[at]) {
                return Err(difference_of_drafts(at, &jobs[at], &expected[at], &got[at]));
            }
        }
    }
    Ok(())
}

/// Describes how the verification of one draft of a batch differs.
pub(super) fn difference_of_drafts(
    at: usize,
    job: &VerifyJob<'_>,
    expected: &VerifyResult,
    got: &VerifyResult,
) -> OpenError {
    let source = match job.drafts.first().map(|draft| draft.source) {
        Some(DraftSource::Kept(_)) => "kept",
        Some(DraftSource::Dense(_) | DraftSource::Sparse { .. }) => "sent",
        Some(DraftSource::Deterministic) | None => "deterministic",
    };
    let what = format!("draft {at}, {source}, of {}, verified by {:?}", name(&job.rows[0]), job.rule);
    OpenError::Wrong(format!("{what}: expected {}, got {}", beginning(expected), beginning(got)))
}

fn proposing(row: RowJob<'_>) -> RowJob<'_> {
    let action = Action::Propose { uniform: uniform(13, 0, Purpose::Draft) };
    RowJob { spec: RowSpec { action, logprobs: None, ..row.spec }, ..row }
}

/// A draft token and its distribution, in the same form however that is kept.
fn drawn(row: &RowOutput) -> Option<(u32, u64, Vec<(u32, u64)>)> {
    row.kept.as_ref().map(|kept| (row.token, kept.total(), kept.entries()))
}

/// A draft token with the distribution it was drawn from, or with another source.
pub(super) fn draft_token<'a>(row: &'a RowOutput, source: Option<DraftSource<'a>>) -> DraftToken<'a> {
    let kept = row.kept.as_deref().map_or(DraftSource::Deterministic, DraftSource::Kept);
    DraftToken { token: row.token, source: source.unwrap_or(kept) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::listed::Approximation;
    use crate::sampling::row::TokenLogprobs;

    #[test]
    fn the_first_token_of_a_report_that_differs_is_told() {
        let row = |top: &[(u32, f32)]| -> RowResult {
            let logprobs = TokenLogprobs { logprob: -1.5, rank: 2, top: top.to_vec(), requested: vec![-3.0] };
            let approximation = Approximation::default();
            Ok(RowOutput {
                token: 7,
                logprobs: Some(logprobs),
                kept: None,
                observed: None,
                report: None,
                approximation,
            })
        };
        let (one, other) = (row(&[(1, -0.5), (7, -1.5)]), row(&[(1, -0.5), (8, -1.5)]));
        assert_eq!(result(&one), "token 7 rank 2 logprob -1.5");
        assert_eq!(reported(&one, &one), "");
        assert_eq!(reported(&one, &other), "; place 1 of its report: expected Some((7, -1.5)), got Some((8, -1.5))");
    }
}
