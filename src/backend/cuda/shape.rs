//! How a batch is laid over a GPU: how many blocks work on a row, and whether they keep it in shared memory.
//!
//! No result depends on it. Of the teams that can do the rows, those are taken which should be done first, by what each was
//! measured to take ([`super::costs`]).

use super::abi::{BINS, LISTED, MAX_TEAM, PER_THREAD, RowJob, SLICE_CHUNKS};
use super::costs::Costs;

/// Shared memory that the driver takes of each block.
const DRIVERS_BYTES: u32 = 1 << 10;
/// What a chunk takes each of two blocks that share a multiprocessor, of what it takes one alone. An estimate, by the stalls in the
/// weighing kernel's code: no device has measured it.
const IN_PAIRS: f32 = 1.7;

/// What of a device decides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Device {
    /// Threads of a block as the kernels were compiled.
    pub threads: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Most dynamic shared memory of one block.
    pub shared_bytes: u32,
    /// The blocks of a team are launched as a cluster. Otherwise all teams of a launch must be resident at once.
    pub clusters: bool,
    /// How many clusters of 1, 2, ... blocks are resident at once, one block on a multiprocessor; 0 where those cannot run.
    pub resident: [u32; MAX_TEAM as usize],
    /// What a team takes for a row.
    pub costs: Costs,
}

impl Device {
    /// Blocks of the largest team whose blocks run at once.
    #[must_use]
    pub fn most_blocks(&self) -> u32 {
        let run = self.resident.iter().take_while(|&&clusters| clusters > 0).count() as u32;
        if self.clusters { run.max(1) } else { MAX_TEAM.min(self.multiprocessors) }
    }

    /// Logits of the longest row that such a team holds.
    #[must_use]
    pub fn most_logits(&self) -> usize {
        (self.most_blocks() * SLICE_CHUNKS * chunk(self.threads)) as usize
    }

    /// Teams of so many blocks that run at once, one block on a multiprocessor.
    #[must_use]
    pub fn resident(&self, team_size: u32) -> u32 {
        let teams =
            if self.clusters { self.resident[team_size as usize - 1] } else { self.multiprocessors / team_size };
        teams.max(1)
    }

    /// Whether two blocks with so much shared memory, of a kernel that has the registers for two, are on a multiprocessor. Without
    /// clusters they are not counted on: there all blocks must run at once, and nobody has asked the driver for that many.
    fn holds_pairs(&self, bytes: u32) -> bool {
        self.clusters && 2 * (bytes + DRIVERS_BYTES) <= self.shared_bytes + DRIVERS_BYTES
    }

    /// Blocks that bring their results together in global memory: as many as run at once, and none where they are clusters.
    #[must_use]
    pub fn scratch_blocks(&self) -> u32 {
        if self.clusters { 1 } else { self.multiprocessors.max(MAX_TEAM) }
    }
}

/// One launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Blocks that work on one row.
    pub team_size: u32,
    /// Teams; each takes rows in turn.
    pub teams: u32,
    /// Chunks of a row that a block works on at most.
    pub slice_chunks: u32,
    /// Vectors of 16 bytes of its slice, from the first on, that a block keeps in shared memory. The others are read again.
    pub cached_vectors: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

impl Shape {
    /// The same for a kernel that reads rows once, with a team for each of `rows` where they need not all run at once.
    fn uncached(self, rows: u32, device: &Device) -> Self {
        let teams = if device.clusters { rows.max(1) } else { self.teams };
        Self { cached_vectors: 0, shared_bytes: shared_bytes(device.threads, self.slice_chunks), teams, ..self }
    }
}

/// Tokens of a chunk.
#[must_use]
pub fn chunk(threads: u32) -> u32 {
    threads * PER_THREAD
}

/// Shared memory of a block that has slices of so many chunks, without a cache, as the kernels cut it.
#[must_use]
pub fn shared_bytes(threads: u32, slice_chunks: u32) -> u32 {
    let block = (threads / 32 * 8).next_multiple_of(16) + 32;
    let boxes = 16 + 32 + 2 * (8 * BINS + 8 * LISTED);
    let list = 2 * 8 * LISTED;
    let floors = (2 * 4u32).next_multiple_of(16);
    let jobs = (2 * size_of::<RowJob>() as u32).next_multiple_of(16);
    let touched = slice_chunks * chunk(threads) / 8;
    let touching = threads * 4;
    let adjusted = threads * 12;
    let delegates = slice_chunks * threads * 4;
    block + boxes + list + floors + jobs + touched + touching + adjusted + delegates
}

