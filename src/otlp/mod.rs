//! Sends recorded spans to an OpenTelemetry collector: OTLP over gRPC, in batches, by one task.
//!
//! Nobody waits for the export. While the collector is slow or gone, spans pile up in the tracer's bounded queue. Spans
//! that do not fit there are dropped and counted.

mod encode;
pub mod wire;

use crate::dial::{Access, causes};
use crate::metrics::{Metrics, Traced};
use crate::tls::client::ClientTls;
use crate::trace::Span;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;
use wire::{ExportTraceServiceRequest, ExportTraceServiceResponse};

/// Most steps in a request: with their stages about 300 KB.
const MAX_IN_BATCH: usize = 256;
/// How long the first span of a batch waits for others.
const GATHER: Duration = Duration::from_secs(1);
/// How long the collector may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Pauses before a batch is tried again. After the last try the batch is given up.
const PAUSES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(8)];

/// Longest pause that a collector may ask for.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// How many characters of a collector's reason are logged.
const MAX_REASON: usize = 300;

/// Where spans go.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// `http://HOST:PORT` or `https://HOST:PORT`; `None` means no traces.
    pub endpoint: Option<String>,
    /// The authorities, in PEM, one of which must have signed the collector's certificate.
    pub ca: Option<PathBuf>,
}

/// The collector. It is connected to when there is something to send.
#[derive(Debug)]
pub struct Collector {
    channel: Channel,
    address: String,
}

impl Settings {
    /// The collector's endpoint and address; `None` if there is no collector.
    ///
    /// # Errors
    /// When the address or the authorities cannot be used, with a message for people.
    pub(crate) fn endpoint(&self) -> Result<Option<(Endpoint, String)>, String> {
        let Some(url) = &self.endpoint else { return Ok(None) };
        let address = url.split_once("://").map_or(url.as_str(), |(_, address)| address).to_owned();
        let tls = self.ca.clone().map(|ca| ClientTls { ca, identity: None, name: None });
        let endpoint = Access { tls, token_file: None }.endpoint(&address)?;
        Ok(Some((endpoint, address)))
    }
}

impl Collector {
    /// Prepares the collector without connecting to it; `None` without an endpoint.
    ///
    /// # Errors
    /// When the address or the authorities cannot be used, with a message for people.
    pub fn open(settings: &Settings) -> Result<Option<Self>, String> {
        let Some((endpoint, address)) = settings.endpoint()? else { return Ok(None) };
        // Without pings, a collector whose machine is gone would be waited for until the kernel gives its connection
        // up. That takes a quarter of an hour, although other collectors may stand behind the same name.
        let endpoint = endpoint.http2_keep_alive_interval(ANSWER_WITHIN).keep_alive_timeout(ANSWER_WITHIN);
        let channel = endpoint.connect_timeout(ANSWER_WITHIN).connect_lazy();
        Ok(Some(Self { channel, address }))
    }

    async fn export(&self, request: ExportTraceServiceRequest) -> Result<ExportTraceServiceResponse, Status> {
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        let codec = ProstCodec::<ExportTraceServiceRequest, ExportTraceServiceResponse>::default();
        let call = async {
            client.ready().await.map_err(|error| Status::unavailable(causes(&error)))?;
            client.unary(Request::new(request), PathAndQuery::from_static(wire::EXPORT), codec).await
        };
        let answer = timeout(ANSWER_WITHIN, call).await;
        answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer"))).map(tonic::Response::into_inner)
    }
}

/// Sends spans to the collector.
#[derive(Debug)]
pub struct Exporter {
    /// Where the spans go.
    pub collector: Collector,
    /// Where the spans come from.
    pub spans: mpsc::Receiver<Span>,
    /// Names this process among others.
    pub instance: String,
    /// Counts the spans.
    pub metrics: Metrics,
}

