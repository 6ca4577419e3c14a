//! The side socket: tokens, sizes, limits, and messages that make no sense.

use super::*;
use croupier::proto::region_reply::Reply;
use croupier::proto::region_request::Request;
use std::io::{Read, Write};
use std::time::Duration;
use tonic::Code;

const GRANTED: &str = "croupier_region_leases_total{result=\"granted\"}";
const INVALID: &str = "croupier_region_leases_total{result=\"invalid\"}";

#[tokio::test(flavor = "multi_thread")]
async fn regions_are_leased_released_and_leased_again() {
    let server = server().await;
    let (mut worker, mut side, one) = leased(&server, config()).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    assert_eq!((one.lease.region_id, one.lease.bytes), (1, REGION));
    let two = blocking(|| side.lease(1).unwrap());
    assert_eq!((two.lease.region_id, two.lease.bytes), (2, 4096));
    assert_eq!(
        (server.series("croupier_regions"), server.series("croupier_region_bytes")),
        (2.0, (REGION + 4096) as f64)
    );
    blocking(|| side.release(&one.lease).unwrap());
    let error = refused(blocking(|| side.release(&one.lease)));
    assert_eq!((error.code, error.field.as_str()), (Code::NotFound as i32, "release.region_id"));
    let mut again = blocking(|| side.lease(REGION).unwrap());
    assert_eq!(again.lease.region_id, 1);
    assert!(again.lease.generation > one.lease.generation);
    let error = refused(blocking(|| side.release(&one.lease)));
    assert_eq!((error.code, error.field.as_str()), (Code::FailedPrecondition as i32, "release.generation"));
    assert_eq!(error.reason, "STALE_REGION");
    let expected = inline_tokens(&server, 5, 1).await[0];
    assert_eq!(region_token(&mut worker, &mut again, &logits(5, 0)).await, expected);
    assert_eq!(server.series(GRANTED), 3.0);
    // A released region belongs to nobody: what is written to it has no effect.
    let step = Step { work: vec![sample_work(1)], logits: at(place(&one, 0, 1)), ..Default::default() };
    assert_eq!(worker.failing_step(step).await.code(), Code::FailedPrecondition);
}

