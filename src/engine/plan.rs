//! Finds out what a work needs, and checks it against its sequence and its step before anything runs.

use super::draft::{Branch, check_kept};
use super::step::{RowFailure, RowStatus, Step, Work, WorkKind};
use crate::limits::Limits;
use crate::sampling::mask::TokenMask;
use crate::sequence::Sequence;
use crate::sequence::table::Table;

/// What a work needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Planned {
    /// This many rows, each with a result of its own.
    Rows(usize),
    /// This many rows, verified together.
    Verify(usize),
}

impl Planned {
    /// How many rows the work uses.
    pub(super) fn rows(self) -> usize {
        match self {
            Self::Rows(rows) | Self::Verify(rows) => rows,
        }
    }
}

/// How many logits one step may have explained (`why_not_token_ids`): 8 rows of 131,072, which take one thread a second
/// or two with the longest of chains. The limit is per step, because a result must not depend on what else is in its
/// batch. A batch takes no further step once it has this many logits to explain.
pub(super) const MAX_EXPLAINED_LOGITS: usize = 1 << 20;

/// How many entries of biases, bans and penalties the top-n rows of one step may go through. A row of one token goes
/// through all entries of its sequence, as a whole row does, but does not cost a whole row's bytes. This many take
/// about a tenth of a second.
pub(super) const MAX_LISTED_ENTRIES: usize = 1 << 24;

/// How many of these entries take as long as one of a sparse draft distribution over a whole vocabulary, which is sorted:
/// about 50 ns. In the short distributions of a step that a reading thread may run, one takes no longer than these.
pub(super) const ENTRIES_A_SPARSE: usize = 8;

/// Bytes of a whole row that take as long as one of these entries: about 6 ns.
pub(super) const ENTRY_TIME_BYTES: usize = 128;

/// What a step costs so far beyond what the bytes of its rows bound.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Costs {
    /// Bytes of the masks of grammars.
    pub(super) mask_bytes: usize,
    /// How many logits are to be explained.
    pub(super) explained: usize,
    /// How many entries top-n rows go through.
    pub(super) entries: usize,
}

impl Costs {
    /// Adds the cost of `rows` rows of the step, from row `first` on, for a sequence.
    fn add(
        &mut self,
        kind: &WorkKind,
        sequence: &Sequence,
        step: &Step,
        first: u64,
        rows: usize,
        most_bytes: usize,
    ) -> Result<(), RowFailure> {
        let is_raw = matches!(kind, WorkKind::Score(score) if score.is_raw());
        if sequence.text().is_some() && !is_raw {
            self.mask(rows, step, most_bytes)?;
        }
        if sequence.explains() && !is_raw && !matches!(kind, WorkKind::Draft(_)) {
            self.explain(rows, step)?;
        }
        let listed = if is_raw { 0 } else { step.logits.rests_among(first, rows) };
        if listed > 0 { self.go_through(listed, sequence) } else { Ok(()) }
    }

    /// A top-n row may be a few bytes, but its mask has a bit for each token.
    fn mask(&mut self, rows: usize, step: &Step, most: usize) -> Result<(), RowFailure> {
        let all = rows.saturating_mul(TokenMask::bytes_for(step.logits.vocab_size())).saturating_add(self.mask_bytes);
        if all > most {
            let message = format!(
                "params.grammar: the masks of this step's rows would take {all} bytes, but max_row_bytes_per_step is {most}; \
                 split the step, and score fewer tokens in one work"
            );
            return Err(RowFailure::new(RowStatus::InvalidWork, message));
        }
        self.mask_bytes = all;
        Ok(())
    }

    fn explain(&mut self, rows: usize, step: &Step) -> Result<(), RowFailure> {
        let logits = rows.saturating_mul(step.logits.vocab_size());
        let all = self.explained.saturating_add(logits);
        if all > MAX_EXPLAINED_LOGITS {
            let message = format!(
                "report.why_not_token_ids: would explain {all} logits of this step, at most {MAX_EXPLAINED_LOGITS} are \
                 allowed; ask for it on fewer rows"
            );
            return Err(RowFailure::new(RowStatus::InvalidWork, message));
        }
        self.explained = all;
        Ok(())
    }

    fn go_through(&mut self, rows: usize, sequence: &Sequence) -> Result<(), RowFailure> {
        let all = self.entries.saturating_add(rows.saturating_mul(sequence.entries()));
        if all > MAX_LISTED_ENTRIES {
            let message = format!(
                "top_n: would go through {all} entries of logit_bias, bans and penalties in this step, at most \
                 {MAX_LISTED_ENTRIES} are allowed; split the step, or send whole rows"
            );
            return Err(RowFailure::new(RowStatus::InvalidWork, message));
        }
        self.entries = all;
        Ok(())
    }
}

