//! Valid steps, with every kind of work and every way to send logits, before they are spoiled.

use crate::support::VOCAB;
use crate::whole::draw::{Chosen, Draw};
use croupier::proto::decode_request::Request;
use croupier::proto::*;
use croupier::sampling::logits::Dtype;

/// Sequences of a stream.
const SEQUENCES: u64 = 6;
/// The columns of the ranks, if there are ranks.
pub const COLUMNS: [u32; 2] = [30, 20];

/// How a stream sends the logits of its steps.
#[derive(Debug, Clone, PartialEq)]
pub enum Way {
    Inline,
    TopN,
    Region(RegionLogits),
    Sharded,
}

pub fn config(draw: &mut Draw, way: &Way) -> StreamConfig {
    let sharded = matches!(way, Way::Sharded).then(|| VocabShards { columns: COLUMNS.to_vec() });
    StreamConfig {
        vocab_size: VOCAB,
        logits_dtype: LogitsDtype::F32.into(),
        model: draw.one_of(&["", "a-model", "another"]).to_owned(),
        eos_token_ids: draw.once(0, 3),
        default_params: draw.happens(0.5).then(|| params(draw)),
        wants_regions: matches!(way, Way::Region(_)),
        draft_vocabulary: Vec::new(),
        vocab_shards: sharded,
    }
}

pub fn step(draw: &mut Draw, step_id: u64, way: &Way) -> Step {
    let close = (0..SEQUENCES).filter(|_| draw.happens(0.1)).collect();
    let opened = if step_id == 1 { 0.9 } else { 0.2 };
    let open = (0..SEQUENCES).filter(|_| draw.happens(opened)).collect::<Vec<_>>();
    let open = open.into_iter().map(|id| opening(draw, id)).collect();
    let mut rows = 0;
    let work = (0..SEQUENCES).filter(|_| draw.happens(0.6)).collect::<Vec<_>>();
    let work: Vec<_> = work.into_iter().map(|id| work_of(draw, id, &mut rows)).collect();
    let mut step = Step { step_id, close_sequence_ids: close, open, work, ..Default::default() };
    match way {
        Way::TopN => step.top_n = Some(top_n(draw, rows)),
        Way::Inline => step.logits = Some(step::Logits::Inline(inline(draw, rows, VOCAB))),
        Way::Region(place) => {
            let place = RegionLogits { rows, ..*place };
            step.logits = Some(step::Logits::Region(place));
            let RegionLogits { region_id, generation, .. } = place;
            let (offset, instead_of_result) = (8192, draw.happens(0.5));
            let slots = TokenSlots { region_id, generation, offset, instead_of_result };
            step.token_slots = draw.happens(0.5).then_some(slots);
        }
        Way::Sharded => {
            let columns = Some(sharded_logits::Columns::Inline(inline(draw, rows, COLUMNS[0])));
            step.logits = Some(step::Logits::Sharded(ShardedLogits { columns }));
        }
    }
    if draw.happens(0.1) {
        step.deadline_ms = draw.one_of(&[1, 60_000]);
        step.traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned();
    }
    step
}

pub fn of(step: Step) -> DecodeRequest {
    DecodeRequest { request: Some(Request::Step(step)) }
}

/// Rows with this many columns.
pub fn inline(draw: &mut Draw, rows: u32, columns: u32) -> InlineLogits {
    let logits: Vec<f32> = (0..rows * columns).map(|_| draw.between(-4.0, 4.0)).collect();
    InlineLogits { data: Dtype::F32.encode(&logits).into(), row_stride: 0 }
}

fn top_n(draw: &mut Draw, rows: u32) -> TopNRows {
    let counts: Vec<u32> = (0..rows).map(|_| 1 + draw.below(8)).collect();
    let listed: u32 = counts.iter().sum();
    let logits: Vec<f32> = (0..listed).map(|_| draw.between(0.0, 4.0)).collect();
    TopNRows {
        token_ids: counts.iter().flat_map(|&count| (0..count).map(|i| 5 * i)).collect(),
        counts,
        logits: Dtype::F32.encode(&logits),
        rest_logsumexp: (0..rows).map(|_| draw.between(-3.0, 2.0)).collect(),
        beyond: (0..rows).map(|_| draw.one_of(&[1, 2])).collect(),
        ties_in_order: draw.happens(0.5),
    }
}

