//! The main road over real sockets: opening, sampling, scoring, finishing, closing, reconnecting.

mod support;

use croupier::backend::cpu::CpuBackend;
use croupier::limits::Limits;
use croupier::proto::*;
use croupier::sampling::logits::Dtype;
use support::*;

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