/// The shape for `rows` rows of at most `vocab_size` logits of `element_bytes` each: that of the team whose rows should be done
/// first.
#[must_use]
pub fn shape(rows: u32, vocab_size: u32, element_bytes: u32, device: &Device) -> Shape {
    let chunks = vocab_size.div_ceil(chunk(device.threads)).max(1);
    let team_size = quickest(chunks, device, |team| {
        let waves = rows.max(1).div_ceil(device.resident(team)) as f32;
        waves * device.costs.of(team, element_bytes).slice(chunks.div_ceil(team) as f32)
    });
    laid(rows, chunks, element_bytes, team_size, device)
}

/// The same for a kernel that reads rows once and keeps nothing of them, of which two blocks fit on a multiprocessor.
#[must_use]
pub fn weighing(rows: u32, vocab_size: u32, element_bytes: u32, device: &Device) -> Shape {
    let chunks = vocab_size.div_ceil(chunk(device.threads)).max(1);
    let rows = rows.max(1);
    let team_size = quickest(chunks, device, |team| {
        let (slice, resident) = (chunks.div_ceil(team), device.resident(team));
        let pairs = device.holds_pairs(shared_bytes(device.threads, slice));
        let waves = rows.div_ceil(if pairs { resident.saturating_mul(2) } else { resident }) as f32;
        let share = if pairs && rows > resident { IN_PAIRS } else { 1.0 };
        waves * device.costs.of(team, element_bytes).slice(slice as f32 * share)
    });
    laid(rows, chunks, element_bytes, team_size, device).uncached(rows, device)
}

/// Blocks of the team that takes the least, of those that hold a row.
fn quickest(chunks: u32, device: &Device, takes: impl Fn(u32) -> f32) -> u32 {
    let least = chunks.div_ceil(SLICE_CHUNKS);
    let teams = least..=device.most_blocks().min(chunks).max(least);
    teams.min_by(|&a, &b| takes(a).total_cmp(&takes(b))).unwrap_or(least)
}

