//! A rank above 0, from the view of its process.

use super::*;
use croupier::proto::attach_request::Request;
use croupier::proto::attach_response::Response;
use croupier::proto::sampler_client::SamplerClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// The rank's end of an `Attach` call.
pub struct Rank {
    pub number: usize,
    pub columns: Vec<u32>,
    requests: mpsc::Sender<AttachRequest>,
    replies: Streaming<AttachResponse>,
    /// The region of rank 0, mapped by this rank too.
    pub region: Option<(SideClient, Leased)>,
}

/// The message with which a rank introduces itself.
pub fn about(token: &[u8], columns: &[u32], number: usize) -> AttachRank {
    let columns = range(columns, number);
    AttachRank {
        token: token.to_vec(),
        rank: number as u32,
        vocab_start_index: columns.start as u32,
        vocab_end_index: columns.end as u32,
        logits_dtype: LogitsDtype::F32.into(),
    }
}

impl Rank {
    /// A call on which nothing was sent yet.
    pub async fn open(server: &TestServer, columns: &[u32], number: usize) -> Result<Self, Status> {
        let (requests, receiver) = mpsc::channel(256);
        let mut client = SamplerClient::new(server.channel().await);
        let replies = client.attach(ReceiverStream::new(receiver)).await?.into_inner();
        Ok(Self { number, columns: columns.to_vec(), requests, replies, region: None })
    }

    pub async fn attached(server: &TestServer, token: &[u8], columns: &[u32], number: usize) -> Self {
        Self::try_attach(server, about(token, columns, number), columns).await.unwrap().0
    }

    pub async fn try_attach(
        server: &TestServer,
        about: AttachRank,
        columns: &[u32],
    ) -> Result<(Self, RankReady), Status> {
        let mut rank = Self::open(server, columns, about.rank as usize).await?;
        rank.send(Request::Rank(about)).await;
        match rank.reply().await? {
            Some(Response::Ready(ready)) => Ok((rank, ready)),
            other => panic!("expected ready, got {other:?}"),
        }
    }

    /// Maps a region of rank 0.
    pub fn map(&mut self, offer: &RegionOffer, region: &RegionLease) {
        let (region_id, generation) = (region.region_id, region.generation);
        self.region = Some(blocking(|| {
            let mut side = SideClient::connect(Path::new(&offer.socket_path), &offer.token).unwrap();
            let leased = side.attach(region_id, generation).unwrap();
            (side, leased)
        }));
    }

    pub async fn send(&mut self, request: Request) {
        self.requests.send(AttachRequest { request: Some(request) }).await.unwrap();
    }

    /// Ends the requests.
    pub fn half_close(&mut self) {
        self.requests = mpsc::channel(1).0;
    }

    pub async fn send_empty(&mut self) {
        self.requests.send(AttachRequest { request: None }).await.unwrap();
    }

    /// Announces the rank's columns of some rows, in the message.
    pub async fn announce(&mut self, step_id: u64, rows: &[Vec<f32>]) {
        let columns = inline_columns(rows, range(&self.columns, self.number));
        self.announce_columns(step_id, vocab_shard::Columns::Inline(columns)).await;
    }

    pub async fn announce_columns(&mut self, step_id: u64, columns: vocab_shard::Columns) {
        self.send(Request::Shard(VocabShard { step_id, columns: Some(columns) })).await;
    }

    /// The next message; `None` at the end of the call.
    pub async fn reply(&mut self) -> Result<Option<Response>, Status> {
        let reply = tokio::time::timeout(Duration::from_secs(10), self.replies.message()).await;
        Ok(reply.expect("an answer in time")?.map(|reply| reply.response.expect("a response")))
    }

    /// The next shard that is finished: its step, and whether that step had all of its shards.
    pub async fn done(&mut self) -> (u64, bool) {
        match self.reply().await.unwrap() {
            Some(Response::Shard(ShardResult { step_id, joined, refusal: None })) => (step_id, joined),
            other => panic!("expected the result of a shard, got {other:?}"),
        }
    }

    /// The status with which the call ends.
    pub async fn failed(&mut self) -> Status {
        loop {
            match self.reply().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the call ended with OK"),
                Err(status) => return status,
            }
        }
    }

    /// Whether no message arrives for a while.
    pub async fn is_silent(&mut self) -> bool {
        tokio::time::timeout(Duration::from_millis(100), self.replies.message()).await.is_err()
    }
}
