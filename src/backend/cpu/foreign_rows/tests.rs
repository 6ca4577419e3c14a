use super::*;
use crate::backend::Backend;
use crate::backend::cpu::CpuBackend;
use crate::sampling::logits::{Dtype, Foreign};
use crate::sampling::philox::{Purpose, uniform};
use crate::sampling::row::{Filters, LogprobsMode, LogprobsSpec, RowResult};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory that shows `later` from the given number of copied bytes on.
#[derive(Debug)]
struct Rewritten {
    first: Vec<u8>,
    later: Vec<u8>,
    left: AtomicUsize,
}

// SAFETY: no address is given out.
unsafe impl Foreign for Rewritten {
    fn copy(&self, offset: usize, to: &mut [u8]) {
        let left = self.left.load(Ordering::Relaxed);
        let from = if left > 0 { &self.first } else { &self.later };
        to.copy_from_slice(&from[offset..offset + to.len()]);
        self.left.store(left.saturating_sub(to.len()), Ordering::Relaxed);
    }

    fn in_parts(&self) -> bool {
        true
    }
}

fn spec(filters: Filters, turn: u64) -> RowSpec<'static> {
    RowSpec::plain(filters, Action::Draw { uniform: uniform(7, turn, Purpose::Sample) })
}

fn noise(seed: u64, vocab: usize) -> Vec<f32> {
    let value = |at: usize| (uniform(seed, at as u64, Purpose::Sample) >> 40) as f32 / 2e6;
    (0..vocab).map(|at| value(at).floor() / 4.0).collect()
}

fn filters() -> Vec<Filters> {
    let all = Filters::OFF;
    let of = |top_k| Filters { top_k, ..all };
    vec![
        all,
        Filters { temperature: 0.0, ..all },
        of(1),
        of(2),
        of(7),
        of(50),
        Filters { top_p: 0.6, min_p: 0.1, ..of(20) },
    ]
}

fn run(level: Level, logits: Logits<'_>, spec: RowSpec<'_>) -> RowResult {
    CpuBackend::with_level(1, level).run(&[RowJob { logits, spec }]).remove(0)
}

#[test]
fn foreign_rows_give_what_rows_of_ones_own_give() {
    for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
        for (dtype, vocab) in
            Dtype::ALL.into_iter().flat_map(|dtype| [1, 127, 128, 513, 1024, 9000].map(|v| (dtype, v)))
        {
            let bytes = dtype.encode(&noise(vocab as u64, vocab));
            let memory = Rewritten { first: [&[0; 24], &bytes[..]].concat(), later: vec![], left: usize::MAX.into() };
            for (turn, filters) in (0..).zip(filters()) {
                let top = LogprobsSpec { mode: LogprobsMode::Raw, top_n: 3, tokens: &[] };
                let drawn = spec(filters, turn);
                let Action::Draw { uniform } = drawn.action else { unreachable!() };
                let proposed = RowSpec { action: Action::Propose { uniform }, ..drawn };
                for spec in [drawn, RowSpec { logprobs: Some(top), ..drawn }, proposed] {
                    let own = run(level, Logits::new(dtype, &bytes), spec);
                    let foreign = run(level, Logits::foreign(dtype, &memory, 24, vocab), spec);
                    assert_eq!(foreign, own, "{level:?} {dtype:?} {vocab} {filters:?}");
                }
            }
        }
    }
}

/// Memory that only gives whole rows, like a device's, or that of several ranks. It counts how often it is read.
#[derive(Debug)]
struct InOnePiece(Vec<u8>, AtomicUsize);

// SAFETY: no address is given out.
unsafe impl Foreign for InOnePiece {
    fn copy(&self, offset: usize, to: &mut [u8]) {
        self.1.fetch_add(1, Ordering::Relaxed);
        to.copy_from_slice(&self.0[offset..offset + to.len()]);
    }
}

#[test]
fn a_row_that_is_not_read_in_parts_is_copied_once() {
    let vocab = 3000;
    let bytes = Dtype::F32.encode(&noise(3, vocab));
    for (turn, filters) in (0..).zip(filters()) {
        let memory = InOnePiece(bytes.clone(), 0.into());
        let spec = spec(filters, turn);
        let row = run(Level::detect(), Logits::foreign(Dtype::F32, &memory, 0, vocab), spec);
        assert_eq!(row, run(Level::detect(), Logits::new(Dtype::F32, &bytes), spec));
        assert_eq!(memory.1.into_inner(), 1, "{filters:?}");
    }
}

