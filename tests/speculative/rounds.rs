//! Rounds whose drafts have different shapes in turn. They are cheap, so that a million texts take seconds: there are no parameters, and
//! each distribution is computed once.

use crate::speculative::world::{Model, PROMPT, VOCAB, distribution};
use croupier::params::SamplingParams;
use croupier::sampling::distribution::Distribution;
use croupier::sampling::kept::Kept;
use croupier::sampling::philox::{Purpose, uniform_at};
use croupier::sampling::row::{Action, RowError};
use croupier::sequence::Sequence;
use croupier::sequence::rules::Rules;
use croupier::speculative::draft::{Draft, DraftDistribution};
use croupier::speculative::numbers::{Numbers, Spot};
use croupier::speculative::plain::{self, Target};
use croupier::speculative::plan::Plan;
use croupier::speculative::rule::AcceptanceRule::Block;
use croupier::speculative::tree::Tree;
use std::sync::Arc;

/// A worker that lets the sidecar draw its drafts, and verifies them under the block rule.
pub struct Rounds {
    /// The target's distribution after each token.
    target: Vec<Distribution>,
    draft: Vec<(Distribution, DraftDistribution)>,
    /// The shapes of the rounds, used in turn: parents, and the tree that they form.
    shapes: Vec<(Vec<i32>, Tree)>,
    /// Wrong if set: draft tokens are drawn with numbers that are addressed by their index in the draft.
    by_index: bool,
}

impl Rounds {
    pub fn new(target: &Model, draft: &Model, shapes: &[&[i32]], by_index: bool) -> Self {
        let kept = |drawn: Distribution| {
            let kept = DraftDistribution::kept(&Kept::from(&drawn));
            (drawn, kept)
        };
        let tree = |parents: &&[i32]| (parents.to_vec(), Tree::new(parents, parents.len()).expect("a tree"));
        Self {
            target: after_each(target),
            draft: after_each(draft).into_iter().map(kept).collect(),
            shapes: shapes.iter().map(tree).collect(),
            by_index,
        }
    }

    /// The text of a seed, with at least `len` tokens.
    pub fn text(&self, seed: u64, len: usize) -> Vec<u32> {
        let mut text = Vec::new();
        for (parents, tree) in self.shapes.iter().cycle() {
            if text.len() >= len {
                break;
            }
            let numbers = Numbers { seed, start: text.len() as u64 };
            // The token before each row.
            let mut before = vec![*text.last().unwrap_or(&PROMPT[2])];
            let mut drafts = Vec::new();
            for (node, &parent) in parents.iter().enumerate() {
                let (drawn, kept) = &self.draft[before[(parent + 1) as usize] as usize];
                let token = drawn.draw(self.number(numbers, tree.spot(node), node));
                before.push(token);
                drafts.push(Draft::new(token, kept.clone()).expect("the draft is fine"));
            }
            let plan = Plan { tree, rule: Block, strict: &[], numbers, measure: false };
            let mut rows = Rows { target: &self.target, before };
            text.extend(plain::verify(&drafts, &plan, &mut rows).expect("the rows are fine").emitted);
        }
        text
    }

    fn number(&self, numbers: Numbers, spot: Spot, index: usize) -> u64 {
        match self.by_index {
            true => uniform_at(numbers.seed, numbers.start + spot.depth as u64, Purpose::Draft, index as u32),
            false => numbers.draft(spot),
        }
    }
}

/// A model's distribution after each token.
fn after_each(model: &Model) -> Vec<Distribution> {
    let sequence = Sequence::open(Arc::new(Rules::new(SamplingParams::default(), &[])), 0, &PROMPT, &[]);
    let spec = sequence.spec(Action::Score { token: 0 });
    (0..VOCAB).map(|last| distribution(model.logits(&[last]), &spec).expect("the row is fine")).collect()
}

struct Rows<'a> {
    target: &'a [Distribution],
    before: Vec<u32>,
}

impl Target for Rows<'_> {
    fn distribution(&mut self, row: usize) -> Result<Distribution, RowError> {
        Ok(self.target[self.before[row] as usize].clone())
    }

    fn relaxed(&mut self, row: usize) -> Result<Distribution, RowError> {
        self.distribution(row)
    }

    fn ends(&self, _node: usize) -> bool {
        false
    }
}
