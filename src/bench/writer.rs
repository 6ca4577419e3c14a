//! A rank above 0 as a process of its own. It writes its columns once and announces them step by step.

use super::group::Group;
use super::pool::RowPool;
use super::region::SideClient;
use super::shards::{range, step_id};
use super::{Address, BenchArgs, BenchError, LogitsPath, client, load};
use crate::dial::Access;
use crate::proto::attach_request::Request as Ask;
use crate::proto::attach_response::Response as Answer;
use crate::proto::vocab_shard::Columns;
use crate::proto::{self, AttachRequest};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tokio::sync::mpsc;

/// The line that a writer prints when its columns are written.
const READY: &str = "ready";

/// Arguments of the hidden subcommand `bench-shard-writer`.
#[derive(Debug, Clone, PartialEq)]
pub struct WriterArgs {
    /// The server.
    pub addr: Address,
    /// The token that rank 0 received for attaching ranks.
    pub token: Vec<u8>,
    /// The number of this rank.
    pub rank: usize,
    /// The columns of all ranks.
    pub columns: Vec<u32>,
    /// With shared memory: id and generation of rank 0's region.
    pub region: Option<[u64; 2]>,
    /// The arguments that determine the rows.
    pub load: BenchArgs,
}

/// A writer process. It is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Writer {
    process: Child,
}

impl Writer {
    pub(super) fn start(args: &WriterArgs) -> Result<Self, BenchError> {
        let failed = |e: std::io::Error| BenchError::Spawn { what: "a shard writer", reason: e.to_string() };
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(crate::config::writer_flags(args)).stdin(Stdio::null()).stdout(Stdio::piped());
        Ok(Self { process: command.spawn().map_err(failed)? })
    }

    /// Waits until the writer's columns are where the server reads them.
    pub(super) async fn wait_until_ready(&mut self) -> Result<(), BenchError> {
        let Some(stdout) = self.process.stdout.take() else { return Ok(()) };
        let line = tokio::task::spawn_blocking(move || BufReader::new(stdout).lines().next()).await;
        match line {
            Ok(Some(Ok(line))) if line == READY => Ok(()),
            other => {
                Err(BenchError::Spawn { what: "a shard writer", reason: format!("expected {READY:?}, got {other:?}") })
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The process may have ended by itself. Either way it has ended after this.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends the rank's columns until the group of ranks ends.
///
/// # Errors
/// If it cannot attach, or the call fails.
#[allow(clippy::print_stdout)] // The parent waits for this line.
pub async fn write_shards(args: WriterArgs) -> Result<(), BenchError> {
    let load = &args.load;
    let pool = RowPool::of_columns(load, range(&args.columns, args.rank));
    let (requests, outbox) = mpsc::channel(64);
    let mut client = client::connect(&args.addr, &Access::default()).await?;
    send(&requests, Ask::Rank(about(&args))).await?;
    let outbox = tokio_stream::wrappers::ReceiverStream::new(outbox);
    let mut replies = client.attach(outbox).await.map_err(load::ended)?.into_inner();
    let ready = replies.message().await.map_err(load::ended)?.ok_or_else(load::closed)?;
    let Some(Answer::Ready(ready)) = ready.response else { return Err(load::closed()) };
    let _side = match (&args.region, ready.region_offer) {
        (Some([id, generation]), Some(offer)) => {
            let refused = |e: super::region::SideError| BenchError::Args(format!("no region: {e}"));
            let mut side = SideClient::connect(Path::new(&offer.socket_path), &offer.token).map_err(refused)?;
            let mut leased = side.attach(*id, *generation).map_err(refused)?;
            pool.write_columns(&mut leased.window);
            Some(side)
        }
        _ => None,
    };
    println!("{READY}");
    let groups = Group::split(load, 0);
    let (mut ahead, mut next) = (0, (0..).flat_map(|turn| (0..groups.len()).map(move |group| (turn, group))));
    loop {
        while ahead < ready.max_shards_ahead {
            let Some((turn, group)) = next.next() else { return Ok(()) };
            let shard = shard(&args, &pool, &groups[group], turn, groups.len(), group);
            send(&requests, Ask::Shard(shard)).await?;
            ahead += 1;
        }
        match replies.message().await.map_err(load::ended)? {
            Some(proto::AttachResponse { response: Some(Answer::Shard(proto::ShardResult { refusal: None, .. })) }) => {
                ahead -= 1;
            }
            Some(other) => return Err(BenchError::Args(format!("a shard was not accepted: {other:?}"))),
            None => return Ok(()),
        }
    }
}

fn about(args: &WriterArgs) -> proto::AttachRank {
    let columns = range(&args.columns, args.rank);
    proto::AttachRank {
        token: args.token.clone(),
        rank: args.rank as u32,
        vocab_start_index: columns.start,
        vocab_end_index: columns.end,
        logits_dtype: load::wire_dtype(args.load.dtype).into(),
    }
}

/// The rank's columns of the rows that a group sends in its turn.
fn shard(
    args: &WriterArgs,
    pool: &RowPool,
    group: &Group,
    turn: u64,
    groups: usize,
    number: usize,
) -> proto::VocabShard {
    let (rows, at) = (group.rows(), group.turn() + turn);
    let columns = match (args.load.path, args.region) {
        (LogitsPath::SharedMemory, Some([region_id, generation])) => {
            let (offset, rows) = (pool.offset(at) as u64, rows as u32);
            Columns::Region(proto::RegionLogits { region_id, generation, offset, rows, row_stride: 0 })
        }
        _ => Columns::Inline(proto::InlineLogits { data: pool.slice(rows, at), row_stride: 0 }),
    };
    proto::VocabShard { step_id: step_id(turn, groups, number), columns: Some(columns) }
}

async fn send(requests: &mpsc::Sender<AttachRequest>, request: Ask) -> Result<(), BenchError> {
    requests.send(AttachRequest { request: Some(request) }).await.map_err(|_| load::closed())
}
