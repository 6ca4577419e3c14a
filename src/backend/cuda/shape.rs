//! Decides how a batch is laid over a GPU: how many blocks work on a row, and how much of it they keep in shared
//! memory. These blocks are a team. A row is cut into chunks, and each block of the team works on some of them, its
//! slice.
//!
//! No result depends on it. Of the teams that can take the rows, it chooses those that should finish first, by the
//! measured costs ([`super::costs`]).

use super::abi::{BINS, LISTED, MAX_TEAM, PER_THREAD, RowJob, SLICE_CHUNKS};
use super::costs::{Cost, Costs};

/// The cost of weighing a row, which is little but arithmetic. It was measured on an H200, where teams of each size
/// took the same time for a chunk. What matters is the ratio of the two.
const WEIGHING: Cost = Cost { row: 7.2, chunk: 2.9 };
/// The microseconds between two parts of a launch: how much longer 288 rows took on that H200 than 256, less what teams
/// of four take for a row.
const BETWEEN_PARTS: f32 = 6.0;

/// The facts about a device that decide the layout.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Device {
    /// The threads of a block, as compiled into the kernels.
    pub threads: u32,
    /// The number of multiprocessors.
    pub multiprocessors: u32,
    /// The most dynamic shared memory of one block.
    pub shared_bytes: u32,
    /// Whether the blocks of a team are launched as a cluster. Otherwise all teams of a launch must be resident at
    /// once.
    pub clusters: bool,
    /// How many clusters of 1, 2, ... blocks are resident at once, with one block on a multiprocessor; 0 for sizes that
    /// cannot run.
    pub resident: [u32; MAX_TEAM as usize],
    /// How long a team takes for a row.
    pub costs: Costs,
}

impl Device {
    /// The number of blocks of the largest team that can run.
    #[must_use]
    pub fn most_blocks(&self) -> u32 {
        let run = self.resident.iter().take_while(|&&clusters| clusters > 0).count() as u32;
        if self.clusters { run.max(1) } else { MAX_TEAM.min(self.multiprocessors) }
    }

    /// The number of logits of the longest row that such a team holds.
    #[must_use]
    pub fn most_logits(&self) -> usize {
        (self.most_blocks() * self.most_chunks() * chunk(self.threads)) as usize
    }

    /// How many chunks of a row fit into a block's shared memory, by the notes kept about them.
    fn most_chunks(&self) -> u32 {
        let has_room = |&chunks: &u32| shared_bytes(self.threads, chunks) <= self.shared_bytes;
        (1..=SLICE_CHUNKS).rev().find(has_room).unwrap_or(1)
    }

    /// How many teams of so many blocks run at once, with one block on a multiprocessor.
    #[must_use]
    pub fn resident(&self, team_size: u32) -> u32 {
        let teams =
            if self.clusters { self.resident[team_size as usize - 1] } else { self.multiprocessors / team_size };
        teams.max(1)
    }

    /// How many blocks combine their results in global memory: as many as run at once. Clusters do not need it, and one
    /// is allocated.
    #[must_use]
    pub fn scratch_blocks(&self) -> u32 {
        if self.clusters { 1 } else { self.multiprocessors.max(MAX_TEAM) }
    }
}

/// One launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The number of blocks that work on one row.
    pub team_size: u32,
    /// The number of teams; each takes rows in turn.
    pub teams: u32,
    /// The most chunks of a row that a block works on.
    pub slice_chunks: u32,
    /// How many vectors of 16 bytes, from the first of its slice on, a block keeps in shared memory. The others are
    /// read again.
    pub cached_vectors: u32,
    /// The dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

impl Shape {
    /// The same for a kernel that reads rows once. If teams need not all run at once, there is one for each of `rows`.
    fn uncached(self, rows: u32, device: &Device) -> Self {
        let teams = if device.clusters { rows.max(1) } else { self.teams };
        Self { cached_vectors: 0, shared_bytes: shared_bytes(device.threads, self.slice_chunks), teams, ..self }
    }
}

/// The number of tokens in a chunk.
#[must_use]
pub fn chunk(threads: u32) -> u32 {
    threads * PER_THREAD
}

