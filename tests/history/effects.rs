//! What each tool does to a text, by hand.

use crate::support::*;
use crate::tools::pattern;
use crate::work::*;
use croupier::proto::*;

/// Logits of some tokens; the others have 0.
fn row(logits: &[(u32, f32)]) -> Vec<f32> {
    (0..VOCAB).map(|token| logits.iter().find(|x| x.0 == token).map_or(0.0, |x| x.1)).collect()
}

/// The greedy text of a sequence that sees this row at every position.
async fn greedy_text(params: SamplingParams, prompt: &[u32], row: &[f32], len: usize) -> Vec<u32> {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(StreamConfig { eos_token_ids: vec![9], ..config() }).await;
    let params = SamplingParams { temperature: Some(0.0), ..params };
    let open = OpenSequence { prompt_token_ids: prompt.to_vec(), ..open(1, params) };
    let result = worker.step(open_step(vec![open])).await;
    assert_eq!(result.open[0].status(), OpenStatus::Ok, "{:?}", result.open[0].error);
    let mut text = Vec::new();
    while text.len() < len {
        let work = only(worker.step(step_of(sample_work(1), &[row.to_vec()])).await);
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
    // After 4 4 the token 4 follows a repeat of one token and has 4.0 left; after 4 4 5 4 both do, and so on.
    assert_eq!(greedy_text(dry(), &[], &row, 6).await, [4, 4, 5, 4, 4, 4]);
    let none = SamplingParams { dry_penalty_last_n: Some(0), ..dry() };
    assert_eq!(greedy_text(none, &[], &row, 6).await, [4; 6]);
    let breaker = SamplingParams { dry_sequence_breakers: vec![pattern(&[4])], ..dry() };
    assert_eq!(greedy_text(breaker, &[], &row, 6).await, [4; 6]);
    // The prompt counts.
    assert_eq!(greedy_text(dry(), &[7, 4, 7], &row, 1).await, [5]);
}
