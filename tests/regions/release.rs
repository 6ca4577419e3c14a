//! A region that is given up while steps read it: the steps are answered as if it were still there, and then its memory is freed.

use super::*;
use tonic::Code;

/// How the lease ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Released,
    Disconnected,
}

async fn ends_in_use(end: End, steps: u64) {
    let gate = Gate::default();
    let server = server_with(Box::new(gate.clone()), |_| {}).await;
    let (mut worker, mut side, mut region) = leased(&server, config()).await;
    for id in 1..=steps {
        let offset = (id - 1) * 256;
        region.window.write(offset as usize, &bytes(&logits(id, 0)));
        let (open, work) = (vec![open(id, seeded(id))], vec![sample_work(id)]);
        worker.send_step(Step { open, work, logits: at(place(&region, offset, 1)), ..Default::default() }).await;
    }
    gate.wait_for_batch().await;
    server.expect_series("croupier_steps_total{data_path=\"shared_memory\"}", steps as f64).await;
    match end {
        End::Released => blocking(|| side.release(&region.lease).unwrap()),
        End::Disconnected => drop(side),
    }
    let connections = if let End::Released = end { 1.0 } else { 0.0 };
    server.expect_series("croupier_connections{transport=\"region\"}", connections).await;
    assert_eq!(server.series("croupier_region_bytes"), REGION as f64, "a step still reads it");
    gate.open();
    for id in 1..=steps {
        let result = worker.step_reply().await.unwrap();
        let got = token(&result.work[0]);
        assert_eq!(got, inline_tokens(&server, id, 1).await[0], "{end:?}, step {id}");
    }
    server.expect_series("croupier_region_bytes", 0.0).await;
    // The stream goes on with inline rows. The region is gone.
    let mut next = sample_step(&[(1, logits(1, 1))]);
    token(&worker.step(next.clone()).await.work[0]);
    next.logits = at(place(&region, 0, 1));
    assert_eq!(worker.failing_step(next).await.code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_step_in_use() {
    ends_in_use(End::Released, 1).await;
    ends_in_use(End::Disconnected, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_steps_in_use() {
    ends_in_use(End::Released, 20).await;
    ends_in_use(End::Disconnected, 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_ends_while_its_region_is_read_gives_all_back() {
    let gate = Gate::default();
    let server = server_with(Box::new(gate.clone()), |_| {}).await;
    let (mut worker, side, region) = leased(&server, config()).await;
    for id in 1..9 {
        let (open, work) = (vec![open(id, seeded(id))], vec![sample_work(id)]);
        worker.send_step(Step { open, work, logits: at(place(&region, 0, 1)), ..Default::default() }).await;
    }
    gate.wait_for_batch().await;
    drop((worker, side, region));
    gate.open();
    server.expect_series("croupier_region_bytes", 0.0).await;
    server.expect_series("croupier_regions", 0.0).await;
    server.expect_series("croupier_streams", 0.0).await;
}
