//! Speculation must not change the text.

use crate::support::*;
use crate::work::*;
use croupier::proto::verify_work::DraftDistribution;
use croupier::proto::*;
use croupier::sampling::logits::Dtype;

/// A model: the logits after a text.
fn after(text: &[u32]) -> Vec<f32> {
    logits(u64::from(*text.last().unwrap_or(&0)) + 100 * u64::from(text.len() as u32 % 3), 7)
}

/// A model that is similar to the target, but not equal.
fn draft_after(text: &[u32]) -> Vec<f32> {
    after(text).iter().zip(logits(text.len() as u64, 9)).map(|(x, noise)| x + noise / 4.0).collect()
}

fn rich(seed: u64) -> SamplingParams {
    SamplingParams {
        temperature: Some(1.3),
        repetition_penalty: Some(1.2),
        frequency_penalty: Some(0.3),
        presence_penalty: Some(0.2),
        top_p: Some(0.9),
        bad_words: vec![TokenSequence { token_ids: vec![3, 4] }, TokenSequence { token_ids: vec![7] }],
        min_tokens: Some(6),
        max_tokens: Some(40),
        stop_token_ids: vec![11, 12],
        logit_bias: vec![LogitBias { token_id: 5, bias: 1.0 }],
        logprobs: Some(LogprobsParams { top_n: 3, mode: LogprobsMode::Processed.into(), token_ids: vec![1, 2] }),
        ..seeded(seed)
    }
}

fn params() -> Vec<SamplingParams> {
    let raw = LogprobsParams { top_n: 2, ..Default::default() };
    let limited = |p| SamplingParams { max_tokens: Some(40), ..p };
    vec![
        limited(seeded(1)),
        rich(2),
        limited(SamplingParams { temperature: Some(0.0), logprobs: Some(raw.clone()), ..seeded(3) }),
        limited(SamplingParams { top_k: Some(5), min_p: Some(0.1), logprobs: Some(raw), ..seeded(4) }),
        limited(SamplingParams {
            allowed_token_ids: (0..20).collect(),
            acceptance: Some(AcceptanceParams { rule: AcceptanceRule::Block.into(), ..Default::default() }),
            ..seeded(5)
        }),
        limited(SamplingParams {
            dynatemp_low: Some(0.5),
            dynatemp_high: Some(1.5),
            typical_p: Some(0.95),
            xtc_probability: Some(0.5),
            xtc_threshold: Some(0.05),
            xtc_ignore_token_ids: vec![11],
            logprobs: Some(LogprobsParams { top_n: 3, mode: LogprobsMode::Processed.into(), token_ids: vec![1] }),
            ..seeded(6)
        }),
        limited(SamplingParams {
            // llama.cpp's rules in an order that llama.cpp does not have: the engine has no way from one temperature to another.
            engine_order: EngineOrder::LlamaCpp.into(),
            sampler_order: vec![SamplerKind::MinP.into(), SamplerKind::Temperature.into()],
            min_p: Some(0.05),
            temperature_end: Some(2.0),
            temperature_tokens: Some(20),
            min_keep: Some(2),
            ..seeded(7)
        }),
        limited(SamplingParams {
            top_p: Some(0.95),
            xtc_probability: Some(0.5),
            xtc_threshold: Some(0.03),
            xtc_expected: Some(true),
            skew: Some(0.5),
            report: Some(ReportParams { entropy: true, why_not_token_ids: vec![1, 2], ..Default::default() }),
            ..seeded(8)
        }),
        limited(SamplingParams {
            engine_order: EngineOrder::Transformers.into(),
            top_k: Some(20),
            typical_p: Some(0.9),
            ..seeded(9)
        }),
        // With three tokens, one has at least a third.
        limited(SamplingParams { top_k: Some(3), infill: Some(true), stop_token_ids: vec![11], ..seeded(10) }),
    ]
}

