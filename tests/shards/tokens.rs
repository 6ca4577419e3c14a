//! The same tokens as from whole rows, bit for bit, for any number of shards and every way to send them.

use super::*;
use croupier::proto::vocab_shard::Columns;

const NUMBERS: [u32; 5] = [1, 2, 3, 4, 8];
const TEXTS: [u64; 3] = [11, 12, 13];
const COUNT: u64 = 8;
/// The text that has a mask.
const MASKED: usize = 1;

/// How a rank sends its columns.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Inline,
    Region,
}

/// Parameters that look at every column: raw and processed logprobs, penalties, filters.
fn params(text: u64) -> SamplingParams {
    let logprobs = LogprobsParams { top_n: 5, ..Default::default() };
    match text % 3 {
        0 => SamplingParams { logprobs: Some(logprobs), ..seeded(text) },
        1 => SamplingParams { top_p: Some(0.9), presence_penalty: Some(0.5), logprobs: Some(logprobs), ..seeded(text) },
        _ => SamplingParams { temperature: Some(0.0), logprobs: Some(logprobs), ..seeded(text) },
    }
}

fn opens() -> Vec<OpenSequence> {
    TEXTS.iter().map(|&text| open(text, params(text))).collect()
}

fn rows(position: u64) -> Vec<Vec<f32>> {
    TEXTS.iter().map(|&text| logits(text, position)).collect()
}

/// One of the works has a mask over the whole vocabulary that allows tokens with even ids.
fn works() -> Vec<Work> {
    let mut works: Vec<Work> = TEXTS.iter().map(|&text| sample_work(text)).collect();
    works[MASKED].token_masks = vec![0x55; VOCAB.div_ceil(32) as usize * 4].into();
    works
}

fn tokens_of(result: StepResult) -> Vec<Vec<Token>> {
    assert!(result.work.iter().all(|work| work.status() == RowStatus::Ok), "{result:?}");
    result.work.into_iter().map(|work| work.tokens).collect()
}

/// The tokens from whole rows, with all that is reported about them.
async fn whole(server: &TestServer, dtype: Dtype) -> Vec<Vec<Vec<Token>>> {
    let mut worker = server.worker_with(StreamConfig { logits_dtype: wire(dtype).into(), ..config() }).await;
    worker.step(open_step(opens())).await;
    let mut tokens = Vec::new();
    for position in 0..COUNT {
        let data: Vec<u8> = rows(position).iter().flat_map(|row| dtype.encode(row)).collect();
        let logits = Some(step::Logits::Inline(InlineLogits { data: data.into(), row_stride: 0 }));
        tokens.push(tokens_of(worker.step(Step { work: works(), logits, ..Default::default() }).await));
    }
    assert!(tokens.iter().all(|texts| texts[MASKED][0].token_id % 2 == 0));
    tokens
}

/// Writes rank `rank`'s columns of whole rows, which are `stride` values apart.
fn write(region: &mut Leased, dtype: Dtype, offset: u64, stride: u32, position: u64, columns: Range<usize>) {
    for (number, row) in rows(position).iter().enumerate() {
        let at = offset as usize + (number * stride as usize + columns.start) * dtype.size();
        region.window.write(at, &dtype.encode(&row[columns.clone()]));
    }
}

/// Columns in a message, with `padding` values after those of each row.
fn packed(dtype: Dtype, position: u64, columns: Range<usize>, padding: usize) -> InlineLogits {
    let mut data = Vec::new();
    for row in rows(position) {
        data.extend(dtype.encode(&row[columns.clone()]));
        data.extend(dtype.encode(&vec![f32::NAN; padding]));
    }
    InlineLogits { data: data.into(), row_stride: (columns.len() + padding) as u32 }
}

