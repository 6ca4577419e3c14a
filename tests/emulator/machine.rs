//! The whole backend with the emulator as its machine: batches cut into launches, two launches under way, rows handed over, foreign
//! rows, drafts proposed and verified, and a machine that fails.

use super::harness::{Emulator, UNUSED, built, config};
use super::on_device::{OnDevice, device_bytes};
use crate::cases::{self, Case, case, summary};
use crate::draft_jobs::{self, recipe, together};
use croupier::backend::cpu::CpuBackend;
use croupier::backend::cuda::CudaBackend;
use croupier::backend::cuda::abi::{self, SLICE_CHUNKS};
use croupier::backend::cuda::ask::has_kernel;
use croupier::backend::cuda::costs::Costs;
use croupier::backend::cuda::machine::{DeviceRow, HostMemory, Launch, Machine, SLOTS, uploads};
use croupier::backend::cuda::shape::{self, shared_bytes};
use croupier::backend::{Backend, DeviceLost, RowJob, VerifyJob};
use croupier::sampling::kept::Kept;
use croupier::sampling::logits::{Dtype, Foreign, Logits};
use croupier::sampling::row::{Action, Filters, LogprobsMode};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Room for one launch.
pub(crate) const ROOM: usize = 1 << 20;
/// A launch begins once it has this many bytes, so that a batch has several.
const PIECE: usize = 24 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Begun(usize),
    Finished(usize),
}

#[derive(Default)]
struct Slot {
    inputs: Vec<u8>,
    /// The inputs of the last launch, as they are on the device.
    uploaded: Vec<u8>,
    outputs: Vec<u8>,
    /// What the launch under way wrote. It becomes visible when the launch is finished.
    written: Option<Vec<u8>>,
}

/// The emulator as a machine, and a log of what it was asked.
pub(crate) struct Emulated {
    pub(super) emulator: Emulator,
    slots: [Slot; SLOTS],
    events: Vec<Event>,
    /// Copies made on the device for launches.
    pub(crate) copies: usize,
    /// In how many parts the rows of each launch with such rows were spread.
    pub(crate) parts_of_spread: Vec<u32>,
    /// How many launches laid out their last rows differently from the others.
    parted: usize,
    /// How many launches succeed before it fails.
    good_for: usize,
    /// Whether the host panics when it next waits for a launch, or (`panics_behind_begin`) when it has begun one.
    pub(crate) panics: bool,
    panics_behind_begin: bool,
    /// Changes what launches wrote.
    pub(crate) spoil: fn(&mut [u8]),
    /// How many bytes were uploaded, and brought back.
    pub(crate) moved: (usize, usize),
    /// The rows of each fetch for the host.
    pub(crate) fetches: Vec<Vec<DeviceRow>>,
    /// How many bytes of rows of drafts may be held.
    pub(crate) holds: usize,
    /// How many launches have not been waited for.
    pub(crate) under_way: Arc<AtomicUsize>,
}

impl Emulated {
    fn start(build: &str) -> Self {
        let slots = std::array::from_fn(|_| Slot { inputs: vec![UNUSED; ROOM], ..Slot::default() });
        Self {
            emulator: Emulator::start(build),
            slots,
            events: vec![],
            copies: 0,
            parts_of_spread: vec![],
            parted: 0,
            good_for: usize::MAX,
            panics: false,
            panics_behind_begin: false,
            spoil: |_| (),
            moved: (0, 0),
            fetches: vec![],
            holds: usize::MAX,
            under_way: Arc::default(),
        }
    }
}

impl Machine for Emulated {
    type Error = &'static str;

    fn name(&self) -> &str {
        "the emulator"
    }

    fn facts(&self) -> shape::Device {
        let (threads, clusters) = (self.emulator.threads, self.emulator.clusters);
        let multiprocessors = 7;
        shape::Device {
            threads,
            multiprocessors,
            shared_bytes: shared_bytes(threads, SLICE_CHUNKS) + (48 << 10),
            clusters,
            // A team of eight blocks runs too, since nothing has to run at once here.
            resident: std::array::from_fn(|size| (multiprocessors / (size as u32 + 1)).max(1)),
            costs: Costs::PREDICTED,
        }
    }

