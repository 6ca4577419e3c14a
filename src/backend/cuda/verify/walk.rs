//! Answers what the rules ask, from what is known.

use super::table::{Found, Query, Table, Taken, Target};
use crate::backend::VerifyResult;
use crate::backend::cpu::Proposed;
use crate::params::state::SamplerState;
use crate::sampling::mass::MASS_ONE;
use crate::sampling::row::RowError;
use crate::speculative::positions::Positions;
use crate::speculative::relaxed::Relaxed;
use crate::speculative::typical;
use crate::speculative::weights::{ONE, OwnProbability, share};

/// One walk of a rule along a draft.
pub(super) struct Walk<'a> {
    table: &'a Table<'a>,
    drafts: &'a [Proposed<'a>],
    row: usize,
    /// What was subtracted from the row's target, and in `total` the total of what is left.
    taken: Vec<Taken>,
    total: u64,
    /// Whether what is left here is unknown. Then nothing is asked about it, because the question would be about
    /// another distribution.
    is_unknown: bool,
    lacks: Lacks,
}

/// What a walk lacked. If there is anything, the walk does not count.
#[derive(Debug, Default)]
pub(super) struct Lacks {
    pub(super) queries: Vec<Query>,
    /// The first row that it came to and that is not known. It ended there.
    pub(super) row: Option<usize>,
}

impl<'a> Walk<'a> {
    /// `None` if a kernel contradicted itself.
    pub(super) fn new(table: &'a Table<'a>, drafts: &'a [Proposed<'a>]) -> Option<Self> {
        let lacks = Lacks::default();
        (!table.is_broken()).then(|| Self { table, drafts, row: 0, taken: vec![], total: 1, is_unknown: false, lacks })
    }

    /// The outcome, or what it lacks.
    pub(super) fn verify(mut self) -> Result<VerifyResult, Lacks> {
        let result = self.table.job.plan().verify(&mut self);
        let Lacks { queries, row } = &self.lacks;
        if queries.is_empty() && row.is_none() { Ok(result.map_err(Into::into)) } else { Err(self.lacks) }
    }

    fn target(&self) -> &'a Target {
        let target = self.table.target(self.row).and_then(Result::ok);
        target.expect("a rule comes to a row first; this is a bug")
    }

    fn answer(&mut self, query: Query) -> Option<Found> {
        let answer = self.table.answer(&query);
        if answer.is_none() && !self.lacks.queries.contains(&query) {
            self.lacks.queries.push(query);
        }
        answer
    }

    /// What would be left beyond a draft, if it is known what is left now.
    fn beyond_by(&mut self, factor: f64, node: usize) -> (Taken, Option<u64>) {
        let next = Taken { node, factor: factor.to_bits(), total: self.total };
        let taken = [self.taken.as_slice(), &[next]].concat();
        let query = Query::Left { row: self.row, taken, uniform: self.table.residual(self.row) };
        let answer = if self.is_unknown { None } else { self.answer(query) };
        (next, answer.map(|found| found.sum))
    }
}