/// The same tokens by ranks; `way` says how each rank sends its columns.
async fn by_ranks(
    server: &TestServer,
    columns: &[u32],
    dtype: Dtype,
    way: impl Fn(usize) -> Way,
) -> Vec<Vec<Vec<Token>>> {
    let config = StreamConfig { logits_dtype: wire(dtype).into(), wants_regions: true, ..sharded(columns) };
    let (mut worker, ready) = rank_0(server, config).await;
    let (_side, mut region) = lease(&ready);
    let mut ranks = Vec::new();
    for number in 1..columns.len() {
        let about = AttachRank { logits_dtype: wire(dtype).into(), ..rank::about(&token_of(&ready), columns, number) };
        let (mut rank, ready) = Rank::try_attach(server, about, columns).await.unwrap();
        rank.map(&ready.region_offer.expect("regions are offered"), &region.lease);
        ranks.push(rank);
    }
    worker.step(open_step(opens())).await;
    let (stride, mut tokens) = (VOCAB + 14, Vec::new());
    for position in 0..COUNT {
        // The opening was step 1. The region has two slots, used in turn.
        let (step_id, offset) = (position + 2, position % 2 * (REGION / 2));
        let place = place(&region.lease, offset, TEXTS.len() as u32, stride);
        for rank in &mut ranks {
            let own = range(columns, rank.number);
            let shard = match way(rank.number) {
                Way::Inline => Columns::Inline(packed(dtype, position, own, rank.number)),
                Way::Region => {
                    write(&mut rank.region.as_mut().unwrap().1, dtype, offset, stride, position, own);
                    Columns::Region(place)
                }
            };
            rank.announce_columns(step_id, shard).await;
        }
        let own = range(columns, 0);
        let logits = match way(0) {
            Way::Inline => own_inline(packed(dtype, position, own, 3)),
            Way::Region => {
                write(&mut region, dtype, offset, stride, position, own);
                own_region(place)
            }
        };
        tokens.push(tokens_of(worker.step(Step { work: works(), logits, ..Default::default() }).await));
        for rank in &mut ranks {
            assert_eq!(rank.done().await, (step_id, true));
        }
    }
    tokens
}

#[tokio::test(flavor = "multi_thread")]
async fn any_number_of_shards_gives_the_tokens_of_whole_rows_in_every_dtype() {
    let server = server().await;
    for dtype in Dtype::ALL {
        let expected = whole(&server, dtype).await;
        for number in NUMBERS {
            let columns = uneven(number);
            assert_eq!(by_ranks(&server, &columns, dtype, |_| Way::Inline).await, expected, "{number} inline");
            assert_eq!(by_ranks(&server, &columns, dtype, |_| Way::Region).await, expected, "{number} in a region");
            // Each rank in another way, so that columns in the region are not adjacent.
            let mixed = |rank| if rank % 2 == 0 { Way::Region } else { Way::Inline };
            assert_eq!(by_ranks(&server, &columns, dtype, mixed).await, expected, "{number} mixed");
        }
        // As uneven as possible.
        for columns in [vec![1, VOCAB - 1], vec![VOCAB - 2, 1, 1], vec![7, 1, 30, 12]] {
            assert_eq!(by_ranks(&server, &columns, dtype, |_| Way::Inline).await, expected, "{columns:?}");
            assert_eq!(by_ranks(&server, &columns, dtype, |_| Way::Region).await, expected, "{columns:?}");
        }
    }
    server.expect_series("croupier_shard_ranks", 0.0).await;
    server.expect_series("croupier_shard_bytes", 0.0).await;
    assert_eq!(server.series("croupier_steps_total{data_path=\"vocab_shards\"}"), (3 * (5 * 3 + 3 * 2) * COUNT) as f64);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_place_of_its_own_in_the_region_gives_them_too() {
    let server = server().await;
    let columns = [20, 30];
    let expected = inline_tokens(&server, 5, 1).await[0];
    let (mut worker, ready) = rank_0(&server, StreamConfig { wants_regions: true, ..sharded(&columns) }).await;
    let (_side, mut region) = lease(&ready);
    let (mut rank, offered) =
        Rank::try_attach(&server, rank::about(&token_of(&ready), &columns, 1), &columns).await.unwrap();
    rank.map(&offered.region_offer.unwrap(), &region.lease);
    let row = Dtype::F32.encode(&logits(5, 0));
    region.window.write(0, &row[..20 * 4]);
    rank.region.as_mut().unwrap().1.window.write(4096 + 20 * 4, &row[20 * 4..]);
    rank.announce_columns(2, Columns::Region(place(&region.lease, 4096, 1, 0))).await;
    worker.step(open_step(vec![open(1, seeded(5))])).await;
    let logits = own_region(place(&region.lease, 0, 1, 0));
    assert_eq!(
        token(&worker.step(Step { work: vec![sample_work(1)], logits, ..Default::default() }).await.work[0]),
        expected
    );
}

/// The region is rank 0's: another rank that lets go of it takes it from nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_region_stays_when_another_rank_unmaps_it() {
    let server = server().await;
    let columns = [20, 30];
    let (_worker, ready) = rank_0(&server, StreamConfig { wants_regions: true, ..sharded(&columns) }).await;
    let (mut side, region) = lease(&ready);
    let (mut rank, offered) =
        Rank::try_attach(&server, rank::about(&token_of(&ready), &columns, 1), &columns).await.unwrap();
    rank.map(&offered.region_offer.unwrap(), &region.lease);
    server.expect_series("croupier_connections{transport=\"region\"}", 2.0).await;
    rank.region = None;
    server.expect_series("croupier_connections{transport=\"region\"}", 1.0).await;
    assert_eq!(server.series("croupier_regions"), 1.0);
    blocking(|| side.release(&region.lease).unwrap());
}