/// The shared memory of a block whose slices have so many chunks, without a cache, divided as in the kernels.
#[must_use]
pub fn shared_bytes(threads: u32, slice_chunks: u32) -> u32 {
    let block = (threads / 32 * 8).next_multiple_of(16) + 32;
    let boxes = 16 + 32 + 2 * (8 * BINS + 8 * LISTED);
    let list = 2 * 8 * LISTED;
    let floors = (2 * 4u32).next_multiple_of(16) + 4u32.next_multiple_of(16);
    let jobs = (2 * size_of::<RowJob>() as u32).next_multiple_of(16);
    let touched = slice_chunks * chunk(threads) / 8;
    let touching = threads * 4;
    let adjusted = threads * 12;
    let delegates = slice_chunks * threads * 4;
    block + boxes + list + floors + jobs + touched + touching + adjusted + delegates
}

/// The rows of a launch, laid over a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Laid {
    /// The shape for all rows, or for those before `rest`.
    pub shape: Shape,
    /// The row from which on another shape applies, and that shape. The last few rows would leave most of a device
    /// idle, so larger teams take them, after the others.
    pub rest: Option<(u32, Shape)>,
}

impl From<Shape> for Laid {
    /// The same shape for all rows.
    fn from(shape: Shape) -> Self {
        Self { shape, rest: None }
    }
}

/// The layout for sampling `rows` rows of at most `vocab_size` logits of `element_bytes` each.
#[must_use]
pub fn sampling(rows: u32, vocab_size: u32, element_bytes: u32, device: &Device) -> Laid {
    let chunks = chunks(vocab_size, device);
    let team = |size| (device.resident(size), device.costs.of(size, element_bytes));
    quickest_layout(rows, chunks, device, team, |rows, size| shape_of_team(rows, chunks, element_bytes, size, device))
}

/// The same for a kernel that reads rows once and keeps nothing of them.
#[must_use]
pub fn weighing(rows: u32, vocab_size: u32, element_bytes: u32, device: &Device) -> Laid {
    let chunks = chunks(vocab_size, device);
    let cost = |size| Some(device.costs.of(size, element_bytes)).filter(|cost| cost.is_never()).unwrap_or(WEIGHING);
    let team = |size| (device.resident(size), cost(size));
    quickest_layout(rows, chunks, device, team, |rows, size| {
        shape_of_team(rows, chunks, element_bytes, size, device).uncached(rows, device)
    })
}

fn chunks(vocab_size: u32, device: &Device) -> u32 {
    vocab_size.div_ceil(chunk(device.threads)).max(1)
}

/// The layout that should take the least time. `team` gives, for a team size, how many run at once and what one costs
/// for a row.
fn quickest_layout(
    rows: u32,
    chunks: u32,
    device: &Device,
    team: impl Fn(u32) -> (u32, Cost),
    shape: impl Fn(u32, u32) -> Shape,
) -> Laid {
    let rows = rows.max(1);
    // The rows take as many rounds as the teams that run at once need.
    let takes = |size, rows: u32| {
        let (at_once, cost) = team(size);
        rows.div_ceil(at_once) as f32 * cost.slice(chunks.div_ceil(size) as f32)
    };
    let quickest = |rows| {
        let takes = |&a: &u32, &b: &u32| takes(a, rows).total_cmp(&takes(b, rows));
        teams(chunks, device).min_by(takes).expect("some team holds a row")
    };
    // Whole rounds with one team size, and the remaining rows with the size that is best for them.
    let split = |size: u32| {
        let rest = rows % team(size).0;
        let by = quickest(rest);
        (size, by, rest, takes(size, rows - rest) + BETWEEN_PARTS + takes(by, rest))
    };
    let splits = teams(chunks, device).filter(|&size| ![0, rows].contains(&(rows % team(size).0))).map(split);
    let alike = quickest(rows);
    match splits.min_by(|a, b| a.3.total_cmp(&b.3)) {
        Some((size, by, rest, time)) if time < takes(alike, rows) => {
            Laid { shape: shape(rows - rest, size), rest: Some((rows - rest, shape(rest, by))) }
        }
        _ => Laid::from(shape(rows, alike)),
    }
}

/// The sizes of the teams that hold a row of so many chunks.
fn teams(chunks: u32, device: &Device) -> std::ops::RangeInclusive<u32> {
    let least = chunks.div_ceil(device.most_chunks());
    least..=device.most_blocks().min(chunks).max(least)
}

