//! Errors that rank 0 and the other ranks may make: each gets its status and field, and harms nobody else.

use super::*;
use croupier::proto::attach_request::Request;
use croupier::proto::vocab_shard::Columns;
use tonic::{Code, Status};

const TWO: [u32; 2] = [20, 30];

/// Code, field and reason of a status.
fn said(status: &Status) -> (Code, String, String) {
    let (field, reason) = violation(status);
    (status.code(), field, reason)
}

fn invalid(field: &str) -> (Code, String, String) {
    (Code::InvalidArgument, field.to_owned(), "INVALID_FIELD".to_owned())
}

/// Checks that a group still samples the token that whole rows give, whatever happened before.
async fn still_deals(server: &TestServer, columns: &[u32]) {
    let (mut worker, mut ranks) = group(server, columns).await;
    worker.step(open_step(vec![open(1, seeded(9))])).await;
    for rank in &mut ranks {
        rank.announce(2, &[logits(9, 0)]).await;
    }
    let dealt = token(&worker.step(own_step(columns, 9, 0)).await.work[0]);
    assert_eq!(vec![dealt], inline_tokens(server, 9, 1).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_must_cover_the_vocabulary_once() {
    let server = server_with(|limits| limits.max_ranks_per_stream = 4).await;
    // None, a gap, an overlap, a rank without columns, more ranks than allowed, a sum above 32 bits.
    let wrong: [&[u32]; 7] = [&[], &[20, 29], &[20, 31], &[50, 0], &[0, 50], &[10; 5], &[u32::MAX, u32::MAX, 52]];
    for columns in wrong {
        let mut worker = server.stream().await.unwrap();
        worker.send(decode_request::Request::Config(sharded(columns))).await;
        assert_eq!(said(&worker.reply().await.unwrap_err()), invalid("config.vocab_shards.columns"), "{columns:?}");
    }
    still_deals(&server, &[20, 10, 10, 10]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_step_of_rank_0_ends_its_stream_and_names_the_field() {
    let server = server().await;
    let good = || own_step(&TWO, 5, 0);
    let inline = |inline| Step { logits: own_inline(inline), ..good() };
    let region = |region| Step { logits: own_region(region), ..good() };
    let data = |len: usize| InlineLogits { data: vec![0; len].into(), row_stride: 0 };
    let nothing = step::Logits::Sharded(ShardedLogits { columns: None });
    let unknown = (Code::NotFound, "step.sharded.region.region_id".to_owned(), "UNKNOWN_REGION".to_owned());
    let cases = [
        (Step { logits: Some(nothing), ..good() }, invalid("step.sharded.columns")),
        (inline(data(79)), invalid("step.sharded.inline.data")),
        (inline(data(84)), invalid("step.sharded.inline.data")),
        // For example from a worker that sends f32 on a stream with 16-bit logits, or the reverse: its tokens would be noise.
        (inline(data(160)), invalid("step.sharded.inline.data")),
        (inline(InlineLogits { row_stride: 19, ..data(80) }), invalid("step.sharded.inline.row_stride")),
        (region(RegionLogits { region_id: 1, ..Default::default() }), unknown),
        (Step { top_n: Some(TopNRows::default()), ..good() }, invalid("step.top_n")),
    ];
    for (step, expected) in cases {
        let (mut worker, mut ranks) = group(&server, &TWO).await;
        assert_eq!(said(&worker.failing_step(step).await), expected);
        assert!(ranks[0].reply().await.unwrap().is_none(), "the call ends with the stream");
    }
    // Steps must have increasing ids, from 1 on.
    for ids in [[0, 0], [5, 5], [5, 4]] {
        let (mut worker, mut ranks) = group(&server, &TWO).await;
        ranks[0].announce(5, &[logits(5, 0)]).await;
        for step_id in ids {
            // The stream may have ended with the first step.
            worker.try_send(decode_request::Request::Step(Step { step_id, ..good() })).await;
        }
        let status = match worker.step_reply().await {
            Ok(_) => worker.step_reply().await.unwrap_err(),
            Err(status) => status,
        };
        assert_eq!(said(&status), invalid("step.step_id"), "{ids:?}");
    }
    // Shards need a stream with columns for ranks.
    let mut worker = server.worker().await;
    assert_eq!(said(&worker.failing_step(good()).await), invalid("step.sharded"));
    still_deals(&server, &TWO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_says_something_else_than_rank_0_is_not_let_in() {
    let server = server().await;
    let (mut worker, ready) = rank_0(&server, StreamConfig { wants_regions: true, ..sharded(&[20, 20, 10]) }).await;
    let (token, columns) = (token_of(&ready), [20, 20, 10]);
    let about = |change: &dyn Fn(&mut AttachRank)| {
        let mut about = rank::about(&token, &columns, 1);
        change(&mut about);
        about
    };
    let f16 = LogitsDtype::F16.into();
    let cases = [
        (about(&|a| a.rank = 0), "rank"),
        (about(&|a| a.rank = 3), "rank"),
        (about(&|a| a.rank = u32::MAX), "rank"),
        (about(&|a| a.rank = 2), "vocab_start_index"),
        (about(&|a| a.vocab_start_index = 19), "vocab_start_index"),
        (about(&|a| a.vocab_start_index = 21), "vocab_start_index"),
        (about(&|a| a.vocab_end_index = 39), "vocab_end_index"),
        (about(&|a| a.vocab_end_index = 41), "vocab_end_index"),
        (about(&|a| a.vocab_end_index = u32::MAX), "vocab_end_index"),
        (about(&|a| a.logits_dtype = f16), "logits_dtype"),
        (about(&|a| a.logits_dtype = 0), "logits_dtype"),
        (about(&|a| a.logits_dtype = 77), "logits_dtype"),
    ];
    for (about, field) in cases {
        let Err(status) = Rank::try_attach(&server, about.clone(), &columns).await else { panic!("{about:?}") };
        assert_eq!(said(&status), invalid(&format!("rank.{field}")), "{about:?}");
    }
    let region_token = ready.region_offer.unwrap().token;
    for token in [vec![], vec![0; 31], vec![0; 32], vec![0; 33], token[..31].to_vec(), region_token] {
        let Err(status) = Rank::try_attach(&server, about(&|a| a.token.clone_from(&token)), &columns).await else {
            panic!("{token:?}")
        };
        let expected = (Code::PermissionDenied, "rank.token".to_owned(), "UNKNOWN_SHARD_TOKEN".to_owned());
        assert_eq!(said(&status), expected);
    }
    // A rank attaches twice: an error while the first is attached, and allowed after that has left.
    let first = Rank::attached(&server, &token, &columns, 1).await;
    let Err(status) = Rank::try_attach(&server, about(&|_| ()), &columns).await else { panic!("attached twice") };
    assert_eq!(said(&status), (Code::AlreadyExists, "rank.rank".to_owned(), "RANK_TAKEN".to_owned()));
    drop(first);
    server.expect_series("croupier_shard_ranks", 0.0).await;
    let mut ranks =
        [Rank::attached(&server, &token, &columns, 1).await, Rank::attached(&server, &token, &columns, 2).await];
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    for rank in &mut ranks {
        rank.announce(2, &[logits(5, 0)]).await;
    }
    let dealt = super::token(&worker.step(own_step(&columns, 5, 0)).await.work[0]);
    assert_eq!(vec![dealt], inline_tokens(&server, 5, 1).await);
    // The stream's token ends with the stream.
    drop(worker);
    server.expect_series("croupier_streams", 0.0).await;
    let Err(status) = Rank::try_attach(&server, about(&|_| ()), &columns).await else { panic!("its stream has ended") };
    assert_eq!(status.code(), Code::PermissionDenied);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_out_of_turn_have_answers() {
    let server = server().await;
    let (_worker, ready) = rank_0(&server, sharded(&TWO)).await;
    let token = token_of(&ready);
    let mut early = Rank::open(&server, &TWO, 1).await.unwrap();
    early.announce(1, &[logits(1, 0)]).await;
    assert_eq!(said(&early.failed().await), invalid("shard"));
    let mut empty = Rank::open(&server, &TWO, 1).await.unwrap();
    empty.send_empty().await;
    assert_eq!(said(&empty.failed().await), invalid("request"));
    let mut twice = Rank::attached(&server, &token, &TWO, 1).await;
    twice.send(Request::Rank(rank::about(&token, &TWO, 1))).await;
    assert_eq!(said(&twice.failed().await), invalid("rank"));
    assert_eq!(server.series("croupier_requests_total{method=\"Attach\",code=\"INVALID_ARGUMENT\"}"), 3.0);
}

/// Sends a wrong shard after a good one. Returns how the call ends while rank 0 waits for the shard.
async fn failing(
    server: &TestServer,
    change: &dyn Fn(RegionLogits) -> (u64, Option<Columns>),
) -> (Code, String, String) {
    let (mut worker, ready) = rank_0(server, StreamConfig { wants_regions: true, ..sharded(&TWO) }).await;
    let (_side, region) = lease(&ready);
    let mut rank = Rank::attached(server, &token_of(&ready), &TWO, 1).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    rank.announce(2, &[logits(5, 0)]).await;
    let expected = inline_tokens(server, 5, 2).await;
    assert_eq!(token(&worker.step(own_step(&TWO, 5, 0)).await.work[0]), expected[0]);
    assert_eq!(rank.done().await, (2, true));
    worker.send_step(own_step(&TWO, 5, 1)).await;
    let (step_id, columns) = change(place(&region.lease, 0, 1, 0));
    rank.send(Request::Shard(VocabShard { step_id, columns })).await;
    let status = rank.failed().await;
    // The waiting step is answered at once. Its sequence is unchanged.
    let result = worker.step_reply().await.unwrap();
    assert_eq!(result.work[0].status(), RowStatus::ShardMissing, "{}", result.work[0].message);
    assert!(result.work[0].message.contains("rank 1 has left"), "{}", result.work[0].message);
    let mut again = Rank::attached(server, &token_of(&ready), &TWO, 1).await;
    again.announce(4, &[logits(5, 1)]).await;
    assert_eq!(token(&worker.step(own_step(&TWO, 5, 1)).await.work[0]), expected[1]);
    said(&status)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_shard_ends_the_call_of_its_rank_only() {
    let server = server().await;
    let row = u64::from(VOCAB) * 4;
    type Wrong<'a> = &'a dyn Fn(RegionLogits) -> (u64, Option<Columns>);
    fn inline(step_id: u64, len: usize, row_stride: u32) -> (u64, Option<Columns>) {
        (step_id, Some(Columns::Inline(InlineLogits { data: vec![0; len].into(), row_stride })))
    }
    fn region(region: RegionLogits) -> (u64, Option<Columns>) {
        (3, Some(Columns::Region(region)))
    }
    let cases: [(&str, Wrong<'_>); 17] = [
        // Announced twice, for an older step, for no step.
        ("step_id", &|_| inline(2, 120, 0)),
        ("step_id", &|_| inline(1, 120, 0)),
        ("step_id", &|_| inline(0, 120, 0)),
        ("columns", &|_| (3, None)),
        ("inline.data", &|_| inline(3, 119, 0)),
        ("inline.data", &|_| inline(3, 124, 0)),
        ("inline.data", &|_| inline(3, 60, 0)),
        ("inline.row_stride", &|_| inline(3, 120, 29)),
        ("region.offset", &|p| region(RegionLogits { offset: 2, ..p })),
        ("region.offset", &|p| region(RegionLogits { offset: REGION - row + 4, ..p })),
        ("region.offset", &|p| region(RegionLogits { offset: u64::MAX - 3, ..p })),
        ("region.offset", &|p| region(RegionLogits { offset: 1 << 63, ..p })),
        ("region.rows", &|p| region(RegionLogits { rows: u32::MAX, ..p })),
        ("region.rows", &|p| region(RegionLogits { rows: u32::MAX, row_stride: u32::MAX, ..p })),
        ("region.rows", &|p| region(RegionLogits { rows: (REGION / row) as u32 + 1, ..p })),
        // The region has a whole row there, not the rank's columns alone.
        ("region.row_stride", &|p| region(RegionLogits { row_stride: 30, ..p })),
        ("region.row_stride", &|p| region(RegionLogits { row_stride: VOCAB - 1, ..p })),
    ];
    for (field, change) in cases {
        assert_eq!(failing(&server, change).await, invalid(&format!("shard.{field}")), "{field}");
    }
    let unknown = (Code::NotFound, "shard.region.region_id".to_owned(), "UNKNOWN_REGION".to_owned());
    for id in [0, 2, u64::MAX] {
        assert_eq!(failing(&server, &|p| region(RegionLogits { region_id: id, ..p })).await, unknown);
    }
    let stale = (Code::FailedPrecondition, "shard.region.generation".to_owned(), "STALE_REGION".to_owned());
    for change in [|generation: u64| generation - 1, |generation| generation + 1, |_| u64::MAX] {
        let moved = |p: RegionLogits| region(RegionLogits { generation: change(p.generation), ..p });
        assert_eq!(failing(&server, &moved).await, stale);
    }
    assert_eq!(server.series("croupier_shard_failures_total{reason=\"left\"}"), 23.0);
    server.expect_series("croupier_regions", 0.0).await;
    server.expect_series("croupier_shard_bytes", 0.0).await;
    server.expect_series("croupier_shard_ranks", 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn regions_of_other_streams_are_out_of_reach_of_a_rank() {
    let server = server().await;
    let (_theirs, theirs) = rank_0(&server, StreamConfig { wants_regions: true, ..config() }).await;
    let (_their_side, their_region) = lease(&theirs);
    let (_worker, ready) = rank_0(&server, StreamConfig { wants_regions: true, ..sharded(&TWO) }).await;
    let (_side, mut own) = lease(&ready);
    let about = rank::about(&token_of(&ready), &TWO, 1);
    let (mut rank, offered) = Rank::try_attach(&server, about, &TWO).await.unwrap();
    let offer = offered.region_offer.unwrap();
    let RegionLease { region_id, generation, .. } = their_region.lease;
    blocking(|| {
        let mut side = SideClient::connect(Path::new(&offer.socket_path), &offer.token).unwrap();
        let refused = |result: Result<Leased, croupier::bench::region::SideError>| match result {
            Err(croupier::bench::region::SideError::Refused(error)) => (error.code, error.field, error.reason),
            other => panic!("expected a refusal, got {other:?}"),
        };
        let stale = (Code::FailedPrecondition as i32, "attach.generation".to_owned(), "STALE_REGION".to_owned());
        assert_eq!(refused(side.attach(region_id, generation)), stale, "the same id, not the same region");
        let unknown = (Code::NotFound as i32, "attach.region_id".to_owned(), "UNKNOWN_REGION".to_owned());
        assert_eq!(refused(side.attach(7, generation)), unknown);
        // Only rank 0 can release its leases.
        let not_owner = (Code::PermissionDenied as i32, "request".to_owned(), "NOT_OWNER".to_owned());
        assert_eq!(refused(side.lease(4096)), not_owner);
        match side.release(&own.lease) {
            Err(croupier::bench::region::SideError::Refused(error)) => assert_eq!(error.reason, "NOT_OWNER"),
            other => panic!("expected a refusal, got {other:?}"),
        }
        // The rank may map its own region. The token works once.
        assert_eq!(side.attach(own.lease.region_id, own.lease.generation).unwrap().lease, own.lease);
        assert!(SideClient::connect(Path::new(&offer.socket_path), &offer.token).is_err());
    });
    // If the guest leaves, the region stays.
    own.window.write(0, &[1; 16]);
    assert_eq!(server.series("croupier_regions"), 2.0);
    rank.announce_columns(1, Columns::Region(place(&own.lease, 0, 1, 0))).await;
    assert!(rank.is_silent().await, "it waits for its step");
    drop(rank);
    server.expect_series("croupier_shard_ranks", 0.0).await;
    assert_eq!(server.series("croupier_regions"), 2.0);
}

/// Columns of ranks are those of the target.
#[tokio::test(flavor = "multi_thread")]
async fn draft_work_of_a_draft_vocabulary_has_whole_rows() {
    let server = server().await;
    let (mut worker, _) = rank_0(&server, StreamConfig { draft_vocabulary: vec![7, 3], ..sharded(&TWO) }).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    let draft = || {
        let kind = Some(work::Kind::Draft(DraftWork::default()));
        vec![Work { sequence_id: Some(1), kind, ..Default::default() }]
    };
    let whole = Step { work: draft(), logits: inline(&[vec![1.0, 2.0]]), ..Default::default() };
    assert!([7, 3].contains(&token(&worker.step(whole).await.work[0])));
    worker.send_step(Step { work: draft(), ..own_step(&TWO, 5, 0) }).await;
    let status = worker.step_reply().await.unwrap_err();
    assert_eq!((status.code(), violation(&status).0.as_str()), (Code::InvalidArgument, "step.sharded"), "{status}");
    assert!(status.message().contains("draft work where there is a draft_vocabulary"), "{status}");
}
