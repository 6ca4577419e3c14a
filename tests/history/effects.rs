//! The effect of each tool on a text, by hand.

use crate::history::tools::pattern;
use crate::support::*;
use crate::work::*;
use croupier::proto::*;

/// A row with the logits of some tokens. The others have 0.
fn row(logits: &[(u32, f32)]) -> Vec<f32> {
    (0..VOCAB).map(|token| logits.iter().find(|x| x.0 == token).map_or(0.0, |x| x.1)).collect()
}

/// The greedy text of a sequence that sees this row at every position.
async fn greedy_text(params: SamplingParams, prompt: &[u32], row: &[f32], len: usize) -> Vec<u32> {
    greedy_text_of(params, prompt, std::iter::repeat_n(row.to_vec(), len)).await
}

/// The greedy text of a sequence that sees these rows.
async fn greedy_text_of(params: SamplingParams, prompt: &[u32], rows: impl Iterator<Item = Vec<f32>>) -> Vec<u32> {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(StreamConfig { eos_token_ids: vec![9], ..config() }).await;
    let params = SamplingParams { temperature: Some(0.0), ..params };
    let open = OpenSequence { prompt_token_ids: prompt.to_vec(), ..open(1, params) };
    let result = worker.step(open_step(vec![open])).await;
    assert_eq!(result.open[0].status(), OpenStatus::Ok, "{:?}", result.open[0].error);
    let mut text = Vec::new();
    for row in rows {
        let work = only(worker.step(step_of(sample_work(1), &[row])).await);
        text.extend(ids(&work));
        if work.finish_reason() != FinishReason::Unspecified {
            break;
        }
    }
    text
}

#[tokio::test]
async fn dry_breaks_a_loop() {
    let row = row(&[(4, 5.0), (5, 4.5)]);
    let off = || SamplingParams { dry_base: Some(2.0), dry_allowed_length: Some(1), ..Default::default() };
    let dry = || SamplingParams { dry_multiplier: Some(1.0), ..off() };
    assert_eq!(greedy_text(off(), &[], &row, 6).await, [4; 6]);
    // After 4 4, token 4 would repeat a token and has 4.0 left. After 4 4 5 4, both tokens would, and so on.
    assert_eq!(greedy_text(dry(), &[], &row, 6).await, [4, 4, 5, 4, 4, 4]);
    let none = SamplingParams { dry_penalty_last_n: Some(0), ..dry() };
    assert_eq!(greedy_text(none, &[], &row, 6).await, [4; 6]);
    let breaker = SamplingParams { dry_sequence_breakers: vec![pattern(&[4])], ..dry() };
    assert_eq!(greedy_text(breaker, &[], &row, 6).await, [4; 6]);
    // Repeats in the prompt count.
    assert_eq!(greedy_text(dry(), &[7, 4, 7], &row, 1).await, [5]);
}

#[tokio::test]
async fn a_penalty_sees_its_window_and_fades_behind_it() {
    let row = row(&[(4, 5.0), (5, 4.9), (6, 4.2)]);
    let penalty = SamplingParams { presence_penalty: Some(1.0), ..Default::default() };
    assert_eq!(greedy_text(penalty.clone(), &[], &row, 6).await, [4, 5, 6, 4, 4, 4], "all are penalised in the end");
    let window = SamplingParams { penalty_last_n: Some(2), ..penalty.clone() };
    assert_eq!(greedy_text(window, &[], &row, 6).await, [4, 5, 6, 4, 5, 6]);
    // Strengths are 1, 1/2, none: two tokens later, 4 is back at 4.5 and 5 at 4.4.
    let fading = SamplingParams { penalty_last_n: Some(1), penalty_decay_n: Some(1), ..penalty };
    assert_eq!(greedy_text(fading, &[], &row, 6).await, [4, 5, 4, 5, 4, 5]);
}

#[tokio::test]
async fn the_prompt_is_passed_over_or_favoured() {
    let row = row(&[(4, 5.0), (5, 4.0), (6, 3.0)]);
    let penalty = SamplingParams { repetition_penalty: Some(2.0), ..Default::default() };
    assert_eq!(greedy_text(penalty.clone(), &[4, 5], &row, 1).await, [6]);
    let ignoring = |length| SamplingParams { prompt_ignore_length: Some(length), ..penalty.clone() };
    assert_eq!(greedy_text(ignoring(1), &[4, 5], &row, 1).await, [4]);
    assert_eq!(greedy_text(ignoring(1), &[5, 4], &row, 1).await, [5]);
    let favour = SamplingParams { encoder_repetition_penalty: Some(2.0), ..Default::default() };
    assert_eq!(greedy_text(favour, &[6, 7], &row, 3).await, [6; 3]);
}

