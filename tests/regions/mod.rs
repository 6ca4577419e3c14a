//! Shared memory over real sockets: leases, steps that read regions, everything that a worker may do wrong, and what is left when it dies.
//! The cases are those of Triton's shared memory tests (`qa/L0_shared_memory`) and more of the same kind.

mod abuse;
mod cycles;
mod leases;
mod mistakes;
mod processes;
mod release;
mod rows;
mod slots;

use crate::support::*;
use croupier::backend::Backend;
use croupier::backend::cpu::CpuBackend;
use croupier::bench::region::{Leased, SideClient, SideError};
use croupier::limits::Limits;
use croupier::proto::*;
use std::path::Path;

/// Room for some rows of the vocabulary, in bytes.
const REGION: u64 = 16 << 10;

async fn server() -> TestServer {
    server_with(Box::new(CpuBackend::new(2)), |_| {}).await
}

async fn server_with(backend: Box<dyn Backend>, change: impl FnOnce(&mut Limits)) -> TestServer {
    let mut limits = Limits { max_bytes_per_region: 1 << 20, max_region_bytes: 4 << 20, ..Limits::default() };
    change(&mut limits);
    TestServer::with(Transport::Unix, limits, backend).await
}

/// A stream, its side connection and one region.
async fn leased(server: &TestServer, config: StreamConfig) -> (Worker, SideClient, Leased) {
    let (worker, offer) = server.region_worker(config).await;
    let (mut side, path) = (None, offer.socket_path.clone());
    let region = blocking(|| {
        let connected = side.insert(SideClient::connect(Path::new(&path), &offer.token).unwrap());
        connected.lease(REGION).unwrap()
    });
    (worker, side.unwrap(), region)
}

/// Runs blocking calls on the side socket, as a worker does.
fn blocking<R>(work: impl FnOnce() -> R) -> R {
    tokio::task::block_in_place(work)
}

/// The rows of a region.
fn place(region: &Leased, offset: u64, rows: u32) -> RegionLogits {
    let RegionLease { region_id, generation, .. } = region.lease;
    RegionLogits { region_id, generation, offset, rows, row_stride: 0 }
}

fn at(place: RegionLogits) -> Option<step::Logits> {
    Some(step::Logits::Region(place))
}

fn bytes(row: &[f32]) -> Vec<u8> {
    row.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn refused(result: Result<impl std::fmt::Debug, SideError>) -> RegionError {
    match result {
        Err(SideError::Refused(error)) => error,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// One token of sequence 1 from row 0 of the region. The row is written first.
async fn region_token(worker: &mut Worker, region: &mut Leased, row: &[f32]) -> u32 {
    region.window.write(0, &bytes(row));
    let step = Step { work: vec![sample_work(1)], logits: at(place(region, 0, 1)), ..Default::default() };
    token(&worker.step(step).await.work[0])
}
