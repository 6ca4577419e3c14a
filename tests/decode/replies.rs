//! Replies and the ends of streams: the order of replies, what they wait for, and what is left of a stream that is cut.

use super::*;
use croupier::backend::{Backend, BackendInfo, RowJob, VerifyJob, VerifyResult};
use croupier::sampling::row::RowResult;
use std::sync::mpsc;
use std::time::Duration;

#[tokio::test]
async fn replies_come_in_order_and_all_of_them_after_a_half_close() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(1)), open(2, seeded(2))])).await;
    let sent: Vec<u64> = {
        let mut ids = Vec::new();
        for position in 0..40 {
            ids.push(worker.send_step(sample_step(&[(1 + position % 2, logits(1, position))])).await);
        }
        ids
    };
    worker.half_close();
    let mut answered = Vec::new();
    for _ in &sent {
        answered.push(worker.step_reply().await.unwrap().step_id);
    }
    assert_eq!(answered, sent);
    assert!(worker.reply().await.unwrap().is_none());
    drop(worker);
    server.expect_sequences(0).await;
}

/// Reports that it has a batch, and runs it when it is told to, on whatever thread calls it.
struct Told(mpsc::Sender<()>, mpsc::Receiver<()>);

impl Backend for Told {
    fn info(&self) -> BackendInfo {
        CpuBackend::new(1).info()
    }

    fn runs_anywhere(&self) -> bool {
        true
    }

    fn run(&mut self, jobs: &[RowJob<'_>]) -> Vec<RowResult> {
        self.0.send(()).unwrap();
        self.1.recv_timeout(Duration::from_secs(60)).expect("it is told");
        CpuBackend::new(1).run(jobs)
    }

    fn verify(&mut self, jobs: &[VerifyJob<'_>]) -> Vec<VerifyResult> {
        CpuBackend::new(1).verify(jobs)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reply_does_not_wait_for_the_step_behind_it() {
    let ((has_batch, batches), (run, told)) = (mpsc::channel(), mpsc::channel());
    let server = TestServer::with_backend(Told(has_batch, told), |_| ()).await;
    let next_batch = || tokio::task::block_in_place(|| batches.recv_timeout(Duration::from_secs(60)).unwrap());
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(1))])).await;
    for position in 0..10 {
        let steps = [2 * position, 2 * position + 1];
        worker.send_step(sample_step(&[(1, logits(1, steps[0]))])).await;
        next_batch();
        worker.send_step(sample_step(&[(1, logits(1, steps[1]))])).await;
        // The second step has arrived by the time the first is done.
        tokio::time::sleep(Duration::from_millis(50)).await;
        run.send(()).unwrap();
        next_batch();
        // This is the second batch, which runs until the first step is answered.
        token(&worker.step_reply().await.expect("the first is answered").work[0]);
        run.send(()).unwrap();
        token(&worker.step_reply().await.unwrap().work[0]);
    }
}

#[tokio::test]
async fn a_stream_cut_in_the_middle_frees_everything() {
    let gate = Gate::default();
    let server = TestServer::with_backend(gate.clone(), |_| ()).await;
    let mut workers = Vec::new();
    for _ in 0..8 {
        let mut worker = server.worker().await;
        worker.step(open_step((0..100).map(|id| open(id, seeded(id))).collect())).await;
        worker.send_step(sample_step(&[(1, logits(1, 0))])).await;
        worker.send_step(sample_step(&[(1, logits(1, 1))])).await;
        workers.push(worker);
        gate.wait_for_batch().await;
        gate.open();
    }
    server.expect_sequences(800).await;
    drop(workers);
    server.expect_sequences(0).await;
}

#[tokio::test]
async fn a_draining_server_takes_no_new_calls_and_finishes_the_old() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    worker.step(open_step(vec![open(1, seeded(1))])).await;
    server.draining.cancel();
    let status = server.stream().await.err().unwrap();
    assert_eq!(status.code(), tonic::Code::Unavailable);
    assert_eq!(violation(&status).1, "DRAINING");
    let sample = server.client().await.sample(SampleRequest::default()).await.unwrap_err();
    assert_eq!(sample.code(), tonic::Code::Unavailable);
    token(&worker.step(sample_step(&[(1, logits(1, 0))])).await.work[0]);
}
