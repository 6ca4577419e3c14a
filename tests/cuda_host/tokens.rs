//! The replies of a server with a GPU equal those of a server without one, bit for bit.

use crate::cuda_host::server::{Server, start};
use crate::support::*;
use croupier::proto::verify_work::DraftDistribution;
use croupier::proto::*;
use croupier::sampling::logits::Dtype;

/// Vocabularies and number formats of the streams. One has more logits than a chunk of a block.
const STREAMS: [(u32, Dtype); 3] = [(9001, Dtype::F32), (300, Dtype::F16), (777, Dtype::Bf16)];
const ROUNDS: u64 = 3;
/// Draft tokens per verification.
const DRAFTED: u64 = 2;

/// A row of a text at a position.
fn row(vocab: u32, text: u64, position: u64) -> Vec<f32> {
    let parts = 0..u64::from(vocab.div_ceil(VOCAB));
    parts.flat_map(|part| logits(text + 1000 * part, position)).take(vocab as usize).collect()
}

/// Sequences that are sampled, and the reason why the kernels leave a row to the CPU, if they do.
fn sampled() -> Vec<(SamplingParams, Option<&'static str>)> {
    let processed = LogprobsParams { top_n: 3, mode: LogprobsMode::Processed.into(), token_ids: vec![1, 2] };
    let raw = LogprobsParams { top_n: 20, ..Default::default() };
    let tempered = LogprobsParams { mode: LogprobsMode::Tempered.into(), ..processed.clone() };
    let report = ReportParams { support_size: true, max_surviving_token_ids: 5, entropy: true, ..Default::default() };
    // With three tokens, one has at least a third, so the text does not end.
    let never = vec![LogitBias { token_id: 5, bias: -100.0 }];
    let infill = SamplingParams { infill: Some(true), top_k: Some(3), stop_token_ids: vec![5], ..seeded(10) };
    let infill = SamplingParams { logit_bias: never, ..infill };
    vec![
        (SamplingParams { temperature: Some(0.0), logprobs: Some(raw.clone()), ..seeded(1) }, None),
        (seeded(2), None),
        (SamplingParams { temperature: Some(0.7), top_k: Some(50), top_p: Some(0.9), ..seeded(3) }, None),
        (SamplingParams { top_p: Some(0.8), logprobs: Some(processed.clone()), ..seeded(4) }, None),
        (SamplingParams { min_p: Some(0.05), temperature: Some(1.5), logprobs: Some(raw), ..seeded(5) }, None),
        (SamplingParams { logprobs: Some(processed), ..penalised(6) }, None),
        (SamplingParams { allowed_token_ids: (0..40).collect(), ..penalised(7) }, None),
        (SamplingParams { xtc_probability: Some(0.5), xtc_threshold: Some(0.01), ..seeded(8) }, Some("chain")),
        (infill, Some("chain")),
        (SamplingParams { report: Some(report), ..seeded(9) }, Some("report")),
        (SamplingParams { top_k: Some(20), logprobs: Some(tempered), ..seeded(11) }, Some("tempered_logprobs")),
    ]
}

fn penalised(seed: u64) -> SamplingParams {
    SamplingParams {
        repetition_penalty: Some(1.2),
        frequency_penalty: Some(0.3),
        presence_penalty: Some(0.2),
        top_p: Some(0.95),
        logit_bias: vec![LogitBias { token_id: 5, bias: 1.0 }],
        banned_token_ids: vec![9, 11],
        bad_words: vec![TokenSequence { token_ids: vec![7] }],
        ..seeded(seed)
    }
}

