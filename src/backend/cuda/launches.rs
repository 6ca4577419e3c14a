//! Distributes rows over launches: while one slot's launch is uploaded and runs, the next is packed into the other
//! slot.

use super::ask::{Asked, HostRows, Kernel, LaunchLimits};
use super::machine::{HostMemory, Launch, Machine, SLOTS};
use super::pack::Packer;
use super::read::Answer;
use super::shape::{chunk, sampling, weighing};
use crate::sampling::logits::Dtype;

/// The most bytes that one launch downloads.
pub(super) const OUTPUT_BYTES: usize = 8 << 20;
/// The most rows, and so teams, of one launch. 32 drafts of 8 tokens, each with the row after its last token, take 288.
pub(super) const MAX_ROWS: usize = 512;
/// A launch with so many bytes to upload begins even if there are more rows, so that it is uploaded and runs while the
/// rest is packed. These bytes take about 150 us of PCIe at 55 GB/s. This is an estimate, not measured on any device.
/// Rows on the device are not uploaded.
const PIECE_BYTES: usize = 8 << 20;

/// A machine, and the packers of its launches.
#[derive(Debug)]
pub(super) struct Launches<M> {
    pub(super) machine: M,
    packers: [Packer; SLOTS],
    /// Room for one launch's inputs.
    pub(super) input_bytes: usize,
    /// Who takes rows that are not on the device.
    pub(super) host_rows: HostRows,
    /// See [`PIECE_BYTES`].
    piece_bytes: usize,
    /// Slots with a launch that nobody has waited for.
    busy: [bool; SLOTS],
}

/// A launch that runs: which slot, and which rows.
struct Launched {
    slot: usize,
    rows: Vec<usize>,
}

impl<M: Machine> Launches<M> {
    pub(super) fn new(machine: M, input_bytes: usize) -> Self {
        let packer = || Packer::new(chunk(machine.facts().threads));
        let packers = [packer(), packer()];
        let piece_bytes = PIECE_BYTES.min(input_bytes);
        Self { machine, packers, input_bytes, host_rows: HostRows::Cuda, piece_bytes, busy: [false; SLOTS] }
    }

    /// The same, with launches of about so many bytes.
    pub(super) fn in_pieces_of(mut self, bytes: usize) -> Self {
        self.set_pieces(bytes);
        self
    }

    /// Makes launches of about so many bytes from now on, as far as there is room. Returns the earlier value.
    pub(super) fn set_pieces(&mut self, bytes: usize) -> usize {
        std::mem::replace(&mut self.piece_bytes, bytes.min(self.input_bytes))
    }

    /// Which rows a launch takes.
    pub(super) fn limits(&self) -> LaunchLimits {
        let facts = self.machine.facts();
        LaunchLimits {
            bytes: self.input_bytes,
            logits: facts.most_logits(),
            at_once: facts.resident(1) as usize,
            host_rows: self.host_rows,
        }
    }

    /// Asks about rows that have kernels and fit, and returns one answer for each, in order. `beside` is called once,
    /// while the last launch is under way.
    pub(super) fn ask(&mut self, asked: &[Asked<'_>], beside: impl FnOnce()) -> Result<Vec<Answer>, M::Error> {
        self.settle()?;
        let mut answers: Vec<Option<Answer>> = asked.iter().map(|_| None).collect();
        let mut running: Option<Launched> = None;
        for (kernel, dtype) in Kernel::ALL.into_iter().flat_map(|kernel| Dtype::ALL.map(|dtype| (kernel, dtype))) {
            let belongs = |&i: &usize| asked[i].kernel() == kernel && asked[i].row.logits.dtype() == dtype;
            let mut rest: Vec<usize> = (0..asked.len()).filter(belongs).collect();
            while !rest.is_empty() {
                let slot = running.as_ref().map_or(0, |launched| (launched.slot + 1) % SLOTS);
                let later = rest.split_off(self.pack(slot, asked, &rest, self.piece_bytes));
                self.begin(slot, kernel, dtype, asked, &rest)?;
                let launched = Launched { slot, rows: std::mem::replace(&mut rest, later) };
                if let Some(before) = running.replace(launched) {
                    self.finish(&before, asked, &mut answers)?;
                }
            }
        }
        beside();
        if let Some(last) = running {
            self.finish(&last, asked, &mut answers)?;
        }
        Ok(answers.into_iter().map(|answer| answer.expect("every row was launched; this is a bug")).collect())
    }

    /// Enters the machine from the calling thread. Then waits for launches of an earlier call that ended in a panic:
    /// they still use their slots' memory, and rows that are held.
    pub(super) fn settle(&mut self) -> Result<(), M::Error> {
        self.machine.enter()?;
        for slot in (0..SLOTS).filter(|&slot| self.busy[slot]).collect::<Vec<_>>() {
            self.wait(slot)?;
        }
        Ok(())
    }

    /// Waits for the slot's launch.
    pub(super) fn wait(&mut self, slot: usize) -> Result<HostMemory<'_>, M::Error> {
        let brought = self.machine.finish(slot)?;
        self.busy[slot] = false;
        Ok(brought)
    }

