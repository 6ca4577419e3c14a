//! Regions in device memory, over real sockets: leases, loans, steps, errors, limits, and what is left of a worker that is killed. The
//! device is a fake whose memory is a file, and the CPU samples. (tests/emulator tests the kernels.)

mod fake;
mod gpu;
mod leases;
mod loans;
mod ranks;
mod steps;

use crate::support::*;
use croupier::backend::Backend;
use croupier::backend::cpu::CpuBackend;
use croupier::bench::region::{Leased, SideClient};
use croupier::limits::Limits;
use croupier::proto::region_reply::Reply;
use croupier::proto::region_request::Request;
use croupier::proto::*;
use croupier::region::worker::Window;
use fake::{Device, GRANULARITY, OnFake, UUID};
use std::path::Path;
use std::sync::Arc;
use tonic::Code;

/// Room for some rows of the vocabulary, in bytes.
const REGION: u64 = 2 * GRANULARITY as u64;
const DEVICE_BYTES: &str = "croupier_device_region_bytes";

async fn server() -> (TestServer, Arc<Device>) {
    server_with(Box::new(CpuBackend::new(2)), |_| {}).await
}

async fn server_with(backend: Box<dyn Backend>, change: impl FnOnce(&mut Limits)) -> (TestServer, Arc<Device>) {
    let (max_bytes_per_region, max_device_region_bytes) = (1 << 20, 4 * REGION as usize);
    let mut limits = Limits { max_bytes_per_region, max_device_region_bytes, ..Limits::default() };
    change(&mut limits);
    let device = Arc::new(Device::default());
    let backend = OnFake { device: Arc::clone(&device), backend };
    (TestServer::with(Transport::Unix, limits, Box::new(backend)).await, device)
}

/// A stream and its side connection.
async fn connected(server: &TestServer, config: StreamConfig) -> (Worker, SideClient) {
    let (worker, offer) = server.region_worker(config).await;
    (worker, blocking(|| SideClient::connect(Path::new(&offer.socket_path), &offer.token).unwrap()))
}

fn on(uuid: &str, bytes: u64) -> Request {
    Request::Lease(LeaseRegion { bytes, device: Some(RegionDevice { uuid: uuid.to_owned() }) })
}

/// The server's answer: the region if it leases one with a descriptor.
fn asked(side: &mut SideClient, request: Request) -> Result<Leased, RegionError> {
    match blocking(|| side.ask(request).unwrap()) {
        (Reply::Leased(lease), descriptors) => {
            let [descriptor] = <[_; 1]>::try_from(descriptors).unwrap();
            let window = Window::map(&descriptor, lease.bytes as usize).unwrap();
            Ok(Leased { lease, window, descriptor })
        }
        (Reply::Error(error), descriptors) if descriptors.is_empty() => Err(error),
        other => panic!("{other:?}"),
    }
}

/// Code, reason and field of an error.
fn refused(result: Result<impl std::fmt::Debug, RegionError>) -> (Code, String, String) {
    let error = result.unwrap_err();
    (Code::from(error.code), error.reason, error.field)
}

fn blocking<R>(work: impl FnOnce() -> R) -> R {
    tokio::task::block_in_place(work)
}

fn at(lease: &RegionLease, offset: u64, rows: u32) -> Option<step::Logits> {
    let RegionLease { region_id, generation, .. } = *lease;
    Some(step::Logits::Region(RegionLogits { region_id, generation, offset, rows, row_stride: 0 }))
}

fn bytes(row: &[f32]) -> Vec<u8> {
    row.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// One token of sequence 1 from the first row.
async fn sampled(worker: &mut Worker, lease: &RegionLease) -> u32 {
    let step = Step { work: vec![sample_work(1)], logits: at(lease, 0, 1), ..Default::default() };
    token(&worker.step(step).await.work[0])
}