    fn enter(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    fn inputs(&mut self, slot: usize) -> &mut [u8] {
        assert!(self.slots[slot].written.is_none(), "inputs are written while a launch reads them");
        &mut self.slots[slot].inputs
    }

    fn begin(&mut self, slot: usize, launch: &Launch, rows: &[DeviceRow]) -> Result<(), Self::Error> {
        assert!(self.slots[slot].written.is_none(), "a slot has one launch");
        if self.good_for == 0 {
            return Err("it was good for so many launches");
        }
        self.good_for -= 1;
        self.events.push(Event::Begun(slot));
        self.parted += usize::from(launch.parts().count() > 1);
        let inputs = &self.slots[slot].inputs;
        let mut uploaded = vec![UNUSED; launch.inputs];
        for part in uploads(launch.inputs, rows) {
            self.moved.0 += part.len();
            uploaded[part.clone()].copy_from_slice(&inputs[part]);
        }
        for row in rows.iter().filter(|row| row.columns.is_none()) {
            self.copies += 1;
            uploaded[row.to..row.to + row.bytes].copy_from_slice(&device_bytes(row));
        }
        self.spread(launch, rows, &mut uploaded);
        self.slots[slot].written = Some(self.emulator.run(launch, self.events.len() as u64, &uploaded));
        self.slots[slot].uploaded = uploaded;
        self.slots[slot].outputs = vec![0xCD; launch.outputs];
        self.under_way.fetch_add(1, Ordering::Relaxed);
        assert!(!std::mem::take(&mut self.panics_behind_begin), "the host panics");
        Ok(())
    }

    fn finish(&mut self, slot: usize) -> Result<HostMemory<'_>, Self::Error> {
        assert!(!std::mem::take(&mut self.panics), "the host panics");
        self.events.push(Event::Finished(slot));
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        let slot = &mut self.slots[slot];
        slot.outputs = slot.written.take().expect("there is a launch to wait for");
        (self.spoil)(&mut slot.outputs);
        Ok(HostMemory { inputs: &slot.inputs, outputs: &slot.outputs })
    }

    fn bring(&mut self, slot: usize, parts: &[Range<usize>]) -> Result<HostMemory<'_>, Self::Error> {
        let slot = &mut self.slots[slot];
        for part in parts {
            self.moved.1 += part.len();
            slot.inputs[part.clone()].copy_from_slice(&slot.uploaded[part.clone()]);
        }
        Ok(HostMemory { inputs: &slot.inputs, outputs: &slot.outputs })
    }

    fn fetch(&mut self, slot: usize, rows: &[DeviceRow]) -> Result<&[u8], Self::Error> {
        assert!(self.slots.iter().all(|slot| slot.written.is_none()), "rows of a launch under way are where these go");
        let inputs = &mut self.slots[slot].inputs;
        inputs.fill(UNUSED);
        rows.iter().for_each(|row| inputs[row.to..row.to + row.bytes].copy_from_slice(&device_bytes(row)));
        self.fetches.push(rows.to_vec());
        Ok(inputs)
    }

    fn held_bytes(&self) -> usize {
        self.holds
    }

    fn hold(&mut self, rows: &[DeviceRow], bytes: usize) -> Result<Option<Arc<dyn Foreign + Send>>, Self::Error> {
        assert!(self.slots.iter().all(|slot| slot.written.is_none()), "what is held may be read by a launch");
        let mut held = vec![0xBA; bytes];
        rows.iter().for_each(|row| held[row.to..row.to + row.bytes].copy_from_slice(&device_bytes(row)));
        Ok((bytes <= self.holds).then(|| Arc::new(OnDevice::of(held)) as Arc<dyn Foreign + Send>))
    }
}

impl Emulated {
    /// How many launches were begun.
    pub(crate) fn launches(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, Event::Begun(_))).count()
    }
}

pub(crate) fn backend(build: &str) -> CudaBackend<Emulated> {
    backend_with(build, ROOM)
}

/// A backend with so much room for one launch.
pub(crate) fn backend_with(build: &str, room: usize) -> CudaBackend<Emulated> {
    beside(build, room, Box::new(CpuBackend::new(1)))
}

/// The same, with the backend for rows that have no kernel.
pub(crate) fn beside(build: &str, room: usize, other: Box<dyn Backend>) -> CudaBackend<Emulated> {
    CudaBackend::on(Emulated::start(build), other, room).in_pieces_of(PIECE)
}

/// Checks that each further launch begins, in the other slot, before the one before it is waited for.
fn assert_overlap(events: &[Event]) {
    let begun: Vec<usize> =
        events.iter().filter_map(|e| if let Event::Begun(slot) = e { Some(*slot) } else { None }).collect();
    assert!(begun.windows(2).all(|two| two[0] != two[1]), "{events:?}");
    let waits = |(at, event): (usize, &Event)| match event {
        Event::Finished(_) => !matches!(events[at - 1], Event::Begun(_)) && at + 1 < events.len(),
        Event::Begun(_) => false,
    };
    assert!(!events.iter().enumerate().any(waits), "{events:?}");
}

