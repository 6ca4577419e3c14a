//! Rows of a draft model that knows only some tokens, which lie on the device and are spread there.

use super::harness::{UNUSED, UNWRITTEN, built, config};
use super::machine::{Emulated, backend};
use super::on_device::{OnDevice, device_bytes};
use crate::cases::{self, Case, case, summary};
use croupier::backend::cuda::abi::SpreadJob;
use croupier::backend::cuda::ask::{HostRows, has_kernel};
use croupier::backend::cuda::machine::{ALIGNMENT, DeviceRow, Launch, Machine};
use croupier::backend::{Backend, RowJob};
use croupier::sampling::logits::{Dtype, Foreign, Logits};
use croupier::sampling::row::{Action, Filters};
use croupier::sampling::spread::Spread;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

impl Emulated {
    /// Spreads rows on the device, which to the program lie behind the inputs, and checks that nothing but their places is
    /// written.
    pub(super) fn spread(&mut self, launch: &Launch, rows: &[DeviceRow], uploaded: &mut [u8]) {
        let rows: Vec<&DeviceRow> = rows.iter().filter(|row| row.columns.is_some()).collect();
        assert_eq!(rows.len(), launch.spread as usize);
        if rows.is_empty() {
            return;
        }
        let mut inputs = uploaded.to_vec();
        for (at, row) in rows.iter().enumerate() {
            let place =
                launch.spread_at + at * size_of::<SpreadJob>()..launch.spread_at + (at + 1) * size_of::<SpreadJob>();
            let job: SpreadJob = bytemuck::pod_read_unaligned(&inputs[place.clone()]);
            assert_eq!((job.from, job.to as usize, Some(job.columns)), (row.from, row.to, row.columns));
            inputs.resize(inputs.len().next_multiple_of(4), UNUSED);
            let from = inputs.len() as u64;
            inputs[place].copy_from_slice(bytemuck::bytes_of(&SpreadJob { from, ..job }));
            let bytes = job.columns as usize * launch.dtype.size();
            inputs.extend(device_bytes(&DeviceRow { bytes, ..**row }));
        }
        let parts = launch.spread_parts(self.facts().multiprocessors);
        self.parts_of_spread.push(parts);
        let mut written = self.emulator.spread(launch, parts, self.launches() as u64, &inputs);
        for row in rows {
            let end = row.to + row.bytes;
            uploaded[row.to..end].copy_from_slice(&written[row.to..end]);
            let padded = end.next_multiple_of(ALIGNMENT).min(written.len());
            written[row.to..padded].fill(UNWRITTEN);
        }
        assert!(written.iter().all(|&byte| byte == UNWRITTEN), "rows are written to their places alone");
    }
}

/// A row of some columns on the device.
#[derive(Debug)]
struct Short<'a> {
    there: OnDevice,
    /// How many bytes are before it there.
    gap: usize,
    dtype: Dtype,
    token_ids: &'a [u32],
    /// How many times the host has spread it.
    looks: AtomicUsize,
}

// SAFETY: it gives no place, only copies.
unsafe impl Foreign for Short<'_> {
    fn copy(&self, _: usize, to: &mut [u8]) {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.spread(0).unwrap().write(to);
    }

    fn spread(&self, _: usize) -> Option<Spread<'_>> {
        let sent = Logits::foreign(self.dtype, &self.there, self.gap, self.token_ids.len());
        Some(Spread { sent, token_ids: self.token_ids })
    }
}

impl<'a> Short<'a> {
    /// The logits of these tokens, behind so many other values.
    fn of(case: &Case, token_ids: &'a [u32], gap: usize) -> Self {
        let (row, size) = (case.job().logits, case.dtype.size());
        let gap = gap * size;
        let logits = token_ids.iter().flat_map(|&token| &row.bytes()[token as usize * size..][..size]);
        let bytes = std::iter::repeat_n(&0xCC, gap).chain(logits).copied().collect();
        Self { there: OnDevice::of(bytes), gap, dtype: case.dtype, token_ids, looks: AtomicUsize::new(0) }
    }

    fn job(&'a self, case: &'a Case) -> RowJob<'a> {
        let job = case.job();
        RowJob { logits: Logits::foreign(case.dtype, self, 0, job.logits.vocab_size()), ..job }
    }
}

/// Some tokens of a vocabulary, in order or not.
fn known(vocab_size: usize, in_eight: u32, in_order: bool) -> Vec<u32> {
    let is_known = |token: &u32| token.wrapping_mul(0x9E37_79B9) >> 29 < in_eight || *token + 1 == vocab_size as u32;
    let mut token_ids: Vec<u32> = (0..vocab_size as u32).filter(is_known).collect();
    if !in_order {
        token_ids.sort_unstable_by_key(|token| token.wrapping_mul(0x85EB_CA6B));
    }
    token_ids
}

