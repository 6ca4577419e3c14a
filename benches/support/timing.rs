//! Times by turns, and where a row lies.

use std::time::Instant;

/// A row 16 bytes behind the start of a cache line, where large allocations and messages usually begin. Where it lies
/// decides how fast the reference reads it from L2: on some processors twice as fast when it lies on whole lines.
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

/// Seconds per row of each of these, by turns: of each row the least over the rounds, since whatever else runs on the machine
/// only adds time, and a row is so short that most are not interrupted.
pub(crate) fn measure<const N: usize>(rounds: usize, rows: usize, mut work: [&mut dyn FnMut(usize); N]) -> [f64; N] {
    let mut least = [(); N].map(|()| vec![f64::MAX; rows]);
    // The first turn of each warms caches and branch predictors.
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
