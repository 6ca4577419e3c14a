//! Tokens in the region: every kind of work, what the reply leaves out, invalid places, and who else can read the tokens.

use super::*;
use std::time::Duration;
use tonic::Code;

/// The offset of slots in a region of [`REGION`] bytes: after all rows.
const SLOTS: u64 = 8 << 10;

/// A slot as a reader of another process sees it.
#[derive(Debug, PartialEq)]
struct Slot {
    token: u32,
    status: i32,
    finish: i32,
    is_last: bool,
    logprob: Option<(f32, u32)>,
}

/// The step's word, whether the slots have everything, and the slots.
fn read(region: &Leased, offset: u64) -> (u32, bool, Vec<Slot>) {
    let word = |at: usize| region.window.word(offset as usize + 4 * at);
    assert_eq!(word(3), 0);
    let slots = (1..=word(2) as usize).map(|i| {
        let state = word(4 * i + 1);
        Slot {
            token: word(4 * i),
            status: (state & 0xff) as i32,
            finish: (state >> 8 & 0xff) as i32,
            is_last: state & 1 << 16 != 0,
            logprob: (state & 1 << 17 != 0).then(|| (f32::from_bits(word(4 * i + 2)), word(4 * i + 3))),
        }
    });
    (word(0), word(1) == 1, slots.collect())
}

/// The slots that correspond to a reply's works.
fn told(work: &[WorkResult]) -> Vec<Slot> {
    let slots = work.iter().flat_map(|result| {
        let none = [Token::default()];
        let tokens = if result.tokens.is_empty() { &none[..] } else { &result.tokens };
        let slots = tokens.iter().enumerate().map(|(i, token)| {
            let is_last = i + 1 == tokens.len();
            Slot {
                token: token.token_id,
                status: result.status,
                finish: if is_last { result.finish_reason } else { 0 },
                is_last,
                logprob: token.logprob.zip(token.rank),
            }
        });
        slots.collect::<Vec<_>>()
    });
    slots.collect()
}

