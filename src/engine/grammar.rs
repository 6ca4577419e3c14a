//! The masks of rows whose texts have to match a grammar, and the drafts that grammars force or allow.

use super::batch::BatchedStep;
use super::draft::Branch;
use super::finished::Finished;
use super::state::{Stream, StreamId};
use super::step::{Done, RowFailure, RowStatus, Work, WorkKind};
use crate::grammar::fill::{Wanted, masks};
use crate::grammar::propose::proposals;
use crate::grammar::{Ahead, MaskError};
use crate::sequence::Sequence;
use std::collections::HashMap;

/// Adds grammar masks to the rows of works that are going to run, on top of the masks that their worker sent. A work
/// whose masks cannot be computed is not done. Returns whether any work needed masks.
pub(super) fn fill(steps: &mut [BatchedStep], streams: &HashMap<StreamId, Stream>) -> bool {
    let (mut places, mut wanted) = (Vec::new(), Vec::new());
    for (at, batched) in steps.iter().enumerate() {
        let Some(stream) = streams.get(&batched.stream) else { continue };
        for (work, asked) in batched.step.work.iter().enumerate().filter(|(work, _)| batched.plan[*work].is_ok()) {
            let sequence = asked.sequence_id.and_then(|id| stream.table.get(id));
            let Some((sequence, text)) = sequence.and_then(|sequence| Some((sequence, sequence.text()?))) else {
                continue;
            };
            let Some(ahead) = ahead(asked, sequence) else { continue };
            places.push((at, work, text.vocab_size()));
            wanted.push(Wanted::new(text, ahead));
        }
    }
    if wanted.is_empty() {
        return false;
    }
    for ((at, work, vocab_size), masks) in places.into_iter().zip(masks(wanted)) {
        let batched = &mut steps[at];
        match masks {
            Ok(masks) => batched.step.work[work].masks = batched.step.work[work].masks.and(&masks, vocab_size),
            Err(mask_error) => {
                let status = match mask_error {
                    MaskError::TooComplex(_) => RowStatus::GrammarTooComplex,
                    MaskError::NotYet => RowStatus::DeadlineExceeded,
                    MaskError::Fault(_) => RowStatus::Internal,
                };
                batched.plan[work] = Err(RowFailure::new(status, format!("params.grammar: {mask_error}")));
            }
        }
    }
    true
}

/// Adds the drafts of texts that have a grammar: what the grammar forces, or the proposers' drafts as far as the
/// grammar allows them.
pub(super) fn propose(finished: &mut [Finished], streams: &mut HashMap<StreamId, Stream>) {
    let (mut places, mut texts) = (Vec::new(), Vec::new());
    for (at, finished) in finished.iter().enumerate() {
        let Some(stream) = streams.get(&finished.stream) else { continue };
        for (work, worked) in finished.work.iter().enumerate() {
            if let Some(draft) = worked.draft_by_grammar(&stream.table) {
                places.push((at, work));
                texts.push(draft);
            }
        }
    }
    for ((at, work), proposed) in places.into_iter().zip(proposals(texts)) {
        let (stream, worked) = (streams.get_mut(&finished[at].stream), &mut finished[at].work[work]);
        let sequence = stream.and_then(|stream| stream.table.get_mut(worked.sequence?));
        if let Some((next, sequence)) = worked.done.as_mut().ok().and_then(Done::next_mut).zip(sequence) {
            *next = sequence.drafts_by_grammar(proposed);
        }
    }
}

/// The places of a work's rows in its text; `None` if masks do not matter there.
fn ahead(work: &Work, sequence: &Sequence) -> Option<Ahead> {
    match work.kind.as_ref().ok()? {
        WorkKind::Sample => Some(Ahead::default()),
        WorkKind::Draft(draft) => {
            let branch = Branch::of(*draft, sequence.drafts()).ok()?;
            Some(Ahead { is_last_only: true, ..Ahead::chain(branch.path(sequence.drafts())) })
        }
        WorkKind::Score(score) if score.is_raw() => None,
        WorkKind::Score(score) => Some(Ahead::chain(score.tokens.split_last()?.1.to_vec())),
        WorkKind::Verify(verify) => {
            let parents = verify.parents_among(sequence.drafts());
            Some(Ahead { tokens: verify.tokens.clone(), parents, is_last_only: false })
        }
    }
}
