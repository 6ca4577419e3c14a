//! The side socket, where a worker shows its stream's token and receives the memory of regions.
//!
//! gRPC cannot carry descriptors. A message here is its length in four bytes, little endian, and a `RegionRequest` or
//! `RegionReply`; the descriptor of a region travels beside the reply that leases it. The connection is the lease: when
//! the connection ends, for whatever reason, the stream's regions end with it.

use super::connections::connection::Connection;
use super::connections::listener::{Guard, incoming};
use super::connections::uds::UdsListener;
use super::refusals::{self, NotLeased, not_found, not_leased, refusal, unreadable};
use crate::complaints::Complaints;
use crate::error::Reason;
use crate::limits::Limits;
use crate::message::codec::Looked;
use crate::metrics::{Lease, Metrics};
use crate::proto::region_reply::Reply;
use crate::proto::region_request::Request;
use crate::proto::{self, RegionReply, RegionRequest};
use crate::region::{LeaseError, Loan, Region, Regions, Role, StreamRegions, Token, pass};
use prost::Message;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::Code;

/// Longest request. Every meaningful request is shorter than a tenth of it.
const MAX_REQUEST_BYTES: usize = 1024;
/// The message with a token, including its length. A new connection must send it before long.
pub const OPENING_BYTES: usize = 4 + 2 + 2 + Token::BYTES;

/// The stream whose regions a connection is about, and what the connection may do with them.
type Admitted = (Arc<StreamRegions>, Role);

/// The answer to a request.
struct Answer {
    reply: Reply,
    /// The region whose descriptor travels beside the reply.
    region: Option<Arc<Region>>,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Self { reply, region: None }
    }
}

/// What every connection needs.
#[derive(Debug, Clone)]
struct Side {
    regions: Arc<Regions>,
    /// How long a connection has to show its token.
    opening: Duration,
    metrics: Metrics,
    /// Limits log lines about leases that find no room or are asked for wrongly, because a worker may ask in a loop.
    refusals: Arc<Complaints>,
}

/// Hands out regions on `listener` until the guard stops it. Ends when the last connection has ended.
pub async fn serve(listener: UdsListener, guard: Guard, regions: Arc<Regions>, metrics: Metrics) {
    let side = Side { regions, opening: guard.timeout(), metrics, refusals: Arc::default() };
    let (mut connections, closed) = incoming(listener, guard);
    let mut open = JoinSet::new();
    while let Some(Ok(connection)) = connections.next().await {
        open.spawn(side.clone().connection(connection));
        while open.try_join_next().is_some() {}
    }
    drop(connections);
    while open.join_next().await.is_some() {}
    let _ = closed.await;
}

/// The connection of a stream's owner. When it ends, for whatever reason, the stream's regions end.
struct OwnerGuard(Option<Arc<StreamRegions>>);

impl OwnerGuard {
    fn of(stream: &Arc<StreamRegions>, role: &Role) -> Self {
        Self(matches!(role, Role::Owner).then(|| Arc::clone(stream)))
    }
}

impl Drop for OwnerGuard {
    fn drop(&mut self) {
        self.0.iter().for_each(|stream| stream.end());
    }
}

impl Side {
    /// The life of one connection.
    async fn connection(self, mut connection: Connection<UnixStream>) {
        // The guard counts only as many bytes as a token needs, so a longer message that never ends would wait for ever
        // without this timeout.
        let (stream, role) = match timeout(self.opening, self.greeting(&mut connection)).await {
            Ok(Ok(Some(admitted))) => admitted,
            Ok(Ok(None)) => return,
            Ok(Err(error)) => return tracing::debug!(%error, "a region connection ended before it sent its token"),
            Err(_) => return self.metrics.refused(Reason::FirstByteTimeout),
        };
        let owner_guard = OwnerGuard::of(&stream, &role);
        let ended = tokio::select! {
            () = stream.ended() => Ok(()),
            () = has_left(&role) => Ok(()),
            ended = self.requests(&mut connection, &stream, &role) => ended,
        };
        drop(owner_guard);
        if let Err(error) = ended {
            tracing::debug!(%error, "a region connection ended");
        }
    }

