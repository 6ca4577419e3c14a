//! One round of load against one server.

use super::group::Group;
use super::pool::RowPool;
use super::progress::Counter;
use super::region::{Leased, SideClient};
use super::{Address, BenchArgs, BenchError, LogitsPath, client, slots};
use crate::dial::Access;
use crate::proto::decode_request::Request as Ask;
use crate::proto::decode_response::Response as Answer;
use crate::proto::{self, DecodeRequest, StepResult};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Streaming;

/// How long to wait for outstanding replies after the round.
const DRAIN: Duration = Duration::from_secs(5);

/// The longest step time that is distinguished from longer ones, in nanoseconds.
const LONGEST: u64 = 600_000_000_000;

/// The replies that arrived within the measured period.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) tokens: u64,
    pub(super) steps: u64,
    /// Durations of steps, in nanoseconds.
    pub(super) times: Histogram<u64>,
    /// Numbers of results other than OK, by reason.
    pub(super) failures: BTreeMap<String, u64>,
    /// Number of streams that never began.
    pub(super) missing: usize,
}

impl Tally {
    pub(super) fn new() -> Self {
        let times = Histogram::new_with_bounds(1, LONGEST, 3).expect("bounds in order and three digits are allowed");
        Self { tokens: 0, steps: 0, times, failures: BTreeMap::new(), missing: 0 }
    }

    /// Records a step that took `time` and returned `tokens` tokens.
    pub(super) fn record(&mut self, tokens: u64, time: Duration) {
        self.tokens += tokens;
        self.steps += 1;
        self.times.saturating_record(time.as_nanos().min(u128::from(u64::MAX)) as u64);
    }

    pub(super) fn fail(&mut self, reason: impl Into<String>) {
        *self.failures.entry(reason.into()).or_default() += 1;
    }

    /// Records the failures of a step. Failures of its works are recorded only if they count. Failures to open a
    /// sequence are always recorded: sequences are opened in the warm-up, and one that was not opened fails during the
    /// whole measurement.
    pub(super) fn failures_of(&mut self, result: &StepResult, counts: bool) {
        for open in result.open.iter().filter(|open| open.status != i32::from(proto::OpenStatus::Ok)) {
            let error = open.error.clone().unwrap_or_default();
            let of = if error.field.is_empty() { String::new() } else { format!("{}: ", error.field) };
            self.fail(format!("open {}: {of}{}", open.status().as_str_name(), error.message));
        }
        for work in result.work.iter().filter(|work| counts && work.status != i32::from(proto::RowStatus::Ok)) {
            self.fail(format!("row {}", work.status().as_str_name()));
        }
    }

    fn merge(&mut self, other: &Tally) {
        self.tokens += other.tokens;
        self.steps += other.steps;
        self.missing += other.missing;
        self.times.add(&other.times).expect("the bounds are the same");
        for (reason, count) in &other.failures {
            *self.failures.entry(reason.clone()).or_default() += count;
        }
    }
}

/// How a stream ended; an error outside means that it never began.
type StreamEnd = Result<Result<Tally, BenchError>, BenchError>;

/// Runs all streams during the warm-up and the duration.
pub(super) async fn measure(
    args: &BenchArgs,
    addr: &Address,
    access: &Access,
    pool: &RowPool,
    counter: &Counter,
) -> Result<Tally, BenchError> {
    let from = Instant::now() + args.warmup;
    let shared = Arc::new(Shared {
        args: args.clone(),
        pool: pool.clone(),
        counter: counter.clone(),
        from,
        until: from + args.duration,
    });
    let watch = counter.watch();
    let mut streams = JoinSet::new();
    for number in 0..args.streams as u64 {
        let (addr, access, shared) = (addr.clone(), access.clone(), Arc::clone(&shared));
        streams.spawn(async move {
            let worker = Worker::open(number, &addr, &access, shared).await?;
            Ok::<_, BenchError>(worker.run().await)
        });
    }
    let (all, last_error) = tally_of(streams).await;
    watch.abort();
    match last_error {
        Some(error) if all.tokens == 0 => Err(error),
        _ => Ok(all),
    }
}

/// The replies of all streams once they have ended, and the error of the last one that failed.
async fn tally_of(mut streams: JoinSet<StreamEnd>) -> (Tally, Option<BenchError>) {
    let (mut all, mut last_error) = (Tally::new(), None);
    while let Some(ended) = streams.join_next().await {
        let ended = ended.expect("a stream's task does not panic");
        all.missing += usize::from(ended.is_err());
        match ended.flatten() {
            Ok(tally) => all.merge(&tally),
            Err(error) => {
                all.fail(of_stream(&error));
                last_error = Some(error);
            }
        }
    }
    (all, last_error)
}

