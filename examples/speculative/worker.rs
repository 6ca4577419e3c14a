//! A lane's worker: a gRPC client with its own stream. In each round it gets a draft from its lane's source, sends the
//! target's rows, and takes the tokens.

use crate::board::Board;
use crate::lanes::{Drafts, Lane, Prompts};
use crate::sent::Drafter;
use crate::shift::{self, Shift};
use crate::support::client::{self, request, step_result};
use crate::support::corpus::{END_OF_TEXT, VOCAB_SIZE};
use crate::support::rows::{Dtype, RowMaker};
use crate::support::{Result, corpus};
use bytes::BytesMut;
use croupier::proto::sampler_client::SamplerClient;
use croupier::proto::verify_work::DraftDistribution;
use croupier::proto::{
    DecodeRequest, DecodeResponse, DeterministicDraft, DraftWork, FinishReason, InlineLogits, KeptDraft, OpenSequence,
    OpenStatus, RowStatus, SampleWork, Step, StreamConfig, VerifyWork, Work, WorkResult, step, work,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tiktoken_rs::CoreBPE;
use tokio::sync::mpsc;
use tonic::Streaming;
use tonic::transport::Channel;

/// The rows' number format.
pub(crate) const DTYPE: Dtype = Dtype::F32;
/// Time of a target step while the user reads along. It is the same for every lane, so that one can see how lanes with
/// more tokens per step get ahead.
const BEAT: Duration = Duration::from_millis(110);

/// What all lanes share.
pub(crate) struct World {
    pub(crate) tokenizer: CoreBPE,
    pub(crate) prompts: Prompts,
    pub(crate) board: Board,
    pub(crate) seed: u64,
    /// Number of tokens of each lane.
    pub(crate) tokens: u64,
    /// Most draft tokens.
    pub(crate) draft_length: usize,
    /// The simulated shift of the target's rows, if any.
    pub(crate) shift: Option<Shift>,
    /// The user wants to stop now.
    pub(crate) stop: Arc<AtomicBool>,
}

/// The two models, as makers of rows.
#[derive(Debug)]
pub(crate) struct Models {
    pub(crate) target: RowMaker,
    pub(crate) draft: RowMaker,
    /// For lanes that draw drafts themselves.
    pub(crate) drafter: Drafter,
}

/// Draft tokens and the distribution they were drawn from.
type Draft = (Vec<u32>, DraftDistribution);

/// The worker of one lane.
pub(crate) struct Worker {
    world: Arc<World>,
    /// The lane's index on the board.
    index: usize,
    lane: Lane,
    models: Models,
    requests: mpsc::Sender<DecodeRequest>,
    replies: Streaming<DecodeResponse>,
    /// The current text, prompt included. Empty between texts.
    context: Vec<u32>,
    /// Number of texts begun. It is also the basis of sequence ids.
    texts: usize,
    /// The last reply's proposed tokens, and its advice.
    proposed: Vec<u32>,
    advised: Option<u32>,
    /// What is to be sent with the next step.
    pending: Step,
    /// The rows. The allocation is reused when the transport no longer needs the previous message.
    rows: BytesMut,
}

impl Worker {
    /// Opens the lane's stream.
    pub(crate) async fn new(
        world: &Arc<World>,
        index: usize,
        lane: Lane,
        models: Models,
        client: &mut SamplerClient<Channel>,
    ) -> Result<Self> {
        let config = StreamConfig {
            vocab_size: VOCAB_SIZE as u32,
            logits_dtype: DTYPE.wire().into(),
            model: lane.model.into(),
            eos_token_ids: vec![END_OF_TEXT],
            default_params: None,
            wants_regions: false,
            draft_vocabulary: Vec::new(),
            vocab_shards: None,
        };
        let (requests, replies) = client::open(client, config, 1).await?;
        let world = Arc::clone(world);
        let (context, proposed, pending, rows) = Default::default();
        let (texts, advised) = (0, None);
        Ok(Self { world, index, lane, models, requests, replies, context, texts, proposed, advised, pending, rows })
    }

    /// Decodes until the lane has its tokens. Rounds are never cut short, so that each run gives the same result.
    pub(crate) async fn run(mut self) -> Result<()> {
        while let Some(wait) = self.wait() {
            tokio::time::sleep(wait).await;
            if self.context.is_empty() {
                self.begin();
            }
            self.round().await?;
        }
        Ok(())
    }

    /// How long to wait until the next round. `None`: there are no more rounds.
    fn wait(&self) -> Option<Duration> {
        let state = self.world.board.lock();
        let seen = &state.lanes[self.index];
        if seen.tokens >= self.world.tokens || self.world.stop.load(Ordering::Relaxed) {
            return None;
        }
        let due = if state.is_reading() { BEAT * seen.steps as u32 } else { Duration::ZERO };
        Some(due.saturating_sub(state.started.elapsed()))
    }

    /// Begins the next text.
    fn begin(&mut self) {
        // The server keeps a finished sequence until the worker closes it.
        self.pending.close_sequence_ids.extend(self.texts.checked_sub(1).map(|text| text as u64));
        let prompt = self.world.prompts.get(self.world.seed, self.texts);
        self.pending.open.push(OpenSequence {
            sequence_id: self.texts as u64,
            params: Some(self.lane.params(self.world.seed, self.texts)),
            prompt_token_ids: prompt.clone(),
            ..Default::default()
        });
        let begin = corpus::text(&self.world.tokenizer, Prompts::shown(&prompt));
        self.context = prompt;
        (self.proposed, self.advised) = (Vec::new(), None);
        self.texts += 1;
        let seen = &mut self.world.board.lock().lanes[self.index];
        seen.text = begin;
        seen.texts.push(Vec::new());
    }

    /// One round: a draft, the target's step, and its tokens.
    async fn round(&mut self) -> Result<()> {
        let draft = match self.lane.drafts {
            Drafts::Nowhere => None,
            Drafts::Kept => Some(self.draft_kept().await?),
            Drafts::Proposed(_) => {
                let draft = std::mem::take(&mut self.proposed);
                Some((draft, DraftDistribution::Deterministic(DeterministicDraft {})))
            }
            Drafts::Sent { .. } => {
                let length = self.world.draft_length;
                let (draft, sent) = self.models.drafter.draft(&self.context, length, END_OF_TEXT);
                Some((draft, DraftDistribution::Sparse(sent)))
            }
        };
        let drafted = draft.as_ref().map_or(0, |(draft, _)| draft.len());
        let result = self.target_step(draft).await?;
        self.take(drafted, result);
        Ok(())
    }

    /// Draft work, token by token: each time a row of the draft model after the text and the draft tokens so far.
    async fn draft_kept(&mut self) -> Result<Draft> {
        let length = self.advised.map_or(self.world.draft_length, |advised| advised as usize);
        let (mut text, begin) = (self.context.clone(), self.context.len());
        while text.len() - begin < length {
            self.rows.reserve(self.models.draft.row_bytes());
            self.models.draft.append(&text, &mut self.rows);
            let result = self.step(work::Kind::Draft(DraftWork::default())).await?;
            text.extend(result.tokens.iter().map(|token| token.token_id));
            self.world.board.lock().lanes[self.index].draft_rows += 1;
            // After an end there is nothing to draft.
            if result.finish_reason() != FinishReason::Unspecified {
                break;
            }
        }
        Ok((text.split_off(begin), DraftDistribution::Kept(KeptDraft {})))
    }

    /// Sends the target's rows after the text and after each draft token, to be verified. Without a draft, the row is
    /// to be sampled.
    async fn target_step(&mut self, draft: Option<Draft>) -> Result<WorkResult> {
        let tokens = draft.as_ref().map_or(&[][..], |(tokens, _)| tokens);
        self.rows.reserve((tokens.len() + 1) * self.models.target.row_bytes());
        let text = [&self.context, tokens].concat();
        for before in shift::before_rows(self.world.shift, self.context.len(), tokens.len()) {
            self.models.target.append(&text[..before], &mut self.rows);
        }
        let kind = match draft {
            None => work::Kind::Sample(SampleWork {}),
            Some((draft_token_ids, from)) => work::Kind::Verify(VerifyWork {
                draft_token_ids,
                parents: Vec::new(),
                draft_distribution: Some(from),
                measure: true,
            }),
        };
        self.step(kind).await
    }

    /// Sends a step of one work on the rows that were made, and returns its result.
    async fn step(&mut self, kind: work::Kind) -> Result<WorkResult> {
        let sequence_id = Some(self.texts as u64 - 1);
        let mut step = std::mem::take(&mut self.pending);
        step.work.push(Work { sequence_id, first_row: None, kind: Some(kind), ..Default::default() });
        step.logits = Some(step::Logits::Inline(InlineLogits { data: self.rows.split().freeze(), row_stride: 0 }));
        let result = loop {
            self.requests.send(request(step.clone())).await?;
            let (_, result) = step_result(self.replies.message().await?)?;
            match &result.refusal {
                Some(full) => tokio::time::sleep(Duration::from_millis(full.retry_after_ms.into())).await,
                None => break result,
            }
        };
        if let Some(open) = result.open.iter().find(|open| open.status() != OpenStatus::Ok) {
            return Err(format!("{}: not opened: {:?} {:?}", self.lane.label, open.status(), open.error).into());
        }
        match result.work.into_iter().next() {
            Some(work) if work.status() == RowStatus::Ok => Ok(work),
            other => Err(format!("{}: no token: {other:?}", self.lane.label).into()),
        }
    }

    /// Takes the tokens that a target step emitted, and the tokens that it proposes.
    fn take(&mut self, drafted: usize, result: WorkResult) {
        let tokens: Vec<u32> = result.tokens.iter().map(|token| token.token_id).collect();
        self.context.extend(&tokens);
        let bytes = corpus::text(&self.world.tokenizer, &tokens);
        let mut state = self.world.board.lock();
        let seen = &mut state.lanes[self.index];
        seen.text.extend(bytes);
        seen.record(drafted, &result);
        if result.finish_reason() != FinishReason::Unspecified {
            self.context.clear();
        }
        (self.proposed, self.advised) = (result.proposed_token_ids, result.advised_draft_length);
    }
}
