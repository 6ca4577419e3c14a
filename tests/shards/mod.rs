//! Rows whose columns are held by several ranks: the same tokens as from whole rows, and everything that a rank may do wrong.

mod mistakes;
mod rank;
mod tokens;
mod trouble;

use crate::support::*;
use croupier::backend::cpu::CpuBackend;
use croupier::bench::region::{Leased, SideClient};
use croupier::limits::Limits;
use croupier::proto::*;
use croupier::sampling::logits::Dtype;
use rank::Rank;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// Room for a few slots of rows, in bytes.
const REGION: u64 = 16 << 10;
/// Longer than anything here takes. A test that reaches it fails.
const LONG: Duration = Duration::from_secs(600);

async fn server() -> TestServer {
    server_with(|_| {}).await
}

/// A server on a Unix socket whose steps wait almost forever for their shards.
async fn server_with(change: impl FnOnce(&mut Limits)) -> TestServer {
    let mut limits =
        Limits { max_bytes_per_region: 1 << 20, max_region_bytes: 4 << 20, shard_timeout: LONG, ..Limits::default() };
    change(&mut limits);
    TestServer::with(Transport::Unix, limits, Box::new(CpuBackend::new(2))).await
}

/// The columns of each rank, uneven if they cannot be even.
fn uneven(ranks: u32) -> Vec<u32> {
    let part = VOCAB / ranks;
    let mut columns = vec![part; ranks as usize];
    columns[0] += VOCAB - part * ranks;
    columns
}

fn range(columns: &[u32], rank: usize) -> Range<usize> {
    let start: u32 = columns[..rank].iter().sum();
    start as usize..(start + columns[rank]) as usize
}

fn wire(dtype: Dtype) -> LogitsDtype {
    match dtype {
        Dtype::F32 => LogitsDtype::F32,
        Dtype::F16 => LogitsDtype::F16,
        Dtype::Bf16 => LogitsDtype::Bf16,
    }
}

fn sharded(columns: &[u32]) -> StreamConfig {
    StreamConfig { vocab_shards: Some(VocabShards { columns: columns.to_vec() }), ..config() }
}

/// Rank 0's stream, with the token for the others.
async fn rank_0(server: &TestServer, config: StreamConfig) -> (Worker, StreamReady) {
    let mut worker = server.stream().await.unwrap();
    worker.send(decode_request::Request::Config(config)).await;
    let ready = worker.ready().await;
    (worker, ready)
}

fn token_of(ready: &StreamReady) -> Vec<u8> {
    ready.shard_offer.as_ref().expect("ranks may attach").token.clone()
}

/// Rank 0's stream, and all other ranks, attached.
async fn group(server: &TestServer, columns: &[u32]) -> (Worker, Vec<Rank>) {
    let (worker, ready) = rank_0(server, sharded(columns)).await;
    let mut ranks = Vec::new();
    for number in 1..columns.len() {
        ranks.push(Rank::attached(server, &token_of(&ready), columns, number).await);
    }
    (worker, ranks)
}

/// A rank's columns of some rows, for a message.
fn inline_columns(rows: &[Vec<f32>], columns: Range<usize>) -> InlineLogits {
    let data = rows.iter().flat_map(|row| Dtype::F32.encode(&row[columns.clone()])).collect::<Vec<u8>>();
    InlineLogits { data: data.into(), row_stride: 0 }
}

fn own_inline(logits: InlineLogits) -> Option<step::Logits> {
    Some(step::Logits::Sharded(ShardedLogits { columns: Some(sharded_logits::Columns::Inline(logits)) }))
}

fn own_region(logits: RegionLogits) -> Option<step::Logits> {
    Some(step::Logits::Sharded(ShardedLogits { columns: Some(sharded_logits::Columns::Region(logits)) }))
}

/// A step that samples sequence 1 from a row of a text, with rank 0's columns of that row.
fn own_step(columns: &[u32], text: u64, position: u64) -> Step {
    let row = logits(text, position);
    Step {
        work: vec![sample_work(1)],
        logits: own_inline(inline_columns(&[row], range(columns, 0))),
        ..Default::default()
    }
}

/// Runs blocking calls on the side socket, as a worker does.
fn blocking<R>(work: impl FnOnce() -> R) -> R {
    tokio::task::block_in_place(work)
}

/// Rank 0's region.
fn lease(ready: &StreamReady) -> (SideClient, Leased) {
    let offer = ready.region_offer.as_ref().expect("regions are offered");
    blocking(|| {
        let mut side = SideClient::connect(Path::new(&offer.socket_path), &offer.token).unwrap();
        let leased = side.lease(REGION).unwrap();
        (side, leased)
    })
}

fn place(region: &RegionLease, offset: u64, rows: u32, row_stride: u32) -> RegionLogits {
    let RegionLease { region_id, generation, .. } = *region;
    RegionLogits { region_id, generation, offset, rows, row_stride }
}