/// A few of all parameters, each of them valid by itself.
fn params(draw: &mut Draw) -> SamplingParams {
    let (_, whole) = Chosen::new(draw, 0.05).halves(draw);
    whole.params()
}

fn opening(draw: &mut Draw, sequence_id: u64) -> OpenSequence {
    let params = SamplingParams { return_sampler_state: Some(true), ..params(draw) };
    let prompt_token_ids = draw.tokens(0, 12);
    let output_token_ids = draw.tokens(0, 3);
    OpenSequence { sequence_id, params: Some(params), prompt_token_ids, output_token_ids, ..Default::default() }
}

fn work_of(draw: &mut Draw, sequence_id: u64, rows: &mut u32) -> Work {
    let (kind, uses) = kind(draw);
    let first_row = draw.happens(0.3).then_some(*rows);
    *rows += uses;
    let masked = draw.happens(0.15);
    let words = VOCAB.div_ceil(32) * 4 * if masked { uses } else { 0 };
    let token_masks = (0..words).map(|_| draw.number() as u8 | 1).collect::<Vec<_>>().into();
    Work { sequence_id: Some(sequence_id), first_row, kind: Some(kind), token_masks }
}

/// A kind of work, and the number of rows that it uses.
fn kind(draw: &mut Draw) -> (work::Kind, u32) {
    match draw.below(6) {
        0 | 1 => (work::Kind::Sample(SampleWork {}), 1),
        2 => (work::Kind::Draft(DraftWork { restart: draw.happens(0.3), parent: None }), 1),
        3 => {
            let token_ids = draw.tokens(1, 3);
            let uses = token_ids.len() as u32;
            let logprobs = draw.happens(0.5).then(|| LogprobsParams { top_n: draw.below(6), ..Default::default() });
            (work::Kind::Score(ScoreWork { token_ids, logprobs }), uses)
        }
        _ => verify(draw),
    }
}

fn verify(draw: &mut Draw) -> (work::Kind, u32) {
    let draft_token_ids = draw.tokens(0, 4);
    let count = draft_token_ids.len();
    let is_tree = draw.happens(0.3);
    let parents: Vec<i32> =
        (0..if is_tree { count as i32 } else { 0 }).map(|i| draw.below(i as u32 + 1) as i32 - 1).collect();
    use verify_work::DraftDistribution::*;
    let dense = vec![1.0 / VOCAB as f32; count * VOCAB as usize];
    let draft_distribution = match draw.below(4) {
        0 => Some(Kept(KeptDraft {})),
        1 => Some(Dense(DenseDraft { probs: Dtype::F32.encode(&dense).into(), dtype: LogitsDtype::F32.into() })),
        2 => {
            let token_ids = draft_token_ids.iter().flat_map(|&token| [token, (token + 1) % VOCAB]).collect();
            let (counts, probs) = (vec![2; count], vec![0.5; 2 * count]);
            Some(Sparse(SparseDraft { counts, token_ids, probs }))
        }
        _ => Some(Deterministic(DeterministicDraft {})),
    };
    let measure = draw.happens(0.5);
    (work::Kind::Verify(VerifyWork { draft_token_ids, parents, draft_distribution, measure }), count as u32 + 1)
}

pub fn sample(draw: &mut Draw) -> SampleRequest {
    let rows = 1 + draw.below(4);
    let (logits, top_n) = match draw.happens(0.7) {
        true => (Some(inline(draw, rows, VOCAB)), None),
        false => (None, Some(top_n(draw, rows))),
    };
    let row = |draw: &mut Draw| {
        let OpenSequence { params, prompt_token_ids, output_token_ids, .. } = opening(draw, 0);
        SampleRow { params, prompt_token_ids, output_token_ids, ..Default::default() }
    };
    let StreamConfig { vocab_size, logits_dtype, model, eos_token_ids, default_params, .. } =
        config(draw, &Way::Inline);
    let rows = (0..rows).map(|_| row(draw)).collect();
    SampleRequest { vocab_size, logits_dtype, model, eos_token_ids, default_params, rows, logits, top_n }
}