fn slots_at(region: &Leased, offset: u64) -> Option<TokenSlots> {
    let RegionLease { region_id, generation, .. } = region.lease;
    Some(TokenSlots { region_id, generation, offset, instead_of_result: true })
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_tell_what_the_reply_tells_for_every_kind_of_work() {
    let server = server().await;
    let (mut worker, _side, mut region) = leased(&server, config()).await;
    let rows: Vec<Vec<f32>> = (0..6).map(|row| logits(9, row)).collect();
    for (row, values) in rows.iter().enumerate() {
        region.window.write(row * values.len() * 4, &bytes(values));
    }
    let (open, mut work) = rows::every_kind(1);
    // And one work that cannot be done.
    work.push(sample_work(99));
    let close = vec![1, 2, 3, 4];
    let expected =
        worker.step(Step { open: open.clone(), work: work.clone(), logits: inline(&rows), ..Default::default() }).await;
    let step = Step {
        close_sequence_ids: close,
        open,
        work,
        logits: at(place(&region, 0, 6)),
        token_slots: slots_at(&region, SLOTS),
        ..Default::default()
    };
    let result = worker.step(step).await;
    assert!(!result.in_slots, "a verification, top logprobs and a failure are more than slots can tell");
    assert_eq!(result.work, expected.work);
    let (word, is_all, slots) = read(&region, SLOTS);
    assert_eq!((u64::from(word), is_all), (result.step_id & u64::from(u32::MAX), false));
    assert_eq!(slots, told(&result.work));
    assert!(slots.len() >= 6 && slots.iter().any(|slot| slot.logprob.is_some()));
    assert_eq!(slots.last().map(|slot| slot.status), Some(RowStatus::UnknownSequence as i32));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_comes_by_slots_alone_whatever_way_its_logits_come() {
    let server = server().await;
    let expected = inline_tokens(&server, 5, 20).await;
    let (mut worker, _side, mut region) = leased(&server, config()).await;
    let params = SamplingParams { max_tokens: Some(20), logprobs: Some(LogprobsParams::default()), ..seeded(5) };
    worker.step(open_step(vec![open(1, params)])).await;
    for (position, &token) in (0..).zip(&expected) {
        let row = logits(5, position);
        region.window.write(0, &bytes(&row));
        let logits = if position % 2 == 0 { at(place(&region, 0, 1)) } else { inline(&[row]) };
        let offset = SLOTS + 32 * (position % 3);
        let step =
            Step { work: vec![sample_work(1)], logits, token_slots: slots_at(&region, offset), ..Default::default() };
        let id = worker.send_step(step).await;
        assert!(
            blocking(|| region.window.wait(offset as usize, id as u32, Duration::from_secs(60))),
            "position {position}"
        );
        let (_, is_all, slots) = read(&region, offset);
        let result = worker.step_reply().await.unwrap();
        assert!(result.in_slots && is_all && result.work.is_empty(), "{result:?}");
        let finish = if position == 19 { FinishReason::MaxTokens as i32 } else { 0 };
        let [Slot { token: drawn, status: 1, finish: ended, is_last: true, logprob: Some((logprob, rank)) }] =
            slots[..]
        else {
            panic!("{slots:?}")
        };
        assert_eq!((drawn, ended), (token, finish), "position {position}");
        assert!(logprob < 0.0 && rank >= 1, "{logprob} {rank}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn drafts_and_scores_have_slots_of_their_own() {
    let server = server().await;
    let (mut worker, _side, region) = leased(&server, config()).await;
    let rows: Vec<Vec<f32>> = (0..4).map(|row| logits(3, row)).collect();
    let score = ScoreWork { token_ids: vec![4, 2, 7], logprobs: Some(LogprobsParams::default()) };
    let draft = Work {
        sequence_id: Some(1),
        first_row: Some(0),
        kind: Some(work::Kind::Draft(DraftWork::default())),
        ..Default::default()
    };
    let work = [draft, Work { first_row: Some(1), ..score_work(None, score) }];
    let step = |id, slots| Step {
        open: vec![open(id, seeded(5))],
        work: work.iter().cloned().map(|work| Work { sequence_id: work.sequence_id.map(|_| id), ..work }).collect(),
        logits: inline(&rows),
        token_slots: slots,
        ..Default::default()
    };
    let expected = worker.step(step(1, None)).await;
    let result = worker.step(step(2, slots_at(&region, SLOTS))).await;
    assert!(result.in_slots && result.open.len() == 1, "{result:?}");
    let (_, _, slots) = read(&region, SLOTS);
    assert_eq!(slots, told(&expected.work));
    assert_eq!(slots.iter().map(|slot| slot.is_last).collect::<Vec<_>>(), [true, false, false, true]);
}

#[tokio::test(flavor = "multi_thread")]
async fn places_that_are_none_are_told_by_field_and_harm_nobody() {
    let server = server().await;
    let neighbour = inline_tokens(&server, 5, 3).await;
    let row = logits(5, 0);
    let room = |slots: u64| REGION - 16 * (slots + 1);
    for (change, code, field) in [
        ((7, 0, SLOTS), Code::NotFound, "step.token_slots.region_id"),
        ((1, 5, SLOTS), Code::FailedPrecondition, "step.token_slots.generation"),
        ((1, 0, SLOTS + 8), Code::InvalidArgument, "step.token_slots.offset"),
        ((1, 0, room(1)), Code::InvalidArgument, "step.token_slots.offset"),
        ((1, 0, REGION), Code::InvalidArgument, "step.token_slots.offset"),
        ((1, 0, u64::MAX - 15), Code::InvalidArgument, "step.token_slots.offset"),
    ] {
        let (mut worker, _side, region) = leased(&server, config()).await;
        let (id, newer, offset) = change;
        let slots =
            TokenSlots { region_id: id, generation: region.lease.generation + newer, offset, ..Default::default() };
        let step = Step {
            open: vec![open(1, seeded(5)), open(2, seeded(6))],
            work: vec![sample_work(1), sample_work(2)],
            logits: inline(&[row.clone(), row.clone()]),
            token_slots: Some(slots),
            ..Default::default()
        };
        let status = worker.failing_step(step).await;
        assert_eq!((status.code(), violation(&status).0.as_str()), (code, field), "{change:?}");
        assert!((0..REGION as usize / 4).all(|word| region.window.word(4 * word) == 0), "{change:?} wrote something");
    }
    // The last place that is valid.
    let (mut worker, _side, region) = leased(&server, config()).await;
    let step = |ids: [u64; 2], offset| Step {
        open: ids.map(|id| open(id, seeded(5))).to_vec(),
        work: ids.map(sample_work).to_vec(),
        logits: inline(&[row.clone(), row.clone()]),
        token_slots: slots_at(&region, offset),
        ..Default::default()
    };
    assert!(worker.step(step([1, 2], room(2))).await.in_slots);
    assert_eq!(read(&region, room(2)).2.len(), 2);
    // A work that cannot be read has a slot too, which says so.
    let unreadable = || score_work(None, ScoreWork::default());
    let with_unreadable = |id, offset| Step { work: vec![sample_work(id), unreadable()], ..step([id, id + 1], offset) };
    worker.step(Step { logits: inline(std::slice::from_ref(&row)), ..with_unreadable(3, room(2)) }).await;
    let (_, is_all, slots) = read(&region, room(2));
    assert_eq!((is_all, slots.len(), slots[1].status), (false, 2, RowStatus::InvalidWork as i32));
    let short = Step { logits: inline(std::slice::from_ref(&row)), ..with_unreadable(5, room(1)) };
    let status = worker.failing_step(short).await;
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, "step.token_slots.offset"));
    // A stream without regions.
    let mut without = server.worker().await;
    let status = without.failing_step(Step { open: Vec::new(), ..step([1, 2], 0) }).await;
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::NotFound, "step.token_slots.region_id"));
    assert_eq!(inline_tokens(&server, 5, 3).await, neighbour);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_result_leaves_out_only_what_it_was_asked_to() {
    let server = server().await;
    let (mut worker, _side, region) = leased(&server, config()).await;
    let step = |id, slots| Step {
        open: vec![open(id, seeded(5))],
        work: vec![sample_work(id)],
        logits: inline(&[logits(5, 0)]),
        token_slots: slots,
        ..Default::default()
    };
    let plain = worker.step(step(1, None)).await;
    let both = slots_at(&region, SLOTS).map(|slots| TokenSlots { instead_of_result: false, ..slots });
    let result = worker.step(step(2, both)).await;
    assert!(!result.in_slots && result.work == plain.work, "{result:?}");
    assert_eq!(read(&region, SLOTS), (result.step_id as u32, true, told(&plain.work)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_slots_cannot_tell_stays_in_the_result() {
    let server = server().await;
    let (mut worker, _side, region) = leased(&server, config()).await;
    let none = || seeded(5);
    let logprobs = |top_n, token_ids| SamplingParams {
        logprobs: Some(LogprobsParams { top_n, token_ids, ..Default::default() }),
        ..none()
    };
    let cases = [
        ("nothing", none(), true),
        ("the token's logprob", logprobs(0, vec![]), true),
        ("the most likely tokens", logprobs(2, vec![]), false),
        ("tokens that were asked for", logprobs(0, vec![3]), false),
        (
            "a report",
            SamplingParams { report: Some(ReportParams { entropy: true, ..Default::default() }), ..none() },
            false,
        ),
        (
            "the samplers' state",
            SamplingParams { mirostat: Some(2), return_sampler_state: Some(true), ..none() },
            false,
        ),
        (
            "advice",
            SamplingParams {
                draft_length: Some(DraftLengthParams { draft_cost: 0.1, ..Default::default() }),
                ..none()
            },
            false,
        ),
    ];
    for (id, (what, params, is_left_out)) in (1..).zip(cases) {
        let step = |id, slots| Step {
            open: vec![open(id, params.clone())],
            work: vec![sample_work(id)],
            logits: inline(&[logits(5, 0)]),
            token_slots: slots,
            ..Default::default()
        };
        let plain = worker.step(step(id, None)).await;
        let result = worker.step(step(100 + id, slots_at(&region, SLOTS))).await;
        assert_eq!(result.in_slots, is_left_out, "{what}");
        assert_eq!(result.work, if is_left_out { Vec::new() } else { plain.work }, "{what}");
    }
}

/// The worker gives up the region while its step is under way: the server writes where nobody reads, and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_region_that_is_released_under_a_step_takes_its_tokens_along() {
    let gate = Gate::default();
    let server = server_with(Box::new(gate.clone()), |_| {}).await;
    let (mut worker, mut side, region) = leased(&server, config()).await;
    let step = Step {
        open: vec![open(1, seeded(5))],
        work: vec![sample_work(1)],
        logits: inline(&[logits(5, 0)]),
        token_slots: slots_at(&region, SLOTS),
        ..Default::default()
    };
    worker.send_step(step).await;
    gate.wait_for_batch().await;
    blocking(|| side.release(&region.lease).unwrap());
    gate.open();
    assert!(worker.step_reply().await.unwrap().in_slots);
    server.expect_series("croupier_regions", 0.0).await;
    server.expect_series("croupier_region_bytes", 0.0).await;
}