    /// The stream that the connection has shown the token of; `None` if it has shown none. It has been told so then.
    async fn greeting(&self, connection: &mut Connection<UnixStream>) -> io::Result<Option<Admitted>> {
        let Some(request) = read(connection).await? else { return Ok(None) };
        let stream = match request.map(|request| request.request) {
            Ok(Some(Request::Hello(hello))) => {
                let found = Token::read(&hello.token).and_then(|token| self.regions.admit(&token, Instant::now()));
                found.ok_or_else(refusals::unknown_token)
            }
            Ok(_) => Err(refusals::invalid("hello", "must come first")),
            Err(malformed) => Err(malformed),
        };
        let (reply, stream) = match stream {
            Ok(stream) => (Reply::Welcome(proto::RegionWelcome {}), Some(stream)),
            Err(refusal) => {
                self.metrics.lease(Lease::Invalid);
                (Reply::Error(refusal), None)
            }
        };
        write(connection, reply, None).await?;
        Ok(stream)
    }

    /// Answers requests until there are no more, or one makes no sense.
    async fn requests(
        &self,
        connection: &mut Connection<UnixStream>,
        stream: &Arc<StreamRegions>,
        role: &Role,
    ) -> io::Result<()> {
        while let Some(request) = read(connection).await? {
            let request = match request.map(|request| request.request) {
                Ok(Some(request)) => request,
                Ok(None) => {
                    let message = "is not set, or is of a kind that this server does not know";
                    self.metrics.lease(Lease::Invalid);
                    write(connection, Reply::Error(refusals::invalid("request", message)), None).await?;
                    continue;
                }
                Err(told) => {
                    self.metrics.lease(Lease::Invalid);
                    // A client newer than the server gets an error, and keeps its lease. One that sends nonsense may
                    // send anything, so its connection ends.
                    let goes_on = told.code == i32::from(Code::Unimplemented);
                    write(connection, Reply::Error(told), None).await?;
                    if goes_on {
                        continue;
                    }
                    return Ok(());
                }
            };
            let answer = self.answer(request, stream, role).await;
            write(connection, answer.reply, answer.region.as_deref()).await?;
        }
        Ok(())
    }

    async fn answer(&self, request: Request, stream: &Arc<StreamRegions>, role: &Role) -> Answer {
        match (request, role) {
            (Request::Lease(lease), Role::Owner) => {
                self.made("lease", stream, move |regions, stream| match lease.device {
                    None => regions.lease(stream, lease.bytes),
                    Some(device) => regions.lease_on_device(stream, &device.uuid, lease.bytes),
                })
                .await
            }
            (Request::Lend(lend), Role::Owner) => {
                self.made("lend", stream, move |regions, stream| {
                    let proto::LendRegion { uuid, ipc_handle, offset, bytes } = &lend;
                    regions.borrow(stream, &Loan { uuid, handle: ipc_handle, offset: *offset, bytes: *bytes })
                })
                .await
            }
            (request, role) => {
                let answer = self.without_making(request, stream, role).await;
                if matches!(answer.reply, Reply::Error(_)) {
                    self.metrics.lease(Lease::Invalid);
                }
                answer
            }
        }
    }

    /// Answers requests that make no region.
    async fn without_making(&self, request: Request, stream: &StreamRegions, role: &Role) -> Answer {
        let reply = match (request, role) {
            (Request::Hello(_), _) => Reply::Error(refusals::invalid("hello", "must come first, and only once")),
            (Request::Attach(attach), _) => match stream.get(attach.region_id, attach.generation) {
                Ok(region) if region.is_lent() => Reply::Error(refusals::lent()),
                Ok(region) => return self.leased(region),
                Err(error) => Reply::Error(not_found(error, "attach")),
            },
            (Request::Release(release), Role::Owner) => released(stream, release).await,
            (Request::Release(_) | Request::Lease(_) | Request::Lend(_), _) => Reply::Error(refusals::not_owner()),
        };
        reply.into()
    }

