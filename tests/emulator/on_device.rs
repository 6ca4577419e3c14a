//! Rows that a worker wrote on the device, with the emulator as the device.

use super::harness::{built, config};
use super::machine::{Emulated, backend, backend_with};
use crate::cases::{self, Case, Chained, case, summary};
use crate::draft_jobs::{self, recipe, together};
use croupier::backend::cuda::CudaBackend;
use croupier::backend::cuda::abi;
use croupier::backend::cuda::ask::has_kernel;
use croupier::backend::cuda::machine::{ALIGNMENT, DeviceRow};
use croupier::backend::{Backend, RowJob, VerifyJob};
use croupier::params::{TypicalRule, XtcRule};
use croupier::sampling::chain::ChainStep;
use croupier::sampling::kept::Kept;
use croupier::sampling::logits::{Dtype, Foreign, Logits};
use croupier::sampling::row::{Action, Filters, LogprobsMode, RowSpec};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The rows on the device, by address.
static DEVICE: Mutex<Vec<Arc<Vec<u8>>>> = Mutex::new(Vec::new());
/// The distance between the addresses of two rows.
const APART: u64 = 1 << 32;

/// A row on the device.
#[derive(Debug)]
pub(crate) struct OnDevice {
    at: usize,
    bytes: Arc<Vec<u8>>,
    /// How many times the host copied it by itself.
    pub(crate) looks: AtomicUsize,
}

impl OnDevice {
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        let (mut device, bytes) = (DEVICE.lock().unwrap(), Arc::new(bytes));
        device.push(Arc::clone(&bytes));
        Self { at: device.len(), bytes, looks: AtomicUsize::new(0) }
    }
}

// SAFETY: the memory lives as long as `self`.
unsafe impl Foreign for OnDevice {
    fn copy(&self, offset: usize, to: &mut [u8]) {
        self.looks.fetch_add(1, Ordering::Relaxed);
        to.copy_from_slice(&self.bytes[offset..offset + to.len()]);
    }

    fn device_address(&self) -> Option<u64> {
        Some(self.at as u64 * APART)
    }
}

pub(crate) fn device_bytes(row: &DeviceRow) -> Vec<u8> {
    let bytes = Arc::clone(&DEVICE.lock().unwrap()[(row.from / APART) as usize - 1]);
    bytes[(row.from % APART) as usize..][..row.bytes].to_vec()
}

/// The same row, on the device.
pub(crate) fn moved<'a>(row: &RowJob<'a>, there: &'a OnDevice, gap: usize) -> RowJob<'a> {
    let logits = Logits::foreign(row.logits.dtype(), there, gap, row.logits.vocab_size());
    RowJob { logits, ..*row }
}

/// A case and, if its row is on the device, how many values are before it there.
type Placed = (Case, Option<usize>);

/// Runs rows on the device and others in one batch, compares them with the specification, and returns how often each
/// was fetched for the host.
fn looks(backend: &mut CudaBackend<Emulated>, cases: &[Placed]) -> Vec<usize> {
    let own: Vec<RowJob<'_>> = cases.iter().map(|(case, _)| case.job()).collect();
    let rows = own.iter().zip(cases).map(|(job, (_, gap))| {
        let gap = (*gap)? * job.logits.dtype().size();
        Some((OnDevice::of([&vec![0xCC; gap], job.logits.bytes()].concat()), gap))
    });
    let rows: Vec<Option<(OnDevice, usize)>> = rows.collect();
    let jobs: Vec<RowJob<'_>> =
        own.iter().zip(&rows).map(|(job, row)| row.as_ref().map_or(*job, |(row, gap)| moved(job, row, *gap))).collect();
    for ((case, _), got) in cases.iter().zip(backend.run(&jobs)) {
        assert_eq!(cases::bits(&got), cases::bits(&case.expected()), "{}", summary(case));
    }
    let fetches = std::mem::take(&mut backend.machine().fetches).concat();
    let fetched = |row: &OnDevice| {
        assert_eq!(row.looks.load(Ordering::Relaxed), 0, "the host copies none by itself");
        fetches.iter().filter(|there| there.from / APART == row.at as u64).count()
    };
    rows.iter().map(|row| row.as_ref().map_or(0, |(row, _)| fetched(row))).collect()
}