/// The reason under which a stream counts that broke or never began.
fn of_stream(error: &BenchError) -> String {
    match error {
        BenchError::Stream(status) => format!("stream {:?}: {}", status.code(), status.message()),
        BenchError::Unreachable { reason, .. } | BenchError::Refused { reason, .. } => {
            format!("stream not connected: {reason}")
        }
        other => format!("stream not started: {other}"),
    }
}

/// What all streams of a round share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) args: BenchArgs,
    pub(super) pool: RowPool,
    pub(super) counter: Counter,
    pub(super) from: Instant,
    pub(super) until: Instant,
}

/// The replies of a server on a stream.
pub(super) type Answers = Streaming<proto::DecodeResponse>;

/// One worker: a connection with one stream.
struct Worker {
    shared: Arc<Shared>,
    requests: mpsc::Sender<DecodeRequest>,
    replies: Answers,
    groups: Vec<Group>,
    /// Groups whose next step is not due yet.
    waiting: BTreeMap<(Instant, usize), ()>,
    tally: Tally,
    /// With shared memory: the region with the rows. Its lease lasts as long as the connection to the side socket.
    region: Option<(SideClient, Leased)>,
}

impl Worker {
    async fn open(number: u64, addr: &Address, access: &Access, shared: Arc<Shared>) -> Result<Self, BenchError> {
        let groups = Group::split(&shared.args, number);
        let (requests, outbox) = mpsc::channel(groups.len() + 1);
        let config = Ask::Config(proto::StreamConfig {
            vocab_size: shared.args.vocab,
            logits_dtype: wire_dtype(shared.args.dtype).into(),
            model: "bench".to_owned(),
            wants_regions: shared.args.path != LogitsPath::Inline,
            ..Default::default()
        });
        // The channel has room for a message of every group and for the configuration. So sending never waits here, but
        // only in the transport.
        requests.try_send(DecodeRequest { request: Some(config) }).map_err(|_| closed())?;
        let mut client = client::connect(addr, access).await?;
        let outbox = tokio_stream::wrappers::ReceiverStream::new(outbox);
        let mut replies = client.decode(outbox).await.map_err(ended)?.into_inner();
        let ready = replies.message().await.map_err(ended)?.ok_or_else(closed)?;
        let region = match shared.args.path {
            LogitsPath::Inline => None,
            path => {
                let slots = slots::bytes(path, shared.args.batch);
                Some(with_rows(ready, &shared.pool, slots)?)
            }
        };
        Ok(Self { shared, requests, replies, groups, waiting: BTreeMap::new(), tally: Tally::new(), region })
    }

    async fn run(mut self) -> Result<Tally, BenchError> {
        if self.shared.args.path == LogitsPath::Slots {
            return self.run_by_slots().await;
        }
        let now = Instant::now();
        for group in 0..self.groups.len() {
            self.groups[group].due = now;
            self.send(group)?;
        }
        let until = self.shared.until;
        while Instant::now() < until {
            let next_due = self.waiting.first_key_value().map(|(&(due, _), ())| due);
            tokio::select! {
                reply = self.replies.message() => match reply {
                    Ok(Some(reply)) => self.receive(reply)?,
                    Ok(None) => return self.broken(closed()),
                    Err(status) => return self.broken(ended(status)),
                },
                () = tokio::time::sleep_until(next_due.unwrap_or(until).min(until)) => self.send_due()?,
            }
        }
        self.drain().await;
        Ok(self.tally)
    }

    /// With slots there is only one group, because all rows of a stream form one step.
    async fn run_by_slots(mut self) -> Result<Tally, BenchError> {
        let (Some((_side, leased)), Some(group)) = (self.region.take(), self.groups.pop()) else {
            return Err(closed());
        };
        let failures = tokio::spawn(slots::failures(self.replies, self.shared.from..self.shared.until));
        let stream = slots::Stream { shared: self.shared, requests: self.requests, group, leased };
        let tally = tokio::task::spawn_blocking(|| stream.run()).await.expect("it does not panic");
        // Dropping the sender of requests ends the stream, and with it the replies.
        let failures = tokio::time::timeout(DRAIN, failures).await.ok().and_then(Result::ok);
        let (mut tally, failures) = (tally?, failures.unwrap_or_else(Tally::new));
        tally.merge(&failures);
        Ok(tally)
    }