#[tokio::test]
async fn the_prompt_counts_where_it_is_to() {
    let row = row(&[(4, 5.0), (5, 4.7), (6, 4.0)]);
    let penalty = SamplingParams { frequency_penalty: Some(0.5), ..Default::default() };
    let prompt = [4, 5, 4, 5, 4];
    assert_eq!(greedy_text(penalty.clone(), &prompt, &row, 2).await, [4, 5], "the output alone");
    let counting = SamplingParams { penalties_count_prompt: Some(true), ..penalty.clone() };
    // 4, 5 and 6 have 3.5, 3.7 and 4.0, then 3.5, 3.7 and 3.5.
    assert_eq!(greedy_text(counting.clone(), &prompt, &row, 3).await, [6, 5, 4]);
    // With the last two tokens they have 4.5, 4.2 and 4.0. With the prompt's last one alone, 4 and 5 have 4.5 and 4.7.
    let window = SamplingParams { penalty_last_n: Some(2), ..counting.clone() };
    assert_eq!(greedy_text(window, &prompt, &row, 3).await, [4, 5, 4]);
    let ignoring = SamplingParams { prompt_ignore_length: Some(4), ..counting };
    assert_eq!(greedy_text(ignoring, &prompt, &row, 1).await, [5]);
    // An engine's way, unless the parameters say otherwise.
    let engine = SamplingParams { engine_order: EngineOrder::LlamaCpp.into(), ..penalty };
    assert_eq!(greedy_text(engine.clone(), &prompt, &row, 3).await, [6, 5, 4]);
    let not = SamplingParams { penalties_count_prompt: Some(false), ..engine };
    assert_eq!(greedy_text(not, &prompt, &row, 2).await, [4, 5]);
}

#[tokio::test]
async fn an_ngram_does_not_come_twice() {
    let row = row(&[(4, 5.0), (5, 4.0), (6, 3.0)]);
    let size = |size, whitelist_token_ids| SamplingParams {
        no_repeat_ngram: Some(NoRepeatNgramParams { size, whitelist_token_ids, ..Default::default() }),
        ..Default::default()
    };
    // 4 4, 4 5, 5 4 and 4 6 are new, one after the other.
    assert_eq!(greedy_text(size(2, vec![]), &[], &row, 6).await, [4, 4, 5, 4, 6, 4]);
    assert_eq!(greedy_text(size(2, vec![]), &[4, 4, 9, 4], &row, 1).await, [5]);
    assert_eq!(greedy_text(size(2, vec![4]), &[], &row, 6).await, [4; 6]);
    assert_eq!(greedy_text(size(0, vec![]), &[], &row, 6).await, [4; 6]);
    // With size 1, no token comes twice.
    assert_eq!(greedy_text(size(1, vec![]), &[], &row, 3).await, [4, 5, 6]);
    assert_eq!(greedy_text(size(1, vec![]), &[9, 5], &row, 2).await, [4, 6]);
    assert_eq!(greedy_text(size(1, vec![4]), &[5], &row, 4).await, [4; 4]);
    // Only the prompt's n-grams count: 9 4, 4 5 and 5 4, not those of the output.
    let of_prompt = |whitelist_token_ids| SamplingParams {
        no_repeat_ngram: Some(NoRepeatNgramParams { prompt_size: 2, whitelist_token_ids, ..Default::default() }),
        ..Default::default()
    };
    assert_eq!(greedy_text(of_prompt(vec![]), &[9, 4, 5, 4], &row, 4).await, [4; 4]);
    assert_eq!(greedy_text(of_prompt(vec![]), &[4, 5, 4, 4, 9], &row, 3).await, [4, 6, 4]);
    assert_eq!(greedy_text(of_prompt(vec![4]), &[4, 5, 4, 4, 9], &row, 3).await, [4; 3]);
}

#[tokio::test]
async fn a_long_text_ends() {
    let row = row(&[(4, 5.0), (9, 1.0)]);
    let length = |start, factor| SamplingParams {
        length_penalty: Some(LengthPenaltyParams { start, factor }),
        ..Default::default()
    };
    // EOS has logits 1, 1, 1, 2, 4, 8.
    assert_eq!(greedy_text(length(2, 2.0), &[], &row, 9).await, [4, 4, 4, 4, 4, 9]);
    assert_eq!(greedy_text(length(2, 1.0), &[], &row, 9).await, [4; 9]);
    let ignoring = SamplingParams { ignore_eos: Some(true), ..length(0, 9.0) };
    assert_eq!(greedy_text(ignoring, &[], &row, 9).await, [4; 9]);
}