thread_local!(static RUNNING: RefCell<Option<CudaBackend<Emulated>>> = const { RefCell::new(None) });

/// Rows at any alignment give the same results, and are not uploaded.
#[test]
fn rows_on_the_device_stay_there() {
    if !built() {
        return;
    }
    let strategy = prop::collection::vec((case(), prop::option::of(0usize..9)), 1..12);
    let result = TestRunner::new(config(30)).run(&strategy, |cases| {
        let mut backend = RUNNING.take().unwrap_or_else(|| backend("narrow"));
        for ((case, gap), looks) in cases.iter().zip(looks(&mut backend, &cases)) {
            let spec = case.job().spec;
            let may_look = gap.is_some() && has_kernel(&spec).is_err();
            // The host may end a chain without reading the row.
            let must_look = may_look && spec.chain.is_none();
            assert!((usize::from(must_look)..=usize::from(may_look)).contains(&looks), "only a fallback looks at it");
        }
        backend.handed_over().iter_mut().for_each(|(_, rows)| *rows = 0);
        RUNNING.set(Some(backend));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// Steps that kernels do, in any order, and some that they do not.
fn first_steps() -> impl Strategy<Value = Vec<ChainStep>> {
    let step = prop_oneof![
        3 => Just(ChainStep::Temperature), 3 => Just(ChainStep::TopK), 3 => Just(ChainStep::TopP), 3 => Just(ChainStep::MinP),
        1 => (1..200u32).prop_map(ChainStep::AtMost), 1 => Just(ChainStep::MinPAbove), 1 => Just(ChainStep::TopKTies),
        1 => (0.0f32..1.0).prop_map(|p| ChainStep::Xtc { rule: XtcRule::default(), probability: p, threshold: 0.1 })
    ];
    prop::collection::vec(step, 1..5)
}

prop_compose! {
    /// A row whose chain begins with steps that kernels do, and continues with any steps.
    fn begun()(
        case in case(), chain in cases::chained(), first in first_steps(), top_k in prop_oneof![3 => 1..150u32, 1 => 150..1300u32],
        (top_p, min_p) in (prop_oneof![2 => 0.0f32..1.0, 1 => Just(1.0)], prop_oneof![2 => 0.01f32..1.0, 1 => Just(1e-13)]),
        temperature in prop_oneof![Just(1.0f32), 0.05f32..3.0],
    ) -> Case {
        let steps = [first, chain.steps].concat();
        let min_keep = if chain.min_keep < 20 { 1 } else { 5 };
        let chain = Some(Chained { steps, infill: None, min_keep, ..chain });
        let filters = Filters { temperature, top_k, top_p, min_p };
        let action = if let Action::Score { .. } = case.action { Action::Draw { uniform: 1 << 61 } } else { case.action };
        let logprobs = case.logprobs.filter(|wanted| wanted.1 != LogprobsMode::Tempered);
        Case { chain, filters, action, logprobs, report: None, mark: None, ..case }
    }
}

/// If a row's chain begins with such steps, the kernel reports the tokens that are left, and the host does the rest
/// without reading the row.
#[test]
fn chains_that_kernels_begin_are_ended_without_their_rows() {
    if !built() {
        return;
    }
    let (ended, rows, raw) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let strategy = prop::collection::vec(begun(), 1..8);
    let result = TestRunner::new(config(60)).run(&strategy, |cases| {
        let mut backend = RUNNING.take().unwrap_or_else(|| backend("narrow"));
        let cases: Vec<Placed> = cases.into_iter().map(|case| (case, Some(0))).collect();
        let looks = looks(&mut backend, &cases);
        let handed_over: u64 = backend.handed_over().iter_mut().map(|(_, rows)| std::mem::take(rows)).sum();
        assert_eq!(handed_over, looks.iter().sum::<usize>() as u64, "who looks at a row is told");
        rows.set(rows.get() + looks.len());
        ended.set(ended.get() + looks.iter().filter(|&&looks| looks == 0).count());
        let is_raw = |case: &Case| matches!(case.logprobs, Some((_, LogprobsMode::Raw, _)));
        raw.set(raw.get() + cases.iter().zip(&looks).filter(|((case, _), looks)| **looks == 0 && is_raw(case)).count());
        RUNNING.set(Some(backend));
        Ok(())
    });
    println!("{} of {} rows were not looked at, {} of them with raw logprobs", ended.get(), rows.get(), raw.get());
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(6 * ended.get() > rows.get() && raw.get() > 2);
}

/// A raw score depends on the row as it was sent, whatever its chain is.
#[test]
fn raw_scores_of_chains_are_those_of_kernels() {
    if !built() {
        return;
    }
    let chain = Some(Chained {
        steps: vec![ChainStep::TypicalP(TypicalRule::Reached, 0.9)],
        min_keep: 1,
        ..Chained::default()
    });
    let scored = |mode| Case {
        chain: chain.clone(),
        action: Action::Score { token: 5 },
        logprobs: Some((3, mode, vec![7])),
        ..Case::new(Dtype::F32, &cases::row(1, 3000, 7))
    };
    let cases = [LogprobsMode::Raw, LogprobsMode::Processed].map(|mode| (scored(mode), Some(0)));
    assert_eq!(looks(&mut backend("narrow"), &cases), [0, 1]);
}

prop_compose! {
    /// A row of which masks leave few tokens, with any chain.
    fn masked()(
        case in begun(), chain in cases::chained(), tokens in prop::collection::btree_set(any::<u32>(), 1..60), by_bits in any::<bool>(),
        top_k in prop_oneof![2 => Just(0u32), 1 => 1..80u32],
    ) -> Case {
        let vocab = case.job().logits.vocab_size();
        let tokens: BTreeSet<u32> = tokens.into_iter().map(|token| token % vocab as u32).collect();
        let mut mask = vec![0u8; 4 * vocab.div_ceil(32)];
        tokens.iter().for_each(|&token| mask[token as usize / 8] |= 1 << (token % 8));
        let (allowed, mask) = if by_bits { (None, Some(mask)) } else { (Some(tokens.into_iter().collect()), None) };
        let chain = Some(Chained { infill: None, ..chain });
        Case { chain, allowed, mask, filters: Filters { top_k, ..case.filters }, ..case }
    }
}

/// If masks leave few tokens, the kernel reports them, and the host does the whole chain, whatever it is.
#[test]
fn chains_of_few_tokens_are_done_without_their_rows() {
    if !built() {
        return;
    }
    let (done, rows) = (Cell::new(0), Cell::new(0));
    let strategy = prop::collection::vec(masked(), 1..8);
    let result = TestRunner::new(config(60)).run(&strategy, |cases| {
        let mut backend = RUNNING.take().unwrap_or_else(|| backend("narrow"));
        let cases: Vec<Placed> = cases.into_iter().map(|case| (case, Some(0))).collect();
        let begins = |(case, _): &Placed| has_kernel(&RowSpec { chain: None, ..case.job().spec });
        let expected: Vec<usize> = cases.iter().map(|case| usize::from(begins(case).is_err())).collect();
        assert_eq!(looks(&mut backend, &cases), expected);
        let handed_over: u64 = backend.handed_over().iter_mut().map(|(_, rows)| std::mem::take(rows)).sum();
        assert_eq!(handed_over, expected.iter().sum::<usize>() as u64);
        done.set(done.get() + cases.len() - handed_over as usize);
        rows.set(rows.get() + cases.len());
        RUNNING.set(Some(backend));
        Ok(())
    });
    println!("{} of {} rows were not looked at", done.get(), rows.get());
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(2 * done.get() > rows.get());
}

/// Kernels report up to 1,024 tokens that a top-k leaves; with one more, the host samples the row. There are enough
/// rows for two turns of the host.
#[test]
fn long_lists_are_ended_without_their_rows() {
    if !built() {
        return;
    }
    let values: Vec<f32> = (0..3000u32).map(|token| (token * 7919 % 3001) as f32 * -1e-3).collect();
    let case = |top_k| {
        let chain = Some(Chained {
            steps: vec![ChainStep::TopK, ChainStep::TypicalP(TypicalRule::Reached, 0.9)],
            min_keep: 1,
            ..Chained::default()
        });
        (Case { filters: Filters { top_k, ..Filters::OFF }, chain, ..Case::new(Dtype::F32, &values) }, Some(0))
    };
    let mut backend = backend("narrow");
    let cases: Vec<Placed> = [1024, 1025].map(case).into_iter().chain((0..260).map(|_| case(300))).collect();
    let looks = looks(&mut backend, &cases);
    let looked: Vec<usize> = looks.iter().enumerate().filter(|(_, looks)| **looks > 0).map(|(at, _)| at).collect();
    assert_eq!(looked, [1], "of a list of 1,025 tokens the kernel tells none");
}

/// The tokens that min-p leaves need not be the first ones: a top-k after it counts those that are left, and a rank
/// also counts others.
#[test]
fn what_min_p_leaves_need_not_be_the_first_tokens() {
    if !built() {
        return;
    }
    let mut backend = backend("narrow");
    for case in cases::masses_the_wrong_way_round() {
        looks(&mut backend, &[(case, Some(0))]);
    }
}

/// If nothing is uploaded, there is nothing to overlap, so there is one launch. Adjacent rows are copied together.
#[test]
fn rows_of_one_region_are_one_launch_and_one_copy() {
    if !built() {
        return;
    }
    let rows: Vec<Vec<f32>> = (0..4).map(|seed| cases::row(seed, 3000, 1)).collect();
    let there = OnDevice::of(rows.iter().flat_map(|row| Dtype::F32.encode(row)).collect());
    let cases: Vec<Case> = rows.iter().map(|row| Case::new(Dtype::F32, row)).collect();
    let own: Vec<RowJob<'_>> = cases.iter().map(Case::job).collect();
    let jobs: Vec<RowJob<'_>> = own.iter().enumerate().map(|(at, job)| moved(job, &there, at * 3000 * 4)).collect();
    let mut backend = backend("narrow");
    for (case, got) in cases.iter().zip(backend.run(&jobs)) {
        assert_eq!(cases::bits(&got), cases::bits(&case.expected()));
    }
    assert_eq!((backend.machine().launches(), backend.machine().copies), (1, 1));
    // Two of the rows with a gap between them; and all rows from the host, where they are more than one launch uploads.
    let (first, third) = (jobs[0], jobs[2]);
    assert_eq!(backend.run(&[first, third]).len(), 2);
    assert_eq!((backend.machine().launches(), backend.machine().copies), (2, 3));
    assert_eq!(backend.run(&own).len(), 4);
    assert!(backend.machine().launches() > 3 && backend.machine().copies == 3);
}

/// Rows without a kernel are fetched together, as many as a launch has room for; one that has no room is copied by
/// itself.
#[test]
fn rows_that_the_host_does_are_fetched_together() {
    if !built() {
        return;
    }
    let rows: Vec<Vec<f32>> = (0..100).map(|seed| cases::row(seed, 3008, 1)).collect();
    let there = OnDevice::of(rows.iter().flat_map(|row| Dtype::F32.encode(row)).collect());
    let chain = Some(Chained {
        steps: vec![ChainStep::TypicalP(TypicalRule::Reached, 0.9)],
        min_keep: 1,
        ..Chained::default()
    });
    let case = |row: &Vec<f32>| Case { chain: chain.clone(), ..Case::new(Dtype::F32, row) };
    let cases: Vec<Case> = rows.iter().map(case).collect();
    let own: Vec<RowJob<'_>> = cases.iter().map(Case::job).collect();
    let jobs: Vec<RowJob<'_>> = own.iter().enumerate().map(|(at, job)| moved(job, &there, at * 3008 * 4)).collect();
    for (room, fetches, looks) in [(1 << 20, &[87, 13][..], 0), (8 << 10, &[], 100)] {
        let mut backend = backend_with("narrow", room);
        for (case, got) in cases.iter().zip(backend.run(&jobs)) {
            assert_eq!(cases::bits(&got), cases::bits(&case.expected()));
        }
        let copies: Vec<usize> = backend
            .machine()
            .fetches
            .iter()
            .map(|copies| copies.iter().map(|copy| copy.bytes / 12_032).sum())
            .collect();
        assert_eq!((copies.as_slice(), there.looks.swap(0, Ordering::Relaxed)), (fetches, looks));
        assert!(backend.machine().fetches.iter().all(|copies| copies.len() == 1), "they follow on each other");
        let handed_over: u64 = backend.handed_over().iter_mut().map(|(_, rows)| std::mem::take(rows)).sum();
        assert_eq!(handed_over, 100);
    }
}

/// Only parameters are uploaded. If a row is kept as the distribution of a draft token, it is brought back, once.
#[test]
fn what_moves_of_a_row_on_the_device() {
    if !built() {
        return;
    }
    let values = cases::row(1, 3000, 1);
    let row = OnDevice::of(Dtype::F32.encode(&values));
    let mut backend = backend("narrow");
    let case = Case::new(Dtype::F32, &values);
    let got = backend.run(&[moved(&case.job(), &row, 0)]).remove(0);
    assert_eq!(cases::bits(&got), cases::bits(&case.expected()));
    let (up, back) = std::mem::take(&mut backend.machine().moved);
    assert!(up < 1000 && back == 0, "{up} bytes went up, {back} came back");
    // All tokens are left, which are too many for a list.
    let filters = Filters::OFF;
    let case = Case { filters, action: Action::Propose { uniform: 1 << 62 }, ..Case::new(Dtype::F32, &values) };
    let got = backend.run(&[moved(&case.job(), &row, 0)]).remove(0);
    assert_eq!(cases::bits(&got), cases::bits(&case.expected()));
    let (up, back) = std::mem::take(&mut backend.machine().moved);
    assert!(up < 1000 && back == 12_000, "{up} bytes went up, {back} came back");
    assert_eq!(row.looks.load(Ordering::Relaxed), 0);
}

/// Drafts whose target rows are on the device: held there, or copied to the host where there is no room to hold them.
#[test]
fn drafts_on_the_device_equal_the_specification() {
    if !built() {
        return;
    }
    // No room, room for all, and for one draft or a few.
    let holds = prop_oneof![Just(0), Just(usize::MAX), 512usize..60_000];
    let strategy = (prop::collection::vec(recipe(vec![127, 1025], 4), 1..5), holds);
    let result = TestRunner::new(config(30)).run(&strategy, |(recipes, holds)| {
        let cases: Vec<draft_jobs::Case> = recipes.iter().filter_map(draft_jobs::Recipe::case).collect();
        let backend = RefCell::new(backend("narrow"));
        backend.borrow_mut().machine().holds = holds;
        let plain = Case::new(Dtype::F32, &cases::row(0, 3000, 1));
        let keep =
            |job: &RowJob<'_>| -> Box<Kept> { backend.borrow_mut().run(&[*job]).remove(0).unwrap().kept.unwrap() };
        let mut got = Vec::new();
        together(&cases, &keep, &mut Vec::new(), &mut |jobs: &[VerifyJob<'_>]| {
            let there = |job: &VerifyJob<'_>| -> Vec<OnDevice> {
                job.rows.iter().map(|row| OnDevice::of(row.logits.bytes().to_vec())).collect()
            };
            let there: Vec<Vec<OnDevice>> = jobs.iter().map(there).collect();
            let mut placed: Vec<Vec<RowJob<'_>>> = Vec::new();
            for (job, there) in jobs.iter().zip(&there) {
                let rows = job.rows.iter().zip(there);
                placed.push(rows.map(|(row, there)| moved(row, there, 0)).collect());
            }
            let jobs: Vec<VerifyJob<'_>> =
                jobs.iter().zip(&placed).map(|(job, rows)| VerifyJob { rows, ..*job }).collect();
            // A launch that a panic left behind is waited for before rows are held.
            backend.borrow_mut().machine().panics = true;
            assert!(catch_unwind(AssertUnwindSafe(|| backend.borrow_mut().run(&[plain.job()]))).is_err());
            got = backend.borrow_mut().verify(&jobs);
            let fetches = std::mem::take(&mut backend.borrow_mut().machine().fetches).concat();
            for row in there.iter().flatten() {
                assert_eq!(row.looks.load(Ordering::Relaxed), 0, "the host copies none by itself");
            }
            for (job, there) in jobs.iter().zip(&there) {
                let fetched = |row: &OnDevice| fetches.iter().filter(|from| from.from / APART == row.at as u64).count();
                let fetched: Vec<usize> = there.iter().map(fetched).collect();
                // Where kernels begin all chains of a draft, the host needs none of its rows.
                let chained = job.rows.iter().all(|row| row.spec.chain.is_some());
                let told = "a row is copied once, and where it is held not to the host";
                let by_lists = chained && fetched[0] == 0;
                let bytes = job.rows.iter().map(|row| row.logits.byte_len().next_multiple_of(ALIGNMENT)).sum::<usize>();
                let expected = usize::from(!(bytes <= holds || by_lists));
                assert_eq!(fetched, vec![expected; there.len()], "{told}");
            }
        });
        for (case, got) in cases.iter().zip(&got) {
            assert_eq!(draft_jobs::bits(got), draft_jobs::bits(&case.expected()), "{}", draft_jobs::summary(case));
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

prop_compose! {
    /// A draft whose rows all have chains, mostly such that kernels begin.
    fn begun_draft()(
        recipe in recipe(vec![127, 1025, 3000], 4), chain in cases::chained(), first in first_steps(), top_k in prop_oneof![3 => 1..150u32, 1 => 150..1300u32],
        min_p in prop_oneof![2 => 0.01f32..1.0, 1 => Just(0.0)], temperature in prop_oneof![Just(1.0f32), 0.05f32..3.0],
        dense in prop::bool::weighted(0.1),
    ) -> draft_jobs::Recipe {
        let min_keep = if chain.min_keep < 20 { 1 } else { 5 };
        let chain = Some(Chained { steps: [first, chain.steps].concat(), infill: None, min_keep, ..chain });
        let filters = Filters { temperature, top_k, min_p, ..recipe.filters[0] };
        // Sources 1, 5, 9 ... are probabilities of all tokens.
        let sources = recipe.sources.iter().map(|kind| if kind % 4 == 1 && !dense { 0 } else { *kind }).collect();
        let (chains, filters) = ([chain.clone(), chain], [filters, filters]);
        draft_jobs::Recipe { chains, filters, sources, thoughts: None, late: None, mark: None, ..recipe }
    }
}

/// Of the rows of such a draft kernels tell what is left, and the host verifies without a look at them; of others it
/// gets them whole.
#[test]
fn drafts_whose_chains_kernels_begin_are_verified_without_their_rows() {
    if !built() {
        return;
    }
    let (without, all, accepted) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let strategy = prop::collection::vec(begun_draft(), 1..5);
    let result = TestRunner::new(config(60)).run(&strategy, |recipes| {
        let cases: Vec<draft_jobs::Case> = recipes.iter().filter_map(draft_jobs::Recipe::case).collect();
        let mut backend = RUNNING.take().unwrap_or_else(|| backend("narrow"));
        backend.machine().holds = 0;
        let mut got = Vec::new();
        together(&cases, &draft_jobs::plainly, &mut Vec::new(), &mut |jobs: &[VerifyJob<'_>]| {
            let of_job =
                |job: &VerifyJob<'_>| job.rows.iter().map(|row| OnDevice::of(row.logits.bytes().to_vec())).collect();
            let there: Vec<Vec<OnDevice>> = jobs.iter().map(of_job).collect();
            let mut placed: Vec<Vec<RowJob<'_>>> = Vec::new();
            for (job, there) in jobs.iter().zip(&there) {
                placed.push(job.rows.iter().zip(there).map(|(row, there)| moved(row, there, 0)).collect());
            }
            let placed: Vec<VerifyJob<'_>> =
                jobs.iter().zip(&placed).map(|(job, rows)| VerifyJob { rows, ..*job }).collect();
            got = backend.verify(&placed);
            let fetches = std::mem::take(&mut backend.machine().fetches).concat();
            let is_fetched = |row: &OnDevice| fetches.iter().any(|from| from.from / APART == row.at as u64);
            let whole: Vec<usize> = there.iter().filter(|rows| is_fetched(&rows[0])).map(Vec::len).collect();
            let handed_over: u64 = backend.handed_over().iter_mut().map(|(_, rows)| std::mem::take(rows)).sum();
            assert_eq!(handed_over, whole.iter().sum::<usize>() as u64, "who looks at rows is told");
            assert!(there.iter().flatten().all(|row| row.looks.load(Ordering::Relaxed) == 0));
            all.set(all.get() + jobs.len());
            without.set(without.get() + jobs.len() - whole.len());
        });
        RUNNING.set(Some(backend));
        for (case, got) in cases.iter().zip(&got) {
            assert_eq!(draft_jobs::bits(got), draft_jobs::bits(&case.expected()), "{}", draft_jobs::summary(case));
            accepted.set(accepted.get() + got.as_ref().map_or(0, |verified| verified.emitted.len() - 1));
        }
        Ok(())
    });
    println!(
        "{} of {} drafts were verified without their rows, {} tokens accepted",
        without.get(),
        all.get(),
        accepted.get()
    );
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(4 * without.get() > all.get() && accepted.get() > 20);
}

thread_local!(static LAUNCHES: Cell<usize> = const { Cell::new(0) });

/// Counts a launch, and spoils its results if it is this one.
fn spoil(outputs: &mut [u8], launch: usize) {
    if LAUNCHES.replace(LAUNCHES.get() + 1) == launch {
        outputs.fill(0xFF);
    }
}

/// A draft of two tokens before rows of which a top-k leaves five.
fn draft_of_five(vocab: usize, tokens: [u32; 2], measure: bool) -> draft_jobs::Case {
    let row = |seed| draft_jobs::Row {
        chain: Some(Chained {
            steps: vec![ChainStep::TopK, ChainStep::Temperature],
            min_keep: 1,
            ..Chained::default()
        }),
        ..draft_jobs::Row::new(Dtype::F32, &cases::row(seed, vocab, 7), Filters { top_k: 5, ..Filters::OFF })
    };
    let case = draft_jobs::Case::new(tokens.map(|token| (token, draft_jobs::Source::None)).to_vec());
    draft_jobs::Case { rows: (0..3).map(row).collect(), measure, ..case }
}

/// Verifies so many copies of a draft, whose rows are on the device.
fn verified_there(backend: &mut CudaBackend<Emulated>, case: &draft_jobs::Case, copies: usize) -> Vec<String> {
    case.with(draft_jobs::plainly, |job| {
        let there: Vec<OnDevice> = job.rows.iter().map(|row| OnDevice::of(row.logits.bytes().to_vec())).collect();
        let rows: Vec<RowJob<'_>> = job.rows.iter().zip(&there).map(|(row, there)| moved(row, there, 0)).collect();
        let jobs = vec![VerifyJob { rows: &rows, ..*job }; copies];
        backend.verify(&jobs).iter().map(draft_jobs::bits).collect()
    })
}

/// The device does not write the results of the launch that lists tokens, of the launch that ranks one, or of neither.
#[test]
fn a_draft_about_which_a_kernel_contradicts_itself_is_verified_on_the_host() {
    if !built() {
        return;
    }
    // Token 2,999 is not among the five, so its rank takes a launch of its own.
    let case = draft_of_five(3000, [2999, 7], true);
    let expected = case.expected();
    assert!(expected.as_ref().unwrap().trials[0].rejected_rank > Some(5));
    type Spoils = fn(&mut [u8]);
    let spoils: [Spoils; 3] = [|outputs| spoil(outputs, 0), |outputs| spoil(outputs, 1), |outputs| spoil(outputs, 2)];
    for (spoil, (handed_over, launches)) in spoils.into_iter().zip([(3, 1), (3, 2), (0, 2)]) {
        let mut backend = backend("narrow");
        backend.machine().spoil = spoil;
        LAUNCHES.set(0);
        assert_eq!(verified_there(&mut backend, &case, 1), [draft_jobs::bits(&expected)]);
        let counted: Vec<_> = backend.handed_over().iter().filter(|(_, rows)| *rows > 0).copied().collect();
        assert_eq!(counted, if handed_over > 0 { vec![("contradiction", handed_over)] } else { vec![] });
        assert_eq!(LAUNCHES.get(), launches);
    }
}

/// The device does not write the result of the first row of a launch, which is one draft's.
#[test]
fn a_contradiction_about_one_draft_changes_no_other() {
    if !built() {
        return;
    }
    let case = |seed: u64| {
        let row = |at: u64| draft_jobs::Row::new(Dtype::F32, &cases::row(0, 700, seed + at), Filters::OFF);
        let sources = [7, 8, 9].map(|token| (token, draft_jobs::Source::None)).to_vec();
        draft_jobs::Case { rows: (0..4).map(row).collect(), measure: false, ..draft_jobs::Case::new(sources) }
    };
    let cases = [10, 20, 30].map(case);
    let [first, second, third] = &cases;
    let expected = cases.each_ref().map(|case| draft_jobs::bits(&case.expected()));
    assert!(expected[0] != expected[1] && expected[1] != expected[2], "mixing them up would show");
    let mut backend = backend("narrow");
    backend.machine().spoil = |outputs| {
        if LAUNCHES.replace(LAUNCHES.get() + 1) == 0 {
            outputs[..size_of::<abi::RowResult>()].fill(0xFF);
        }
    };
    LAUNCHES.set(0);
    let mut verified = |jobs: &[VerifyJob<'_>]| backend.verify(jobs).iter().map(draft_jobs::bits).collect::<Vec<_>>();
    let plainly = draft_jobs::plainly;
    let got = first
        .with(plainly, |one| second.with(plainly, |two| third.with(plainly, |three| verified(&[*one, *two, *three]))));
    assert_eq!(got, expected);
    let counted: Vec<_> = backend.handed_over().iter().filter(|(_, rows)| *rows > 0).copied().collect();
    assert_eq!(counted, [("contradiction", 4)]);
}

/// Only 256 lists exist at once. These drafts have 258 rows, so they come in two turns.
#[test]
fn many_drafts_whose_chains_kernels_begin_are_verified_in_turns() {
    if !built() {
        return;
    }
    let (case, mut backend) = (draft_of_five(600, [7, 8], false), backend("narrow"));
    let got = verified_there(&mut backend, &case, 86);
    assert_eq!(got, vec![draft_jobs::bits(&case.expected()); 86]);
    assert!(backend.machine().fetches.is_empty());
}
