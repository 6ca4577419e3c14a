//! Measures rows whose columns come from several processes. Rank 0 is this process, and each other rank is a process of
//! its own.
//!
//! The rows and steps are those of the plain measurement, so that the two can be compared. With shared memory each
//! process writes its columns before the first step, as if its device had put them there.

use super::group::Group;
use super::load::{self, Tally};
use super::pool::RowPool;
use super::progress::{Counter, Progress};
use super::region::{Leased, SideClient};
use super::shard_report::{ShardReport, ShardRound};
use super::writer::{Writer, WriterArgs};
use super::{Address, BenchArgs, BenchError, LogitsPath, Target, client};
use crate::dial::Access;
use crate::output::counted;
use crate::proto::decode_request::Request as Ask;
use crate::proto::decode_response::Response as Answer;
use crate::proto::step::Logits;
use crate::proto::{self, DecodeRequest, StepResult};
use std::ops::Range;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Streaming;

/// The number of columns of each rank, as even as possible.
pub(super) fn columns(vocab: u32, ranks: u32) -> Vec<u32> {
    let end = |rank: u32| (u64::from(vocab) * u64::from(rank) / u64::from(ranks)) as u32;
    (0..ranks).map(|rank| end(rank + 1) - end(rank)).collect()
}

/// The range of columns of a rank.
pub(super) fn range(columns: &[u32], rank: usize) -> Range<u32> {
    let start = columns.iter().take(rank).sum();
    start..start + columns.get(rank).copied().unwrap_or(0)
}

/// The step id of a group's step in its turn. Rank 0 and the other ranks compute the same id.
pub(super) fn step_id(turn: u64, groups: usize, group: usize) -> u64 {
    turn * groups as u64 + group as u64 + 1
}

/// Measures whole rows and each number of ranks, alternately.
pub(super) async fn run(args: &BenchArgs) -> Result<ShardReport, BenchError> {
    let Target { _spawned, addr, server } = Target::of(args).await?;
    let pool = RowPool::new(args);
    let progress = Progress::start(args);
    let mut rounds = Vec::new();
    for round in 1..=args.round_count() {
        let counter = progress.of("whole rows", round);
        let whole = load::measure(args, &addr, &args.access, &pool, &counter).await?;
        let mut sharded = Vec::new();
        for &ranks in &args.shards {
            let counter = progress.of(&counted(ranks.into(), "rank"), round);
            sharded.push(measure(args, &addr, &columns(args.vocab, ranks), &counter).await?);
        }
        rounds.push(ShardRound { whole, sharded });
    }
    progress.finish();
    Ok(ShardReport::new(args, &addr, server, rounds))
}

/// The end of rank 0.
struct Leader {
    requests: mpsc::Sender<DecodeRequest>,
    replies: Streaming<proto::DecodeResponse>,
    groups: Vec<Group>,
    /// Number of steps that each group has sent.
    turns: Vec<u64>,
    region: Option<(SideClient, Leased)>,
    pool: RowPool,
    tally: Tally,
}

async fn measure(args: &BenchArgs, addr: &Address, columns: &[u32], counter: &Counter) -> Result<Tally, BenchError> {
    let (mut leader, token) = Leader::open(args, addr, columns).await?;
    let region = leader.region.as_ref().map(|(_, leased)| [leased.lease.region_id, leased.lease.generation]);
    let mut writers = Vec::new();
    for rank in 1..columns.len() {
        let about = WriterArgs {
            addr: addr.clone(),
            token: token.clone(),
            rank,
            columns: columns.to_vec(),
            region,
            load: args.clone(),
        };
        writers.push(Writer::start(&about)?);
    }
    for writer in &mut writers {
        writer.wait_until_ready().await?;
    }
    let watch = counter.watch();
    let from = Instant::now() + args.warmup;
    let measured = leader.run(args, from..from + args.duration, counter).await;
    watch.abort();
    measured.map(|()| leader.tally)
}