    /// Handles a stream that ended early: what it did counts, and its end is recorded as a failure.
    fn broken(mut self, error: BenchError) -> Result<Tally, BenchError> {
        match error {
            BenchError::Stream(_) if self.tally.tokens > 0 => {
                self.tally.fail(of_stream(&error));
                Ok(self.tally)
            }
            error => Err(error),
        }
    }

    fn send(&mut self, group: usize) -> Result<(), BenchError> {
        let region = self.region.as_ref().map(|(_, leased)| &leased.lease);
        let step = self.groups[group].step(group, &self.shared.args, &self.shared.pool, region);
        self.requests.try_send(DecodeRequest { request: Some(Ask::Step(step)) }).map_err(|_| closed())
    }

    fn send_due(&mut self) -> Result<(), BenchError> {
        let now = Instant::now();
        while let Some(entry) = self.waiting.first_entry().filter(|entry| entry.key().0 <= now) {
            let (_, group) = *entry.key();
            entry.remove();
            self.send(group)?;
        }
        Ok(())
    }

    fn receive(&mut self, reply: proto::DecodeResponse) -> Result<(), BenchError> {
        let Some(Answer::Step(result)) = reply.response else { return Err(closed()) };
        let group = result.step_id as usize;
        let now = Instant::now();
        if group >= self.groups.len() {
            self.tally.fail("a reply that belongs to no step");
            return Ok(());
        }
        if let Some(refusal) = &result.refusal {
            self.tally.fail(format!("refused {}", refusal.reason));
            let again = now + Duration::from_millis(u64::from(refusal.retry_after_ms.max(1)));
            self.waiting.insert((again, group), ());
            return Ok(());
        }
        self.count(group, &result, now);
        let rate = self.shared.args.rate;
        let due = if rate > 0.0 { self.groups[group].due + Duration::from_secs_f64(rate.recip()) } else { now };
        self.groups[group].answered(due);
        if due > now {
            self.waiting.insert((due, group), ());
            return Ok(());
        }
        self.send(group)
    }

    fn count(&mut self, group: usize, result: &StepResult, now: Instant) {
        let ok = i32::from(proto::RowStatus::Ok);
        let tokens = result.work.iter().filter(|work| work.status == ok).map(|work| work.tokens.len() as u64).sum();
        self.shared.counter.add(tokens);
        let counts = (self.shared.from..self.shared.until).contains(&now);
        self.tally.failures_of(result, counts);
        if counts {
            self.tally.record(tokens, now.saturating_duration_since(self.groups[group].due));
        }
    }

    /// Ends the stream as a worker would, so that the next round starts with an idle server.
    async fn drain(&mut self) {
        let (closed, _) = mpsc::channel(1);
        self.requests = closed;
        let rest = async { while let Ok(Some(_)) = self.replies.message().await {} };
        let _ = tokio::time::timeout(DRAIN, rest).await;
    }
}

/// Leases a region that contains all rows, followed by `more` bytes.
fn with_rows(ready: proto::DecodeResponse, pool: &RowPool, more: usize) -> Result<(SideClient, Leased), BenchError> {
    let Some(Answer::Ready(ready)) = ready.response else { return Err(closed()) };
    let (side, mut leased) = lease(ready, (pool.whole_bytes() + more) as u64)?;
    pool.write_columns(&mut leased.window);
    Ok((side, leased))
}

/// Leases a region of this many bytes.
pub(super) fn lease(ready: proto::StreamReady, bytes: u64) -> Result<(SideClient, Leased), BenchError> {
    let Some(offer) = ready.region_offer else {
        return Err(BenchError::Args(
            "the server offers no shared memory; start it with --uds or --region-socket, or let this command start one with --spawn uds"
                .to_owned(),
        ));
    };
    let refused = |e: super::region::SideError| BenchError::Args(format!("no region: {e}"));
    let mut side = SideClient::connect(offer.socket_path.as_ref(), &offer.token).map_err(refused)?;
    let leased = side.lease(bytes).map_err(refused)?;
    Ok((side, leased))
}

pub(super) fn wire_dtype(dtype: crate::sampling::logits::Dtype) -> proto::LogitsDtype {
    use crate::sampling::logits::Dtype;
    match dtype {
        Dtype::F32 => proto::LogitsDtype::F32,
        Dtype::F16 => proto::LogitsDtype::F16,
        Dtype::Bf16 => proto::LogitsDtype::Bf16,
    }
}

pub(super) fn ended(status: tonic::Status) -> BenchError {
    BenchError::Stream(Box::new(status))
}

pub(super) fn closed() -> BenchError {
    ended(tonic::Status::unavailable("the stream ended early"))
}
