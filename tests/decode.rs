//! The main path over real sockets: opening, sampling, scoring, finishing, closing, reconnecting.

mod replies;

use crate::support::*;
use croupier::backend::cpu::CpuBackend;
use croupier::limits::Limits;
use croupier::proto::*;
use croupier::sampling::logits::Dtype;
use croupier::sampling::philox::{Purpose, uniform};

#[tokio::test]
async fn a_sequence_is_opened_sampled_and_closed_on_every_transport() {
    for transport in [Transport::Tcp, Transport::Unix] {
        let server = TestServer::with(transport, Limits::default(), Box::new(CpuBackend::new(1))).await;
        let mut worker = server.worker().await;
        let greedy = SamplingParams { temperature: Some(0.0), ..seeded(7) };
        let mut step = sample_step(&[(1, logits(1, 0))]);
        step.open = vec![open(1, greedy)];
        let result = worker.step(step).await;
        assert_eq!(result.open[0].status(), OpenStatus::Ok);
        assert_eq!((result.open[0].seed, result.open[0].position), (7, 0));
        let row = logits(1, 0);
        let best = (0..VOCAB).max_by(|a, b| row[*a as usize].total_cmp(&row[*b as usize])).unwrap();
        assert_eq!(token(&result.work[0]), best);
        assert_eq!(result.work[0].tokens[0].logprob, None);
        server.expect_sequences(1).await;
        worker.step(Step { close_sequence_ids: vec![1, 99], ..Default::default() }).await;
        server.expect_sequences(0).await;
    }
}

#[tokio::test]
async fn a_sequence_ends_for_the_reason_that_is_reported() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(StreamConfig { eos_token_ids: vec![3], ..config() }).await;
    let only = |token| SamplingParams { allowed_token_ids: vec![token], ..seeded(1) };
    let cases = [
        (only(3), FinishReason::Eos),
        (SamplingParams { stop_token_ids: vec![3], ..only(3) }, FinishReason::StopToken),
        (SamplingParams { max_tokens: Some(1), ..only(4) }, FinishReason::MaxTokens),
        (SamplingParams { ignore_eos: Some(true), ..only(3) }, FinishReason::Unspecified),
        (only(4), FinishReason::Unspecified),
    ];
    for (id, (params, expected)) in (1..).zip(cases) {
        worker.step(open_step(vec![open(id, params)])).await;
        let result = worker.step(sample_step(&[(id, logits(id, 0))])).await;
        token(&result.work[0]);
        assert_eq!(result.work[0].finish_reason(), expected, "sequence {id}");
        let again = worker.step(sample_step(&[(id, logits(id, 1))])).await;
        let ended = expected != FinishReason::Unspecified;
        assert_eq!(again.work[0].status(), if ended { RowStatus::SequenceFinished } else { RowStatus::Ok });
    }
}

#[tokio::test]
async fn min_tokens_and_bad_words_hold_over_the_wire() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(StreamConfig { eos_token_ids: vec![3], ..config() }).await;
    let min = SamplingParams { min_tokens: Some(2), temperature: Some(0.0), ..Default::default() };
    let words = vec![TokenSequence { token_ids: vec![8, 3] }];
    let bad = SamplingParams { bad_words: words, temperature: Some(0.0), ..Default::default() };
    worker.step(open_step(vec![open(1, min), open(2, bad)])).await;
    // Token 3 is the best, 8 the second best. Both rows of each step are the same.
    let row: Vec<f32> =
        (0..VOCAB).map(|token| [(3, 9.0), (8, 8.0)].iter().find(|x| x.0 == token).map_or(0.0, |x| x.1)).collect();
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let result = worker.step(sample_step(&[(1, row.clone())])).await;
        tokens.push(token(&result.work[0]));
    }
    assert_eq!(tokens, [8, 8, 3]);
    // The re-opened text ends with 8, so the bad word may not be completed.
    worker.step(Step { close_sequence_ids: vec![2], ..Default::default() }).await;
    let words = vec![TokenSequence { token_ids: vec![8, 3] }];
    let bad = SamplingParams { bad_words: words, temperature: Some(0.0), ..Default::default() };
    worker.step(open_step(vec![OpenSequence { output_token_ids: vec![8], ..open(2, bad) }])).await;
    assert_eq!(token(&worker.step(sample_step(&[(2, row.clone())])).await.work[0]), 8);
}

