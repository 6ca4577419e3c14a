//! Alternating measurements, and the alignment of rows.

use std::time::Instant;

/// A row that begins 16 bytes after the start of a cache line, where large allocations and messages usually begin. The
/// alignment decides how fast the reference reads the row from L2: on some processors it is twice as fast if the row
/// begins on a cache line.
pub(crate) struct Placed {
    buffer: Vec<u8>,
    at: std::ops::Range<usize>,
}

impl Placed {
    pub(crate) fn new(row: &[u8]) -> Self {
        const LINE: usize = 64;
        let mut buffer = vec![0; row.len() + 2 * LINE];
        let from = buffer.as_ptr().align_offset(LINE) + 16;
        let at = from..from + row.len();
        buffer[at.clone()].copy_from_slice(row);
        Self { buffer, at }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.at.clone()]
    }
}

/// Measures these functions alternately, in seconds per row. For each row the least time over the rounds counts,
/// because other processes can only add time, and a row is so short that most rows are not interrupted.
pub(crate) fn measure<const N: usize>(rounds: usize, rows: usize, mut work: [&mut dyn FnMut(usize); N]) -> [f64; N] {
    let mut least = [(); N].map(|()| vec![f64::MAX; rows]);
    // The first turn of each function warms caches and branch predictors.
    for _ in 0..=rounds * (64 / rows) {
        for (work, least) in work.iter_mut().zip(&mut least) {
            for (row, least) in least.iter_mut().enumerate() {
                let start = Instant::now();
                work(row);
                *least = least.min(start.elapsed().as_secs_f64());
            }
        }
    }
    least.map(|least| least.iter().sum::<f64>() / rows as f64)
}