/// Sequences that are verified: their parameters, the source of their draft distributions, and the reason why they are left to the CPU, if
/// they are.
fn verified() -> Vec<(SamplingParams, DraftDistribution, Option<&'static str>)> {
    let rule = |rule: AcceptanceRule, params| {
        let synthetic_rate = (rule == AcceptanceRule::Synthetic).then_some(0.5);
        let acceptance = Some(AcceptanceParams { rule: rule.into(), synthetic_rate, ..Default::default() });
        SamplingParams { acceptance, ..params }
    };
    let kept = || DraftDistribution::Kept(KeptDraft {});
    let certain = || DraftDistribution::Deterministic(DeterministicDraft {});
    let chained = SamplingParams { typical_p: Some(0.9), ..seeded(26) };
    vec![
        (rule(AcceptanceRule::Rejection, seeded(20)), kept(), None),
        (rule(AcceptanceRule::Rejection, penalised(21)), kept(), None),
        (rule(AcceptanceRule::Rejection, SamplingParams { top_k: Some(20), ..seeded(22) }), certain(), None),
        (rule(AcceptanceRule::Block, seeded(23)), kept(), None),
        (rule(AcceptanceRule::Greedy, seeded(24)), certain(), None),
        (rule(AcceptanceRule::Typical, penalised(25)), kept(), None),
        (rule(AcceptanceRule::Rejection, chained), kept(), Some("chain")),
        (rule(AcceptanceRule::Relaxed, seeded(27)), kept(), None),
        (rule(AcceptanceRule::Synthetic, seeded(28)), kept(), None),
    ]
}

/// A step of these works, in order, each with its rows.
fn step(dtype: Dtype, works: Vec<(Option<u64>, work::Kind, Vec<Vec<f32>>)>) -> Step {
    let data = works.iter().flat_map(|(.., rows)| rows).flat_map(|row| dtype.encode(row)).collect::<Vec<u8>>().into();
    let work = works.into_iter().map(|(sequence_id, kind, _)| Work {
        sequence_id,
        first_row: None,
        kind: Some(kind),
        ..Default::default()
    });
    let logits = Some(step::Logits::Inline(InlineLogits { data, row_stride: 0 }));
    Step { work: work.collect(), logits, ..Default::default() }
}

/// A stream's replies to sampling, scoring, drafting and verifying, round by round.
async fn replies(server: &Server, (vocab, dtype): (u32, Dtype)) -> Vec<StepResult> {
    let format = match dtype {
        Dtype::F32 => LogitsDtype::F32,
        Dtype::F16 => LogitsDtype::F16,
        Dtype::Bf16 => LogitsDtype::Bf16,
    };
    let config = StreamConfig { vocab_size: vocab, logits_dtype: format.into(), ..Default::default() };
    let mut worker = server.worker(config).await;
    let (sampled, verified) = (sampled(), verified());
    let all = sampled.iter().map(|(params, _)| params).chain(verified.iter().map(|(params, ..)| params));
    let mut results = vec![worker.step(open_step((0..).zip(all.cloned()).map(|(id, p)| open(id, p)).collect())).await];
    let verifying = |at: usize| (sampled.len() + at) as u64;
    for round in 0..ROUNDS {
        let sample = |id| (Some(id), work::Kind::Sample(SampleWork {}), vec![row(vocab, id, round)]);
        let score = work::Kind::Score(ScoreWork { token_ids: vec![3, 7], ..Default::default() });
        let scored = (None, score, vec![row(vocab, 70, round), row(vocab, 71, round)]);
        let plain = (0..sampled.len() as u64).map(sample).chain([scored]).collect();
        results.push(worker.step(step(dtype, plain)).await);
        let mut drafts = vec![Vec::new(); verified.len()];
        for ahead in 0..DRAFTED {
            let draft =
                |id| (Some(id), work::Kind::Draft(DraftWork::default()), vec![row(vocab, id / 2, round + ahead)]);
            results.push(worker.step(step(dtype, (0..verified.len()).map(verifying).map(draft).collect())).await);
            let drawn = results.last().unwrap().work.iter().map(token);
            drafts.iter_mut().zip(drawn).for_each(|(draft, token)| draft.push(token));
        }
        let verify = |(at, draft_token_ids): (usize, Vec<u32>)| {
            let id = verifying(at);
            let draft_distribution = Some(verified[at].1.clone());
            let work = VerifyWork { draft_token_ids, draft_distribution, measure: at % 2 == 0, ..Default::default() };
            let rows = (0..=DRAFTED).map(|ahead| row(vocab, id / 2 + u64::from(at % 3 == 2), round + ahead)).collect();
            (Some(id), work::Kind::Verify(work), rows)
        };
        results.push(worker.step(step(dtype, drafts.into_iter().enumerate().map(verify).collect())).await);
    }
    results
}