impl Positions for Walk<'_> {
    fn token(&self, node: usize) -> u32 {
        self.drafts[node].token
    }

    fn ends(&self, node: usize) -> bool {
        self.table.job.ends[node]
    }

    fn is_certain(&self, node: usize) -> bool {
        self.drafts[node].is_certain()
    }

    fn proposed(&self, node: usize) -> f64 {
        share(self.drafts[node].mass, self.drafts[node].total)
    }

    fn own_probability(&self, node: usize) -> OwnProbability {
        self.drafts[node].own_probability()
    }

    fn come_to(&mut self, row: usize) -> Result<(), RowError> {
        let Some(target) = self.table.target(row) else {
            self.lacks.row.get_or_insert(row);
            // Any error ends the walk.
            return Err(RowError::AllMasked);
        };
        self.total = target?.total;
        self.row = row;
        self.is_unknown = false;
        self.taken.clear();
        Ok(())
    }

    fn share(&mut self, token: u32) -> f64 {
        let mass = self.target().mass_of(token).expect("the masses of draft tokens were asked for; this is a bug");
        let beyond =
            |left: u64, taken: &Taken| taken.by(self.drafts).weight(left, self.drafts[taken.node].mass_of(token));
        share(self.taken.iter().fold(mass, beyond), self.total)
    }

    fn draw(&mut self, uniform: u64) -> u32 {
        if self.is_unknown {
            return 0;
        }
        if self.taken.is_empty() && uniform == self.table.sample(self.row) {
            return self.target().token;
        }
        let query = Query::Left { row: self.row, taken: self.taken.clone(), uniform };
        self.answer(query).map_or(0, |found| found.token)
    }

    fn beyond(&mut self, factor: f64, node: usize) -> f64 {
        self.beyond_by(factor, node).1.unwrap_or(0) as f64 / ONE
    }

    fn take(&mut self, factor: f64, node: usize) {
        let (next, total) = self.beyond_by(factor, node);
        self.is_unknown |= total.is_none();
        if let Some(total) = total.filter(|&total| total > 0) {
            self.taken.push(next);
            self.total = total;
        }
    }

    fn has_one(&mut self) -> bool {
        // The most likely token has mass one, so a total of one means that there is no other.
        self.target().total == MASS_ONE
    }

    fn first(&mut self) -> u32 {
        self.target().first()
    }

    fn entropy(&mut self) -> f64 {
        let terms = self.answer(Query::Entropy { row: self.row });
        if terms.is_none() {
            // Asks for all rows at once, to take one round instead of one for each row.
            for row in (0..self.table.job.rows.len()).filter(|&row| matches!(self.table.target(row), Some(Ok(_)))) {
                self.answer(Query::Entropy { row });
            }
        }
        typical::entropy(terms.map_or(0, |found| found.sum), self.target().total)
    }

    fn relaxed(&mut self, relaxed: &Relaxed) -> Result<Vec<u32>, RowError> {
        let (first, total) = self.table.judged(self.row)?;
        let accepted = relaxed.accepted(first.iter().map(|&(_, mass)| mass), total);
        Ok(first[..accepted].iter().map(|&(token, _)| token).collect())
    }

    fn chance_of(&mut self, node: usize, tokens: &[u32]) -> f64 {
        let draft = &self.drafts[node];
        share(tokens.iter().map(|&token| draft.mass_of(token)).sum(), draft.total)
    }

    fn chance_from(&mut self, node: usize, least: f64) -> f64 {
        let total = self.target().total;
        let reaches = |&mass: &u64| share(mass, total) >= least;
        // A larger mass has a larger share, so a least mass can be found.
        let need = least_mass(reaches);
        let query = Query::Drafted { row: self.row, node, need };
        let sum = if need > MASS_ONE { Some(0) } else { self.answer(query).map(|found| found.sum) };
        share(sum.unwrap_or(0), self.drafts[node].total)
    }

    fn rank(&mut self, token: u32) -> u32 {
        self.answer(Query::Rank { row: self.row, token }).map_or(0, |found| found.sum as u32)
    }

    // Samplers with state need a chain, and rows with chains have no kernel.
    fn state_before(&self, _row: usize) -> Option<SamplerState> {
        None
    }

    fn state_after(&mut self, _token: u32) -> Option<SamplerState> {
        None
    }
}

/// The least mass for which `reaches` holds, where it also holds for all larger masses; more than [`MASS_ONE`] if there
/// is none.
fn least_mass(reaches: impl Fn(&u64) -> bool) -> u64 {
    let (mut from, mut to) = (1, MASS_ONE + 1);
    while from < to {
        let middle = from + (to - from) / 2;
        if reaches(&middle) { to = middle } else { from = middle + 1 }
    }
    from
}
