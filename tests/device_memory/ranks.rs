//! Ranks of a tensor-parallel worker whose rows are in device memory.

use super::*;
use croupier::proto::attach_request::Request as OfRank;
use croupier::proto::attach_response::Response;
use croupier::proto::sampler_client::SamplerClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// The number of columns of rank 0. Rank 1 has the others.
const OWN: u32 = 20;

/// Rank 1 of the stream with this token: its end of the call, and the region that it may map.
async fn attached(
    server: &TestServer,
    token: Vec<u8>,
) -> (mpsc::Sender<AttachRequest>, Streaming<AttachResponse>, RegionOffer) {
    let (requests, receiver) = mpsc::channel(4);
    let mut client = SamplerClient::new(server.channel().await);
    let mut replies = client.attach(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    let logits_dtype = LogitsDtype::F32.into();
    let about = AttachRank { token, rank: 1, vocab_start_index: OWN, vocab_end_index: VOCAB, logits_dtype };
    requests.send(AttachRequest { request: Some(OfRank::Rank(about)) }).await.unwrap();
    let Some(Response::Ready(ready)) = replies.message().await.unwrap().unwrap().response else {
        panic!("the rank is not attached")
    };
    (requests, replies, ready.region_offer.expect("the stream has regions"))
}

/// Both see the same memory, by their own descriptors, and the token is that of the whole row.
#[tokio::test(flavor = "multi_thread")]
async fn a_rank_attaches_a_region_on_the_device_and_writes_its_columns() {
    let (server, device) = server().await;
    let expected = inline_tokens(&server, 5, 1).await;
    let mut worker = server.stream().await.unwrap();
    let vocab_shards = Some(VocabShards { columns: vec![OWN, VOCAB - OWN] });
    worker.send(decode_request::Request::Config(StreamConfig { wants_regions: true, vocab_shards, ..config() })).await;
    let ready = worker.ready().await;
    let (offer, shards) = (ready.region_offer.unwrap(), ready.shard_offer.unwrap());
    let mut side = blocking(|| SideClient::connect(Path::new(&offer.socket_path), &offer.token).unwrap());
    let mut own = asked(&mut side, on(UUID, REGION)).unwrap();
    let (requests, mut replies, offer) = attached(&server, shards.token).await;
    let mut theirs = blocking(|| {
        let mut side = SideClient::connect(Path::new(&offer.socket_path), &offer.token).unwrap();
        let leased = side.attach(own.lease.region_id, own.lease.generation).unwrap();
        (side, leased)
    });
    assert_eq!(theirs.1.lease, own.lease);
    assert_eq!((theirs.1.lease.device_uuid.as_str(), theirs.1.lease.granularity), (UUID, GRANULARITY as u64));
    assert_eq!((device.live(), server.series(DEVICE_BYTES)), (1, REGION as f64), "it is there once");

    let row = bytes(&logits(5, 0));
    let (first, rest) = row.split_at(OWN as usize * 4);
    own.window.write(0, first);
    theirs.1.window.write(first.len(), rest);
    let Some(step::Logits::Region(place)) = at(&own.lease, 0, 1) else { unreachable!() };
    let shard = VocabShard { step_id: 2, columns: Some(vocab_shard::Columns::Region(place)) };
    requests.send(AttachRequest { request: Some(OfRank::Shard(shard)) }).await.unwrap();
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    let logits = Some(step::Logits::Sharded(ShardedLogits { columns: Some(sharded_logits::Columns::Region(place)) }));
    let result = worker.step(Step { work: vec![sample_work(1)], logits, ..Default::default() }).await;
    assert_eq!(token(&result.work[0]), expected[0]);
    let told = replies.message().await.unwrap().unwrap().response;
    assert_eq!(told, Some(Response::Shard(ShardResult { step_id: 2, joined: true, refusal: None })));

    // The memory is freed with the stream, whoever has mapped it.
    drop(worker);
    server.expect_series(DEVICE_BYTES, 0.0).await;
    assert_eq!(device.live(), 0);
}