    /// Makes a region. Clearing its memory takes too long for a thread that serves others.
    async fn made(
        &self,
        request: &str,
        stream: &Arc<StreamRegions>,
        make: impl FnOnce(&Regions, &StreamRegions) -> Result<Arc<Region>, LeaseError> + Send + 'static,
    ) -> Answer {
        let (regions, stream) = (Arc::clone(&self.regions), Arc::clone(stream));
        let made = tokio::task::spawn_blocking(move || make(&regions, &stream)).await;
        match made.unwrap_or_else(|failed| Err(LeaseError::System(io::Error::other(failed)))) {
            Ok(region) => {
                self.metrics.lease(Lease::Granted);
                self.leased(region)
            }
            Err(error) => {
                let NotLeased { error: told, counted } = not_leased(request, &error);
                if let Some(more) = self.refusals.next(Instant::now()) {
                    tracing::info!(field = told.field, error = told.message, more, "a region was not leased");
                }
                self.metrics.lease(counted);
                Reply::Error(told).into()
            }
        }
    }

    fn leased(&self, region: Arc<Region>) -> Answer {
        let granularity = if region.is_lent() { 0 } else { self.regions.granularity_of(&region) };
        let reply = Reply::Leased(proto::RegionLease {
            region_id: region.id(),
            generation: region.generation(),
            bytes: region.len() as u64,
            device_uuid: region.device().unwrap_or_default().to_owned(),
            granularity: granularity as u64,
        });
        Answer { reply, region: Some(region) }
    }
}

/// Ends a lease. If the region is a buffer that the worker lent, waits until it is closed.
async fn released(stream: &StreamRegions, release: proto::ReleaseRegion) -> Reply {
    let proto::ReleaseRegion { region_id, generation } = release;
    match stream.release(region_id, generation) {
        Ok(gone) => {
            if let Some(gone) = gone {
                gone.cancelled().await;
            }
            Reply::Released(proto::RegionReleased { region_id, generation })
        }
        Err(error) => Reply::Error(not_found(error, "release")),
    }
}

/// Resolves when a guest has to leave.
async fn has_left(role: &Role) {
    match role {
        Role::Owner => std::future::pending().await,
        Role::Guest(over) => over.cancelled().await,
    }
}

/// The next request, or what is wrong with it; `None` at the end. The kernel closes descriptors that come along,
/// because this offers no room for them.
async fn read(
    connection: &mut Connection<UnixStream>,
) -> io::Result<Option<Result<RegionRequest, proto::RegionError>>> {
    let mut len = [0; 4];
    match connection.read_exact(&mut len).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    };
    let len = u32::from_le_bytes(len) as usize;
    if len > MAX_REQUEST_BYTES {
        let message = format!("the message has {len} bytes, at most {MAX_REQUEST_BYTES} are allowed");
        return Ok(Some(Err(refusal(Code::InvalidArgument, Reason::MalformedMessage.name(), "", &message))));
    }
    let mut bytes = vec![0; len];
    connection.read_exact(&mut bytes).await?;
    let request = RegionRequest::read(bytes.into(), &Limits::default());
    Ok(Some(request.map(|(request, _)| request).map_err(|error| unreadable(&error))))
}

/// Sends a reply, with the region's descriptor beside its first byte.
async fn write(connection: &mut Connection<UnixStream>, reply: Reply, region: Option<&Region>) -> io::Result<()> {
    let reply = RegionReply { reply: Some(reply) }.encode_to_vec();
    let mut bytes = Vec::with_capacity(4 + reply.len());
    bytes.extend_from_slice(&u32::try_from(reply.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(&reply);
    let mut sent = 0;
    if let Some(descriptor) = region.and_then(Region::descriptor) {
        let socket = connection.get_ref();
        let send = || pass::send(socket.as_fd(), &bytes, Some(descriptor));
        sent = socket.async_io(Interest::WRITABLE, send).await?;
    }
    connection.write_all(&bytes[sent..]).await
}
