//! The second half of what a device proves before it serves: teams of every size, each with one row after another.
//!
//! The batches of [`super::warm_up`] have fewer rows than a whole card has teams at once. So none of its teams reaches
//! a second row, where it reads its job from the other of two places, and where shared memory still has what the first
//! row left.

use super::costs::Costs;
use super::kinds::{KINDS, Known, OF_BROKEN, broken, row, specs};
use super::launches::MAX_ROWS;
use super::shape::{Device, chunk};
use super::warm_up::{all_were_done, compare, difference_of_drafts, draft_token, name, propose};
use super::{CudaBackend, Machine, OpenError, RowJob, VerifyJob};
use crate::params::acceptance::{AcceptanceRule, Typical};
use crate::sampling::logits::{Dtype, Logits};
use crate::sampling::philox::{Purpose, uniform};
use crate::sampling::row::RowSpec;
use crate::speculative::job::DraftToken;
use crate::speculative::numbers::Numbers;
use crate::speculative::tree::Tree;

/// How many logits of a short row are in the last block's slice. The other blocks have a chunk each.
const SHORT: usize = 1000;
/// How many logits a long row has fewer than whole chunks would have.
const LACKING: usize = 3000;
/// How many different rows there are: each kind with both rows of logits, so that neighbours differ in both. Broken
/// ones come between them.
const DIFFERENT: usize = 2 * KINDS;
/// How many rows are uploaded together when several launches are under way.
const ROWS_OF_PIECE: usize = 5;
/// Rules that use every way of weighing rows: by what is left, by entropy and, if acceptance is measured, by drafts.
const RULES: [AcceptanceRule; 2] =
    [AcceptanceRule::Typical(Typical { epsilon: 0.1, alpha: 0.3 }), AcceptanceRule::Rejection];

/// Has teams of every size sample rows and verify drafts, with more than two rows for each team in one launch. Then
/// samples rows in two parts, and in several launches.
///
/// # Errors
/// If a result differs.
pub(super) fn prove(backend: &mut CudaBackend) -> Result<(), OpenError> {
    let (costs, facts) = (*backend.costs(), backend.launches.machine.facts());
    // A batch that is uploaded in pieces would take several launches.
    let pieces = backend.launches.set_pieces(usize::MAX);
    let values = row(facts.most_blocks() as usize * longest(Dtype::F32) * chunk(facts.threads) as usize);
    let sizes = Dtype::ALL.into_iter().flat_map(|dtype| (1..=facts.most_blocks()).map(move |size| (dtype, size)));
    let proved = sizes.into_iter().try_for_each(|(dtype, team_size)| {
        backend.set_costs(Costs::only(team_size));
        of_team(backend, dtype, &values, team_size)
    });
    let proved = proved.and_then(|()| Dtype::ALL.into_iter().try_for_each(|dtype| otherwise(backend, dtype, &values)));
    backend.launches.set_pieces(pieces);
    backend.set_costs(costs);
    proved
}

/// The most chunks that a block has of a row. In f32 this is more than it keeps in shared memory.
fn longest(dtype: Dtype) -> usize {
    if dtype.size() > 2 { 5 } else { 2 }
}

fn of_team(backend: &mut CudaBackend, dtype: Dtype, values: &[f32], team_size: u32) -> Result<(), OpenError> {
    let facts = backend.launches.machine.facts();
    let (chunk, blocks) = (chunk(facts.threads) as usize, team_size as usize);
    let resident = at_once(&facts, team_size);
    let (long, short) = (blocks * longest(dtype) * chunk - LACKING, (blocks - 1) * chunk + SHORT);
    let encoded = [(0, long), (1, short), (2, short)].map(|(from, count)| dtype.encode(&values[from..from + count]));
    let [long, short, other] = encoded.each_ref().map(|bytes| Logits::new(dtype, bytes));
    // Known tokens in the slices of all blocks, so that notes left from one row would be wrong for the next.
    let known = Known::of(short.vocab_size());
    let specs: Vec<RowSpec<'_>> = specs(&known).collect();
    let broken = broken(dtype, &values[1..1 + short.vocab_size()]);
    let different = different([long, short], &specs, &broken);
    prove_rows(backend, &different, resident, 2 * resident + different.len())?;
    if team_size == 1 {
        // Few enough that even a large card writes all results straight to the host.
        prove_rows(backend, &different, resident, resident + different.len())?;
    }
    prove_drafts(backend, &jobs([short, other], &specs, specs.len()), resident)?;
    all_were_done(backend, &name(&RowJob { logits: short, spec: specs[0] }))
}

/// Samples rows in the two ways that teams of one size never do: in two parts, and in several launches.
fn otherwise(backend: &mut CudaBackend, dtype: Dtype, values: &[f32]) -> Result<(), OpenError> {
    let count = chunk(backend.launches.machine.facts().threads) as usize + SHORT;
    let encoded = [0, 1].map(|from| dtype.encode(&values[from..from + count]));
    let logits = encoded.each_ref().map(|bytes| Logits::new(dtype, bytes));
    let known = Known::of(count);
    let specs: Vec<RowSpec<'_>> = specs(&known).collect();
    let broken = broken(dtype, &values[1..1 + count]);
    let different = different(logits, &specs, &broken);
    in_parts(backend, &different)?;
    in_pieces(backend, &different)?;
    all_were_done(backend, &name(&different[0]))
}

