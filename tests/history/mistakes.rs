//! Bad values: the field at fault is named, its sequence is not opened, neighbours go on.

use crate::support::*;
use crate::tools::pattern;
use croupier::proto::*;

fn bad() -> Vec<(&'static str, SamplingParams)> {
    let p = SamplingParams::default;
    let mut cases = Vec::new();
    for bad in [-0.5, 1e5, f32::NAN, f32::INFINITY] {
        cases.push(("params.dry_multiplier", SamplingParams { dry_multiplier: Some(bad), ..p() }));
        cases.push(("params.dry_base", SamplingParams { dry_base: Some(bad), ..p() }));
    }
    let breakers = |token_ids: &[u32]| vec![pattern(token_ids)];
    cases.extend([
        ("params.dry_allowed_length", SamplingParams { dry_allowed_length: Some(0), ..p() }),
        ("params.dry_allowed_length", SamplingParams { dry_allowed_length: Some(u32::MAX), ..p() }),
        ("params.dry_penalty_last_n", SamplingParams { dry_penalty_last_n: Some(-2), ..p() }),
        ("params.dry_penalty_last_n", SamplingParams { dry_penalty_last_n: Some(i32::MAX), ..p() }),
        ("params.dry_sequence_breakers[0].token_ids", SamplingParams { dry_sequence_breakers: breakers(&[]), ..p() }),
        (
            "params.dry_sequence_breakers[0].token_ids[1]",
            SamplingParams { dry_sequence_breakers: breakers(&[1, VOCAB]), ..p() },
        ),
        ("params.dry_sequence_breakers", SamplingParams { dry_sequence_breakers: vec![pattern(&[1]); 1025], ..p() }),
    ]);
    cases
}

#[tokio::test]
async fn a_bad_value_is_named_and_its_neighbour_goes_on() {
    let server = TestServer::start().await;
    let (mut alone, mut worker) = (server.worker().await, server.worker().await);
    alone.step(open_step(vec![open(1, seeded(5))])).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    for (position, (field, params)) in (0..).zip(bad()) {
        let mut step = sample_step(&[(2, logits(0, 0)), (1, logits(5, position))]);
        step.open = vec![open(2, params)];
        let result = worker.step(step).await;
        assert_eq!(result.open[0].status(), OpenStatus::InvalidArgument, "{field}");
        let error = result.open[0].error.as_ref().unwrap();
        assert_eq!(error.field, field, "{}", error.message);
        assert!(error.message.len() > 10);
        assert_eq!(result.work[0].status(), RowStatus::UnknownSequence);
        let expected = token(&alone.step(sample_step(&[(1, logits(5, position))])).await.work[0]);
        assert_eq!(token(&result.work[1]), expected);
        server.expect_sequences(2).await;
    }
}