impl Leader {
    async fn open(args: &BenchArgs, addr: &Address, columns: &[u32]) -> Result<(Self, Vec<u8>), BenchError> {
        let groups = Group::split(args, 0);
        let (requests, outbox) = mpsc::channel(groups.len() + 1);
        let config = Ask::Config(proto::StreamConfig {
            vocab_size: args.vocab,
            logits_dtype: load::wire_dtype(args.dtype).into(),
            model: "bench".to_owned(),
            wants_regions: args.path == LogitsPath::SharedMemory,
            vocab_shards: Some(proto::VocabShards { columns: columns.to_vec() }),
            ..Default::default()
        });
        requests.try_send(DecodeRequest { request: Some(config) }).map_err(|_| load::closed())?;
        let mut client = client::connect(addr, &Access::default()).await?;
        let outbox = tokio_stream::wrappers::ReceiverStream::new(outbox);
        let mut replies = client.decode(outbox).await.map_err(load::ended)?.into_inner();
        let ready = replies.message().await.map_err(load::ended)?.ok_or_else(load::closed)?;
        let Some(Answer::Ready(ready)) = ready.response else { return Err(load::closed()) };
        let token = ready.shard_offer.clone().map(|offer| offer.token).unwrap_or_default();
        let pool = RowPool::of_columns(args, range(columns, 0));
        let region = match args.path {
            LogitsPath::Inline => None,
            LogitsPath::SharedMemory | LogitsPath::Slots => {
                let (side, mut leased) = load::lease(ready, pool.whole_bytes() as u64)?;
                pool.write_columns(&mut leased.window);
                Some((side, leased))
            }
        };
        let turns = vec![0; groups.len()];
        Ok((Self { requests, replies, groups, turns, region, pool, tally: Tally::new() }, token))
    }

    /// Sends steps from now on. Steps that end in `window` count.
    async fn run(&mut self, args: &BenchArgs, window: Range<Instant>, counter: &Counter) -> Result<(), BenchError> {
        for group in 0..self.groups.len() {
            self.send(args, group, Instant::now())?;
        }
        // Replies come in the order of the steps, so the groups take turns.
        for group in (0..self.groups.len()).cycle() {
            let reply = self.replies.message().await.map_err(load::ended)?.ok_or_else(load::closed)?;
            let Some(Answer::Step(result)) = reply.response else { return Err(load::closed()) };
            if let Some(refusal) = result.refusal {
                return Err(BenchError::Args(format!("refused: {}", refusal.message)));
            }
            let now = Instant::now();
            self.count(group, &result, window.contains(&now).then_some(now), counter);
            if now >= window.end {
                return Ok(());
            }
            self.groups[group].answered(now);
            self.send(args, group, now)?;
        }
        Ok(())
    }

    fn send(&mut self, args: &BenchArgs, group: usize, now: Instant) -> Result<(), BenchError> {
        let region = self.region.as_ref().map(|(_, leased)| &leased.lease);
        let id = step_id(self.turns[group], self.groups.len(), group);
        let mut step = self.groups[group].step(id as usize, args, &self.pool, region);
        step.logits = step.logits.map(own);
        self.groups[group].due = now;
        self.turns[group] += 1;
        self.requests.try_send(DecodeRequest { request: Some(Ask::Step(step)) }).map_err(|_| load::closed())
    }

    fn count(&mut self, group: usize, result: &StepResult, counted: Option<Instant>, counter: &Counter) {
        let ok = i32::from(proto::RowStatus::Ok);
        let tokens = result.work.iter().filter(|work| work.status == ok).map(|work| work.tokens.len() as u64).sum();
        counter.add(tokens);
        self.tally.failures_of(result, counted.is_some());
        if let Some(now) = counted {
            self.tally.record(tokens, now.saturating_duration_since(self.groups[group].due));
        }
    }
}

/// Rank 0's columns of the rows, as sharded logits.
fn own(logits: Logits) -> Logits {
    use proto::sharded_logits::Columns;
    let columns = match logits {
        Logits::Inline(inline) => Columns::Inline(inline),
        Logits::Region(region) => Columns::Region(region),
        Logits::Sharded(sharded) => return Logits::Sharded(sharded),
    };
    Logits::Sharded(proto::ShardedLogits { columns: Some(columns) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_cover_the_vocabulary_and_steps_have_numbers_in_the_order_of_their_sending() {
        for (vocab, ranks) in [(8, 1), (8, 3), (128_256, 8), (7, 7)] {
            let columns = columns(vocab, ranks);
            assert_eq!((columns.len() as u32, columns.iter().sum::<u32>()), (ranks, vocab));
            assert!(columns.iter().all(|&columns| columns > 0));
            assert_eq!(range(&columns, columns.len() - 1).end, vocab);
        }
        let ids: Vec<u64> = (0..3).flat_map(|turn| (0..4).map(move |group| step_id(turn, 4, group))).collect();
        assert_eq!(ids, (1..=12).collect::<Vec<_>>());
    }
}
