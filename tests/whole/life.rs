//! The life of a text: it is opened twice with random complete parameters, and then gets some tokens by every kind of work.

use crate::rows::{SHAPES, row};
use crate::support::*;
use crate::whole::draw::{Chosen, Draw, FIELDS};
use croupier::proto::decode_request::Request;
use croupier::proto::verify_work::DraftDistribution;
use croupier::proto::*;
use croupier::sampling::logits::Dtype;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use tonic::transport::Channel;

/// The most turns of a text.
const TURNS: u32 = 6;
/// Two sequences that do the same, in one step.
const TWINS: [u64; 2] = [1, 2];

/// Counts of what happened.
#[derive(Default)]
pub struct Counts {
    refused: u32,
    accepted: u32,
    tokens: u32,
    reopened: u32,
    accepted_drafts: u32,
    rejected_drafts: u32,
    trees: u32,
    kept: u32,
    unsampled: BTreeMap<String, u32>,
    /// For texts that were accepted and got a token: how many had each field.
    fields: BTreeMap<&'static str, u32>,
}

impl Display for Counts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { refused, accepted, tokens, reopened, accepted_drafts, rejected_drafts, trees, kept, .. } = self;
        writeln!(
            f,
            "{accepted} parameters accepted, {refused} refused; {tokens} tokens, {reopened} texts opened again"
        )?;
        writeln!(f, "drafts: {accepted_drafts} accepted, {rejected_drafts} not; {trees} trees, {kept} of draft work")?;
        writeln!(f, "rows without a token: {:?}\nfields: {:?}", self.unsampled, self.fields)
    }
}

impl Counts {
    /// Fails if so many cases did too little to prove anything.
    pub fn hold(&self, cases: u32) {
        assert!(self.accepted * 10 >= cases * 9 && self.refused * 5 >= cases, "{self}");
        assert!(self.tokens >= 2 * cases && self.reopened * 2 >= cases, "{self}");
        let drafts = [self.accepted_drafts, self.rejected_drafts, self.trees, self.kept];
        assert!(drafts.into_iter().all(|count| count * 10 >= cases), "{self}");
        for (name, _) in FIELDS {
            let count = self.fields.get(name).copied().unwrap_or(0);
            assert!(count * 40 >= cases, "{name} was in {count} of {cases}\n{self}");
        }
    }
}

pub struct Life {
    channel: Channel,
    draw: Draw,
    seed: u64,
    density: f32,
    dtype: Dtype,
    eos: Vec<u32>,
    prompt: Vec<u32>,
    own: Chosen,
    defaults: Chosen,
    text: Vec<u32>,
    state: Option<SamplerState>,
}

impl Display for Life {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (own, defaults) = (self.own.params(), self.defaults.params());
        writeln!(f, "seed {} {}, vocabulary {}, eos {:?}", self.seed, self.density, self.draw.vocab, self.eos)?;
        writeln!(f, "own {own:?}\ndefaults {defaults:?}\nprompt {:?} text {:?}", self.prompt, self.text)
    }
}

type Went<T> = Result<T, String>;

impl Life {
    pub fn new(channel: Channel, seed: u64, density: f32) -> Self {
        let mut draw = Draw::new(seed, VOCAB);
        draw.vocab = draw.one_of(&[VOCAB, 200, 2100]);
        let dtype = draw.one_of(&Dtype::ALL);
        let eos = if draw.happens(0.7) { draw.once(1, 3) } else { vec![] };
        let prompt = draw.tokens(0, 30);
        let mut own = Chosen::new(&mut draw, density);
        let mut defaults = Chosen::none(draw.vocab);
        if draw.happens(0.25) {
            (own, defaults) = own.halves(&mut draw);
        }
        let (text, state) = (Vec::new(), None);
        Self { channel, draw, seed, density, dtype, eos, prompt, own, defaults, text, state }
    }

    /// Runs a text until it ends, or for some turns.
    pub async fn live(&mut self, counts: &mut Counts) -> Went<()> {
        let Some(mut worker) = self.begin(counts).await? else { return Ok(()) };
        counts.accepted += 1;
        for _ in 0..TURNS {
            let went_on = match self.draw.below(5) {
                0 | 1 => self.sample(&mut worker, counts).await?,
                2 => self.verify(&mut worker, counts).await?,
                3 => self.draft(&mut worker, counts).await?,
                _ => self.reopen(&mut worker, counts).await?,
            };
            if !went_on {
                break;
            }
        }
        if !self.text.is_empty() {
            let names = self.own.names().chain(self.defaults.names());
            names.for_each(|name| *counts.fields.entry(name).or_default() += 1);
        }
        Ok(())
    }