#[test]
fn of_first_tokens_only_the_blocks_that_hold_them_are_copied() {
    let vocab = 128 * BLOCK;
    let mut logits = vec![0.0; vocab];
    (logits[5 * BLOCK + 3], logits[77 * BLOCK]) = (9.0, 8.0);
    let memory = Rewritten { first: Dtype::F32.encode(&logits), later: vec![], left: usize::MAX.into() };
    let row = Logits::foreign(Dtype::F32, &memory, 0, vocab);
    let (mut copies, mut maxima) = (RowCopies::default(), vec![]);
    for (top_k, shown) in [(1, vec![5]), (2, vec![5, 77])] {
        let filters = Filters { top_k, ..filters()[0] };
        copies.scan(Level::detect(), &RowJob { logits: row, spec: spec(filters, 0) }, ReadFrom::Cache, &mut maxima);
        let there: Vec<usize> = (0..maxima.len()).filter(|&block| maxima[block] > f32::NEG_INFINITY).collect();
        assert_eq!(there, shown);
    }
}

#[test]
fn a_row_that_is_rewritten_meanwhile_is_one_of_both_or_a_mixture_and_never_a_panic() {
    let vocab = 3000;
    let (first, later) = (noise(1, vocab), noise(2, vocab));
    let bytes = |values: &[f32]| Dtype::F32.encode(values);
    let mut poison = later.clone();
    poison.iter_mut().step_by(3).for_each(|x| *x = f32::NAN);
    for (turn, filters) in (0..).zip(filters()) {
        for left in (0..3 * vocab * 4).step_by(1021) {
            for next in [&later, &poison] {
                let memory = Rewritten { first: bytes(&first), later: bytes(next), left: left.into() };
                let row = run(Level::detect(), Logits::foreign(Dtype::F32, &memory, 0, vocab), spec(filters, turn));
                let Ok(output) = row else { continue };
                assert!((output.token as usize) < vocab);
                if left == 0 {
                    assert_eq!(
                        Ok(output),
                        run(Level::detect(), Logits::new(Dtype::F32, &bytes(next)), spec(filters, turn))
                    );
                }
            }
        }
    }
}

#[test]
fn a_row_seen_to_change_is_read_again_as_a_whole() {
    let vocab = 3000;
    let (first, later) = (noise(1, vocab), noise(2, vocab));
    // The first look sees the first values, every later one the later values.
    let memory =
        || Rewritten { first: Dtype::F32.encode(&first), later: Dtype::F32.encode(&later), left: (vocab * 4).into() };
    let greedy = spec(filters()[1], 0);
    let seen = run(Level::detect(), Logits::foreign(Dtype::F32, &memory(), 0, vocab), greedy);
    assert_eq!(seen, run(Level::detect(), Logits::new(Dtype::F32, &Dtype::F32.encode(&later)), greedy));
}

/// Memory that is mapped from the start of a cache line, and whose copies may differ from it.
#[derive(Debug)]
struct Lines {
    lines: Vec<Line>,
    copies: Vec<u8>,
    copied: AtomicUsize,
}

impl Lines {
    fn new(bytes: &[u8], copies: Vec<u8>) -> Self {
        let mut lines = vec![Line::zeroed(); bytes.len().div_ceil(size_of::<Line>())];
        bytemuck::cast_slice_mut(&mut lines)[..bytes.len()].copy_from_slice(bytes);
        Self { lines, copies, copied: 0.into() }
    }
}

// SAFETY: mapped addresses are in memory that `self` owns.
unsafe impl Foreign for Lines {
    fn copy(&self, offset: usize, to: &mut [u8]) {
        self.copied.fetch_add(to.len(), Ordering::Relaxed);
        to.copy_from_slice(&self.copies[offset..offset + to.len()]);
    }

    fn in_parts(&self) -> bool {
        true
    }

