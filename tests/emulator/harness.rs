//! Drives, from Rust, the programs that run the kernels on a CPU. A team is the blocks that work on one row; each has a slice of
//! its chunks.

pub(crate) use crate::build::{FOLDER, built};

use croupier::backend::cuda::abi::{self, MAX_TEAM, SCRATCH_BYTES, SLICE_CHUNKS};
use croupier::backend::cuda::ask::{Asked, Kernel};
use croupier::backend::cuda::machine::Launch;
use croupier::backend::cuda::pack::Packer;
use croupier::backend::cuda::read::Answer;
use croupier::backend::cuda::shape::{Laid, Shape, chunk, shared_bytes};
use croupier::sampling::adjust::TokenAdjust;
use croupier::sampling::logits::Dtype;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use std::io::{Read, Write};
use std::ops::Range;
use std::process::{Child, Command, Stdio};

/// What inputs are filled with before they are written, and so what is behind a row. As logits, these are 12.1 (f32, bf16) and 2.6
/// (f16), which is likely in most rows: a kernel that takes one for a token of the row has another result. Bytes that are unlikely
/// logits, or so large that they have no mass, would not show that.
pub(crate) const UNUSED: u8 = 0x41;

/// What the emulator fills outputs with before a launch.
pub(crate) const UNWRITTEN: u8 = 0xCD;

/// The place of `spread_rows` behind the kernels that are asked about rows.
const SPREAD: usize = Kernel::ALL.len();

/// A running program with one build of the kernels.
pub(crate) struct Emulator {
    child: Child,
    pub(crate) threads: u32,
    pub(crate) clusters: bool,
    /// A planted fault: this many blocks of each team seem to be at its first barrier before any is, if the barrier is in global
    /// memory.
    pub(crate) arrived: u32,
}

/// How a batch is laid over the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) team_size: u32,
    pub(crate) teams: u32,
    /// How many chunks of a slice are kept in shared memory, if it has so many.
    pub(crate) cached: u32,
    pub(crate) seed: u64,
}