/// All rows that the kernels leave to the CPU are counted.
async fn expect_handed_over(server: &mut Server) {
    let of = |reason: &str| {
        let rows = |left: &Option<&str>, rows| if *left == Some(reason) { rows } else { 0 };
        let plain: u64 = sampled().iter().map(|(_, left)| rows(left, 1)).sum();
        let drafts: u64 = verified().iter().map(|(.., left)| rows(left, 2 * DRAFTED + 1)).sum();
        ROUNDS * STREAMS.len() as u64 * (plain + drafts)
    };
    assert!(of("chain") > 0 && of("report") > 0);
    for reason in
        ["chain", "report", "top_logprobs", "too_large", "watermark", "top_n", "tempered_logprobs", "contradiction"]
    {
        let series = format!("croupier_backend_handed_over_rows_total{{reason=\"{reason}\"}}");
        assert_eq!(server.series(&series).await, of(reason) as f64, "{reason}");
    }
}

/// Clusters; and blocks that synchronise in global memory, with machine code and with what the driver compiles.
const DEVICES: [&[(&str, &str)]; 3] = [
    &[("FAKE_CUDA_DEVICES", "9.0")],
    &[("FAKE_CUDA_DEVICES", "8.0")],
    &[("FAKE_CUDA_DEVICES", "10.0"), ("FAKE_CUDA_VERSION", "12020")],
];

#[tokio::test]
async fn replies_are_those_of_the_cpu() {
    let Some(mut cpu) = start(&["--backend=cpu"], &[]) else { return };
    cpu.ready();
    let mut expected = Vec::new();
    for stream in STREAMS {
        expected.push(replies(&cpu, stream).await);
        let works = expected.last().unwrap().iter().flat_map(|result| &result.work);
        works.for_each(|work| assert_eq!(work.status(), RowStatus::Ok, "{}", work.message));
    }
    for device in DEVICES {
        let mut cuda = start(&["--backend=cuda"], device).unwrap();
        cuda.ready();
        for (stream, expected) in STREAMS.into_iter().zip(&expected) {
            let got = replies(&cuda, stream).await;
            for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
                assert_eq!(got, expected, "step {at} of {stream:?} on {device:?}");
            }
            assert_eq!(got.len(), expected.len());
        }
        expect_handed_over(&mut cuda).await;
    }
}

/// This is the default: all of these rows came in messages.
#[tokio::test]
async fn rows_of_messages_are_left_to_the_cpu() {
    let Some(mut cpu) = start(&["--backend=cpu"], &[]) else { return };
    cpu.ready();
    let expected = replies(&cpu, STREAMS[1]).await;
    let mut cuda = start(&["--backend=cuda", "--host-rows=cpu"], &[]).unwrap();
    cuda.ready();
    let launches = cuda.calls("cuLaunchKernelEx");
    assert_eq!(replies(&cuda, STREAMS[1]).await, expected);
    assert_eq!(cuda.calls("cuLaunchKernelEx"), launches);
    let (plain, drafts) = (sampled().len() as u64 + 2, verified().len() as u64 * (2 * DRAFTED + 1));
    let series = "croupier_backend_handed_over_rows_total{reason=\"host_memory\"}";
    assert_eq!(cuda.series(series).await, (ROUNDS * (plain + drafts)) as f64);
    assert!(cuda.log().contains("all others by the CPU (host_rows)"), "{}", cuda.log());
}