    fn mapped(&self, offset: usize, len: usize) -> Option<*const u8> {
        Some(bytemuck::cast_slice::<_, u8>(&self.lines)[offset..offset + len].as_ptr())
    }
}

fn all_of_it(turn: u64) -> RowSpec<'static> {
    let filters = Filters::OFF;
    let logprobs = LogprobsSpec { mode: LogprobsMode::Raw, top_n: 3, tokens: &[] };
    RowSpec { logprobs: Some(logprobs), ..spec(filters, turn) }
}

#[test]
fn mapped_rows_give_what_rows_of_ones_own_give() {
    for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
        for (dtype, vocab) in
            Dtype::ALL.into_iter().flat_map(|dtype| [1, 127, 128, 129, 513, 1024, 9000].map(|v| (dtype, v)))
        {
            let bytes = dtype.encode(&noise(vocab as u64, vocab));
            // At the start of a cache line; and between two lines, where rows are copied as before.
            for offset in [0, 64, 192, 4] {
                let bytes = [&vec![0; offset], &bytes[..]].concat();
                let memory = Lines::new(&bytes, bytes.clone());
                for (turn, filters) in (0..).zip(filters()) {
                    for spec in [spec(filters, turn), RowSpec { filters, ..all_of_it(turn) }] {
                        let own = run(level, Logits::new(dtype, &bytes[offset..]), spec);
                        let foreign = run(level, Logits::foreign(dtype, &memory, offset, vocab), spec);
                        assert_eq!(foreign, own, "{level:?} {dtype:?} {vocab} {offset} {filters:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_value_of_a_mapped_row_is_seen_once() {
    for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
        for dtype in Dtype::ALL {
            let vocab = 5 * BLOCK + 17;
            let (seen, other) = (dtype.encode(&noise(1, vocab)), dtype.encode(&noise(2, vocab)));
            let tail = &seen[5 * BLOCK * dtype.size()..];
            // Whole blocks are read from the mapped memory, and nobody reads them a second time.
            let copies = [&other[..5 * BLOCK * dtype.size()], tail].concat();
            let memory = Lines::new(&seen, copies);
            let result = run(level, Logits::foreign(dtype, &memory, 0, vocab), all_of_it(3));
            assert_eq!(result, run(level, Logits::new(dtype, &seen), all_of_it(3)), "{level:?} {dtype:?}");
            assert_eq!(memory.copied.into_inner(), tail.len());
        }
    }
}

#[test]
fn blocks_that_are_not_what_was_seen_are_found_out() {
    let vocab = 64 * BLOCK;
    // No block keeps its largest value. A block that did would be taken for unchanged.
    let other: Vec<f32> = noise(2, vocab).iter().map(|value| value - 50.0).collect();
    let (seen, other) = (Dtype::F32.encode(&noise(1, vocab)), Dtype::F32.encode(&other));
    for (turn, filters) in (0..).zip(filters()).filter(|(_, filters)| filters.top_k > 0 || filters.temperature == 0.0) {
        let memory = Lines::new(&seen, other.clone());
        let result = run(Level::detect(), Logits::foreign(Dtype::F32, &memory, 0, vocab), spec(filters, turn));
        assert_eq!(result, run(Level::detect(), Logits::new(Dtype::F32, &seen), spec(filters, turn)), "{filters:?}");
        assert!(memory.copied.into_inner() > 0, "the second look is by copying");
    }
}

/// NaN and +infinity are found wherever they are.
#[test]
fn what_cannot_be_sampled_is_seen_in_a_mapped_row() {
    for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
        for (dtype, wrong) in Dtype::ALL.into_iter().flat_map(|d| [(d, f32::NAN), (d, f32::INFINITY)]) {
            for place in (0..300).step_by(7) {
                let mut values = noise(5, 300);
                values[place] = wrong;
                let bytes = dtype.encode(&values);
                let memory = Lines::new(&bytes, bytes.clone());
                let foreign = run(level, Logits::foreign(dtype, &memory, 0, 300), all_of_it(0));
                assert_eq!(foreign, run(level, Logits::new(dtype, &bytes), all_of_it(0)));
                assert!(foreign.is_err(), "{level:?} {dtype:?} {wrong} at {place}");
            }
        }
    }
}
