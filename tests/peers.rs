//! Defects that were found in other samplers, by reading their code or their issue threads. Each has a test that this
//! one does not have it. Some are tested in other files, wholly or in addition: random numbers and batches in
//! `tests/determinism.rs`, fast paths against the specification in `tests/backends.rs`, shared memory that goes away
//! during a step (Triton's unregister in flight, its null manager) in
//! `tests/regions/`.

use crate::chi_square::{DEVIATE, FALSE_ALARM, deviate};
use crate::support::*;
use crate::work::*;
use croupier::backend::cpu::{CpuBackend, Level};
use croupier::backend::{Backend, RowJob};
use croupier::params::TypicalRule;
use croupier::params::report::ReportParams as Reported;
use croupier::params::state::SamplerState as State;
use croupier::proto::*;
use croupier::sampling::chain::{Chain, ChainStep as Sampler};
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::report::{Bans, ReportSpec};
use croupier::sampling::row::{Action, Filters, LogprobsMode as Mode, LogprobsSpec, RowOutput, RowSpec};

const OFF: Filters = Filters::OFF;

/// Runs a row at every instruction set level of this machine: the results are equal.
fn run(logits: &[f32], filters: Filters, steps: &[Sampler], uniform: u64) -> RowOutput {
    let bytes = Dtype::F32.encode(logits);
    let wanted = Reported { max_surviving_token_ids: 4096, ..Reported::default() };
    let chain = Chain {
        steps,
        min_keep: 1,
        protected: &[],
        eos: &[],
        xtc: 0,
        state: State::default(),
        infill: None,
        tournament: None,
    };
    let spec = RowSpec {
        chain: (!steps.is_empty()).then_some(chain),
        logprobs: Some(LogprobsSpec { top_n: 2, mode: Mode::Raw, tokens: &[] }),
        report: Some(ReportSpec { params: &wanted, bans: Bans::default() }),
        ..RowSpec::plain(filters, Action::Draw { uniform })
    };
    let levels = Level::ALL.into_iter().filter(|level| level.is_available());
    let run = |level| {
        let job = RowJob { logits: Logits::new(Dtype::F32, &bytes), spec };
        CpuBackend::with_level(1, level).run(&[job]).remove(0).unwrap()
    };
    let results: Vec<RowOutput> = levels.map(run).collect();
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
    results[0].clone()
}

fn survivors(output: &RowOutput) -> &[u32] {
    &output.report.as_ref().unwrap().surviving
}

fn support_size(output: &RowOutput) -> u32 {
    output.report.as_ref().unwrap().support_size
}

/// The texts of some sequences in one stream. In each step every sequence has its row, in the order that `order` gives.
async fn texts(
    worker: &mut Worker,
    first: u64,
    params: &[SamplingParams],
    order: impl Fn(usize) -> Vec<usize>,
    row: impl Fn(usize, usize) -> Vec<f32>,
) -> Vec<Vec<u32>> {
    let open = params.iter().enumerate().map(|(i, params)| open(first + i as u64, params.clone()));
    worker.step(open_step(open.collect())).await;
    let mut texts = vec![Vec::new(); params.len()];
    for position in 0..20 {
        let order = order(position);
        let rows: Vec<_> = order.iter().map(|&i| (first + i as u64, row(i, position))).collect();
        for (&i, result) in order.iter().zip(worker.step(sample_step(&rows)).await.work) {
            texts[i].push(token(&result));
        }
    }
    texts
}

fn in_order(count: usize) -> impl Fn(usize) -> Vec<usize> {
    move |_| (0..count).collect()
}

/// FlashInfer uses the first row's seed for all rows; TensorRT-LLM's fused sampler adds the row's number to it;
/// mistral.rs has one seed for the whole engine.
#[tokio::test]
async fn a_seed_belongs_to_its_sequence_and_to_no_row() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let seeds = [1, 2, 1, 3, 1];
    let params = seeds.map(seeded);
    let row = |_, position| logits(0, position as u64);
    let together = texts(&mut worker, 1, &params, in_order(5), row).await;
    assert!(together[0] == together[2] && together[0] == together[4], "one seed, three rows");
    assert!(together[0] != together[1] && together[1] != together[3], "three seeds, one row of logits");
    for (i, params) in params.iter().enumerate() {
        let alone = texts(&mut worker, 10 + i as u64, std::slice::from_ref(params), in_order(1), row).await;
        assert_eq!(alone[0], together[i], "seed {}", seeds[i]);
    }
}

