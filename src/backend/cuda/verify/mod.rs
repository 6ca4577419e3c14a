//! Verification on the device. The host decides which draft tokens are accepted, by the rules of
//! [`speculative`](crate::speculative), from what kernels report about rows.
//!
//! 1. All target rows are sampled as plain rows, each with the number of its position. For drafts without chance, and
//!    for greedy, relaxed and synthetic acceptance, this is all that is asked.
//! 2. The rule [walks](walk) along what is [known](table). If it needs something that is not known yet, a sum or a draw
//!    over a whole row, it continues with a placeholder, and the walk does not count. What was missing is asked, and
//!    the rule walks again. Rejection takes one such round, for the token it draws in the end (two if a draft leaves
//!    nothing of the row); block verification takes at most two.
//!
//! If target rows have chains, kernels cannot do this. They may then [report](lists) what is left of each row, and the
//! host verifies. [`assign`] decides who verifies a draft.
//!
//! A rule is a function of the answers, so a walk with complete answers gives the specification's result. Rows after a
//! rejected token are computed in vain, and their errors are ignored, as in the specification.

mod assign;
mod lists;
mod table;
mod walk;

use super::abi::LISTED;
use super::ask::{Asked, LaunchLimits, NoKernel, has_kernel, room};
use super::read::Answer;
use crate::backend::cpu::{Level, Proposed};
use crate::backend::{VerifyJob, VerifyResult};
use crate::sampling::row::{Action, RowJob, RowSpec};
use crate::speculative::job::VerifyFailure;
use crate::speculative::rule::AcceptanceRule;
use table::{Query, Table};
use walk::Walk;

/// More rounds than any rule takes. Each round but the last answers something that the walk before lacked, and siblings
/// are tested one after the other.
const MAX_ROUNDS: usize = 1024;

/// Asks the device about rows, and returns one answer for each.
pub type Launch<'l, E> = dyn FnMut(&[Asked<'_>]) -> Result<Vec<Answer>, E> + 'l;

/// A job that is not decided yet.
struct Open<'a> {
    /// Its index among the jobs.
    at: usize,
    drafts: Vec<Proposed<'a>>,
    table: Table<'a>,
}

/// Verifies jobs, with launches of these limits. Jobs that kernels cannot verify are handed back with the reason.
///
/// # Errors
/// Those of `launch`.
pub fn verify<E>(
    jobs: &[VerifyJob<'_>],
    limits: LaunchLimits,
    launch: &mut Launch<'_, E>,
) -> Result<Vec<Result<VerifyResult, NoKernel>>, E> {
    let mut results: Vec<_> = jobs.iter().map(|_| Err(NoKernel::Contradiction)).collect();
    let mut open = Vec::with_capacity(jobs.len());
    for (at, job) in jobs.iter().enumerate() {
        match Open::new(at, job, limits) {
            Ok(Ok(ready)) => open.push(ready),
            Ok(Err(failure)) => results[at] = Ok(Err(failure)),
            Err(reason) => results[at] = Err(reason),
        }
    }
    look_at_rows(&mut open, launch)?;
    for _ in 0..MAX_ROUNDS {
        let mut missing = Vec::new();
        let mut left = Vec::with_capacity(open.len());
        for ready in open {
            let Some(walk) = Walk::new(&ready.table, &ready.drafts) else { continue };
            match walk.verify() {
                Ok(result) => results[ready.at] = Ok(result),
                Err(queries) => {
                    missing.extend(queries.into_iter().map(|query| (left.len(), query)));
                    left.push(ready);
                }
            }
        }
        open = left;
        if open.is_empty() {
            break;
        }
        ask(&mut open, missing, launch)?;
    }
    Ok(results)
}

/// Samples the target rows of all jobs.
fn look_at_rows<E>(open: &mut [Open<'_>], launch: &mut Launch<'_, E>) -> Result<(), E> {
    let asked: Vec<Asked<'_>> = open.iter().flat_map(|ready| ready.table.rows()).collect();
    if asked.is_empty() {
        return Ok(());
    }
    let mut answers = launch(&asked)?.into_iter();
    let mut each: Vec<Vec<Answer>> = Vec::with_capacity(open.len());
    each.extend(open.iter().map(|ready| answers.by_ref().take(ready.table.rows().count()).collect()));
    open.iter_mut().zip(each).for_each(|(ready, answers)| ready.table.see(answers));
    Ok(())
}

/// Asks for what the walks lacked.
fn ask<E>(open: &mut [Open<'_>], missing: Vec<(usize, Query)>, launch: &mut Launch<'_, E>) -> Result<(), E> {
    let asked: Vec<Asked<'_>> =
        missing.iter().map(|(at, query)| open[*at].table.asked(query, &open[*at].drafts)).collect();
    let answers = launch(&asked)?;
    drop(asked);
    for ((at, query), answer) in missing.into_iter().zip(answers) {
        open[at].table.learn(query, &answer);
    }
    Ok(())
}

impl<'a> Open<'a> {
    /// Checks a job, its drafts first, as the specification does.
    fn new(at: usize, job: &'a VerifyJob<'a>, limits: LaunchLimits) -> Result<Result<Self, VerifyFailure>, NoKernel> {
        for row in job.rows {
            let spec = RowSpec { action: Action::Draw { uniform: 0 }, logprobs: None, ..row.spec };
            limits.check_logits(row)?;
            has_kernel(&spec)?;
        }
        if matches!(job.rule, AcceptanceRule::Relaxed(relaxed) if relaxed.top_n > LISTED) {
            return Err(NoKernel::TopLogprobs);
        }
        let drafts = match Proposed::all(Level::detect(), job) {
            Ok(drafts) => drafts,
            Err(failure) => return Ok(Err(failure)),
        };
        let fits = |(at, row): (usize, &RowJob<'_>)| {
            let children = job.tree.children(at.checked_sub(1));
            limits.check_size(row, room(row, children.iter().map(|&node| &drafts[node])) + 4 * children.len())
        };
        job.rows.iter().enumerate().try_for_each(fits)?;
        let table = Table::new(job, &drafts);
        Ok(Ok(Self { at, drafts, table }))
    }
}