#[tokio::test]
async fn what_is_sampled_with_logprobs_is_what_is_scored() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    for mode in [LogprobsMode::Raw, LogprobsMode::Processed, LogprobsMode::Tempered] {
        let id = mode as u64;
        let wanted = LogprobsParams { top_n: 3, mode: mode.into(), token_ids: vec![7, 49] };
        let params = SamplingParams {
            temperature: Some(0.8),
            top_k: Some(20),
            frequency_penalty: Some(0.7),
            repetition_penalty: Some(1.2),
            logprobs: Some(wanted.clone()),
            ..seeded(5)
        };
        let open = OpenSequence { prompt_token_ids: vec![1, 2, 3], ..open(id, params) };
        // The same text twice: once sampled token by token, and once scored in one piece before its first token.
        let twin = OpenSequence { sequence_id: id + 100, ..open.clone() };
        worker.step(open_step(vec![open, twin])).await;
        let mut sampled = Vec::new();
        for position in 0..6 {
            let result = worker.step(sample_step(&[(id, logits(9, position))])).await;
            sampled.push(result.work[0].tokens[0].clone());
        }
        assert!(sampled.iter().all(|token| token.logprob.is_some() && token.top_token_ids.len() == 3));
        let token_ids = sampled.iter().map(|token| token.token_id).collect();
        let rows: Vec<_> = (0..6).map(|position| logits(9, position)).collect();
        let score = score_work(Some(id + 100), ScoreWork { token_ids, logprobs: Some(wanted) });
        let result = worker.step(Step { work: vec![score], logits: inline(&rows), ..Default::default() }).await;
        assert_eq!(result.work[0].status(), RowStatus::Ok);
        assert_eq!(result.work[0].tokens, sampled, "{mode:?}");
        // Nothing was committed: the twin starts where it was before.
        let result = worker.step(sample_step(&[(id + 100, logits(9, 0))])).await;
        assert_eq!(result.work[0].tokens[0], sampled[0]);
    }
}

/// Tempered logprobs are of what filters see: after masks, bias and temperature, whatever the filters leave. For greedy rows the
/// temperature is 1.
#[tokio::test]
async fn tempered_logprobs_are_those_before_filters() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let row = logits(9, 0);
    for (id, temperature) in [(1, 0.5), (2, 0.0), (3, 2.0)] {
        let wanted = LogprobsParams { top_n: 4, mode: LogprobsMode::Tempered.into(), token_ids: (0..VOCAB).collect() };
        let params = SamplingParams {
            temperature: Some(temperature),
            top_k: Some(2),
            logit_bias: vec![LogitBias { token_id: 7, bias: 1.5 }],
            banned_token_ids: vec![3],
            logprobs: Some(wanted),
            ..seeded(5)
        };
        worker.step(open_step(vec![open(id, params)])).await;
        let result = worker.step(sample_step(&[(id, row.clone())])).await;
        let told = &result.work[0].tokens[0];
        let scaled = |token: usize| {
            let bias = if token == 7 { 1.5 } else { 0.0 };
            f64::from(row[token] + bias) / f64::from(if temperature == 0.0 { 1.0 } else { temperature })
        };
        let total: f64 = (0..VOCAB as usize).filter(|&token| token != 3).map(|token| scaled(token).exp()).sum();
        for token in 0..VOCAB as usize {
            let expected = if token == 3 { f64::NEG_INFINITY } else { scaled(token) - total.ln() };
            let got = f64::from(told.requested_logprobs[token]);
            assert!(
                got == expected || (got - expected).abs() < 1e-5,
                "{temperature}: {token} has {got}, not {expected}"
            );
        }
        assert_eq!(told.logprob.unwrap(), told.requested_logprobs[told.token_id as usize]);
        assert_eq!(told.top_logprobs[3], told.requested_logprobs[told.top_token_ids[3] as usize], "filters left two");
    }
}

#[tokio::test]
async fn raw_scores_need_no_sequence() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let score = score_work(None, ScoreWork { token_ids: vec![4, 5], logprobs: None });
    let rows = [vec![0.0; VOCAB as usize], vec![0.0; VOCAB as usize]];
    let result = worker.step(Step { work: vec![score], logits: inline(&rows), ..Default::default() }).await;
    let ranks: Vec<_> = result.work[0].tokens.iter().map(|token| (token.token_id, token.rank)).collect();
    assert_eq!(ranks, [(4, Some(5)), (5, Some(6))], "of equal logits the smaller id comes first");
    let logprob = result.work[0].tokens[0].logprob.unwrap();
    assert!((logprob + (VOCAB as f32).ln()).abs() < 1e-5, "{logprob}");
}