/// Teams of one block take whole rounds of rows, and larger teams take the last rows after them. This needs a device
/// that has larger teams and says how many run at once; otherwise rows are never laid in parts.
fn in_parts(backend: &mut CudaBackend, different: &[RowJob<'_>]) -> Result<(), OpenError> {
    let facts = backend.launches.machine.facts();
    if facts.most_blocks() == 1 {
        return Ok(());
    }
    let (blocks, rest) = (at_once(&facts, 1), at_once(&facts, 2).min(different.len()));
    backend.set_costs(Costs::IN_PARTS);
    prove_rows(backend, different, blocks, 2 * blocks + rest)
}

/// Several launches, each uploaded while the one before runs.
fn in_pieces(backend: &mut CudaBackend, different: &[RowJob<'_>]) -> Result<(), OpenError> {
    backend.set_costs(Costs::PREDICTED);
    let whole = backend.launches.set_pieces(ROWS_OF_PIECE * different[0].logits.byte_len());
    let proved = prove_rows(backend, different, different.len(), different.len());
    backend.launches.set_pieces(whole);
    proved
}

/// How many teams of so many blocks run at once. If the driver gives no bound, as many as there are multiprocessors
/// for.
fn at_once(facts: &Device, team_size: u32) -> usize {
    facts.resident(team_size).min(facts.multiprocessors / team_size).max(1) as usize
}

/// [`DIFFERENT`] rows, with broken ones both after and before a good row, even where few teams take few rows.
fn different<'a>(logits: [Logits<'a>; 2], specs: &[RowSpec<'a>], broken: &'a [Vec<u8>]) -> Vec<RowJob<'a>> {
    let mut different = jobs(logits, specs, DIFFERENT);
    for (at, bytes) in broken.iter().enumerate() {
        let logits = Logits::new(logits[0].dtype(), bytes);
        different.insert(2 * at + 1, RowJob { logits, spec: specs[OF_BROKEN] });
    }
    different
}

/// So many rows, alternating between the two rows of logits and going through the kinds in turn.
fn jobs<'a>(logits: [Logits<'a>; 2], specs: &[RowSpec<'a>], count: usize) -> Vec<RowJob<'a>> {
    (0..count).map(|at| RowJob { logits: logits[at % 2], spec: specs[at % specs.len()] }).collect()
}

/// Which of the different rows is at a place of a batch. It differs from the team's row before, so that remains of that
/// one would change the result.
fn which(at: usize, resident: usize, different: usize) -> usize {
    (at % resident + at / resident) % different
}

/// Samples the same few rows again and again, so that the other backend has to sample each only once. The batch has
/// `count` rows, of which `resident` run at once.
fn prove_rows(backend: &mut CudaBackend, jobs: &[RowJob<'_>], resident: usize, count: usize) -> Result<(), OpenError> {
    let expected = backend.other.run(jobs);
    let order: Vec<usize> = (0..count.min(MAX_ROWS)).map(|at| which(at, resident, jobs.len())).collect();
    let repeated: Vec<RowJob<'_>> = order.iter().map(|&of| jobs[of]).collect();
    compare(backend, &repeated, |at| &expected[order[at]])
}

/// Verifies drafts with two draft tokens, one after the other or as siblings. Each draft has three rows. For some of
/// the drafts all rows are weighed at once, for the others only one row.
fn prove_drafts(backend: &mut CudaBackend, rows: &[RowJob<'_>], resident: usize) -> Result<(), OpenError> {
    let proposed = propose(backend, rows)?;
    let drafts: Vec<DraftToken<'_>> = proposed.iter().map(|row| draft_token(row, None)).collect();
    let trees = [Tree::chain(2), Tree::new(&[-1, -1], 2).expect("two tokens beside each other")];
    let job = |(seed, (rule, first, tree))| VerifyJob {
        rows: &rows[first..first + 3],
        ends: &[false; 2],
        strict: &[],
        drafts: &drafts,
        tree,
        rule,
        numbers: Numbers { seed, start: 0 },
        measure: first == 2,
    };
    let different = RULES.into_iter().flat_map(|rule| [(rule, 2, &trees[0]), (rule, 4, &trees[1])]);
    let jobs: Vec<VerifyJob<'_>> = (0..).zip(different).map(job).collect();
    let expected = backend.other.verify(&jobs);
    // In random order, since drafts differ in how many of their rows are weighed.
    let count = jobs.len();
    let any = |at: usize| (uniform(19, at as u64, Purpose::Draft) % count as u64) as usize;
    let order: Vec<usize> = (0..count.max(resident + 1)).map(|at| if at < count { at } else { any(at) }).collect();
    let repeated: Vec<VerifyJob<'_>> = order.iter().map(|&of| jobs[of]).collect();
    let got = backend.verify_all(&repeated)?;
    match (0..repeated.len()).find(|&at| got[at] != expected[order[at]]) {
        Some(at) => Err(difference_of_drafts(at, &repeated[at], &expected[order[at]], &got[at])),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_team_never_has_the_same_row_twice_in_turn() {
        for resident in 1..=132 {
            let of = |at| which(at, resident, DIFFERENT + broken(Dtype::F32, &[0.0]).len());
            assert!((resident..=2 * resident).all(|at| of(at) != of(at - resident)), "{resident} teams");
        }
    }
}