/// SGLang hashes its deterministic noise from ranks as soon as a neighbour needs top-k.
#[tokio::test]
async fn a_neighbour_with_top_k_changes_no_draw() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let neighbour = SamplingParams { top_k: Some(3), top_p: Some(0.5), ..seeded(9) };
    let row = |i: usize, position| logits(i as u64, position as u64);
    let both = texts(&mut worker, 1, &[seeded(1), neighbour], in_order(2), row).await;
    let alone = texts(&mut worker, 9, &[seeded(1)], in_order(1), row).await;
    assert_eq!(alone[0], both[0]);
}

/// Aphrodite skips every other sampler of the batch as soon as one row has mirostat, and keeps mirostat's state by row.
/// KoboldCpp has one state for all.
#[tokio::test]
async fn mirostat_is_its_own_sequences_alone() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let mirostat =
        |seed| SamplingParams { mirostat: Some(2), mirostat_tau: Some(2.0), mirostat_eta: Some(0.5), ..seeded(seed) };
    let params = [mirostat(1), SamplingParams { top_k: Some(1), ..seeded(2) }, mirostat(3)];
    let row = |i: usize, position| logits(i as u64, position as u64);
    let turning = |position: usize| (0..3).map(|i| (i + position) % 3).collect();
    let together = texts(&mut worker, 1, &params, turning, row).await;
    for (i, params) in params.iter().enumerate() {
        let own = |_, position| row(i, position);
        let alone = texts(&mut worker, 10 + i as u64, std::slice::from_ref(params), in_order(1), own).await;
        assert_eq!(alone[0], together[i], "sequence {i}");
    }
    let best = |position| {
        let row = row(1, position);
        (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32
    };
    assert_eq!(together[1], (0..20).map(best).collect::<Vec<_>>(), "top-k 1 beside mirostat");
}

/// Aphrodite's XTC takes a random number that does not depend on the seed.
#[tokio::test]
async fn xtc_follows_the_seed() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let xtc = |seed| SamplingParams { xtc_probability: Some(0.5), xtc_threshold: Some(0.02), ..seeded(seed) };
    let row = |_, position| logits(1, position as u64);
    let both = texts(&mut worker, 1, &[xtc(1), xtc(1), seeded(1)], in_order(3), row).await;
    assert_eq!(both[0], both[1]);
    assert_ne!(both[0], both[2], "it does happen");
}

/// Tokens drawn under XTC come from a mixture of the whole row and the row without its top choice. A roll decides
/// between them. Each sequence has its own roll at each position, independent of the draw. An engine that used one
/// number for both would never draw token 0 here. One that rolled once for all sequences would draw it in two sequences
/// together twice as often.
#[tokio::test]
async fn xtc_rolls_for_each_sequence_and_apart_from_the_draw() {
    const POSITIONS: u64 = 2_500;
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let open = (1..=8).map(|seed| {
        let xtc = SamplingParams { xtc_probability: Some(0.5), xtc_threshold: Some(0.2), ..seeded(seed) };
        open(seed, xtc)
    });
    worker.step(open_step(open.collect())).await;
    let mut row = vec![f32::NEG_INFINITY; VOCAB as usize];
    row.iter_mut().zip([0.5f32, 0.25, 0.15, 0.1]).for_each(|(logit, p)| *logit = p.ln());
    let (mut counts, mut together) = ([0u64; 4], 0);
    for _ in 0..POSITIONS {
        let rows: Vec<_> = (1..=8).map(|sequence| (sequence, row.clone())).collect();
        let tokens: Vec<u32> = worker.step(sample_step(&rows)).await.work.iter().map(token).collect();
        tokens.iter().for_each(|&token| counts[token as usize] += 1);
        together += tokens.chunks(2).filter(|pair| pair == &[0, 0]).count();
    }
    // Half of (.5, .25, .15, .1) plus half of (0, .5, .3, .2).
    let deviate = deviate(&counts, &[0.25, 0.375, 0.225, 0.15]);
    let pairs = 4.0 * POSITIONS as f64;
    let apart = (together as f64 - pairs / 16.0) / (pairs / 16.0 * 15.0 / 16.0).sqrt();
    println!("{deviate:+.2} and {apart:+.2} standard deviations (alarm above {DEVIATE}, false alarms {FALSE_ALARM})");
    assert!(deviate < DEVIATE, "{counts:?}");
    assert!(apart.abs() < DEVIATE, "{together} pairs");
}

