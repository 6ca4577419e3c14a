//! What the lanes report to the screen and to the final report.

use crate::shift::{Overlap, SHIFTS};
use crate::tally::Tally;
use croupier::proto::WorkResult;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Shared between the lanes, which write, and the screen, which reads ten times a second.
#[derive(Debug, Clone)]
pub(crate) struct Board(Arc<Mutex<State>>);

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) lanes: Vec<Seen>,
    pub(crate) started: Instant,
    /// For how long at the start a step of the target takes at least one beat.
    pub(crate) reading: Duration,
}

/// What was observed of a lane.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) label: &'static str,
    /// The current text. It is bytes, because a token may end in the middle of a character.
    pub(crate) text: Vec<u8>,
    /// The tokens of each text, without its prompt.
    pub(crate) texts: Vec<Vec<u32>>,
    pub(crate) tokens: u64,
    /// Numbers of target steps, target rows and draft rows.
    pub(crate) steps: u64,
    pub(crate) rows: u64,
    pub(crate) draft_rows: u64,
    /// Numbers of drafts with at least one token, of their tokens, and of accepted tokens.
    pub(crate) drafts: u64,
    pub(crate) draft_tokens: u64,
    pub(crate) accepted: u64,
    /// Steps whose tokens do not have the target's distribution, according to the server.
    pub(crate) lossy: u64,
    /// The advice after the last step, and the sum of all advice.
    pub(crate) advised: Option<u32>,
    pub(crate) advised_sum: u64,
    /// Acceptance by position in the draft.
    pub(crate) positions: Vec<Tally>,
    /// Probabilities of draft tokens, where others could have been drawn, compared with their expected mean.
    pub(crate) drawn: Tally,
    /// Whether drafts would fit better to rows one place further on, by [`SHIFTS`].
    pub(crate) shifts: [Overlap; SHIFTS.len()],
    /// Whether emitted tokens were the target's most likely ones.
    pub(crate) first: Tally,
}

impl Board {
    pub(crate) fn new(labels: impl Iterator<Item = &'static str>, reading: Duration) -> Self {
        let lanes = labels.map(|label| Seen { label, ..Seen::default() }).collect();
        Self(Arc::new(Mutex::new(State { lanes, started: Instant::now(), reading })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere must not cause a second one here: these are only numbers to look at.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub(crate) fn is_reading(&self) -> bool {
        self.started.elapsed() < self.reading
    }
}

impl Seen {
    /// Records a target step that verified `drafted` tokens.
    pub(crate) fn record(&mut self, drafted: usize, work: &WorkResult) {
        self.steps += 1;
        self.rows += drafted as u64 + 1;
        self.tokens += work.tokens.len() as u64;
        self.drafts += u64::from(drafted > 0);
        self.draft_tokens += drafted as u64;
        self.advised = work.advised_draft_length;
        self.advised_sum += u64::from(work.advised_draft_length.unwrap_or_default());
        for token in &work.tokens {
            if let Some(text) = self.texts.last_mut() {
                text.push(token.token_id);
            }
            let likeliest = token.top_logprobs.first().map_or(0.0, |logprob| f64::from(*logprob).exp());
            self.first.add(likeliest.min(1.0), token.rank == Some(1));
        }
        let Some(verify) = &work.verify else { return };
        self.accepted += u64::from(verify.accepted_count);
        self.lossy += u64::from(!verify.lossless);
        if let Some(first) = verify.tests.first() {
            self.shifts.iter_mut().zip(SHIFTS).for_each(|(overlap, shift)| overlap.add(shift, first));
        }
        for test in &verify.tests {
            let at = test.index as usize;
            if self.positions.len() <= at {
                self.positions.resize(at + 1, Tally::default());
            }
            self.positions[at].add(f64::from(test.expected_acceptance), test.accepted);
            if test.expected_draft_probability < 1.0 {
                self.drawn.add_share(test.expected_draft_probability.into(), test.draft_probability.into());
            }
        }
    }

    /// Acceptance over all positions.
    pub(crate) fn acceptance(&self) -> Tally {
        self.positions.iter().fold(Tally::default(), |sum, &position| sum.merge(position))
    }

    pub(crate) fn tokens_per_step(&self) -> f64 {
        self.tokens as f64 / self.steps.max(1) as f64
    }

    pub(crate) fn tokens_per_row(&self) -> f64 {
        self.tokens as f64 / self.rows.max(1) as f64
    }

    /// Mean number of accepted tokens per draft.
    pub(crate) fn accepted_length(&self) -> f64 {
        self.accepted as f64 / self.drafts.max(1) as f64
    }

    pub(crate) fn mean_advised(&self) -> f64 {
        self.advised_sum as f64 / self.steps.max(1) as f64
    }

    /// Tokens in the time of one target step, if a draft row and a further target row cost these shares of it.
    pub(crate) fn speed(&self, draft_cost: f64, verify_cost: f64) -> f64 {
        let extra = self.draft_rows as f64 * draft_cost + (self.rows - self.steps) as f64 * verify_cost;
        self.tokens as f64 / (self.steps as f64 + extra).max(1.0)
    }
}