/// The text of a sequence, token by token.
async fn plain(worker: &mut Worker, id: u64, params: SamplingParams) -> (Vec<Token>, FinishReason) {
    worker.step(open_step(vec![open(id, params)])).await;
    let (mut text, mut tokens) = (Vec::new(), Vec::new());
    loop {
        let work = only(worker.step(step_of(sample_work(id), &[after(&text)])).await);
        text.extend(ids(&work));
        tokens.extend(work.tokens.iter().cloned());
        if work.finish_reason() != FinishReason::Unspecified {
            return (tokens, work.finish_reason());
        }
    }
}

/// The target's rows after each prefix of `draft` that follows `text`.
fn target_rows(text: &[u32], draft: &[u32]) -> Vec<Vec<f32>> {
    (0..=draft.len()).map(|len| after(&[text, &draft[..len]].concat())).collect()
}

#[tokio::test]
async fn drafts_without_chance_change_not_one_token() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    for (id, params) in (1..).zip(params()) {
        let (expected, reason) = plain(&mut worker, id, params.clone()).await;
        let right: Vec<u32> = expected.iter().map(|token| token.token_id).collect();
        worker.step(open_step(vec![open(id + 100, params)])).await;
        let (mut text, mut tokens, mut accepted) = (Vec::new(), Vec::new(), 0);
        for round in 0.. {
            // Drafts of every length, right at first and then wrong.
            let (len, good) = (round % 6, round % 4);
            let rest = right[text.len()..].iter().copied().chain(std::iter::repeat(9));
            let draft: Vec<u32> =
                rest.take(len).enumerate().map(|(i, t)| if i < good { t } else { (t + 1) % VOCAB }).collect();
            let rows = target_rows(&text, &draft);
            let work = worker.verify(id + 100, chain(&draft, deterministic()), &rows).await;
            let verify = work.verify.as_ref().unwrap();
            assert!(verify.lossless);
            accepted += verify.accepted_count;
            text.extend(ids(&work));
            tokens.extend(work.tokens.iter().cloned());
            if work.finish_reason() != FinishReason::Unspecified {
                assert_eq!(work.finish_reason(), reason, "sequence {id}");
                break;
            }
        }
        assert_eq!(tokens, expected, "sequence {id}: tokens, logprobs, ranks, alternatives");
        assert!(accepted > 5, "sequence {id}: the drafts were no good");
    }
}

/// A draft whose right path lies between wrong ones, with its parents and the draft tokens before each of its rows:
///
/// ```text
///   root ── wrong (0) ── right (2) ── right (5)
///        └─ right (1) ── wrong (3)
///                     └─ right (4) ── right (6)
/// ```
fn branched(right: &[u32]) -> (Vec<u32>, Vec<i32>, Vec<Vec<u32>>) {
    let right = |at: usize| right.get(at).copied().unwrap_or(9);
    let wrong = |at: usize| (right(at) + 1) % VOCAB;
    let draft = vec![wrong(0), right(0), right(1), wrong(1), right(1), right(2), right(2)];
    let parents = vec![-1, -1, 0, 1, 1, 2, 4];
    let mut paths = vec![Vec::new()];
    for (&token, &parent) in draft.iter().zip(&parents) {
        paths.push([&paths[(parent + 1) as usize][..], &[token]].concat());
    }
    (draft, parents, paths)
}