/// text-generation-webui's mirostat measures the surprise after its cut, and so does llama.cpp's. The paper measures it
/// before. Here it is as in llama.cpp, so that `mu` is the same.
#[tokio::test]
async fn mirostat_learns_from_what_it_left_as_llama_cpp_does() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let params = SamplingParams {
        mirostat: Some(2),
        mirostat_tau: Some(0.75),
        mirostat_eta: Some(0.5),
        return_sampler_state: Some(true),
        ..seeded(1)
    };
    worker.step(open_step(vec![open(1, params)])).await;
    let mut row = vec![f32::NEG_INFINITY; VOCAB as usize];
    row.iter_mut().zip([0.5f32, 0.25, 0.15, 0.1]).for_each(|(logit, p)| *logit = p.ln());
    let result = worker.step(sample_step(&[(1, row)])).await.work.remove(0);
    // Surprise 1 is within 2 tau = 1.5, surprise 2 is not. So token 0 is left alone, and its surprise is then 0.
    assert_eq!(token(&result), 0);
    let mu = result.sampler_state.unwrap().mirostat_mu.unwrap();
    assert_eq!(mu, 1.5 - 0.5 * (0.0 - 0.75), "before the cut it would be 1.5 - 0.5 * (1 - 0.75)");
}

/// Hugging Face's TGI and mistral.rs have only processed logprobs; SGLang and vLLM have one kind for a whole server.
#[tokio::test]
async fn raw_and_processed_logprobs_in_one_batch() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let wants = |mode: LogprobsMode| SamplingParams {
        temperature: Some(0.5),
        top_k: Some(1),
        logprobs: Some(LogprobsParams { mode: mode.into(), ..Default::default() }),
        ..seeded(1)
    };
    worker.step(open_step(vec![open(1, wants(LogprobsMode::Raw)), open(2, wants(LogprobsMode::Processed))])).await;
    let row = logits(1, 1);
    let result = worker.step(sample_step(&[(1, row.clone()), (2, row)])).await;
    let logprobs: Vec<f32> = result.work.iter().map(|work| work.tokens[0].logprob.unwrap()).collect();
    assert!(logprobs[0] < -0.1 && logprobs[1] == 0.0, "{logprobs:?}");
}

/// SGLang counts one token per step when drafts are verified, so penalties are too weak and EOS stays banned too long.
#[tokio::test]
async fn verified_tokens_count_one_by_one() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(StreamConfig { eos_token_ids: vec![2], ..config() }).await;
    let params = SamplingParams {
        frequency_penalty: Some(0.25),
        min_tokens: Some(3),
        report: Some(ReportParams { why_not_token_ids: vec![2, 7], ..Default::default() }),
        ..seeded(1)
    };
    worker.step(open_step(vec![open(1, params)])).await;
    let mut row = vec![0.0; VOCAB as usize];
    (row[2], row[7]) = (-50.0, 50.0);
    let rows = vec![row; 4];
    let work = worker.verify(1, chain(&[7, 7, 7], deterministic()), &rows).await;
    assert_eq!(ids(&work), [7; 4]);
    for (count, token) in (0u8..).zip(&work.tokens) {
        let [eos, seven] = &token.report.as_ref().unwrap().why_not[..] else { panic!("two were asked for") };
        assert_eq!(seven.adjusted_logit, 50.0 - 0.25 * f32::from(count));
        assert_eq!(eos.removed_by() == RemovedBy::MinTokens, count < 3, "after {count} tokens");
    }
}

/// Aphrodite also penalises repeats that are shorter than DRY's allowed length.
#[tokio::test]
async fn dry_spares_repeats_below_its_allowed_length() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    for (allowed, penalised) in [(2, true), (3, false)] {
        let params = SamplingParams {
            dry_multiplier: Some(1.0),
            dry_allowed_length: Some(allowed),
            report: Some(ReportParams { why_not_token_ids: vec![3], ..Default::default() }),
            ..seeded(1)
        };
        let open = OpenSequence { output_token_ids: vec![1, 2, 3, 9, 1, 2], ..open(u64::from(allowed), params) };
        worker.step(open_step(vec![open])).await;
        let row = vec![0.0; VOCAB as usize];
        let work = only(worker.step(step_of(sample_work(u64::from(allowed)), &[row])).await);
        let fate = work.tokens[0].report.as_ref().unwrap().why_not[0];
        assert_eq!(fate.adjusted_logit < 0.0, penalised, "a repeat of two, {allowed} allowed");
    }
}

/// Aphrodite applies skew after the draw and by token ids, so that it has no effect.
#[test]
fn skew_changes_what_is_drawn() {
    let row: Vec<f32> = (0..50).map(|token| -0.2 * token as f32).collect();
    let drawn = |steps: &[Sampler]| (0..64u64).map(|i| run(&row, OFF, steps, i << 58).token).sum::<u32>();
    let (plain, later, earlier) = (drawn(&[]), drawn(&[Sampler::Skew(1.0)]), drawn(&[Sampler::Skew(-1.0)]));
    assert!(earlier < plain && plain < later, "{earlier} {plain} {later}");
}