impl Exporter {
    /// Exports until `stop`. Then exports once more what is there, without retries, and ends.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut trouble = false;
        let mut batch = Vec::with_capacity(MAX_IN_BATCH);
        while self.next(&mut batch, &stop).await {
            let count: u64 = batch.iter().map(Span::count).sum();
            let request = encode::request(&batch, &self.instance);
            batch.clear();
            let sent = self.deliver(&request, &stop).await;
            let taken = match &sent {
                Ok((rejected, _)) => count.saturating_sub(*rejected),
                Err(_) => 0,
            };
            self.metrics.traces.spans(Traced::Exported, taken);
            self.metrics.traces.spans(Traced::Failed, count - taken);
            // Logged once each time the collector goes or comes back; the counter says how many spans failed.
            let address = &self.collector.address;
            let fault = match sent {
                Err(status) => {
                    Some(("the collector does not accept spans; they are counted as failed", causes(&status)))
                }
                Ok((rejected, reason)) if rejected > 0 => Some(("the collector rejected some spans", reason)),
                Ok(_) => None,
            };
            match &fault {
                Some((what, reason)) if !trouble => tracing::warn!(address, reason = shortened(reason), "{what}"),
                None if trouble => tracing::info!(address, "the collector accepts spans again"),
                _ => {}
            }
            trouble = fault.is_some();
        }
    }

    /// Gathers a batch; `false` when there is none and none will come.
    async fn next(&mut self, batch: &mut Vec<Span>, stop: &CancellationToken) -> bool {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            taken = self.spans.recv_many(batch, MAX_IN_BATCH) => if taken == 0 { return false },
        }
        if !stop.is_cancelled() {
            tokio::select! {
                () = fill(&mut self.spans, batch) => {}
                () = sleep(GATHER) => {}
                () = stop.cancelled() => {}
            }
        }
        if stop.is_cancelled() {
            // A closed queue gives what it still has, and then nothing.
            self.spans.close();
            fill(&mut self.spans, batch).await;
        }
        !batch.is_empty()
    }

    /// Sends a batch. Returns how many spans the collector turned away and why, or why it took none.
    async fn deliver(
        &self,
        request: &ExportTraceServiceRequest,
        stop: &CancellationToken,
    ) -> Result<(u64, String), Status> {
        let mut pauses = PAUSES.iter();
        loop {
            let answer = self.collector.export(request.clone()).await;
            let status = match answer {
                Ok(answer) => return Ok(rejected(answer)),
                Err(status) => status,
            };
            let pause = pauses.next().and_then(|&least| pause_after(&status, least)).filter(|_| !stop.is_cancelled());
            let Some(pause) = pause else { return Err(status) };
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.cancelled() => {}
            }
        }
    }
}

/// Fills a batch up.
async fn fill(spans: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>) {
    while batch.len() < MAX_IN_BATCH {
        let room = MAX_IN_BATCH - batch.len();
        if spans.recv_many(batch, room).await == 0 {
            return;
        }
    }
}

fn rejected(answer: ExportTraceServiceResponse) -> (u64, String) {
    let partial = answer.partial_success.unwrap_or_default();
    (u64::try_from(partial.rejected_spans).unwrap_or(0), partial.error_message)
}

/// The beginning of a collector's message, which may be megabytes long.
fn shortened(reason: &str) -> &str {
    let end = reason.char_indices().nth(MAX_REASON).map_or(reason.len(), |(at, _)| at);
    &reason[..end]
}

/// How long to wait before a batch is sent again; `None` if it must not be. Retries are allowed after the codes of
/// OTLP's list, and for a collector without room if it says how long that will last.
fn pause_after(status: &Status, least: Duration) -> Option<Duration> {
    let asked = status.get_details_retry_info().and_then(|info| info.retry_delay);
    let passes = match status.code() {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss => true,
        Code::ResourceExhausted => asked.is_some(),
        _ => false,
    };
    passes.then(|| asked.unwrap_or_default().clamp(least, MAX_PAUSE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic_types::ErrorDetails;

    #[test]
    fn a_batch_is_sent_again_when_the_collector_may_take_it_then() {
        let least = Duration::from_secs(1);
        let plain = |code| pause_after(&Status::new(code, ""), least);
        assert_eq!(plain(Code::Unavailable), Some(least));
        assert_eq!(plain(Code::InvalidArgument), None);
        assert_eq!(plain(Code::ResourceExhausted), None, "without a time it will not pass");

        let says = |code, seconds| {
            let details = ErrorDetails::with_retry_info(Some(Duration::from_secs(seconds)));
            pause_after(&Status::with_error_details(code, "", details), least)
        };
        assert_eq!(says(Code::ResourceExhausted, 3), Some(Duration::from_secs(3)));
        assert_eq!(says(Code::Unavailable, 0), Some(least));
        assert_eq!(says(Code::Unavailable, 3600), Some(MAX_PAUSE), "spans would pile up");
        assert_eq!(says(Code::Unauthenticated, 3), None);
    }
}