#[tokio::test]
async fn a_bad_row_of_many_that_are_scored_is_named() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let score = score_work(None, ScoreWork { token_ids: vec![1; 5], logprobs: None });
    let mut rows = vec![vec![0.0; VOCAB as usize]; 5];
    rows[3][7] = f32::NAN;
    let result = worker.step(Step { work: vec![score], logits: inline(&rows), ..Default::default() }).await;
    let told = &result.work[0];
    assert_eq!(
        (told.status(), &*told.message),
        (RowStatus::NanLogits, "scored row 3: the row has a NaN logit, at token 7")
    );
}

/// Every number format, with and without padding, with the last row cut short or whole.
#[tokio::test]
async fn rows_are_found_whatever_the_format_and_stride() {
    let server = TestServer::start().await;
    let formats = [LogitsDtype::F32, LogitsDtype::F16, LogitsDtype::Bf16];
    for (dtype, format) in Dtype::ALL.into_iter().zip(formats) {
        let mut worker = server.worker_with(StreamConfig { logits_dtype: format.into(), ..config() }).await;
        let greedy = SamplingParams { temperature: Some(0.0), ..Default::default() };
        worker.step(open_step((0..3).map(|id| open(id, greedy.clone())).collect())).await;
        for (stride, last_is_short) in [(0, false), (VOCAB, false), (VOCAB + 14, false), (VOCAB + 3, true)] {
            let width = stride.max(VOCAB) as usize;
            let mut data = Vec::new();
            for id in 0..3 {
                // The padding would win if it were read.
                let mut row = vec![9.0; width];
                row[..VOCAB as usize].fill(0.0);
                row[10 + id] = 1.0;
                data.extend(dtype.encode(&row[..if last_is_short && id == 2 { VOCAB as usize } else { width }]));
            }
            let logits = Some(step::Logits::Inline(InlineLogits { data: data.into(), row_stride: stride }));
            let work = (0..3).map(sample_work).collect();
            let result = worker.step(Step { work, logits, ..Default::default() }).await;
            assert_eq!(result.work.iter().map(token).collect::<Vec<_>>(), [10, 11, 12], "{format:?} {stride}");
        }
    }
}

#[tokio::test]
async fn sequences_may_share_a_row_and_rows_may_be_skipped() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let greedy = SamplingParams { temperature: Some(0.0), ..Default::default() };
    worker.step(open_step((0..4).map(|id| open(id, greedy.clone())).collect())).await;
    let rows: Vec<Vec<f32>> = (0..4).map(|r| (0..VOCAB).map(|t| if t == r { 1.0 } else { 0.0 }).collect()).collect();
    let row = |id, first_row| Work { first_row, ..sample_work(id) };
    let work = vec![row(0, Some(2)), row(1, Some(2)), row(2, None), row(3, Some(0))];
    let result = worker.step(Step { work, logits: inline(&rows), ..Default::default() }).await;
    assert_eq!(result.work.iter().map(token).collect::<Vec<_>>(), [2, 2, 3, 0]);
}

#[tokio::test]
async fn the_server_says_what_it_is() {
    let server = TestServer::start().await;
    let info = server.client().await.get_server_info(GetServerInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.backend.as_str(), info.version.as_str()), ("cpu", env!("CARGO_PKG_VERSION")));
    assert_eq!(info.data_paths, ["inline", "vocab_shards"]);
    assert_eq!(info.work_kinds, ["sample", "draft", "score", "verify"]);
    assert_eq!(info.logits_dtypes, ["f32", "f16", "bf16"]);
    assert!(info.parameters.contains(&"bad_words".to_owned()));
    assert_eq!(info.limits.unwrap().max_streams, 256);
}

/// How many tokens the filters leave of a row, according to the processed logprobs.
async fn survivors(worker: &mut Worker, id: u64, params: SamplingParams) -> usize {
    let logprobs = LogprobsParams { top_n: 20, mode: LogprobsMode::Processed.into(), token_ids: vec![] };
    worker.step(open_step(vec![open(id, SamplingParams { logprobs: Some(logprobs), ..params })])).await;
    let result = worker.step(sample_step(&[(id, logits(1, 0))])).await;
    token(&result.work[0]);
    result.work[0].tokens[0].top_logprobs.len()
}