/// The shape for sampling with teams of so many blocks, which must be enough to hold a row.
#[must_use]
pub fn shape_of_team(rows: u32, chunks: u32, element_bytes: u32, team_size: u32, device: &Device) -> Shape {
    let slice_chunks = chunks.div_ceil(team_size);
    let notes = shared_bytes(device.threads, slice_chunks);
    // The remaining shared memory caches as many of the slice's first chunks as fit. The last chunks were read most
    // recently, so they are the likeliest to be in the L2 cache.
    let chunk_bytes = chunk(device.threads) * element_bytes;
    let cached_bytes = (device.shared_bytes.saturating_sub(notes) / chunk_bytes).min(slice_chunks) * chunk_bytes;
    Shape {
        team_size,
        // As many teams as run at once take the rows in turn.
        teams: rows.min(device.resident(team_size)).max(1),
        slice_chunks,
        cached_vectors: cached_bytes / 16,
        shared_bytes: notes + cached_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::super::abi::THREADS;
    use super::super::costs::Cost;
    use super::*;

    const H200: Device = Device {
        threads: THREADS,
        multiprocessors: 132,
        shared_bytes: 227 << 10,
        clusters: true,
        // As reported by the driver of an H200.
        resident: [132, 66, 39, 30, 22, 17, 15, 15],
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

    /// The shape if all rows have the same.
    fn shape(rows: u32, vocab_size: u32, element_bytes: u32, device: &Device) -> Shape {
        let laid = sampling(rows, vocab_size, element_bytes, device);
        assert_eq!(laid.rest, None);
        laid.shape
    }

    #[test]
    fn every_row_is_covered_and_fits() {
        for device in [H200, A100, Device { shared_bytes: 99 << 10, ..A100 }] {
            for rows in [1, 2, 7, 64, 140, 256, 288, 4096] {
                for (vocab, element) in [1, 8192, 8193, 32_000, 128_256, 151_936, 1 << 20]
                    .into_iter()
                    .flat_map(|vocab| [(vocab, 2), (vocab, 4)])
                {
                    let laid = sampling(rows, vocab, element, &device);
                    let from = laid.rest.map_or(rows, |(from, _)| from);
                    assert!(from > 0 && from <= rows, "{rows} {vocab}: {laid:?}");
                    let rest = laid.rest.map(|(from, shape)| (rows - from, shape));
                    for (rows, shape) in [(from, laid.shape)].into_iter().chain(rest) {
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

    /// As on a slice of a card, which has incomplete groups of multiprocessors.
    #[test]
    fn a_team_is_no_larger_than_clusters_that_run() {
        let slice = Device { multiprocessors: 16, resident: [16, 8, 4, 4, 2, 0, 0, 0], ..H200 };
        let longest = 5 * SLICE_CHUNKS * chunk(THREADS);
        assert_eq!((slice.most_blocks(), slice.most_logits()), (5, longest as usize));
        for rows in [1, 8, 64] {
            for vocab in [1000, 128_256, longest] {
                let laid = sampling(rows, vocab, 4, &slice);
                for shape in [laid.shape].into_iter().chain(laid.rest.map(|(_, shape)| shape)) {
                    assert!(shape.team_size <= 5 && shape.slice_chunks <= SLICE_CHUNKS, "{rows} {vocab}: {laid:?}");
                }
            }
        }
        // If the driver cannot say, no size is known to be too large.
        assert_eq!(Device { resident: [u32::MAX; 8], ..H200 }.most_blocks(), MAX_TEAM);
        // With the least shared memory that any supported GPU has.
        let small = Device { shared_bytes: 99 << 10, ..A100 };
        assert!([H200, A100, small].iter().all(|device| device.most_logits() >= 1 << 20));
    }

    #[test]
    fn one_row_takes_many_blocks_and_many_rows_few() {
        let teams = |rows, bytes| {
            let shape = shape(rows, 128_256, bytes, &H200);
            (shape.team_size, shape.teams)
        };
        assert_eq!([1, 8, 32, 64, 256].map(|rows| teams(rows, 4)), [(8, 1), (8, 8), (3, 32), (2, 64), (2, 66)]);
        assert_eq!([1, 8, 32, 64, 256].map(|rows| teams(rows, 2)), [(8, 1), (8, 8), (3, 32), (2, 64), (1, 132)]);
        // What was measured decides.
        let quick_pairs = Device { costs: Costs::only(2), ..H200 };
        assert_eq!(shape(1, 128_256, 4, &quick_pairs).team_size, 2);
        // A row that one block cannot hold gets two blocks, whatever they cost. A row of a single chunk gets one.
        assert_eq!(shape(1, 201_088, 4, &Device { costs: Costs::only(1), ..H200 }).team_size, 2);
        assert_eq!(shape(1, 1000, 4, &quick_pairs).team_size, 1);
    }

    /// Rows beyond whole waves must not make a wave of their own, in which few blocks would work.
    #[test]
    fn the_last_rows_have_larger_teams() {
        let mut device = H200;
        // As an H200 was measured.
        for (team, row, chunk) in [
            (1, 4.5, 2.3),
            (2, 7.4, 2.2),
            (3, 8.6, 1.5),
            (4, 9.7, 1.3),
            (5, 9.6, 1.0),
            (6, 9.9, 0.9),
            (7, 10.6, 0.8),
            (8, 10.9, 0.6),
        ] {
            device.costs.set(team, 4, Cost { row, chunk });
        }
        let lies = |rows| {
            let laid = sampling(rows, 128_256, 4, &device);
            (laid.shape.team_size, laid.rest.map(|(from, shape)| (from, shape.team_size, shape.teams)))
        };
        assert_eq!([132, 256, 264].map(lies), [(1, None); 3]);
        assert_eq!(lies(288), (1, Some((264, 4, 24))));
        assert_eq!(lies(140), (1, Some((132, 8, 8))));
    }

    #[test]
    fn rows_lie_in_two_parts_where_that_is_to_be_proved() {
        for (device, at_once) in [(H200, 132), (A100, 108), (Device { multiprocessors: 4, ..A100 }, 4)] {
            for rows in [1, 2, 14].map(|rest| 2 * at_once + rest) {
                let laid = sampling(rows, chunk(THREADS) + 1, 4, &Device { costs: Costs::IN_PARTS, ..device });
                let rest = laid.rest.map(|(from, shape)| (from, shape.team_size));
                assert_eq!(
                    (laid.shape.team_size, rest),
                    (1, (rows % at_once > 0).then_some((rows / at_once * at_once, 2)))
                );
            }
        }
    }

    #[test]
    fn what_is_left_of_shared_memory_keeps_a_part_of_a_slice() {
        let chunk_vectors = chunk(THREADS) * 4 / 16;
        let kept = |team| shape_of_team(64, 16, 4, team, &H200).cached_vectors / chunk_vectors;
        assert_eq!([1, 2, 4, 8].map(kept), [4, 4, 4, 2]);
        assert_eq!([1, 2].map(|team| shape_of_team(64, 16, 2, team, &H200).cached_vectors * 2 / chunk_vectors), [8, 8]);
    }

    /// A chunk takes as long in any team, so rows that are weighed have as many blocks as run at once.
    #[test]
    fn rows_that_are_weighed_fill_multiprocessors() {
        let teams = |rows, device| {
            let laid = weighing(rows, 128_256, 4, device);
            for shape in [laid.shape].into_iter().chain(laid.rest.map(|(_, shape)| shape)) {
                assert!(shape.cached_vectors == 0 && shape.slice_chunks == 16u32.div_ceil(shape.team_size), "{laid:?}");
            }
            (laid.shape.team_size, laid.shape.teams, laid.rest.map(|(from, shape)| (from, shape.team_size)))
        };
        assert_eq!([1, 8, 16].map(|rows| teams(rows, &H200)), [(8, 1, None), (8, 8, None), (6, 16, None)]);
        assert_eq!([32, 64, 132].map(|rows| teams(rows, &H200)), [(3, 32, None), (2, 64, None), (1, 132, None)]);
        // Some rows more than run at once.
        assert_eq!([70, 140].map(|rows| teams(rows, &H200)), [(3, 70, None), (1, 132, Some((132, 8)))]);
        assert_eq!(teams(96, &A100).0, 1);
        // Where all blocks must run at once, no more than that.
        for rows in [1, 8, 32, 64, 256] {
            let (team_size, count, _) = teams(rows, &A100);
            assert!(team_size * count <= A100.multiprocessors, "{rows}: {team_size}, {count}");
        }
        // Where the driver cannot tell how many run.
        assert_eq!(teams(32, &Device { resident: [u32::MAX; 8], ..H200 }), (8, 32, None));
    }
}