/// Returns what a work needs, and adds what it costs; or says why it cannot be done. The costs are of no use then.
pub(super) fn plan_work(
    table: &mut Table,
    work: &Work,
    step: &Step,
    costs: &mut Costs,
    batch: u64,
    limits: &Limits,
) -> Result<Planned, RowFailure> {
    let sequence = entered(table, work, batch)?;
    let kind = work.kind.as_ref().map_err(RowFailure::clone)?;
    let planned = planned(kind, sequence, limits)?;
    let (first, rows) = (work.first_row, planned.rows());
    let there = step.logits.rows();
    if first.saturating_add(rows as u64) > there {
        let message = format!("needs {rows} rows from row {first} on, but the step has {there} rows");
        return Err(RowFailure::new(RowStatus::RowOutOfRange, message));
    }
    step.logits.check(first, rows, matches!(planned, Planned::Verify(_)))?;
    if let Some(sequence) = sequence {
        costs.add(kind, sequence, step, first, rows, limits.max_row_bytes_per_step)?;
    }
    if let Some(id) = work.sequence_id {
        take_room(table, id, work, step)?;
    }
    Ok(planned)
}

/// The sequence that a work names, entered in this batch; `None` if the work names none.
fn entered<'a>(table: &'a mut Table, work: &Work, batch: u64) -> Result<Option<&'a Sequence>, RowFailure> {
    let Some(id) = work.sequence_id else { return Ok(None) };
    match table.enter_batch(id, batch) {
        None => Err(unknown_sequence("no such sequence is open on this stream")),
        Some((_, true)) => {
            let message = "the sequence has other work in this step; send it in the next one";
            Err(RowFailure::new(RowStatus::DuplicateSequence, message))
        }
        Some((sequence, false)) => Ok(Some(sequence)),
    }
}

/// The rows of a work, if its sequence may do it.
fn planned(kind: &WorkKind, sequence: Option<&Sequence>, limits: &Limits) -> Result<Planned, RowFailure> {
    match kind {
        WorkKind::Sample => {
            may_emit(sequence, 1, limits)?;
            Ok(Planned::Rows(1))
        }
        WorkKind::Draft(draft) => {
            let drafts = may_emit(sequence, 1, limits)?.drafts();
            let branch = Branch::of(*draft, drafts)?;
            may_emit(sequence, branch.path(drafts).len() + 1, limits)?;
            Ok(Planned::Rows(1))
        }
        WorkKind::Score(score) => Ok(Planned::Rows(score.tokens.len())),
        WorkKind::Verify(verify) => {
            let kept = may_emit(sequence, 1, limits)?.drafts();
            check_kept(verify, may_emit(sequence, verify.most_emitted(kept), limits)?)?;
            Ok(Planned::Verify(verify.rows()))
        }
    }
}

/// Takes room for what the sequence may have to remember of this work. What it does not need is given back with the
/// result.
fn take_room(table: &mut Table, id: u64, work: &Work, step: &Step) -> Result<(), RowFailure> {
    let fits = match work.kind.as_ref().map_err(RowFailure::clone)? {
        WorkKind::Sample => table.may_grow(id, 1, 0),
        WorkKind::Verify(verify) => {
            let emitted = table.get(id).map_or(0, |sequence| verify.most_emitted(sequence.drafts()));
            table.may_grow(id, emitted, 0)
        }
        WorkKind::Draft(_) => {
            let vocab_size = step.logits.vocab_size();
            let kept = table.get(id).map_or(0, |sequence| sequence.most_kept_bytes(vocab_size));
            // What is kept of a listed row is a list, even if a whole row would be kept as it is.
            let listed = step.logits.most_listed(work.first_row, 1) * size_of::<(u32, u64)>();
            table.may_grow(id, 0, if listed > 0 { kept.max(listed) } else { kept })
        }
        WorkKind::Score(_) => true,
    };
    if fits { Ok(()) } else { Err(RowFailure::no_state()) }
}

/// The sequence, if it may emit this many more tokens.
fn may_emit<'a>(sequence: Option<&'a Sequence>, tokens: usize, limits: &Limits) -> Result<&'a Sequence, RowFailure> {
    let Some(sequence) = sequence else {
        return Err(RowFailure::new(RowStatus::InvalidWork, "sequence_id: is required for this kind of work"));
    };
    if sequence.finished().is_some() {
        return Err(RowFailure::new(RowStatus::SequenceFinished, "the sequence has ended; on a stream, close it"));
    }
    let tokens = tokens.min(sequence.remaining());
    let (len, most) = (sequence.history_len(), limits.max_history_tokens as u64);
    if len + tokens as u64 > most {
        let message = format!("{len} tokens of prompt and output plus {tokens} more exceed max_history_tokens {most}");
        let message = if tokens > 1 && len < most { message + "; a shorter draft may fit" } else { message };
        return Err(RowFailure::new(RowStatus::HistoryLimit, message));
    }
    Ok(sequence)
}

pub(super) fn unknown_sequence(message: &'static str) -> RowFailure {
    RowFailure::new(RowStatus::UnknownSequence, message)
}