/// KoboldCpp considers only the first 3,000 tokens.
#[test]
fn flat_rows_are_not_cut_before_their_samplers() {
    let row = vec![0.0; 5000];
    let top_p = run(&row, Filters { top_p: 0.9, ..OFF }, &[], 0);
    assert_eq!(support_size(&top_p), 4500);
    let typical = run(&row, OFF, &[Sampler::TypicalP(TypicalRule::Reached, 0.8)], 0);
    assert!((4000..=4001).contains(&support_size(&typical)));
}

/// ExLlamaV3's eager top-p drops the token that crosses the threshold; its fused top-p keeps all tokens that are equal
/// to that one.
#[test]
fn the_crossing_token_stays_on_every_road() {
    // As a list, as a search and as a chain. The shares are 1/2, 1/4, 1/8 and so on.
    for vocab in [20, 20_000] {
        let mut row = vec![-60.0f32; vocab];
        (0..20).for_each(|token| row[token] = -std::f32::consts::LN_2 * token as f32);
        for (p, kept) in [(0.4, 1), (0.7, 2), (0.8, 3), (0.9, 4)] {
            for steps in [&[][..], &[Sampler::TopP]] {
                let left = run(&row, Filters { top_p: p, ..OFF }, steps, 0);
                assert_eq!(support_size(&left), kept, "top-p {p} of {vocab}");
            }
        }
    }
    let flat = run(&vec![0.0; 20_000], Filters { top_p: 0.5, ..OFF }, &[], 0);
    assert_eq!(support_size(&flat), 10_000, "of equal tokens no more than it takes");
}

/// One of vLLM's two paths keeps all tokens that are equal to the k-th, the other exactly k.
#[test]
fn top_k_keeps_the_same_ties_on_every_road() {
    for vocab in [50, 5000, 140_000] {
        for steps in [&[][..], &[Sampler::TopK]] {
            let left = run(&vec![1.5; vocab], Filters { top_k: 3, ..OFF }, steps, 0);
            assert_eq!(survivors(&left), [0, 1, 2], "of {vocab}");
        }
    }
    let many = run(&vec![1.5; 5000], Filters { top_k: 2000, ..OFF }, &[], 0);
    assert_eq!((support_size(&many), survivors(&many).last()), (2000, Some(&1999)));
}

/// ExLlamaV2 multiplies its random number by 0.9998, so that the last two ten-thousandths of a distribution are never
/// drawn.
#[test]
fn the_last_token_can_be_drawn() {
    let row = vec![0.0; 100_000];
    assert_eq!(run(&row, OFF, &[], u64::MAX).token, 99_999);
    assert_eq!(run(&row, OFF, &[], 0).token, 0);
}

/// FlashInfer's softmax at temperature 0 is uniform.
#[test]
fn temperature_zero_is_the_largest_logit() {
    let row: Vec<f32> = (0..1000).map(|token| if token == 700 { 1.0 } else { 0.9 }).collect();
    for uniform in [0, u64::MAX / 2, u64::MAX] {
        let greedy = run(&row, Filters { temperature: 0.0, ..OFF }, &[], uniform);
        assert_eq!((greedy.token, support_size(&greedy)), (700, 1));
    }
}

/// text-generation-webui counts masked logits as 0.
#[test]
fn masked_logits_do_not_widen_top_n_sigma() {
    let mut row: Vec<f32> = (0..400).map(|token| 100.0 - 0.01 * token as f32).collect();
    let alone = run(&row, OFF, &[Sampler::TopNSigma(1.0)], 0);
    row.extend([f32::NEG_INFINITY; 400]);
    let masked = run(&row, OFF, &[Sampler::TopNSigma(1.0)], 0);
    assert_eq!(survivors(&alone), survivors(&masked));
    assert!(support_size(&alone) < 200, "one of 1.7 deviations");
}

/// vLLM's rank of the greedy choice is above 1 if another token is as likely.
#[test]
fn the_first_of_equal_tokens_has_rank_one() {
    let greedy = run(&[0.0, 3.0, 3.0, 1.0], Filters { temperature: 0.0, ..OFF }, &[], 0);
    let logprobs = greedy.logprobs.unwrap();
    assert_eq!((greedy.token, logprobs.rank), (1, 1));
    assert_eq!(logprobs.top.iter().map(|top| top.0).collect::<Vec<_>>(), [1, 2]);
}

/// mistral.rs drops a token that is exactly at min-p's threshold.
#[test]
fn min_p_keeps_the_token_at_its_threshold() {
    // Masses of exactly 1, 1/2 and 1/4.
    let plain = Filters { temperature: std::f32::consts::LOG2_E, ..OFF };
    let left = |min_p| run(&[0.0, -1.0, -2.0], Filters { min_p, ..plain }, &[], 0);
    assert_eq!(survivors(&left(0.25)), [0, 1, 2]);
    assert_eq!(survivors(&left(0.5)), [0, 1]);
    assert_eq!(survivors(&left(1.0)), [0]);
}
