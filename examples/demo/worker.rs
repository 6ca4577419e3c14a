//! The model worker: a gRPC client like any other. It makes rows, sends them, and takes tokens.
//!
//! The lanes of a step travel in several messages of about 1 MB, all in flight at once. So a lane waits only for its
//! own token, and rows are sampled while others are still on their way.

use crate::board::{Board, Pace};
use crate::lanes::Lane;
use crate::support::Result;
use crate::support::client::{self, request, step_result};
use crate::support::corpus::{END_OF_TEXT, VOCAB_SIZE};
use crate::support::rows::{Dtype, RowMaker};
use bytes::BytesMut;
use croupier::proto::sampler_client::SamplerClient;
use croupier::proto::{
    DecodeRequest, DecodeResponse, FinishReason, InlineLogits, OpenSequence, OpenStatus, RowStatus, SampleWork, Step,
    StepResult, StreamConfig, Work, step, work,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tiktoken_rs::CoreBPE;
use tokio::sync::mpsc;
use tonic::transport::Channel;

/// The fastest message size.
const MESSAGE_BYTES: usize = 1 << 20;
/// Tokens per second of each lane that a reader can follow.
const READING_PACE: f64 = 20.0;

/// When to stop. Every lane gets the same number of tokens, so that twins can be compared.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    /// How long to run at reading pace first.
    pub(crate) reading: Duration,
    /// Number of tokens of each lane.
    pub(crate) tokens: u64,
    /// Or how long to run at full speed, whichever comes first.
    pub(crate) time: Duration,
    /// Or until the user wants to stop now.
    pub(crate) stop: Arc<AtomicBool>,
    /// One of the latter two has happened, so `tokens` is final.
    pub(crate) ending: bool,
}

/// Lanes whose rows travel in one message.
#[derive(Debug)]
struct Group {
    lanes: Range<usize>,
    /// The rows. The allocation is reused when the transport no longer needs the previous message.
    rows: BytesMut,
    sent: Instant,
    /// Kept until it is answered, because a full server may ask for it again.
    step: Step,
}

/// One stream with all lanes on it.
pub(crate) struct Worker<'a> {
    pub(crate) tokenizer: &'a CoreBPE,
    pub(crate) dtype: Dtype,
    pub(crate) rows: RowMaker,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) board: Board,
    pub(crate) budget: Budget,
}