    /// A stream on which the text is opened twice, after refused fields were given up.
    async fn begin(&mut self, counts: &mut Counts) -> Went<Option<Worker>> {
        for _ in 0..2 * FIELDS.len() {
            let mut worker = Worker::over(self.channel.clone()).await.unwrap();
            let config = StreamConfig {
                vocab_size: self.draw.vocab,
                logits_dtype: 1 + Dtype::ALL.iter().position(|&dtype| dtype == self.dtype).unwrap() as i32,
                eos_token_ids: self.eos.clone(),
                default_params: Some(self.defaults.params()),
                ..Default::default()
            };
            worker.send(Request::Config(config)).await;
            if let Err(status) = worker.reply().await {
                counts.refused += 1;
                let (field, _) = violation(&status);
                let named = parameter(&field, "config.default_params.").ok_or(format!("{field:?}: {status}"))?;
                self.defaults.give_up(named, &mut self.draw);
                continue;
            }
            let opened = worker.step(open_step(TWINS.map(|id| self.opening(id)).to_vec())).await.open;
            match opened[0].status() {
                OpenStatus::Ok if self.own.is_spoiled() => return Err("a bad value was accepted".to_owned()),
                OpenStatus::Ok => return Ok(Some(worker)),
                OpenStatus::InvalidArgument => {
                    counts.refused += 1;
                    let error = opened[0].error.clone().unwrap_or_default();
                    let named = parameter(&error.field, "params.").filter(|_| !error.message.is_empty());
                    let named = named.ok_or(format!("{error:?}"))?;
                    // If parameters contradict the stream's, the error may name one that only the stream has.
                    let is_own = self.own.has(named) || !self.defaults.has(named) && !self.own.is_empty();
                    let given_up = if is_own { &mut self.own } else { &mut self.defaults };
                    given_up.give_up(named, &mut self.draw);
                }
                other => return Err(format!("{other:?}: {:?}", opened[0].error)),
            }
        }
        Err("refused whatever was given up".to_owned())
    }

    /// Opens the text as it is now.
    fn opening(&self, sequence_id: u64) -> OpenSequence {
        let params = SamplingParams { return_sampler_state: Some(true), ..self.own.params() };
        // A fixed seed, so that both sequences are equal.
        let seed = params.seed.or(Some(self.seed));
        OpenSequence {
            sequence_id,
            params: Some(SamplingParams { seed, ..params }),
            prompt_token_ids: self.prompt.clone(),
            output_token_ids: self.text.clone(),
            sampler_state: self.state,
            predicted_output_token_ids: Vec::new(),
        }
    }

    /// A row of any shape, often with larger logits for the few tokens that prompts are made of.
    fn row(&mut self) -> Vec<u8> {
        let (shape, seed) = (self.draw.below(u32::from(SHAPES)) as u8, self.draw.number());
        let mut row = row(shape, self.draw.vocab as usize, seed);
        if self.draw.happens(0.5) {
            row.iter_mut().take(8).for_each(|x| *x = self.draw.between(0.0, 12.0));
        }
        // Numbers that a format cannot represent would become infinite.
        let most = match self.dtype {
            Dtype::F32 => f32::MAX,
            Dtype::F16 => 6e4,
            Dtype::Bf16 => 3e38,
        };
        row.iter_mut().for_each(|x| *x = if *x > f32::NEG_INFINITY { x.clamp(-most, most) } else { *x });
        if self.draw.happens(0.02) {
            row[0] = f32::NAN;
        }
        self.dtype.encode(&row)
    }

    fn rows(&mut self, count: usize) -> Vec<u8> {
        (0..count).flat_map(|_| self.row()).collect()
    }

    /// The same work on the same rows for several sequences.
    fn step(works: impl Iterator<Item = Work>, rows: &[u8]) -> Step {
        let work: Vec<Work> = works.collect();
        let data = rows.repeat(work.len()).into();
        Step { work, logits: Some(step::Logits::Inline(InlineLogits { data, row_stride: 0 })), ..Default::default() }
    }

    /// The result of work for both sequences, with which the text goes on. `None` if the rows could not be sampled.
    async fn both(
        &mut self,
        worker: &mut Worker,
        kind: work::Kind,
        rows: &[u8],
        counts: &mut Counts,
    ) -> Went<Option<WorkResult>> {
        let work = |id| Work { sequence_id: Some(id), first_row: None, kind: Some(kind.clone()), ..Default::default() };
        let mut result = worker.step(Self::step(TWINS.into_iter().map(work), rows)).await;
        let [first, second]: [WorkResult; 2] = result.work.split_off(0).try_into().map_err(|_| "two results")?;
        if first != second {
            return Err(format!("not the same twice: {first:?} {second:?}"));
        }
        match first.status() {
            RowStatus::Ok => Ok(Some(first)),
            // Infinities come from bias and penalties: none are sent.
            RowStatus::AllMasked | RowStatus::NanLogits | RowStatus::PositiveInfinity => {
                *counts.unsampled.entry(format!("{:?}", first.status())).or_default() += 1;
                if first.tokens.is_empty() { Ok(None) } else { Err(format!("a token was invented: {first:?}")) }
            }
            other => Err(format!("{other:?}: {}", first.message)),
        }
    }