#[tokio::test(flavor = "multi_thread")]
async fn sizes_and_numbers_are_bounded() {
    let server = server_with(Box::new(CpuBackend::new(1)), |limits| {
        limits.max_regions_per_stream = 3;
        limits.max_region_bytes = 2 << 20;
    })
    .await;
    let (_worker, mut side, one) = leased(&server, config()).await;
    for size in [0, (1 << 20) + 1, 1 << 63, u64::MAX] {
        let error = refused(blocking(|| side.lease(size)));
        assert_eq!((error.code, error.field.as_str()), (Code::InvalidArgument as i32, "lease.bytes"), "{size}");
        assert!(error.message.contains("max_bytes_per_region"), "{}", error.message);
    }
    // Another stream takes the rest.
    let (_other, mut other_side, _small) = leased(&server, config()).await;
    let _large = blocking(|| other_side.lease(1 << 20).unwrap());
    let error = refused(blocking(|| side.lease(1 << 20)));
    assert_eq!((error.code, error.reason.as_str()), (Code::ResourceExhausted as i32, "REGION_BYTES"));
    assert!(error.message.contains("max_region_bytes"), "{}", error.message);
    let _rest = blocking(|| (side.lease(4096).unwrap(), side.lease(4096).unwrap()));
    let error = refused(blocking(|| side.lease(4096)));
    assert_eq!((error.code, error.reason.as_str()), (Code::ResourceExhausted as i32, "TOO_MANY_REGIONS"));
    // Room becomes free when a region is released.
    blocking(|| side.release(&one.lease).unwrap());
    drop((_other, other_side));
    server.expect_series("croupier_regions", 2.0).await;
    blocking(|| side.lease(1 << 20).unwrap());
    let refusals = |reason: &str| server.series(&format!("croupier_region_leases_total{{result=\"{reason}\"}}"));
    assert_eq!([refusals("invalid"), refusals("region_bytes"), refusals("too_many_regions")], [4.0, 1.0, 1.0]);
    assert!(server.series("croupier_region_capacity_bytes") == f64::from(2 << 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_streams_own_token_opens_the_door_and_only_once() {
    let server = server().await;
    let (worker, offer) = server.region_worker(config()).await;
    let path = Path::new(&offer.socket_path);
    assert_eq!((offer.token.len(), offer.expires_in_ms), (32, 30_000));
    for wrong in [vec![], vec![0; 31], vec![0; 32], vec![0; 33], offer.token[..31].to_vec(), vec![7; 900]] {
        let error = refused(blocking(|| SideClient::connect(path, &wrong)));
        assert_eq!((error.code, error.field.as_str()), (Code::PermissionDenied as i32, "hello.token"));
        assert!(!error.message.contains("croupier-region"), "nothing is told that could be used");
    }
    let side = blocking(|| SideClient::connect(path, &offer.token).unwrap());
    let again = refused(blocking(|| SideClient::connect(path, &offer.token)));
    assert_eq!(again.reason, "UNKNOWN_TOKEN");
    assert_eq!(server.series(INVALID), 7.0);
    // The token of a stream that has ended is invalid.
    let (other, offer) = server.region_worker(config()).await;
    drop((worker, side, other));
    server.expect_series("croupier_streams", 0.0).await;
    assert_eq!(refused(blocking(|| SideClient::connect(path, &offer.token))).reason, "UNKNOWN_TOKEN");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_out_of_turn_and_out_of_shape_have_answers() {
    let server = server().await;
    let (_worker, offer) = server.region_worker(config()).await;
    let path = Path::new(&offer.socket_path);
    blocking(|| {
        // Nothing is accepted before the token.
        let early = SideClient::open(path).unwrap().ask(Request::Lease(LeaseRegion { bytes: 4096, device: None }));
        assert!(matches!(early, Ok((Reply::Error(RegionError { ref field, .. }), _)) if field == "hello"), "{early:?}");
        let mut side = SideClient::connect(path, &offer.token).unwrap();
        let twice = side.ask(Request::Hello(RegionHello { token: offer.token.clone() }));
        assert!(matches!(twice, Ok((Reply::Error(RegionError { ref field, .. }), _)) if field == "hello"), "{twice:?}");
        // An empty message, and one of a kind from the future.
        for (message, at, reason) in
            [(&[0, 0, 0, 0][..], "request", "INVALID_FIELD"), (&[3, 0, 0, 0, 0x7a, 1, 0], "15", "UNIMPLEMENTED_FIELD")]
        {
            side.socket().write_all(message).unwrap();
            let (reply, _) = side.reply().unwrap();
            let Reply::Error(told) = reply else { panic!("{reply:?}") };
            assert_eq!((&*told.field, &*told.reason), (at, reason), "{}", told.message);
        }
        side.lease(4096).unwrap();
        // An unreadable message ends the connection, and its leases with it.
        side.socket().write_all(&[2, 0, 0, 0, 0xff, 0xff]).unwrap();
        let (reply, _) = side.reply().unwrap();
        let error = |reason: &str| matches!(&reply, Reply::Error(error) if error.reason == reason);
        assert!(error("MALFORMED_MESSAGE"), "{reply:?}");
        assert_eq!(side.socket().read(&mut [0]).unwrap(), 0);
    });
    server.expect_series("croupier_regions", 0.0).await;
    // Half of a message that is longer than a token: the rest has to come in time too.
    blocking(|| {
        let side = SideClient::open(path).unwrap();
        side.socket().set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        side.socket().write_all(&[&1000u32.to_le_bytes()[..], &[0; 100]].concat()).unwrap();
        assert_eq!(side.socket().read(&mut [0]).unwrap(), 0, "the server ends it");
    });
    for len in [1025, u32::MAX] {
        let (_worker, offer) = server.region_worker(config()).await;
        blocking(|| {
            let mut side = SideClient::connect(path, &offer.token).unwrap();
            side.socket().write_all(&len.to_le_bytes()).unwrap();
            let (reply, _) = side.reply().unwrap();
            assert!(matches!(&reply, Reply::Error(error) if error.reason == "MALFORMED_MESSAGE"), "{reply:?}");
            assert_eq!(side.socket().read(&mut [0]).unwrap(), 0);
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_is_closed() {
    let server = server().await;
    let (_worker, offer) = server.region_worker(config()).await;
    for begun in [&[][..], &[36, 0, 0, 0, 10]] {
        blocking(|| {
            let side = SideClient::open(Path::new(&offer.socket_path)).unwrap();
            side.socket().write_all(begun).unwrap();
            side.socket().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            assert_eq!(side.socket().read(&mut [0]).unwrap(), 0, "it is closed, not waited for");
        });
    }
    assert_eq!(server.series("croupier_rejected_total{reason=\"first_byte_timeout\"}"), 2.0);
    // The token is still valid.
    blocking(|| SideClient::connect(Path::new(&offer.socket_path), &offer.token).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connection_ends_with_its_stream() {
    let server = server().await;
    let (worker, side, _region) = leased(&server, config()).await;
    assert_eq!(server.series("croupier_connections{transport=\"region\"}"), 1.0);
    drop(worker);
    blocking(|| assert_eq!(side.socket().read(&mut [0]).unwrap(), 0));
    server.expect_series("croupier_regions", 0.0).await;
    server.expect_series("croupier_connections{transport=\"region\"}", 0.0).await;
}