#[tokio::test]
async fn a_sequence_is_favoured_and_bans_hold_where_they_say() {
    let row = row(&[(4, 5.0), (5, 4.0)]);
    let biased = |token_ids: &[u32], bias| SequenceBias { token_ids: token_ids.to_vec(), bias };
    let sequence_bias = vec![biased(&[4, 5], 2.0), biased(&[4, 5, 6], 9.0)];
    let params = SamplingParams { sequence_bias, ..Default::default() };
    assert_eq!(greedy_text(params.clone(), &[], &row, 5).await, [4, 5, 6, 4, 5]);
    assert_eq!(greedy_text(params, &[4, 5], &row, 2).await, [6, 4], "the prompt counts");
    let range = |start, length| TokenBanRange { token_ids: vec![4], start, length };
    let params = SamplingParams { token_ban_ranges: vec![range(0, 1), range(3, 2)], ..Default::default() };
    assert_eq!(greedy_text(params, &[], &row, 6).await, [5, 4, 4, 5, 5, 4]);
}

#[tokio::test]
async fn tokens_are_forced_first_last_and_out_of_thinking() {
    let row = row(&[(4, 5.0), (5, 4.0)]);
    let params = SamplingParams {
        forced_first_token: Some(7),
        forced_last_token: Some(9),
        max_tokens: Some(4),
        banned_token_ids: vec![7, 9],
        ..Default::default()
    };
    assert_eq!(greedy_text(params, &[], &row, 9).await, [7, 4, 4, 9]);
    let thinking = |budget, forced_token_ids| SamplingParams {
        thinking_budget: Some(ThinkingBudgetParams {
            start_token_ids: vec![1, 2],
            end_token_ids: vec![3],
            budget,
            forced_token_ids,
            other_ends: vec![TokenSequence { token_ids: vec![6] }],
            ..Default::default()
        }),
        ..Default::default()
    };
    assert_eq!(greedy_text(thinking(2, vec![8, 3]), &[1, 2], &row, 6).await, [4, 4, 8, 3, 4, 4]);
    assert_eq!(greedy_text(thinking(0, vec![]), &[1, 2], &row, 3).await, [3, 4, 4]);
    assert_eq!(greedy_text(thinking(1, vec![]), &[1], &row, 3).await, [4; 3], "it does not think");
    assert_eq!(greedy_text(thinking(2, vec![8, 3]), &[1, 2, 6], &row, 6).await, [4; 6], "the other end ended it");
}

#[tokio::test]
async fn each_stretch_of_thinking_has_the_whole_budget() {
    let text = |budget, prompt: &'static [u32], wishes: &[u32]| {
        let (start_token_ids, end_token_ids) = (vec![11], vec![12]);
        let thinking = ThinkingBudgetParams {
            start_token_ids,
            end_token_ids,
            budget,
            forced_token_ids: vec![],
            other_ends: vec![],
            ..Default::default()
        };
        let params = SamplingParams { thinking_budget: Some(thinking), ..Default::default() };
        let rows: Vec<_> = wishes.iter().map(|&wish| row(&[(wish, 5.0)])).collect();
        greedy_text_of(params, prompt, rows.into_iter())
    };
    let twice = [11, 20, 21, 12, 30, 11, 20, 21, 12, 31];
    assert_eq!(text(3, &[], &twice).await, twice, "neither spends all");
    assert_eq!(text(2, &[], &[11, 20, 21, 22, 30, 11, 20, 21, 22]).await, [11, 20, 21, 12, 30, 11, 20, 21, 12]);
    assert_eq!(text(3, &[11, 20, 21], &[22, 23, 30]).await, [22, 12, 30], "the prompt spent two");
}

#[tokio::test]
async fn a_loop_ends_with_a_reason_of_its_own() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let detection = RepetitionDetectionParams { max_pattern_size: 3, min_pattern_size: None, min_count: 4 };
    let params = SamplingParams { temperature: Some(0.0), repetition_detection: Some(detection), ..Default::default() };
    worker.step(open_step(vec![open(1, params)])).await;
    let row = row(&[(4, 5.0)]);
    let mut reasons = Vec::new();
    for _ in 0..4 {
        reasons.push(only(worker.step(step_of(sample_work(1), std::slice::from_ref(&row))).await).finish_reason());
    }
    let on = FinishReason::Unspecified;
    assert_eq!(reasons, [on, on, on, FinishReason::Repetition]);
    let again = worker.step(step_of(sample_work(1), &[row])).await;
    assert_eq!(again.work[0].status(), RowStatus::SequenceFinished);
    server.expect_series("croupier_sequences_finished_total{model=\"default\",reason=\"repetition\"}", 1.0).await;
}

#[tokio::test]
async fn a_forced_token_without_a_logit_is_not_invented() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, SamplingParams { forced_first_token: Some(7), ..seeded(1) })])).await;
    let result = worker.step(step_of(sample_work(1), &[row(&[(7, f32::NEG_INFINITY)])])).await;
    assert_eq!(result.work[0].status(), RowStatus::AllMasked);
    assert_eq!(token(&worker.step(step_of(sample_work(1), &[row(&[])])).await.work[0]), 7);
}