/// Each row of a tree, and the report on it, depends only on the tokens on its own path.
#[tokio::test]
async fn trees_without_chance_change_not_one_token() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    for (id, params) in (1..).zip(params()) {
        let (expected, reason) = plain(&mut worker, id, params.clone()).await;
        let right: Vec<u32> = expected.iter().map(|token| token.token_id).collect();
        worker.step(open_step(vec![open(id + 100, params)])).await;
        let (mut tokens, mut accepted, mut finish) = (Vec::new(), 0, FinishReason::Unspecified);
        while finish == FinishReason::Unspecified {
            let (text, rest) = right.split_at(tokens.len());
            let (draft, parents, paths) = branched(rest);
            let rows: Vec<_> = paths.iter().map(|path| after(&[text, path].concat())).collect();
            let verify = VerifyWork { parents, ..chain(&draft, deterministic()) };
            let work = worker.verify(id + 100, verify, &rows).await;
            accepted += work.verify.as_ref().unwrap().accepted_count;
            finish = work.finish_reason();
            tokens.extend(work.tokens);
            assert_eq!(tokens, expected[..tokens.len()], "sequence {id}: tokens, logprobs, ranks, alternatives");
        }
        assert_eq!((tokens.len(), finish), (expected.len(), reason), "sequence {id}");
        assert!(accepted > 5, "sequence {id}: the drafts were no good");
    }
}

/// The text of a sequence whose draft tokens are drawn by draft work, `k` at a time.
async fn drafted(worker: &mut Worker, id: u64, k: usize, mut text: Vec<u32>, until: usize) -> (Vec<u32>, usize) {
    let mut accepted = 0;
    while text.len() < until {
        let mut draft = Vec::new();
        for _ in 0..k {
            let row = draft_after(&[text.as_slice(), &draft].concat());
            draft.push(worker.draft(id, DraftWork::default(), row).await);
        }
        let work = worker.verify(id, chain(&draft, kept()), &target_rows(&text, &draft)).await;
        let verify = work.verify.as_ref().unwrap();
        assert_eq!(verify.accepted_path, (0..verify.accepted_count).collect::<Vec<_>>());
        assert_eq!(ids(&work)[..verify.accepted_count as usize], draft[..verify.accepted_count as usize]);
        accepted += verify.accepted_count as usize;
        text.extend(ids(&work));
        if work.finish_reason() != FinishReason::Unspecified {
            break;
        }
    }
    (text, accepted)
}

#[tokio::test]
async fn drafted_text_is_the_same_alone_in_a_batch_and_after_a_restart() {
    let server = TestServer::start().await;
    for (id, params) in (1..).zip(params()) {
        let (mut alone, mut noisy) = (server.worker().await, server.worker().await);
        alone.step(open_step(vec![open(id, params.clone())])).await;
        let (text, accepted) = drafted(&mut alone, id, 3, vec![], 30).await;
        assert!(accepted > 0, "sequence {id}: no draft token was ever accepted");
        // Another stream works at the same time, in the same batches or not, and under another id.
        noisy.step(open_step(vec![open(7, params.clone())])).await;
        let mut other = server.worker().await;
        other.step(open_step(vec![open(id, seeded(99))])).await;
        let (again, _) = tokio::join!(drafted(&mut noisy, 7, 3, vec![], 30), drafted(&mut other, id, 2, vec![], 30));
        assert_eq!(again.0, text, "sequence {id}");
        // The stream is cut in the middle of a draft, and the text opened again elsewhere, where a round begins.
        let mut cut = server.worker().await;
        cut.step(open_step(vec![open(id, params.clone())])).await;
        let (start, _) = drafted(&mut cut, id, 3, vec![], 10).await;
        cut.draft(id, DraftWork::default(), draft_after(&start)).await;
        drop(cut);
        let mut resumed = server.worker().await;
        let again = OpenSequence { output_token_ids: start.clone(), ..open(id, params) };
        resumed.step(open_step(vec![again])).await;
        assert_eq!(drafted(&mut resumed, id, 3, start, 30).await.0, text, "sequence {id}");
    }
}