/// The same with teams of so many blocks, which must be as many as hold the row at least.
#[must_use]
pub fn laid(rows: u32, chunks: u32, element_bytes: u32, team_size: u32, device: &Device) -> Shape {
    let slice_chunks = chunks.div_ceil(team_size);
    let notes = shared_bytes(device.threads, slice_chunks);
    // What is left keeps as many of the slice's first chunks as it has room for. The last ones, which were just read, are the
    // likeliest to be in the L2 cache.
    let chunk_bytes = chunk(device.threads) * element_bytes;
    let cached_bytes = (device.shared_bytes.saturating_sub(notes) / chunk_bytes).min(slice_chunks) * chunk_bytes;
    Shape {
        team_size,
        // As many as run at once take row after row, and have the next one fetched while they work on one.
        teams: rows.min(device.resident(team_size)).max(1),
        slice_chunks,
        cached_vectors: cached_bytes / 16,
        shared_bytes: notes + cached_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::super::abi::THREADS;
    use super::*;

    const H200: Device = Device {
        threads: THREADS,
        multiprocessors: 132,
        shared_bytes: 227 << 10,
        clusters: true,
        // Six groups of 16 multiprocessors and two of 18.
        resident: [132, 66, 42, 32, 24, 18, 16, 16],
        costs: Costs::PREDICTED,
    };
    const A100: Device = Device {
        threads: THREADS,
        multiprocessors: 108,
        shared_bytes: 163 << 10,
        clusters: false,
        resident: [0; MAX_TEAM as usize],
        costs: Costs::PREDICTED,
    };

    #[test]
    fn every_row_is_covered_and_fits() {
        for device in [H200, A100] {
            for rows in [1, 2, 7, 64, 256, 4096] {
                for vocab in [1, 8192, 8193, 32_000, 128_256, 151_936, 1 << 20] {
                    for element in [2, 4] {
                        let shape = shape(rows, vocab, element, &device);
                        let slice = vocab.div_ceil(chunk(THREADS)).div_ceil(shape.team_size);
                        assert!(
                            slice <= SLICE_CHUNKS && shape.slice_chunks == slice && shape.team_size <= MAX_TEAM,
                            "{rows} {vocab}: {shape:?}"
                        );
                        assert!(shape.shared_bytes <= device.shared_bytes, "{rows} {vocab}: {shape:?}");
                        assert!(shape.teams >= 1 && shape.teams <= rows);
                        if !device.clusters {
                            assert!(
                                shape.teams * shape.team_size <= device.multiprocessors,
                                "{rows} {vocab}: {shape:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    /// As on a slice of a card, whose groups of multiprocessors are not whole.
    #[test]
    fn a_team_is_no_larger_than_clusters_that_run() {
        let slice = Device { multiprocessors: 16, resident: [16, 8, 4, 4, 2, 0, 0, 0], ..H200 };
        assert_eq!((slice.most_blocks(), slice.most_logits()), (5, 5 << 17));
        for rows in [1, 8, 64] {
            for vocab in [1000, 128_256, 5 << 17] {
                let shape = shape(rows, vocab, 4, &slice);
                assert!(shape.team_size <= 5 && shape.slice_chunks <= SLICE_CHUNKS, "{rows} {vocab}: {shape:?}");
            }
        }
        // Where the driver cannot tell, nothing is known to be too large.
        assert_eq!(Device { resident: [u32::MAX; 8], ..H200 }.most_blocks(), MAX_TEAM);
        assert_eq!([H200, A100].map(|device| device.most_logits()), [1 << 20; 2]);
    }

    #[test]
    fn one_row_takes_many_blocks_and_many_rows_few() {
        let teams = |rows, bytes| {
            let shape = shape(rows, 128_256, bytes, &H200);
            (shape.team_size, shape.teams)
        };
        assert_eq!([1, 8, 32, 64, 256].map(|rows| teams(rows, 4)), [(8, 1), (8, 8), (4, 32), (2, 64), (2, 66)]);
        assert_eq!([1, 8, 32, 64, 256].map(|rows| teams(rows, 2)), [(8, 1), (8, 8), (4, 32), (2, 64), (1, 132)]);
        // What was measured decides.
        let quick_pairs = Device { costs: Costs::only(2), ..H200 };
        assert_eq!(shape(1, 128_256, 4, &quick_pairs).team_size, 2);
        // A row that one block cannot hold has two, whatever they cost, and one of a single chunk has one.
        assert_eq!(shape(1, 151_936, 4, &Device { costs: Costs::only(1), ..H200 }).team_size, 2);
        assert_eq!(shape(1, 1000, 4, &quick_pairs).team_size, 1);
    }

    #[test]
    fn what_is_left_of_shared_memory_keeps_a_part_of_a_slice() {
        let chunk_vectors = chunk(THREADS) * 4 / 16;
        let kept = |team| laid(64, 16, 4, team, &H200).cached_vectors / chunk_vectors;
        assert_eq!([1, 2, 4, 8].map(kept), [4, 4, 4, 2]);
        assert_eq!([1, 2].map(|team| laid(64, 16, 2, team, &H200).cached_vectors * 2 / chunk_vectors), [8, 8]);
    }

    /// Two blocks of a kernel that does not cache are on a multiprocessor, so rows have more blocks than where one is, if there are
    /// too few rows for all of them.
    #[test]
    fn rows_that_are_weighed_fill_multiprocessors_with_pairs() {
        let teams = |rows, device| {
            let shape = weighing(rows, 128_256, 4, device);
            assert!(shape.cached_vectors == 0 && shape.slice_chunks == 16u32.div_ceil(shape.team_size), "{shape:?}");
            (shape.team_size, shape.teams)
        };
        assert_eq!([1, 8, 16].map(|rows| teams(rows, &H200)), [(8, 1), (8, 8), (8, 16)]);
        assert_eq!([32, 64, 128].map(|rows| teams(rows, &H200)), [(8, 32), (4, 64), (2, 128)]);
        let largest = shared_bytes(THREADS, SLICE_CHUNKS);
        assert!(H200.holds_pairs(largest) && !Device { shared_bytes: 163 << 10, ..H200 }.holds_pairs(largest));
        // Where all blocks must run at once, as many as with one on a multiprocessor.
        for rows in [1, 8, 32, 64, 256] {
            assert_eq!(teams(rows, &A100), {
                let shape = shape(rows, 128_256, 4, &A100);
                (shape.team_size, shape.teams)
            });
        }
        // Of what cannot share, one.
        let small = Device { shared_bytes: 99 << 10, ..H200 };
        assert_eq!(teams(32, &small), (4, 32));
        // Where the driver cannot tell how many run.
        assert_eq!(teams(32, &Device { resident: [u32::MAX; 8], ..H200 }), (8, 32));
    }
}
