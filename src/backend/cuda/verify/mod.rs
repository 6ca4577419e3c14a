//! Verification on the device. The host decides which draft tokens are accepted, by the rules of
//! [`speculative`](crate::speculative), from what kernels report about rows.
//!
//! 1. Target rows are sampled as plain rows, each with the number of its position. For drafts without chance, and
//!    for greedy, relaxed and synthetic acceptance, this is all that is asked. Where there are more rows than run at
//!    once, the [first of each draft](rows) are asked first, and others when a rule comes to them.
//! 2. The rule [walks](walk) along what is [known](table). If it needs something that is not known yet, a sum or a draw
//!    over a whole row, it continues with a placeholder, and the walk does not count. What was missing is asked, and
//!    the rule walks again. Rejection takes one such round, for the token it draws in the end (two if a draft leaves
//!    nothing of the row); block verification takes at most two.
//!
//! If target rows have chains, kernels cannot do this. They may then [report](lists) what is left of each row, and the
//! host verifies. [`assign`] decides who verifies a draft.
//!
//! A rule is a function of the answers, so a walk with complete answers gives the specification's result. Rows after a
//! rejected token are computed in vain, if they are, and their errors are ignored, as in the specification.

mod assign;
mod lists;
mod rows;
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
use rows::Positions;
use std::ops::Range;
use table::{Query, Table};
use walk::{Lacks, Walk};

/// More rounds than any rule takes. Each round but the last answers something that the walk before lacked: siblings are
/// tested one after the other, and rows of a long draft asked for some at a time.
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
    let positions = Positions::new(&open, &limits);
    let mut missing = Missing { rows: positions.first(&open), queries: vec![] };
    for _ in 0..MAX_ROUNDS {
        if open.is_empty() {
            break;
        }
        missing.ask(&mut open, launch)?;
        let mut left = Vec::with_capacity(open.len());
        let mut lacking = Vec::with_capacity(open.len());
        for ready in open {
            let Some(walk) = Walk::new(&ready.table, &ready.drafts) else { continue };
            match walk.verify() {
                Ok(result) => results[ready.at] = Ok(result),
                Err(lacks) => {
                    left.push(ready);
                    lacking.push(lacks);
                }
            }
        }
        missing = Missing::new(lacking, &left, &positions);
        open = left;
    }
    Ok(results)
}

/// What walks lacked, with the indices of the jobs.
struct Missing {
    rows: Vec<(usize, Range<usize>)>,
    queries: Vec<(usize, Query)>,
}

impl Missing {
    /// What these jobs lack.
    fn new(lacking: Vec<Lacks>, open: &[Open<'_>], positions: &Positions) -> Self {
        let rows: Vec<(usize, usize)> = lacking.iter().enumerate().filter_map(|(at, l)| Some((at, l.row?))).collect();
        let queries = lacking.into_iter().enumerate();
        let queries = queries.flat_map(|(at, lacks)| lacks.queries.into_iter().map(move |query| (at, query))).collect();
        Self { rows: positions.next(open, &rows), queries }
    }

    /// Asks for it in one launch.
    fn ask<E>(self, open: &mut [Open<'_>], launch: &mut Launch<'_, E>) -> Result<(), E> {
        let Self { rows, queries } = self;
        let of_rows = rows.iter().map(|(at, rows)| open[*at].table.rows(rows.clone()).collect::<Vec<_>>());
        let of_rows: Vec<Vec<Asked<'_>>> = of_rows.collect();
        let counts: Vec<usize> = of_rows.iter().map(Vec::len).collect();
        let of_queries = queries.iter().map(|(at, query)| open[*at].table.asked(query, &open[*at].drafts));
        let asked: Vec<Asked<'_>> = of_rows.into_iter().flatten().chain(of_queries).collect();
        let mut answers = launch(&asked)?.into_iter();
        drop(asked);
        for ((at, rows), count) in rows.into_iter().zip(counts) {
            // All of its answers, also if a kernel contradicted itself in the first.
            let own: Vec<Answer> = answers.by_ref().take(count).collect();
            open[at].table.see(rows, own);
        }
        for ((at, query), answer) in queries.into_iter().zip(answers) {
            open[at].table.learn(query, &answer);
        }
        Ok(())
    }
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
