//! Complete calls, each of whose messages goes through a spoiler.

use crate::mutations::call::{ANSWERED, Call, Went, documented};
use crate::mutations::side::Side;
use crate::mutations::spoil::Spoiler;
use crate::mutations::steps::{self, COLUMNS, Way};
use crate::mutations::told::Told;
use crate::raw::Raw;
use axum::http::uri::PathAndQuery;
use croupier::proto::decode_request::Request;
use croupier::proto::decode_response::Response;
use croupier::proto::*;
use prost::Message;
use tonic::transport::Channel;

const STEPS: u64 = 4;

/// A call of any kind. Sent messages are added to `sent`.
pub async fn any(channel: &Channel, spoiler: &mut Spoiler, told: &mut Told, sent: &mut Vec<Vec<u8>>) -> Went<()> {
    told.calls += 1;
    let way = match spoiler.draw.below(8) {
        0 => return sample(channel, spoiler, told, sent).await,
        1..=3 => Way::Inline,
        4 => Way::TopN,
        5 => Way::Sharded,
        _ => Way::Region(RegionLogits::default()),
    };
    let mut call = Call::open(channel, "/croupier.v1.Sampler/Decode").await;
    let went = decode(&mut call, channel, way, spoiler, told).await;
    sent.append(&mut call.sent);
    went?;
    ended(call.ended.is_some_and(|status| status.code() == tonic::Code::Ok), spoiler, told);
    Ok(())
}

fn ended(well: bool, spoiler: &Spoiler, told: &mut Told) {
    if spoiler.spoiled > 0 {
        told.spoiled += 1;
        told.unharmed += u32::from(well);
    }
}

async fn decode(call: &mut Call, channel: &Channel, way: Way, spoiler: &mut Spoiler, told: &mut Told) -> Went<()> {
    let config = steps::config(&mut spoiler.draw, &way);
    call.send(&DecodeRequest { request: Some(Request::Config(config)) }, spoiler).await;
    let ready = match call.answers(told).await? {
        Some(Response::Ready(ready)) => ready,
        _ => return call.end(told).await,
    };
    // Both end with this function, and so does what they hold.
    let mut side = None;
    let (mut rank, mut way) = (None, way);
    if let Some(offer) = ready.region_offer {
        let mut opened = Side::open(&offer.socket_path).await;
        if let Some(lease) = lease(&mut opened, offer.token, spoiler, told).await? {
            let RegionLease { region_id, generation, .. } = lease;
            way = Way::Region(RegionLogits { region_id, generation, ..Default::default() });
        }
        side = Some(opened);
    }
    if let Some(offer) = ready.shard_offer {
        rank = Some(attach(channel, offer.token, spoiler).await);
    }
    for step_id in 1..=STEPS {
        let step = steps::step(&mut spoiler.draw, step_id, &way);
        if let Some(rank) = &mut rank {
            shard(rank, &step, spoiler).await;
        }
        call.send(&steps::of(step), spoiler).await;
        if spoiler.draw.happens(0.7) && call.answers(told).await?.is_none() {
            break;
        }
        if let (Some(side), Way::Region(place)) = (&mut side, &way)
            && spoiler.draw.happens(0.3)
        {
            let ask = other(place, spoiler);
            side.ask(ask, spoiler, told).await?;
        }
    }
    call.end(told).await?;
    match rank {
        Some(rank) => end_rank(rank, told).await,
        None => Ok(()),
    }
}

/// Leases some memory, if there is any.
async fn lease(side: &mut Side, token: Vec<u8>, spoiler: &mut Spoiler, told: &mut Told) -> Went<Option<RegionLease>> {
    side.ask(region_request::Request::Hello(RegionHello { token }), spoiler, told).await?;
    let ask = region_request::Request::Lease(LeaseRegion { bytes: 16 << 10, device: None });
    match side.ask(ask, spoiler, told).await? {
        Some(region_reply::Reply::Leased(lease)) => Ok(Some(lease)),
        _ => Ok(None),
    }
}

/// Another request on the side socket.
fn other(place: &RegionLogits, spoiler: &mut Spoiler) -> region_request::Request {
    let RegionLogits { region_id, generation, .. } = *place;
    use region_request::Request::*;
    match spoiler.draw.below(4) {
        0 => Lease(LeaseRegion { bytes: 1 << 20, device: None }),
        1 => Release(ReleaseRegion { region_id, generation }),
        2 => Attach(AttachRegion { region_id, generation }),
        _ => Lend(LendRegion { uuid: String::new(), ipc_handle: vec![1; 64], offset: 0, bytes: 4096 }),
    }
}

async fn attach(channel: &Channel, token: Vec<u8>, spoiler: &mut Spoiler) -> Call {
    let mut call = Call::open(channel, "/croupier.v1.Sampler/Attach").await;
    let rank = AttachRank {
        token,
        rank: 1,
        vocab_start_index: COLUMNS[0],
        vocab_end_index: COLUMNS[0] + COLUMNS[1],
        logits_dtype: LogitsDtype::F32.into(),
    };
    call.send(&AttachRequest { request: Some(attach_request::Request::Rank(rank)) }, spoiler).await;
    call
}

/// Sends rank 1's columns of a step's rows.
async fn shard(rank: &mut Call, step: &Step, spoiler: &mut Spoiler) {
    let Some(step::Logits::Sharded(ShardedLogits { columns: Some(sharded_logits::Columns::Inline(own)) })) =
        &step.logits
    else {
        return;
    };
    let rows = own.data.len() as u32 / (4 * COLUMNS[0]);
    let inline = steps::inline(&mut spoiler.draw, rows, COLUMNS[1]);
    let shard = VocabShard { step_id: step.step_id, columns: Some(vocab_shard::Columns::Inline(inline)) };
    rank.send(&AttachRequest { request: Some(attach_request::Request::Shard(shard)) }, spoiler).await;
}

/// A rank's call ends with its stream. The number of answers that it got by then depends on timing.
async fn end_rank(mut rank: Call, told: &mut Told) -> Went<()> {
    rank.half_close();
    while let Some(bytes) = rank.next().await? {
        AttachResponse::decode(bytes).map_err(|error| error.to_string())?;
    }
    documented(&rank.ended.take().expect("it has ended"), told).map_err(|what| format!("of a rank: {what}"))
}

async fn sample(channel: &Channel, spoiler: &mut Spoiler, told: &mut Told, sent: &mut Vec<Vec<u8>>) -> Went<()> {
    let request = steps::sample(&mut spoiler.draw).encode_to_vec();
    for bytes in spoiler.pass(&request) {
        sent.push(bytes.clone());
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let path = PathAndQuery::from_static("/croupier.v1.Sampler/Sample");
        let call = grpc.unary(tonic::Request::new(bytes.clone().into()), path, Raw);
        match tokio::time::timeout(ANSWERED, call).await.map_err(|_| "no answer to Sample")? {
            Err(status) => {
                documented(&status, told)?;
                ended(false, spoiler, told);
            }
            Ok(response) => {
                let response = SampleResponse::decode(response.into_inner()).map_err(|error| error.to_string())?;
                let asked = SampleRequest::decode(bytes.as_slice()).map_err(|error| error.to_string())?.rows.len();
                if response.rows.len() != asked {
                    return Err(format!("{asked} rows have {} answers", response.rows.len()));
                }
                for row in &response.rows {
                    told.work(row.status());
                    if matches!(row.status(), RowStatus::Internal | RowStatus::Unspecified) {
                        return Err(format!("{row:?}"));
                    }
                }
                ended(true, spoiler, told);
            }
        }
    }
    Ok(())
}