impl Worker<'_> {
    /// Decodes until every lane has its tokens.
    pub(crate) async fn run(&mut self, client: &mut SamplerClient<Channel>) -> Result<()> {
        let (requests, mut replies) = client::open(client, self.config(), self.lanes.len()).await?;
        let mut groups = self.groups();
        self.start(groups.len());
        // Groups that have their tokens and wait for their turn.
        let mut ready: VecDeque<usize> = (0..groups.len()).collect();
        let mut in_flight = 0;
        loop {
            let wait = loop {
                let Some(&id) = ready.front() else { break None };
                let wait = self.wait(&groups[id]);
                if wait > Duration::ZERO {
                    break Some(wait);
                }
                ready.pop_front();
                in_flight += usize::from(self.send(id, &mut groups[id], &requests).await?);
            };
            tokio::select! {
                reply = replies.message(), if in_flight > 0 => {
                    if let Some(id) = self.receive(&mut groups, reply?, &requests).await? {
                        in_flight -= 1;
                        ready.push_back(id);
                    }
                }
                () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => {}
                else => break,
            }
        }
        self.board.lock().stop();
        Ok(())
    }

    fn config(&self) -> StreamConfig {
        StreamConfig {
            vocab_size: VOCAB_SIZE as u32,
            logits_dtype: self.dtype.wire().into(),
            model: "demo-ngram".into(),
            eos_token_ids: vec![END_OF_TEXT],
            default_params: None,
            wants_regions: false,
            draft_vocabulary: Vec::new(),
            vocab_shards: None,
        }
    }

    fn groups(&self) -> Vec<Group> {
        let lanes = self.lanes.len();
        let per_message = (MESSAGE_BYTES / self.rows.row_bytes()).clamp(1, lanes);
        let range = |start: usize| start..(start + per_message).min(lanes);
        let group = |lanes| Group { lanes, rows: BytesMut::new(), sent: Instant::now(), step: Step::default() };
        (0..lanes).step_by(per_message).map(range).map(group).collect()
    }

    /// Sends the group's next step. Returns false if the group is done.
    async fn send(&mut self, id: usize, group: &mut Group, requests: &mpsc::Sender<DecodeRequest>) -> Result<bool> {
        if self.lanes[group.lanes.start].tokens.len() as u64 >= self.limit() {
            return Ok(false);
        }
        let started = Instant::now();
        group.step = Step { step_id: id as u64, ..Step::default() };
        // By now the transport no longer needs the previous rows, so their allocation is reused.
        group.rows.reserve(group.lanes.len() * self.rows.row_bytes());
        for index in group.lanes.clone() {
            self.add_work(index, group);
        }
        let data = group.rows.split().freeze();
        group.step.logits = Some(step::Logits::Inline(InlineLogits { data, row_stride: 0 }));
        {
            let mut board = self.board.lock();
            board.rows_in_flight += group.lanes.len();
            board.making += started.elapsed();
        }
        group.sent = Instant::now();
        requests.send(request(group.step.clone())).await?;
        Ok(true)
    }

    fn start(&self, steps_in_flight: usize) {
        let mut board = self.board.lock();
        board.steps_in_flight = steps_in_flight;
        board.start(if self.budget.reading.is_zero() { Pace::Full } else { Pace::Reading });
    }

    /// How long to wait until the group's next token is due.
    fn wait(&self, group: &Group) -> Duration {
        let mut board = self.board.lock();
        if board.pace == Pace::Full {
            return Duration::ZERO;
        }
        let elapsed = board.elapsed();
        if elapsed >= self.budget.reading || self.budget.stop.load(Ordering::Relaxed) {
            board.start(Pace::Full);
        }
        let due = Duration::from_secs_f64(self.lanes[group.lanes.start].tokens.len() as f64 / READING_PACE);
        due.saturating_sub(elapsed)
    }

    /// The number of tokens of each lane, as far as it is known now.
    fn limit(&mut self) -> u64 {
        let budget = &mut self.budget;
        let now = budget.stop.load(Ordering::Relaxed) || self.board.lock().elapsed() > budget.time;
        if now && !budget.ending {
            budget.ending = true;
            // One lane may be ahead of the others, and may be waiting for one more token.
            let most = self.lanes.iter().map(|lane| lane.tokens.len()).max().unwrap_or_default();
            budget.tokens = budget.tokens.min(most as u64 + 1);
        }
        budget.tokens
    }

    /// Adds a lane's row to the step. If the lane's last text has ended, its next text is opened first.
    fn add_work(&mut self, index: usize, group: &mut Group) {
        let stride = self.lanes.len() as u64;
        let lane = &mut self.lanes[index];
        if lane.context.is_empty() {
            // The server keeps a finished sequence until the worker closes it.
            let previous = lane.texts.checked_sub(1).map(|text| index as u64 + text * stride);
            group.step.close_sequence_ids.extend(previous);
            let sequence_id = index as u64 + lane.texts * stride;
            let (prompt_token_ids, params) = lane.begin(self.tokenizer);
            self.board.lock().lanes[index].1 = self.tokenizer.decode_bytes(&prompt_token_ids).unwrap_or_default();
            let params = Some(params);
            let open = OpenSequence { sequence_id, params, prompt_token_ids, ..Default::default() };
            group.step.open.push(open);
        }
        self.rows.append(&lane.context, &mut group.rows);
        group.step.work.push(Work {
            sequence_id: Some(index as u64 + (lane.texts - 1) * stride),
            first_row: None,
            kind: Some(work::Kind::Sample(SampleWork {})),
            ..Default::default()
        });
    }

    /// Takes a reply. Returns the group that has its tokens now.
    async fn receive(
        &mut self,
        groups: &mut [Group],
        reply: Option<DecodeResponse>,
        requests: &mpsc::Sender<DecodeRequest>,
    ) -> Result<Option<usize>> {
        let (id, result) = step_result(reply)?;
        let group = groups.get_mut(id).ok_or_else(|| format!("step {id} was never sent"))?;
        if let Some(refusal) = &result.refusal {
            tokio::time::sleep(Duration::from_millis(refusal.retry_after_ms.into())).await;
            requests.send(request(group.step.clone())).await?;
            return Ok(None);
        }
        self.take_tokens(group, &result)?;
        Ok(Some(id))
    }

    /// Gives each lane of the group its token.
    fn take_tokens(&mut self, group: &mut Group, result: &StepResult) -> Result<()> {
        // Releases the rows, so that their allocation can be reused.
        group.step = Step::default();
        if let Some(open) = result.open.iter().find(|open| open.status() != OpenStatus::Ok) {
            return Err(
                format!("sequence {} was not opened: {:?} {:?}", open.sequence_id, open.status(), open.error).into()
            );
        }
        if result.work.len() != group.lanes.len() {
            return Err(format!("{} results for {} rows", result.work.len(), group.lanes.len()).into());
        }
        let mut board = self.board.lock();
        board.answered(group.lanes.len(), group.sent.elapsed());
        for (index, row) in group.lanes.clone().zip(&result.work) {
            let (RowStatus::Ok, [token]) = (row.status(), row.tokens.as_slice()) else {
                let label = self.lanes[index].label;
                return Err(format!("{label}: no token: {:?} {}", row.status(), row.message).into());
            };
            let lane = &mut self.lanes[index];
            lane.push(token.token_id, token.logprob, row.finish_reason());
            if token.token_id != END_OF_TEXT {
                let bytes = self.tokenizer.decode_bytes(&[token.token_id]).unwrap_or_default();
                board.lanes[index].1.extend(bytes);
            }
            if row.finish_reason() != FinishReason::Unspecified {
                lane.context.clear();
            }
        }
        Ok(())
    }
}
