//! What is known about a job's rows: the questions about them, and the answers.

use super::super::abi::ReportedToken;
use super::super::ask::{Asked, RowTask, Weigh, WeighBy};
use super::super::pack::{min_p_need, scale};
use super::super::read::Answer;
use crate::backend::VerifyJob;
use crate::backend::cpu::{Proposed, keys};
use crate::sampling::mass;
use crate::sampling::row::{Action, LogprobsMode, LogprobsSpec, RowError, RowJob, RowSpec};
use crate::speculative::rule::AcceptanceRule;
use crate::speculative::shifts;
use crate::speculative::weights::Residual;
use std::collections::HashMap;
use std::ops::Range;

/// A sum over a row, or a draw from it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Query {
    /// The sum of the terms of a row's entropy.
    Entropy { row: usize },
    /// The sum of the weights that are left, and the token drawn from them with a number.
    Left { row: usize, taken: Vec<Taken>, uniform: u64 },
    /// The sum of a draft's masses, over tokens with at least this mass in the row.
    Drafted { row: usize, node: usize, need: u64 },
    /// The rank of a token.
    Rank { row: usize, token: u32 },
}

/// The answer to a query.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    /// The sum, or the rank.
    pub(super) sum: u64,
    /// The drawn token, if the query draws one.
    pub(super) token: u32,
}

/// A draft's distribution that was subtracted from what was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Taken {
    pub(super) node: usize,
    /// The bits of the factor by which what was left is multiplied.
    pub(super) factor: u64,
    /// The total of what was left.
    pub(super) total: u64,
}

impl Taken {
    pub(super) fn by(&self, drafts: &[Proposed<'_>]) -> Residual {
        Residual::new(f64::from_bits(self.factor), self.total, drafts[self.node].total)
    }
}

/// What is known about a target row.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) total: u64,
    last_key: u64,
    first_key: u64,
    /// The token drawn with the number of a plain row.
    pub(super) token: u32,
    /// The masses of the draft tokens, as far as they are needed.
    masses: Vec<(u32, u64)>,
    /// The first tokens with their masses, for relaxed acceptance.
    pub(super) top: Vec<(u32, u64)>,
}

/// A job and what is known about its rows.
#[derive(Debug)]
pub(super) struct Table<'a> {
    pub(super) job: &'a VerifyJob<'a>,
    /// For each row, the draft tokens whose masses are needed.
    tokens: Vec<Vec<u32>>,
    /// How many of the first tokens are needed.
    top_n: u32,
    /// One for each row, once it is sampled.
    targets: Vec<Option<Result<Target, RowError>>>,
    /// Whether a kernel contradicted itself.
    is_broken: bool,
    /// For rows that are judged at another temperature: first tokens with their masses, and the total.
    judged: Vec<(Vec<(u32, u64)>, u64)>,
    answers: HashMap<Query, Found>,
}