    /// Packs as many of the rows as make a launch that uploads at most so many bytes, but at least one. Returns their
    /// number.
    pub(super) fn pack(&mut self, slot: usize, asked: &[Asked<'_>], rows: &[usize], most_bytes: usize) -> usize {
        let (packer, input_bytes) = (&mut self.packers[slot], self.input_bytes);
        packer.clear();
        let (mut bytes, mut uploaded) = (0, 0);
        for (taken, &row) in rows.iter().enumerate() {
            let logits = &asked[row].row.logits;
            let room = asked[row].room() - packer.spread.spared(logits);
            bytes += room;
            uploaded += room - if logits.is_on_device() { logits.byte_len() } else { 0 };
            let is_full = taken == MAX_ROWS
                || bytes > input_bytes
                || uploaded > most_bytes
                || packer.outputs_bytes() > OUTPUT_BYTES / 2;
            if taken > 0 && is_full {
                return taken;
            }
            packer.push(&asked[row]);
        }
        rows.len()
    }

    /// Begins a launch over the packed rows.
    pub(super) fn begin(
        &mut self,
        slot: usize,
        kernel: Kernel,
        dtype: Dtype,
        asked: &[Asked<'_>],
        rows: &[usize],
    ) -> Result<Launch, M::Error> {
        let packer = &self.packers[slot];
        packer.write(rows.iter().map(|&row| &asked[row]), self.machine.inputs(slot));
        let largest = rows.iter().map(|&row| asked[row].row.logits.vocab_size()).max().unwrap_or(0);
        let rows = rows.len() as u32;
        let facts = self.machine.facts();
        let (largest, bytes) = (largest as u32, dtype.size() as u32);
        let laid = match kernel {
            Kernel::Sample => sampling(rows, largest, bytes, &facts),
            Kernel::Weigh => weighing(rows, largest, bytes, &facts),
        };
        let (inputs, outputs) = (packer.inputs_bytes(), packer.outputs_bytes());
        let (spread_at, spread) = packer.spread();
        let launch = Launch { kernel, dtype, rows, laid, inputs, outputs, spread_at, spread };
        // Set before the launch begins, because part of it may be under way even if beginning it panics.
        self.busy[slot] = true;
        self.machine.begin(slot, &launch, &packer.device_rows())?;
        Ok(launch)
    }

    fn finish(&mut self, launched: &Launched, asked: &[Asked<'_>], to: &mut [Option<Answer>]) -> Result<(), M::Error> {
        let memory = self.machine.finish(launched.slot)?;
        self.busy[launched.slot] = false;
        let rows = launched.rows.iter().map(|&row| &asked[row]);
        let lacking = self.packers[launched.slot].lacking(rows, memory.outputs);
        let memory = match lacking.as_slice() {
            [] => memory,
            lacking => self.machine.bring(launched.slot, lacking)?,
        };
        for (at, &row) in launched.rows.iter().enumerate() {
            to[row] = Some(self.packers[launched.slot].answer(at, &asked[row], memory.inputs, memory.outputs));
        }
        Ok(())
    }
}
