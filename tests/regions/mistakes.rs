//! Steps with wrong references to regions: each gets its status and field, and loses nothing but the stream.

use super::*;
use tonic::Code;

/// Sends a step with a wrong reference after a good step, which is answered first.
async fn failing(server: &TestServer, change: impl Fn(RegionLogits) -> RegionLogits) -> (Code, String, String) {
    let (mut worker, _side, mut region) = leased(server, config()).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    let expected = inline_tokens(server, 5, 1).await[0];
    region.window.write(0, &bytes(&logits(5, 0)));
    let good = Step { work: vec![sample_work(1)], logits: at(place(&region, 0, 1)), ..Default::default() };
    worker.send_step(good.clone()).await;
    let wrong = at(change(place(&region, 0, 1)));
    worker.send_step(Step { logits: wrong, ..good }).await;
    assert_eq!(token(&worker.step_reply().await.unwrap().work[0]), expected);
    let status = worker.step_reply().await.unwrap_err();
    let (field, reason) = violation(&status);
    (status.code(), field, reason)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_reference_ends_the_stream_and_names_the_field() {
    let server = server().await;
    let row = u64::from(VOCAB) * 4;
    let wrong: &[(&str, &dyn Fn(RegionLogits) -> RegionLogits)] = &[
        ("offset", &|p| RegionLogits { offset: 1, ..p }),
        ("offset", &|p| RegionLogits { offset: 2, ..p }),
        ("offset", &|p| RegionLogits { offset: REGION - row + 4, ..p }),
        ("offset", &|p| RegionLogits { offset: REGION, ..p }),
        ("offset", &|p| RegionLogits { offset: REGION + 4, rows: 0, ..p }),
        // At the limits of 64 bits, signed and unsigned.
        ("offset", &|p| RegionLogits { offset: u64::MAX - 3, ..p }),
        ("offset", &|p| RegionLogits { offset: u64::MAX - row + 1, ..p }),
        ("offset", &|p| RegionLogits { offset: i64::MAX as u64 - 3, ..p }),
        ("offset", &|p| RegionLogits { offset: 1 << 63, ..p }),
        ("rows", &|p| RegionLogits { rows: (REGION / row) as u32 + 1, ..p }),
        ("rows", &|p| RegionLogits { rows: u32::MAX, ..p }),
        ("rows", &|p| RegionLogits { rows: u32::MAX, row_stride: u32::MAX, ..p }),
        ("rows", &|p| RegionLogits { rows: 2, row_stride: u32::MAX, ..p }),
        ("rows", &|p| RegionLogits { rows: 2, row_stride: (REGION / 4) as u32 - VOCAB + 1, ..p }),
        ("row_stride", &|p| RegionLogits { row_stride: VOCAB - 1, ..p }),
        ("row_stride", &|p| RegionLogits { row_stride: 1, ..p }),
    ];
    for (field, change) in wrong {
        let expected = (Code::InvalidArgument, format!("step.region.{field}"), "INVALID_FIELD".to_owned());
        assert_eq!(failing(&server, change).await, expected, "{:?}", change(RegionLogits::default()));
    }
    let unknown = (Code::NotFound, "step.region.region_id".to_owned(), "UNKNOWN_REGION".to_owned());
    for id in [0, 2, u64::MAX] {
        assert_eq!(failing(&server, |p| RegionLogits { region_id: id, ..p }).await, unknown);
    }
    let stale = (Code::FailedPrecondition, "step.region.generation".to_owned(), "STALE_REGION".to_owned());
    for change in [|generation: u64| generation - 1, |generation| generation + 1, |_| 0, |_| u64::MAX] {
        let changed = failing(&server, |p| RegionLogits { generation: change(p.generation), ..p }).await;
        assert_eq!(changed, stale);
    }
    // Every stream has ended, and its regions and sequences with it.
    server.expect_series("croupier_regions", 0.0).await;
    server.expect_series("croupier_region_bytes", 0.0).await;
    server.expect_sequences(0).await;
    assert_eq!(server.series("croupier_rejected_total{reason=\"unknown_region\"}"), 3.0);
    assert_eq!(server.series("croupier_rejected_total{reason=\"stale_region\"}"), 4.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_rows_of_a_region_are_good() {
    let server = server().await;
    let (mut worker, _side, mut region) = leased(&server, config()).await;
    worker.step(open_step(vec![open(1, seeded(5)), open(2, seeded(5))])).await;
    let expected = inline_tokens(&server, 5, 2).await;
    let row = u64::from(VOCAB) * 4;
    region.window.write((REGION - row) as usize, &bytes(&logits(5, 0)));
    let last = Step { work: vec![sample_work(1)], logits: at(place(&region, REGION - row, 1)), ..Default::default() };
    assert_eq!(token(&worker.step(last).await.work[0]), expected[0]);
    // The last row may end after `vocab_size` values, however far apart rows are.
    let stride = (REGION / 4) as u32 - VOCAB;
    let work = vec![Work { first_row: Some(1), ..sample_work(2) }];
    let logits = at(RegionLogits { row_stride: stride, ..place(&region, 0, 2) });
    assert_eq!(token(&worker.step(Step { work, logits, ..Default::default() }).await.work[0]), expected[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn regions_of_other_streams_are_out_of_reach() {
    let server = server().await;
    let (mut mine, _side, _region) = leased(&server, config()).await;
    let (mut theirs, _other, mut region) = leased(&server, config()).await;
    theirs.step(open_step(vec![open(1, seeded(5))])).await;
    // The same id with the generation of another stream's region.
    let step = Step { work: vec![sample_work(1)], logits: at(place(&region, 0, 1)), ..Default::default() };
    let status = mine.failing_step(step).await;
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::FailedPrecondition, "step.region.generation"));
    let expected = inline_tokens(&server, 5, 1).await[0];
    assert_eq!(region_token(&mut theirs, &mut region, &logits(5, 0)).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_asking_there_are_no_regions() {
    let server = server().await;
    let step = |region| Step { work: vec![sample_work(1)], logits: at(region), ..Default::default() };
    let mut worker = server.worker().await;
    let status = worker.failing_step(step(RegionLogits { region_id: 1, ..Default::default() })).await;
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::NotFound, "step.region.region_id"));
    // A server without the side socket says so to any client.
    let tcp = TestServer::start().await;
    let mut worker = tcp.stream().await.unwrap();
    worker
        .send(croupier::proto::decode_request::Request::Config(StreamConfig { wants_regions: true, ..config() }))
        .await;
    let ready = worker.ready().await;
    assert!(ready.region_offer.is_none());
    assert_eq!(ready.limits.unwrap().max_regions_per_stream, 0);
    let status = worker.failing_step(step(RegionLogits::default())).await;
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::Unimplemented, "step.region"));
    let info = tcp.client().await.get_server_info(GetServerInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.data_paths, ["inline", "vocab_shards"]);
}

/// A request with a field that this server does not know must not be answered as if it were carried out.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_field_of_a_request_is_told_of() {
    use prost::Message;
    use std::io::{Read, Write};

    let server = server().await;
    let known = |request| RegionRequest { request: Some(request) }.encode_to_vec();
    let with = |request: region_request::Request, inner: &[u8]| {
        // The request is one field, whose length byte grows.
        let mut bytes = known(request);
        bytes[1] += inner.len() as u8;
        [bytes, inner.to_vec()].concat()
    };
    let lease = || region_request::Request::Lease(LeaseRegion { bytes: 4096, device: None });
    let cases = [
        (with(lease(), b"\x82\x09\x02\x08\x01"), Code::Unimplemented, "UNIMPLEMENTED_FIELD", "lease.144"),
        ([known(lease()), b"\x82\x09\x00".to_vec()].concat(), Code::Unimplemented, "UNIMPLEMENTED_FIELD", "144"),
        (vec![0x0b], Code::InvalidArgument, "MALFORMED_MESSAGE", ""),
    ];
    for (request, code, reason, field) in cases {
        let mut worker = server.stream().await.unwrap();
        worker.send(decode_request::Request::Config(StreamConfig { wants_regions: true, ..config() })).await;
        let ready = worker.ready().await;
        let offer = ready.region_offer.expect("it has regions");
        let told = blocking(|| {
            let mut socket = std::os::unix::net::UnixStream::connect(&offer.socket_path).expect("it listens");
            let hello = known(region_request::Request::Hello(RegionHello { token: offer.token.clone() }));
            let mut told = RegionReply::default();
            for request in [&hello, &request] {
                socket
                    .write_all(&(request.len() as u32).to_le_bytes())
                    .and_then(|()| socket.write_all(request))
                    .unwrap();
                let mut length = [0; 4];
                socket.read_exact(&mut length).unwrap();
                let mut reply = vec![0; u32::from_le_bytes(length) as usize];
                socket.read_exact(&mut reply).unwrap();
                told = RegionReply::decode(&*reply).unwrap();
            }
            told.reply
        });
        let Some(region_reply::Reply::Error(told)) = told else { panic!("{told:?} to {request:?}") };
        assert_eq!((told.code, &*told.reason, &*told.field), (i32::from(code), reason, field), "{}", told.message);
    }
    server.expect_series("croupier_regions", 0.0).await;
}