#[tokio::test]
async fn drafts_sent_and_drafts_kept_are_judged_alike() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    // Probabilities are powers of two, so that sent and kept distributions have the same numbers.
    let ln2 = std::f32::consts::LN_2;
    let row: Vec<f32> = (0..VOCAB).map(|t| if t < 4 { -(ln2 * t.min(2) as f32) } else { f32::NEG_INFINITY }).collect();
    let entries: Vec<(u32, f32)> = vec![(0, 0.5), (1, 0.25), (2, 0.125), (3, 0.125)];
    for seed in 0..40 {
        let mut outcomes = Vec::new();
        for (at, from) in [None, Some(sparse(&[&entries, &entries])), None].into_iter().enumerate() {
            let id = seed * 3 + at as u64 + 1;
            worker.step(open_step(vec![open(id, seeded(seed))])).await;
            let mut draft = Vec::new();
            for _ in 0..2 {
                draft.push(worker.draft(id, DraftWork::default(), row.clone()).await);
            }
            let dense_row: Vec<f32> =
                (0..VOCAB).map(|t| entries.iter().find(|e| e.0 == t).map_or(0.0, |e| e.1)).collect();
            let from = from.unwrap_or(if at == 0 { kept() } else { dense(&[dense_row.clone(), dense_row]) });
            let rows = [logits(seed, 1), logits(seed, 2), logits(seed, 3)];
            let work = worker.verify(id, chain(&draft, from), &rows).await;
            outcomes.push((ids(&work), work.verify));
        }
        assert_eq!(outcomes[0], outcomes[1], "kept and sparse");
        assert_eq!(outcomes[0], outcomes[2], "kept and dense");
    }
}

/// The result of verifying tokens 0 and 1, drafted with `from`, on a stream with logits of this format.
async fn judged(
    worker: &mut Worker,
    dtype: Dtype,
    (id, seed): (u64, u64),
    from: DraftDistribution,
) -> (Vec<u32>, Option<VerifyResult>) {
    let params = SamplingParams { allowed_token_ids: (0..4).collect(), ..seeded(seed) };
    worker.step(open_step(vec![open(id, params)])).await;
    let data = (1..4).flat_map(|position| dtype.encode(&logits(seed, position))).collect::<Vec<u8>>().into();
    let logits = Some(step::Logits::Inline(InlineLogits { data, row_stride: 0 }));
    let work = vec![verify_work(id, chain(&[0, 1], from))];
    let work = only(worker.step(Step { work, logits, ..Default::default() }).await);
    (ids(&work), work.verify)
}

/// Draft probabilities are in the format that is named, or in that of the stream's logits if none is named.
#[tokio::test]
async fn dense_drafts_are_read_in_their_own_format_or_else_the_streams() {
    let server = TestServer::start().await;
    let formats = || Dtype::ALL.into_iter().zip([LogitsDtype::F32, LogitsDtype::F16, LogitsDtype::Bf16]);
    // These numbers are exact in every format.
    let entries: &[(u32, f32)] = &[(0, 0.5), (1, 0.25), (2, 0.125), (3, 0.125)];
    let row: Vec<f32> = (0..VOCAB).map(|t| entries.get(t as usize).map_or(0.0, |entry| entry.1)).collect();
    let mut accepted = [0; 3];
    for (stream, logits_dtype) in formats() {
        let mut worker = server.worker_with(StreamConfig { logits_dtype: logits_dtype.into(), ..config() }).await;
        for seed in 0..20 {
            let mut ids = 100 * seed..;
            let mut next = || (ids.next().unwrap(), seed);
            let expected = judged(&mut worker, stream, next(), sparse(&[entries, entries])).await;
            accepted[expected.1.as_ref().unwrap().accepted_count as usize] += 1;
            for (own, named) in formats().chain([(stream, LogitsDtype::Unspecified)]) {
                let probs = own.encode(&[row.clone(), row.clone()].concat()).into();
                let from = DraftDistribution::Dense(DenseDraft { probs, dtype: named.into() });
                let found = judged(&mut worker, stream, next(), from).await;
                assert_eq!(found, expected, "{named:?} on a stream of {logits_dtype:?}, seed {seed}");
            }
        }
    }
    assert!(accepted.iter().all(|&times| times > 5), "{accepted:?}");
}
