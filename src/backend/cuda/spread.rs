//! The last part of what a device proves before it serves: rows of a draft model that knows only some tokens, which the
//! device spreads over the vocabulary.

use super::kinds::{Known, row, specs};
use super::warm_up::{all_were_done, compare, name};
use super::{CudaBackend, Machine, OpenError, RowJob};
use crate::sampling::logits::{Dtype, Foreign};
use crate::sampling::row::RowSpec;
use crate::sampling::spread::SpreadRows;

/// The tokens of the vocabulary: more than a chunk, and no whole number of vectors.
const VOCAB_SIZE: usize = 9001;
/// The draft model knows about so many of eight tokens.
const IN_EIGHT: u32 = 3;

/// What lies in the device's memory.
#[derive(Debug)]
struct Lying {
    bytes: Vec<u8>,
    at: u64,
}

// SAFETY: what lies at the address is written before the first of these is made, and by nobody while they are borrowed.
unsafe impl Foreign for Lying {
    fn copy(&self, offset: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.bytes[offset..][..to.len()]);
    }

    fn device_address(&self) -> Option<u64> {
        Some(self.at)
    }
}

/// Has the device spread rows and sample them: one, which several blocks spread, and more than one for each
/// multiprocessor.
///
/// # Errors
/// If a result differs.
pub(super) fn prove(backend: &mut CudaBackend) -> Result<(), OpenError> {
    // A second launch would be packed where the rows lie.
    let pieces = backend.launches.set_pieces(usize::MAX);
    let proved = Dtype::ALL.into_iter().try_for_each(|dtype| prove_format(backend, dtype));
    backend.launches.set_pieces(pieces);
    proved
}

fn prove_format(backend: &mut CudaBackend, dtype: Dtype) -> Result<(), OpenError> {
    let most = backend.launches.machine.facts().multiprocessors as usize;
    let known = Known::of(VOCAB_SIZE);
    let specs: Vec<RowSpec<'_>> = specs(&known).collect();
    let (token_ids, sent) = (token_ids(), laid(backend, dtype, most + 1)?);
    let rows = SpreadRows { sent: &sent, dtype, token_ids: &token_ids, vocab_size: VOCAB_SIZE };
    let job = |at: usize| RowJob { logits: rows.row(at), spec: specs[at % specs.len()] };
    let jobs: Vec<RowJob<'_>> = (0..=most).map(job).collect();
    let expected = backend.other.run(&jobs);
    for count in [1, most.div_ceil(3), jobs.len()] {
        compare(backend, &jobs[..count], |at| &expected[at])?;
    }
    all_were_done(backend, &name(&jobs[0]))
}

/// The tokens that the draft model knows. They are not in the order of ids, as those of some tables are not.
fn token_ids() -> Vec<u32> {
    let is_known = |token: &u32| token.wrapping_mul(0x9E37_79B9) >> 29 < IN_EIGHT;
    let mut token_ids: Vec<u32> = (0..VOCAB_SIZE as u32).filter(is_known).collect();
    token_ids.sort_unstable_by_key(|token| token.wrapping_mul(0x85EB_CA6B));
    token_ids
}

/// Writes so many rows to memory of the device that the next launch does not use.
fn laid(backend: &mut CudaBackend, dtype: Dtype, count: usize) -> Result<Lying, OpenError> {
    let columns = token_ids().len();
    let values = row(count + columns);
    let bytes: Vec<u8> = (0..count).flat_map(|at| dtype.encode(&values[at..at + columns])).collect();
    let at = backend.launches.machine.lay(&bytes)?;
    Ok(Lying { bytes, at })
}