    /// Adds emitted tokens to the text. Returns whether the text goes on.
    fn take(&mut self, work: &WorkResult, counts: &mut Counts) -> Went<bool> {
        if work.tokens.is_empty() || work.tokens.iter().any(|token| token.token_id >= self.draw.vocab) {
            return Err(format!("{work:?}"));
        }
        counts.tokens += work.tokens.len() as u32;
        self.text.extend(work.tokens.iter().map(|token| token.token_id));
        self.state = work.sampler_state;
        Ok(work.finish_reason() == FinishReason::Unspecified)
    }

    async fn sample(&mut self, worker: &mut Worker, counts: &mut Counts) -> Went<bool> {
        let row = self.row();
        let work = self.both(worker, work::Kind::Sample(SampleWork {}), &row, counts).await?;
        work.map_or(Ok(true), |work| self.take(&work, counts))
    }

    /// Verifies draft tokens without a distribution, in a chain or a tree.
    async fn verify(&mut self, worker: &mut Worker, counts: &mut Counts) -> Went<bool> {
        let mut tokens = self.draw.once(1, 5);
        let is_tree = self.draw.happens(0.4);
        if !is_tree && self.draw.happens(0.3) {
            tokens.extend(self.draw.tokens(1, 3));
        }
        let parent = |draw: &mut Draw, at: usize| draw.below(at as u32 + 1) as i32 - 1;
        let parents = (0..tokens.len()).filter(|_| is_tree).map(|at| parent(&mut self.draw, at)).collect();
        counts.trees += u32::from(is_tree && tokens.len() > 1);
        let from = DraftDistribution::Deterministic(DeterministicDraft {});
        self.verified(worker, (tokens, parents, from), counts).await
    }

    async fn verified(
        &mut self,
        worker: &mut Worker,
        (draft_token_ids, parents, from): (Vec<u32>, Vec<i32>, DraftDistribution),
        counts: &mut Counts,
    ) -> Went<bool> {
        let (drafted, rows) = (draft_token_ids.len() as u32, self.rows(draft_token_ids.len() + 1));
        let draft_distribution = Some(from);
        let work = VerifyWork { draft_token_ids, parents, draft_distribution, measure: self.draw.happens(0.3) };
        let Some(work) = self.both(worker, work::Kind::Verify(work), &rows, counts).await? else { return Ok(true) };
        let accepted = work.verify.as_ref().map_or(0, |verify| verify.accepted_count);
        counts.accepted_drafts += accepted;
        counts.rejected_drafts += drafted - accepted;
        self.take(&work, counts)
    }

    /// Draft work, then its verification.
    async fn draft(&mut self, worker: &mut Worker, counts: &mut Counts) -> Went<bool> {
        let (mut tokens, most) = (Vec::new(), 1 + self.draw.below(4));
        while tokens.len() < most as usize {
            let row = self.row();
            let parent = self.draw.happens(0.3).then(|| self.draw.below(tokens.len() as u32 + 1) as i32 - 1);
            let work = work::Kind::Draft(DraftWork {
                restart: tokens.is_empty(),
                parent: parent.filter(|_| !tokens.is_empty()),
            });
            match self.both(worker, work, &row, counts).await? {
                Some(work) => tokens.push(work.tokens[0].token_id),
                None => break,
            }
        }
        if tokens.is_empty() {
            return Ok(true);
        }
        counts.kept += 1;
        self.verified(worker, (tokens, Vec::new(), DraftDistribution::Kept(KeptDraft {})), counts).await
    }

    /// A row gives the same result if the text is opened again as another sequence, alone in its step.
    async fn reopen(&mut self, worker: &mut Worker, counts: &mut Counts) -> Went<bool> {
        let row = self.row();
        let mut opened = worker.step(open_step(vec![self.opening(9)])).await.open;
        if opened[0].status() != OpenStatus::Ok {
            return Err(format!("not opened again: {:?}", opened.remove(0)));
        }
        let step = Step { close_sequence_ids: vec![9], ..Default::default() };
        let alone = worker.step(Self::step([sample_work(9)].into_iter(), &row)).await.work.remove(0);
        worker.step(step).await;
        let Some(work) = self.both(worker, work::Kind::Sample(SampleWork {}), &row, counts).await? else {
            let is_none = alone.tokens.is_empty();
            return if is_none { Ok(true) } else { Err(format!("a token only where opened again: {alone:?}")) };
        };
        // Advice depends on what was accepted before, which the tokens do not show.
        if alone.tokens != work.tokens || alone.sampler_state != work.sampler_state {
            return Err(format!("opened again it is {alone:?} instead of {work:?}"));
        }
        if alone.finish_reason != work.finish_reason {
            return Err(format!("opened again it ends with {alone:?} instead of {work:?}"));
        }
        counts.reopened += 1;
        self.take(&work, counts)
    }
}

/// The parameter to which a field belongs.
fn parameter<'a>(field: &'a str, within: &str) -> Option<&'a str> {
    let name = field.strip_prefix(within)?.split(['.', '[']).next()?;
    FIELDS.iter().any(|(known, _)| *known == name).then_some(name)
}
