//! How a batch is laid over a GPU: how many blocks work on a row, and whether they keep it in shared memory.
//!
//! No result depends on it. The rules follow from sizes and published figures; docs/performance.md has what an H100 made of them.

use super::abi::{BINS, LISTED, MAX_TEAM, PER_THREAD, RowJob, SLICE_CHUNKS};

/// What of a device decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// Threads of a block as the kernels were compiled.
    pub threads: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Most dynamic shared memory of one block.
    pub shared_bytes: u32,
    /// The blocks of a team are launched as a cluster. Otherwise all teams of a launch must be resident at once.
    pub clusters: bool,
    /// How many clusters of 1, 2, ... blocks are resident at once, one block on a multiprocessor.
    pub resident: [u32; MAX_TEAM as usize],
}

impl Device {
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
    /// Vectors of 16 bytes that a block keeps in shared memory; 0: rows are read again instead.
    pub cached_vectors: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

impl Shape {
    /// The same for a kernel that reads rows once: more of its blocks are on a multiprocessor, so more of `rows` are looked at
    /// at once.
    #[must_use]
    pub fn uncached(self, rows: u32, device: &Device) -> Self {
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
    let jobs = (2 * size_of::<RowJob>() as u32).next_multiple_of(16);
    let touched = slice_chunks * chunk(threads) / 8;
    let adjusted = threads * 12;
    let delegates = slice_chunks * threads * 4;
    block + boxes + list + jobs + touched + adjusted + delegates
}

/// The shape for `rows` rows of at most `vocab_size` logits of `element_bytes` each.
#[must_use]
pub fn shape(rows: u32, vocab_size: u32, element_bytes: u32, device: &Device) -> Shape {
    let chunks = vocab_size.div_ceil(chunk(device.threads)).max(1);
    let least = chunks.div_ceil(SLICE_CHUNKS);
    // A row is split while multiprocessors would be idle.
    let split = (device.multiprocessors / rows.max(1)).clamp(1, MAX_TEAM.min(chunks));
    let slice = |team: u32| chunks.div_ceil(team);
    let vectors = |team: u32| slice(team) * chunk(device.threads) * element_bytes / 16;
    let notes = |team: u32| shared_bytes(device.threads, slice(team));
    let fits = |&team: &u32| notes(team) + vectors(team) * 16 <= device.shared_bytes;
    let team_size = split.max(least);
    // More blocks, if then a row stays on the chip and is read from memory once.
    let cached = device.clusters.then(|| (team_size..=MAX_TEAM).find(fits)).flatten();
    let team_size = cached.unwrap_or(team_size);
    let cached_vectors = cached.map_or(0, vectors);
    // One block on a multiprocessor at a time is always resident. Clusters need not be, but those that are take row after row,
    // and have the next one fetched while they work on one.
    let resident =
        if device.clusters { device.resident[team_size as usize - 1] } else { device.multiprocessors / team_size };
    Shape {
        team_size,
        teams: rows.min(resident.max(1)).max(1),
        slice_chunks: slice(team_size),
        cached_vectors,
        shared_bytes: notes(team_size) + cached_vectors * 16,
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
    };
    const A100: Device = Device {
        threads: THREADS,
        multiprocessors: 108,
        shared_bytes: 163 << 10,
        clusters: false,
        resident: [0; MAX_TEAM as usize],
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

    #[test]
    fn one_row_takes_many_blocks_and_stays_on_the_chip() {
        let one = shape(1, 128_256, 4, &H200);
        assert_eq!((one.team_size, one.teams), (8, 1));
        let many = shape(256, 128_256, 4, &H200);
        assert_eq!((many.team_size, many.teams), (4, 32));
        assert_eq!(many.uncached(256, &H200).teams, 256);
        assert_eq!(shape(256, 128_256, 2, &H200).team_size, 2);
        assert_eq!(shape(256, 128_256, 4, &A100).team_size, 1);
        assert!(one.cached_vectors > 0);
        // Two blocks of a kernel that does not cache are on a multiprocessor, with what the driver takes of each.
        assert!(2 * (one.uncached(1, &H200).shared_bytes + (1 << 10)) <= 228 << 10);
    }
}