fn batches(build: &'static str, count: u32, largest: usize) {
    if !built() {
        return;
    }
    let strategy = prop::collection::vec(case(), 1..largest);
    let most = RefCell::new(0);
    let result = TestRunner::new(config(count)).run(&strategy, |cases| {
        thread_local!(static RUNNING: RefCell<Option<CudaBackend<Emulated>>> = const { RefCell::new(None) });
        let mut backend = RUNNING.take().unwrap_or_else(|| backend(build));
        let jobs: Vec<RowJob<'_>> = cases.iter().map(Case::job).collect();
        for (case, got) in cases.iter().zip(backend.run(&jobs)) {
            assert_eq!(cases::bits(&got), cases::bits(&case.expected()), "{}", summary(case));
        }
        let without = jobs.iter().filter(|job| has_kernel(&job.spec).is_err()).count() as u64;
        let handed_over = backend.handed_over().iter_mut().map(|(_, rows)| std::mem::take(rows)).sum::<u64>();
        assert_eq!(handed_over, without);
        let events = std::mem::take(&mut backend.machine().events);
        assert_overlap(&events);
        most.replace_with(|most| events.len().max(*most));
        RUNNING.set(Some(backend));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    let most = most.into_inner();
    println!("up to {} launches a batch", most / 2);
    // A few batches may all be small by chance; forty never were so far.
    assert!(most >= 6 || count < 40, "launches have to overlap for this to show anything");
}

#[test]
fn batches_in_many_launches_equal_the_specification() {
    batches("narrow", 40, 24);
}

#[test]
fn batches_on_clusters_equal_the_specification() {
    batches("wide", 4, 12);
}

/// The last rows of a launch, which would leave most of the machine idle, get larger teams (more blocks for each row), after the
/// others.
#[test]
fn the_last_rows_have_teams_of_their_own() {
    if !built() {
        return;
    }
    let mut backend = CudaBackend::on(Emulated::start("narrow"), Box::new(CpuBackend::new(1)), ROOM);
    let multiprocessors = backend.machine().facts().multiprocessors as usize;
    let cuts = [(0.0, 0, 1.0), (1.0, 12, 0.9), (0.7, 0, 0.95)];
    let case = |at: usize| {
        let logits: Vec<f32> =
            (0..5000u32).map(|token| (token * (2 * at as u32 + 7919) % 4999) as f32 / 400.0).collect();
        let mut case = Case::new(Dtype::F32, &logits);
        let (temperature, top_k, top_p) = cuts[at % cuts.len()];
        case.filters = Filters { temperature, top_k, top_p, min_p: 0.0 };
        case.action = Action::Draw { uniform: (at as u64 + 1) << 59 };
        case.logprobs = at.is_multiple_of(2).then(|| (5, LogprobsMode::Raw, vec![17]));
        case
    };
    let cases: Vec<Case> = (0..multiprocessors + 2).map(case).collect();
    let jobs: Vec<RowJob<'_>> = cases.iter().map(Case::job).collect();
    for (case, got) in cases.iter().zip(backend.run(&jobs)) {
        assert_eq!(cases::bits(&got), cases::bits(&case.expected()), "{}", summary(case));
    }
    assert_eq!(backend.machine().parted, 1);
}

/// Drafts proposed and then verified by the same backend.
#[test]
fn drafts_in_many_launches_equal_the_specification() {
    if !built() {
        return;
    }
    let strategy = prop::collection::vec(recipe(vec![127, 1025, 2049], 5), 1..6);
    let result = TestRunner::new(config(25)).run(&strategy, |recipes| {
        let cases: Vec<draft_jobs::Case> = recipes.iter().filter_map(draft_jobs::Recipe::case).collect();
        let backend = RefCell::new(backend("narrow"));
        let keep =
            |job: &RowJob<'_>| -> Box<Kept> { backend.borrow_mut().run(&[*job]).remove(0).unwrap().kept.unwrap() };
        let mut got = Vec::new();
        together(&cases, &keep, &mut Vec::new(), &mut |jobs: &[VerifyJob<'_>]| {
            got = backend.borrow_mut().verify(jobs);
        });
        for (case, got) in cases.iter().zip(&got) {
            assert_eq!(draft_jobs::bits(got), draft_jobs::bits(&case.expected()), "{}", draft_jobs::summary(case));
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// Memory that its owner writes to between any two reads.
#[derive(Debug)]
struct Changing {
    looks: AtomicUsize,
    values: [Vec<u8>; 2],
}

// SAFETY: it gives no address.
unsafe impl Foreign for Changing {
    fn copy(&self, offset: usize, to: &mut [u8]) {
        let values = &self.values[self.looks.fetch_add(1, Ordering::Relaxed).min(1)];
        to.copy_from_slice(&values[offset..offset + to.len()]);
    }
}

/// What is kept of a foreign draft row is what the kernel read, whatever its owner writes to it later.
#[test]
fn a_foreign_row_is_kept_as_it_was_seen() {
    if !built() {
        return;
    }
    let mut backend = backend("narrow");
    let (seen, later) = (cases::row(1, 3000, 1), cases::row(1, 3000, 2));
    for filters in [
        Filters { temperature: 1.0, top_k: 0, top_p: 0.95, min_p: 0.0 },
        Filters { temperature: 1.0, top_k: 40, top_p: 1.0, min_p: 0.0 },
    ] {
        let action = Action::Propose { uniform: 1 << 62 };
        let case = Case { filters, action, banned: vec![5, 77], ..Case::new(Dtype::F32, &seen) };
        let values = [&seen, &later].map(|values| Dtype::F32.encode(values));
        let memory = Changing { looks: AtomicUsize::new(0), values };
        let job = RowJob { logits: Logits::foreign(Dtype::F32, &memory, 0, 3000), ..case.job() };
        let got = backend.run(&[job]).remove(0);
        assert_eq!(cases::bits(&got), cases::bits(&case.expected()));
        assert_eq!(memory.looks.load(Ordering::Relaxed), 1);
    }
}

/// A machine that fails gives no answers, not even those of launches that were done.
#[test]
fn a_machine_that_fails_is_lost() {
    if !built() {
        return;
    }
    let mut backend = backend("narrow");
    backend.machine().good_for = 2;
    let rows: Vec<Case> = (0..8).map(|seed| Case::new(Dtype::F32, &cases::row(0, 3000, seed))).collect();
    let jobs: Vec<RowJob<'_>> = rows.iter().map(Case::job).collect();
    let lost = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| backend.run(&jobs)));
    assert!(lost.unwrap_err().is::<DeviceLost>());
    assert_eq!(backend.machine().events.len(), 3);
}

/// A launch that was left running by a batch that panicked still uses its slot's memory, so the next batch waits for it. The
/// machine checks that nobody writes the inputs of a launch under way.
#[test]
fn a_launch_left_by_a_panic_is_waited_for() {
    if !built() {
        return;
    }
    let mut backend = backend("narrow");
    let rows: Vec<Case> = (0..8).map(|seed| Case::new(Dtype::F32, &cases::row(0, 3000, seed))).collect();
    let jobs: Vec<RowJob<'_>> = rows.iter().map(Case::job).collect();
    backend.machine().panics = true;
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| backend.run(&jobs)));
    assert!(panicked.is_err());
    for (case, got) in rows.iter().zip(backend.run(&jobs)) {
        assert_eq!(cases::bits(&got), cases::bits(&case.expected()));
    }
    let two = [Event::Begun(0), Event::Begun(1), Event::Finished(0), Event::Finished(1)];
    assert_eq!(backend.machine().events[..4], two);
    backend.machine().events.clear();
    backend.machine().panics_behind_begin = true;
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| backend.run(&jobs)));
    assert!(panicked.is_err());
    for (case, got) in rows.iter().zip(backend.run(&jobs)) {
        assert_eq!(cases::bits(&got), cases::bits(&case.expected()));
    }
    assert_eq!(backend.machine().events[..2], [Event::Begun(0), Event::Finished(0)]);
}

/// An impossible answer is no result: the other backend samples the row, which is counted.
#[test]
fn an_impossible_answer_is_handed_over() {
    if !built() {
        return;
    }
    let mut backend = backend("narrow");
    let case =
        Case { logprobs: Some((3, LogprobsMode::Raw, vec![1])), ..Case::new(Dtype::F32, &cases::row(0, 3000, 7)) };
    let spoils: [fn(&mut [u8]); 2] = [
        |outputs| bytemuck::from_bytes_mut::<abi::RowResult>(&mut outputs[..size_of::<abi::RowResult>()]).top_count = 4,
        |outputs| bytemuck::from_bytes_mut::<abi::RowResult>(&mut outputs[..size_of::<abi::RowResult>()]).token = 3000,
    ];
    for spoil in spoils {
        backend.machine().spoil = spoil;
        let got = backend.run(&[case.job()]).remove(0);
        assert_eq!(cases::bits(&got), cases::bits(&case.expected()));
        assert_eq!(backend.handed_over().iter_mut().map(|(_, rows)| std::mem::take(rows)).sum::<u64>(), 1);
    }
}