impl<'a> Table<'a> {
    pub(super) fn new(job: &'a VerifyJob<'a>, drafts: &[Proposed<'_>]) -> Self {
        let needed = |row: usize| {
            let children = job.tree.children(row.checked_sub(1));
            let certain = || children.iter().all(|&node| drafts[node].is_certain());
            let by_draw = match job.rule {
                AcceptanceRule::Greedy | AcceptanceRule::Relaxed(_) => true,
                AcceptanceRule::Rejection => certain(),
                AcceptanceRule::Block => drafts.iter().all(Proposed::is_certain),
                AcceptanceRule::Typical(_) | AcceptanceRule::Synthetic(_) => false,
            };
            let needed = if job.measure || !by_draw { children } else { &[] };
            let beside = job.measure.then(|| shifts::asked(job.tree, row));
            let nodes = needed.iter().copied().chain(beside.into_iter().flatten());
            let mut tokens: Vec<u32> = nodes.map(|node| drafts[node].token).collect();
            tokens.sort_unstable();
            tokens.dedup();
            tokens
        };
        let tokens = (0..job.rows.len()).map(needed).collect();
        let targets = job.rows.iter().map(|_| None).collect();
        let top_n = if let AcceptanceRule::Relaxed(relaxed) = job.rule { relaxed.top_n } else { 0 };
        let (judged, answers) = (Vec::new(), HashMap::new());
        Self { job, tokens, top_n, targets, is_broken: false, judged, answers }
    }

    /// How many draft tokens come before a row.
    fn depth(&self, row: usize) -> usize {
        row.checked_sub(1).map_or(0, |node| self.job.tree.spot(node).depth + 1)
    }

    /// The random number that a plain row would be drawn with.
    pub(super) fn sample(&self, row: usize) -> u64 {
        self.job.numbers.sample(self.depth(row))
    }

    /// The random number that is drawn with after a draft token was rejected.
    pub(super) fn residual(&self, row: usize) -> u64 {
        self.job.numbers.residual(self.depth(row))
    }

    /// Whether rows can be asked for when the rule comes to them, each behind the one before it. A rule that looks at
    /// all rows would ask for them one by one.
    pub(super) fn is_asked_by_position(&self, drafts: &[Proposed<'_>]) -> bool {
        let comes_to_each = match self.job.rule {
            AcceptanceRule::Greedy | AcceptanceRule::Rejection | AcceptanceRule::Synthetic(_) => true,
            AcceptanceRule::Relaxed(_) => (0..self.job.rows.len()).all(|row| !self.is_judged_apart(row)),
            AcceptanceRule::Block => drafts.iter().all(Proposed::is_certain),
            AcceptanceRule::Typical(_) => false,
        };
        comes_to_each && self.job.tree.is_chain() && !self.job.measure
    }

    /// What is asked about these rows: each row, then those that are judged at another temperature.
    pub(super) fn rows(&self, rows: Range<usize>) -> impl Iterator<Item = Asked<'_>> {
        let judged = rows.clone().filter(|&row| self.is_judged_apart(row)).map(|row| {
            let action = Action::Draw { uniform: 0 };
            unranked(self.job.relaxed(row), action, self.top_n, &[])
        });
        let targets = rows.map(|row| {
            let top_n = if self.is_judged_apart(row) { 0 } else { self.top_n };
            let action = Action::Draw { uniform: self.sample(row) };
            unranked(self.job.rows[row], action, top_n, &self.tokens[row])
        });
        targets.chain(judged)
    }

    fn is_judged_apart(&self, row: usize) -> bool {
        self.top_n > 0 && self.job.rows[row].spec.filters.temperature == 0.0
    }

    /// Takes the answers to [`Self::rows`].
    pub(super) fn see(&mut self, rows: Range<usize>, answers: Vec<Answer>) {
        let mut answers = answers.into_iter();
        for (row, answer) in rows.clone().zip(answers.by_ref()) {
            let Some(status) = answer.status() else { return self.is_broken = true };
            let top_n = if self.is_judged_apart(row) { 0 } else { self.top_n };
            self.targets[row] = Some(status.map(|()| Target::new(&answer, &self.job.rows[row].spec, top_n)));
        }
        let apart: Vec<usize> = rows.filter(|&row| self.is_judged_apart(row)).collect();
        for (row, answer) in apart.into_iter().zip(answers) {
            let Some(status) = answer.status() else { return self.is_broken = true };
            // A row without a distribution has none at any temperature.
            let judged = status.map(|()| Target::new(&answer, &self.job.relaxed(row).spec, self.top_n));
            self.judged.push(judged.map_or((vec![], 1), |judged| (judged.top, judged.total)));
        }
    }

    /// Whether a kernel contradicted itself.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// What is known about a row; `None` if it was not asked for.
    pub(super) fn target(&self, row: usize) -> Option<Result<&Target, RowError>> {
        self.targets[row].as_ref().map(|target| target.as_ref().map_err(|&error| error))
    }

    /// What relaxed acceptance judges: the first tokens with their masses, and the total.
    pub(super) fn judged(&self, row: usize) -> Result<(&[(u32, u64)], u64), RowError> {
        let target = self.target(row).expect("a rule judges the row that it came to; this is a bug")?;
        if !self.is_judged_apart(row) {
            return Ok((&target.top, target.total));
        }
        let at = (0..row).filter(|&before| self.is_judged_apart(before)).count();
        Ok((&self.judged[at].0, self.judged[at].1))
    }

    /// The answer to a query.
    pub(super) fn answer(&self, query: &Query) -> Option<Found> {
        self.answers.get(query).copied()
    }

    pub(super) fn learn(&mut self, query: Query, answer: &Answer) {
        if answer.status() != Some(Ok(())) {
            self.is_broken = true;
            return;
        }
        let written = &answer.written;
        let sum = if matches!(query, Query::Rank { .. }) { u64::from(written.rank) } else { written.total };
        self.answers.insert(query, Found { sum, token: written.token });
    }

    /// The row of a launch that answers a query.
    pub(super) fn asked<'b>(&self, query: &Query, drafts: &'b [Proposed<'b>]) -> Asked<'b>
    where
        'a: 'b,
    {
        let draw = |uniform| Action::Draw { uniform };
        match *query {
            Query::Entropy { row } => self.weigh(row, draw(0), WeighBy::Entropy, 0),
            Query::Left { row, ref taken, uniform } => {
                let by = taken.iter().map(|taken| (&drafts[taken.node], taken.by(drafts))).collect();
                self.weigh(row, draw(uniform), WeighBy::Beyond(by), 0)
            }
            Query::Drafted { row, node, need } => self.weigh(row, draw(0), WeighBy::Drafted(&drafts[node]), need),
            Query::Rank { row, token } => {
                let RowJob { logits, spec } = self.job.rows[row];
                let wanted = LogprobsSpec { top_n: 0, mode: LogprobsMode::Processed, tokens: &[] };
                let spec = RowSpec { action: Action::Score { token }, logprobs: Some(wanted), ..spec };
                Asked { row: RowJob { logits, spec }, task: RowTask::Row }
            }
        }
    }

    /// Asks to weigh a row, over tokens with a mass of at least `need`.
    fn weigh<'b>(&self, row: usize, action: Action, by: WeighBy<'b>, need: u64) -> Asked<'b>
    where
        'a: 'b,
    {
        let RowJob { logits, spec } = self.job.rows[row];
        let target = self.target(row).and_then(Result::ok);
        let (last_key, first_key) = target.map_or((0, 0), |target| (target.last_key, target.first_key));
        // A greedy row has one token, with mass one, whatever min-p is.
        let need = need.max(if spec.filters.temperature == 0.0 { 0 } else { min_p_need(&spec) });
        let spec = RowSpec { action, logprobs: None, ..spec };
        let weigh = Weigh { last_key, max: keys::logit(first_key), need, by };
        Asked { row: RowJob { logits, spec }, task: RowTask::Weigh(weigh) }
    }
}

/// Asks to sample a row and to report tokens, without ranks.
fn unranked<'b>(row: RowJob<'b>, action: Action, top_n: u32, tokens: &'b [u32]) -> Asked<'b> {
    let wanted = LogprobsSpec { top_n, mode: LogprobsMode::Processed, tokens };
    let logprobs = (top_n > 0 || !tokens.is_empty()).then_some(wanted);
    Asked::unranked(RowJob { spec: RowSpec { action, logprobs, ..row.spec }, ..row })
}

impl Target {
    fn new(answer: &Answer, spec: &RowSpec<'_>, top_n: u32) -> Self {
        let written = &answer.written;
        let (max, scale) = (keys::logit(written.first_key), scale(spec));
        let (top, requested) = answer.reported(top_n);
        let weighed = |tokens: &[ReportedToken]| {
            let mass = |logit| mass::mass(mass::exponent(logit, max, scale));
            tokens.iter().map(|reported| (reported.token, mass(reported.logit))).collect::<Vec<_>>()
        };
        let (total, last_key, first_key) = (written.total, written.last_key, written.first_key);
        Self { total, last_key, first_key, token: written.token, masses: weighed(requested), top: weighed(top) }
    }

    /// The most likely token.
    pub(super) fn first(&self) -> u32 {
        keys::token(self.first_key)
    }

    /// The mass of a draft token in this row, if it was asked for.
    pub(super) fn mass_of(&self, token: u32) -> Option<u64> {
        self.masses.iter().find(|(asked, _)| *asked == token).map(|&(_, mass)| mass)
    }
}