impl Emulator {
    pub(crate) fn start(name: &str) -> Self {
        let mut child = Command::new(format!("{FOLDER}/{name}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut about = [0; 16];
        child.stdout.as_mut().unwrap().read_exact(&mut about).unwrap();
        let [threads, clusters, scratch, tokens]: [u32; 4] = bytemuck::cast(about);
        assert_eq!(scratch as usize, SCRATCH_BYTES);
        assert_eq!(tokens, chunk(threads));
        Self { child, threads, clusters: clusters != 0, arrived: 0 }
    }

    /// The number of chunks of the longest of these rows.
    fn chunks(&self, rows: &[&Asked<'_>]) -> u32 {
        let longest = rows.iter().map(|asked| asked.row.logits.vocab_size()).max().unwrap();
        (longest as u32).div_ceil(chunk(self.threads))
    }

    /// Whether the largest team can hold a row.
    pub(crate) fn has_room(&self, vocab_size: usize) -> bool {
        (vocab_size as u32).div_ceil(chunk(self.threads)) <= SLICE_CHUNKS * MAX_TEAM
    }

    /// Asks about rows, with one launch for each kernel and number format. `spoil` may change the kernels' inputs.
    pub(crate) fn ask(&mut self, asked: &[Asked<'_>], layout: Layout, spoil: Spoil) -> Vec<Answer> {
        let mut answers: Vec<Option<Answer>> = asked.iter().map(|_| None).collect();
        for kernel in Kernel::ALL {
            for dtype in Dtype::ALL {
                let belongs = |&i: &usize| asked[i].kernel() == kernel && asked[i].row.logits.dtype() == dtype;
                let places: Vec<usize> = (0..asked.len()).filter(belongs).collect();
                let rows: Vec<&Asked<'_>> = places.iter().map(|&i| &asked[i]).collect();
                if !rows.is_empty() {
                    let launched = self.launch(kernel, dtype, &rows, layout, spoil);
                    places.into_iter().zip(launched).for_each(|(i, answer)| answers[i] = Some(answer));
                }
            }
        }
        answers.into_iter().map(Option::unwrap).collect()
    }

    fn launch(
        &mut self,
        kernel: Kernel,
        dtype: Dtype,
        rows: &[&Asked<'_>],
        layout: Layout,
        spoil: Spoil,
    ) -> Vec<Answer> {
        let mut packer = Packer::new(chunk(self.threads));
        rows.iter().for_each(|row| packer.push(row));
        let room: usize = rows.iter().map(|row| row.room()).sum();
        assert!(packer.inputs_bytes() <= room, "{} bytes, {room} are said to do", packer.inputs_bytes());
        let mut inputs = vec![UNUSED; packer.inputs_bytes()];
        packer.write(rows.iter().copied(), &mut inputs);
        spoil(kernel, rows.len(), &mut inputs);

        let chunks = self.chunks(rows);
        let team_size = layout.team_size.max(chunks.div_ceil(SLICE_CHUNKS));
        let slice_chunks = chunks.div_ceil(team_size);
        let cached_vectors = layout.cached.min(slice_chunks) * chunk(self.threads) * dtype.size() as u32 / 16;
        let shape = Shape {
            team_size,
            teams: layout.teams,
            slice_chunks,
            cached_vectors,
            shared_bytes: shared_bytes(self.threads, slice_chunks) + 16 * cached_vectors,
        };
        let count = rows.len() as u32;
        let launch = Launch {
            kernel,
            dtype,
            rows: count,
            laid: Laid::from(shape),
            inputs: inputs.len(),
            outputs: packer.outputs_bytes(),
            spread_at: 0,
            spread: 0,
        };
        let outputs = self.run(&launch, layout.seed, &inputs);
        rows.iter().enumerate().map(|(i, row)| packer.answer(i, row, &inputs, &outputs)).collect()
    }

    /// Spreads a launch's rows, which lie behind its inputs: `from` in their jobs is where. Returns what was written to
    /// the inputs.
    pub(crate) fn spread(&mut self, launch: &Launch, parts: u32, seed: u64, inputs: &[u8]) -> Vec<u8> {
        let teams = launch.spread * parts;
        let (slice_chunks, cached_vectors) = (parts, launch.spread_at as u32);
        let shape = Shape { team_size: 1, teams, slice_chunks, cached_vectors, shared_bytes: 0 };
        let launch = Launch { outputs: launch.inputs, ..*launch };
        self.run_program(SPREAD, &launch, seed, inputs, 0..launch.spread, shape)
    }

    /// Runs a launch and returns its outputs.
    pub(crate) fn run(&mut self, launch: &Launch, seed: u64, inputs: &[u8]) -> Vec<u8> {
        let run = |(rows, shape)| self.run_part(launch, seed, inputs, rows, shape);
        let parts: Vec<Vec<u8>> = launch.parts().map(run).collect();
        // The bytes that a part does not write are as the emulator filled them.
        let written = |bytes: &mut Vec<u8>, part: Vec<u8>| {
            bytes.iter_mut().zip(part).filter(|(_, byte)| *byte != UNWRITTEN).for_each(|(to, byte)| *to = byte);
        };
        parts.into_iter().reduce(|mut before, part| (written(&mut before, part), before).1).expect("there is a part")
    }

    fn run_part(&mut self, launch: &Launch, seed: u64, inputs: &[u8], rows: Range<u32>, shape: Shape) -> Vec<u8> {
        self.run_program(launch.kernel as usize, launch, seed, inputs, rows, shape)
    }

    fn run_program(
        &mut self,
        kernel: usize,
        launch: &Launch,
        seed: u64,
        inputs: &[u8],
        rows: Range<u32>,
        shape: Shape,
    ) -> Vec<u8> {
        let format = Dtype::ALL.iter().position(|&d| d == launch.dtype).unwrap();
        let program = (kernel * Dtype::ALL.len() + format) as u32;
        let Shape { team_size, teams, slice_chunks, cached_vectors, shared_bytes } = shape;
        let layout = [team_size, teams, slice_chunks, cached_vectors, shared_bytes];
        let words: Vec<u32> =
            [program, rows.start, rows.end].into_iter().chain(layout).chain([self.arrived, 0]).collect();
        let sizes = [seed, inputs.len() as u64, launch.outputs as u64];
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(bytemuck::cast_slice(words.as_slice())).unwrap();
        input.write_all(bytemuck::cast_slice(&sizes)).unwrap();
        input.write_all(inputs).unwrap();
        input.flush().unwrap();
        let mut outputs = vec![0; launch.outputs];
        if self.child.stdout.as_mut().unwrap().read_exact(&mut outputs).is_err() {
            panic!("the emulator stopped ({:?}) with {launch:?}", self.child.wait());
        }
        outputs
    }
}

/// Changes a kernel's inputs, which are those of so many rows.
pub(crate) type Spoil<'a> = &'a dyn Fn(Kernel, usize, &mut [u8]);

/// Changes each row's job.
pub(crate) fn each_job(rows: usize, inputs: &mut [u8], change: impl Fn(&mut abi::RowJob)) {
    for place in inputs[..rows * size_of::<abi::RowJob>()].chunks_exact_mut(size_of::<abi::RowJob>()) {
        let mut job = bytemuck::pod_read_unaligned(place);
        change(&mut job);
        place.copy_from_slice(bytemuck::bytes_of(&job));
    }
}

/// Changes the flags of all that is known about single tokens.
pub(crate) fn each_flags(rows: usize, inputs: &mut [u8], change: impl Fn(u32) -> u32) {
    for row in 0..rows {
        let job: abi::RowJob =
            bytemuck::pod_read_unaligned(&inputs[row * size_of::<abi::RowJob>()..][..size_of::<abi::RowJob>()]);
        let known = &mut inputs[job.adjusts as usize..][..job.adjust_count as usize * size_of::<TokenAdjust>()];
        for place in known.chunks_exact_mut(size_of::<TokenAdjust>()) {
            let flags: u32 = bytemuck::pod_read_unaligned(&place[4..8]);
            place[4..8].copy_from_slice(&change(flags).to_le_bytes());
        }
    }
}

/// Changes nothing.
pub(crate) fn unspoilt(_: Kernel, _: usize, _: &mut [u8]) {}

impl Drop for Emulator {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // The program ends with its input; it has reported a fault by then.
        let _ = self.child.wait();
    }
}

pub(crate) fn layout() -> impl Strategy<Value = Layout> {
    let team_size = prop_oneof![2 => Just(1u32), 1 => Just(2), 2 => 3..=MAX_TEAM];
    // Nothing, all, or a part.
    let cached = prop_oneof![1 => Just(0), 1 => Just(SLICE_CHUNKS), 2 => 1..SLICE_CHUNKS];
    (team_size, 1..=3u32, cached, any::<u64>()).prop_map(|(team_size, teams, cached, seed)| Layout {
        team_size,
        teams,
        cached,
        seed,
    })
}

pub(crate) fn config(cases: u32) -> ProptestConfig {
    let wanted = std::env::var("PROPTEST_CASES").ok().and_then(|v| v.parse().ok());
    ProptestConfig {
        cases: wanted.unwrap_or(cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/regressions/emulator.txt"))),
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    }
}