/// The case of a draft model that knows only these tokens.
fn masked(case: Case, token_ids: &[u32]) -> Case {
    let (row, size) = (case.job().logits, case.dtype.size());
    let known: BTreeSet<u32> = token_ids.iter().copied().collect();
    let unknown = case.dtype.encode(&[f32::NEG_INFINITY]);
    let logit = |token: u32| match known.contains(&token) {
        true => &row.bytes()[token as usize * size..][..size],
        false => &unknown,
    };
    let bytes = (0..row.vocab_size() as u32).flat_map(logit).copied().collect();
    Case { shift: 0, bytes, ..case }
}

thread_local!(static RUNNING: RefCell<Option<croupier::backend::cuda::CudaBackend<Emulated>>> = const { RefCell::new(None) });

/// Lists of any length, in any order, behind any other values; several lists in a launch, and beside rows that are copied and
/// rows of the host.
#[test]
fn rows_of_a_draft_model_are_spread_on_the_device() {
    if !built() {
        return;
    }
    let place = prop_oneof![3 => Just(0u8), 1 => Just(1), 1 => Just(2)];
    let strategy = prop::collection::vec((case(), place, 1..8u32, any::<bool>(), 0usize..9), 1..10);
    let parts = RefCell::new(BTreeSet::new());
    let result = TestRunner::new(config(60)).run(&strategy, |drawn| {
        let mut backend = RUNNING.take().unwrap_or_else(|| backend("narrow"));
        let lists: Vec<Vec<u32>> = drawn
            .iter()
            .map(|(case, _, in_eight, in_order, _)| known(case.job().logits.vocab_size(), *in_eight, *in_order))
            .collect();
        let gaps: Vec<(u8, usize)> = drawn.iter().map(|(_, place, .., gap)| (*place, *gap)).collect();
        let cases: Vec<Case> = drawn.into_iter().zip(&lists).map(|((case, ..), list)| masked(case, list)).collect();
        let short: Vec<Short<'_>> =
            cases.iter().zip(&lists).zip(&gaps).map(|((case, list), (_, gap))| Short::of(case, list, *gap)).collect();
        let whole: Vec<OnDevice> = cases.iter().map(|case| OnDevice::of(case.job().logits.bytes().to_vec())).collect();
        let job = |at: usize| match gaps[at].0 {
            0 => short[at].job(&cases[at]),
            1 => super::on_device::moved(&cases[at].job(), &whole[at], 0),
            _ => cases[at].job(),
        };
        let jobs: Vec<RowJob<'_>> = (0..cases.len()).map(job).collect();
        for ((case, short), got) in cases.iter().zip(&short).zip(backend.run(&jobs)) {
            assert_eq!(cases::bits(&got), cases::bits(&case.expected()), "{} of {short:?}", summary(case));
            let may_look = has_kernel(&case.job().spec).is_err();
            assert!(may_look || short.looks.load(Ordering::Relaxed) == 0, "only a fallback looks at {}", summary(case));
        }
        backend.handed_over().iter_mut().for_each(|(_, rows)| *rows = 0);
        backend.machine().fetches.clear();
        parts.borrow_mut().extend(std::mem::take(&mut backend.machine().parts_of_spread));
        RUNNING.set(Some(backend));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    // Few rows are spread by more blocks each than many; in the next test each is spread by one.
    assert!(parts.borrow().len() > 1 && parts.borrow().contains(&7), "{parts:?}");
}

/// By default the device takes only rows that are there. These are: their list of tokens goes up once for all of them, the
/// rows not at all, and a row that is kept as the distribution of a draft token comes back as it was spread.
#[test]
fn what_moves_of_rows_that_are_spread() {
    if !built() {
        return;
    }
    let token_ids = known(3000, 2, true);
    let case = |seed| Case {
        action: Action::Propose { uniform: 1 << 62 },
        ..Case::new(Dtype::F32, &cases::row(1, 3000, seed))
    };
    let cases: Vec<Case> = (0..8).map(|seed| masked(case(seed), &token_ids)).collect();
    let short: Vec<Short<'_>> = cases.iter().map(|case| Short::of(case, &token_ids, 0)).collect();
    let mut backend = backend("narrow");
    backend.set_host_rows(HostRows::Cpu);
    for (filters, came_back) in [(Filters { top_k: 40, ..Filters::OFF }, 0), (Filters::OFF, 8 * 12_000)] {
        let cases: Vec<Case> = cases.iter().map(|case| Case { filters, ..case.clone() }).collect();
        let jobs: Vec<RowJob<'_>> = short.iter().zip(&cases).map(|(short, case)| short.job(case)).collect();
        for (case, got) in cases.iter().zip(backend.run(&jobs)) {
            assert_eq!(cases::bits(&got), cases::bits(&case.expected()));
        }
        let (up, back) = std::mem::take(&mut backend.machine().moved);
        let list = 4 * token_ids.len();
        assert!((list..list + 8 * 300).contains(&up), "{up} bytes went up, the list has {list}");
        assert_eq!(back, came_back);
        assert!(backend.handed_over().iter().all(|(_, rows)| *rows == 0));
    }
    assert_eq!((backend.machine().launches(), backend.machine().copies), (2, 0));
    assert_eq!(backend.machine().parts_of_spread, [1, 1]);
    assert!(short.iter().all(|short| short.looks.load(Ordering::Relaxed) == 0));
}