#[tokio::test]
async fn every_sampler_takes_effect_in_the_order_that_is_asked() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let all = survivors(&mut worker, 1, seeded(1)).await;
    assert_eq!(all, 20);
    let alone = [
        SamplingParams { typical_p: Some(0.3), ..seeded(1) },
        SamplingParams { tfs: Some(0.3), ..seeded(1) },
        SamplingParams { top_a: Some(8.0), ..seeded(1) },
        SamplingParams { top_n_sigma: Some(0.5), ..seeded(1) },
        SamplingParams { min_k: Some(true), ..seeded(1) },
        SamplingParams { p_less: Some(true), ..seeded(1) },
        SamplingParams { p_less: Some(true), p_less_norm: Some(true), ..seeded(1) },
        SamplingParams { epsilon_cutoff: Some(0.06), ..seeded(1) },
        SamplingParams { eta_cutoff: Some(0.3), ..seeded(1) },
        SamplingParams { top_h: Some(0.3), ..seeded(1) },
        SamplingParams { xtc_probability: Some(1.0), xtc_threshold: Some(0.001), ..seeded(1) },
        SamplingParams { smoothing_factor: Some(50.0), min_p: Some(0.5), ..seeded(1) },
        SamplingParams { dynatemp_high: Some(0.01), min_p: Some(0.5), ..seeded(1) },
    ];
    for (id, params) in (2..).zip(alone) {
        let left = survivors(&mut worker, id, params.clone()).await;
        assert!((1..20).contains(&left), "{params:?}: {left} are left");
    }
    let hot = SamplingParams { temperature: Some(50.0), min_p: Some(0.5), ..seeded(1) };
    let last = SamplingParams { engine_order: EngineOrder::LlamaCpp.into(), ..hot.clone() };
    let kinds = [SamplerKind::MinP, SamplerKind::Temperature].map(i32::from);
    let listed = SamplingParams { sampler_order: kinds.to_vec(), ..hot.clone() };
    assert_eq!(survivors(&mut worker, 100, hot).await, 20, "a hot row is flat");
    let cut = survivors(&mut worker, 101, last).await;
    assert!(cut < 20, "min_p before the temperature");
    assert_eq!(survivors(&mut worker, 102, listed).await, cut);
    assert_eq!(survivors(&mut worker, 103, SamplingParams { top_k: Some(1), min_keep: Some(7), ..seeded(1) }).await, 7);
}

#[tokio::test]
async fn a_sampler_that_removes_likelier_tokens_changes_no_rank() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let logprobs = LogprobsParams { top_n: 1, mode: LogprobsMode::Processed.into(), token_ids: vec![] };
    let xtc = SamplingParams { xtc_probability: Some(1.0), xtc_threshold: Some(0.1), ..seeded(1) };
    worker.step(open_step(vec![open(1, SamplingParams { logprobs: Some(logprobs), ..xtc })])).await;
    let probabilities = [0.5f32, 0.3, 0.2];
    let row = (0..VOCAB as usize).map(|token| probabilities.get(token).map_or(-100.0, |p| p.ln())).collect();
    let token = worker.step(sample_step(&[(1, row)])).await.work[0].tokens.remove(0);
    // XTC keeps the least likely of the tokens that reach its threshold.
    assert_eq!((token.token_id, token.logprob, token.top_token_ids, token.rank), (2, Some(0.0), vec![2], Some(3)));
}

/// In a row of equal logits, the token that is drawn shows the random number that was used: that of its position in the output, whatever
/// the prompt.
#[tokio::test]
async fn tokens_are_drawn_with_the_numbers_of_their_positions_in_the_output() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let (seed, flat) = (3 << 32 | 5, vec![0.0; VOCAB as usize]);
    let texts = [(vec![], vec![]), (vec![1, 4, 1], vec![]), (vec![1, 4, 1], vec![3, 5]), (vec![], vec![3, 5])];
    for (id, (prompt_token_ids, output_token_ids)) in (1..).zip(texts) {
        let start = output_token_ids.len() as u64;
        let text = OpenSequence { prompt_token_ids, output_token_ids, ..open(id, seeded(seed)) };
        worker.step(open_step(vec![text])).await;
        for position in start..start + 8 {
            let result = worker.step(sample_step(&[(id, flat.clone())])).await;
            let expected = (u128::from(uniform(seed, position, Purpose::Sample)) * u128::from(VOCAB)) >> 64;
            assert_eq!(u128::from(token(&result.work[0])), expected, "sequence {id} at {position}");
        }
    }
}

/// A sequence without a seed uses the stream's, whatever its other parameters.
#[tokio::test]
async fn a_streams_seed_is_that_of_sequences_without_one() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(StreamConfig { default_params: Some(seeded(77)), ..config() }).await;
    let warm = SamplingParams { temperature: Some(2.0), ..Default::default() };
    let cases = [(SamplingParams::default(), 77), (warm.clone(), 77), (SamplingParams { seed: Some(5), ..warm }, 5)];
    for (id, (params, seed)) in (1..).zip(cases) {
        let result = worker.step(open_step(vec![open(id, params)])).await;
        assert_eq!(result.open[0].seed, seed);
    }
}
