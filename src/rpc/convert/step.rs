//! Checks a step. Mistakes in its shape are errors; mistakes in one sequence or row are recorded in that item.

use super::config::{Config, dtype};
use super::copies::check_copies;
use super::params::logprobs;
use super::{shards, top_n};
use crate::engine::step::{
    DataPath, DraftVocabulary, DraftWork, DraftsFrom, LogitsBlock, Masks, RegionRows, RowFailure, RowStatus, Score,
    Slots, Step, VerifyWork, Work, WorkKind,
};
use crate::error::Error;
use crate::message::look::{AllDropped, Dropped};
use crate::params::{FieldError, LogprobsParams};
use crate::proto;
use crate::region::{LookUpError, Region, StreamRegions};
use crate::rpc::Received;
use crate::rpc::blocking::blocking;
use crate::sampling::row::LogprobsMode;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// Turns a step into its domain form, except for the sequences it opens: building them takes time and room, which the
/// step has only once it is admitted.
///
/// # Errors
/// A mistake in the message's shape, with its path in the step.
pub(in crate::rpc) fn step(
    wire: proto::Step,
    config: &Config,
    received: Received,
    dropped: &mut AllDropped,
) -> Result<(Step, Vec<proto::OpenSequence>), Error> {
    check_copies(wire.open.iter().map(|open| open.params.as_ref()), "open", config)?;
    let logits = match wire.logits {
        Some(logits) => whole_rows(logits, wire.step_id, draft_model_of(&wire.work, config)?, config)?,
        None if wire.work.is_empty() || wire.top_n.is_some() => LogitsBlock::empty(config.dtype, config.vocab_size),
        None => return Err(Error::invalid("logits", "is required when there is work; set inline")),
    };
    let logits = with_listed(logits, wire.top_n, config)?;
    let work = works(wire.work, dropped, &logits, config)?;
    let slots =
        wire.token_slots.map(|wire| slots(&wire, &work, config).map_err(|e| e.within("token_slots"))).transpose()?;
    let Received { at: received, bytes: message_bytes, .. } = received;
    let deadline = (wire.deadline_ms > 0).then(|| received + Duration::from_millis(wire.deadline_ms.into()));
    let (id, close, open) = (wire.step_id, wire.close_sequence_ids, Vec::new());
    Ok((Step { id, close, open, work, logits, message_bytes, received, deadline, slots }, wire.open))
}

/// The draft model's vocabulary, if the step's rows are those of a draft model that has its own.
///
/// # Errors
/// At a work whose rows would be those of the other model.
fn draft_model_of<'a>(work: &[proto::Work], config: &'a Config) -> Result<Option<&'a Arc<DraftVocabulary>>, Error> {
    let Some(vocabulary) = &config.draft_vocabulary else { return Ok(None) };
    // A work without a kind is a mistake of another sort.
    let kinds = work.iter().enumerate().filter_map(|(at, work)| Some((at, work.kind.as_ref()?)));
    let mut drafts = kinds.map(|(at, kind)| (at, matches!(kind, proto::work::Kind::Draft(_))));
    let Some((at_first, first)) = drafts.next() else { return Ok(None) };
    if let Some((at, _)) = drafts.find(|(_, is_draft)| *is_draft != first) {
        let (is, of_first) = if first { ("is no draft work", "is") } else { ("is draft work", "is not") };
        let message = format!(
            "{is}, but work[{at_first}] {of_first}: with draft_vocabulary, a step's rows are those of one model; send \
             draft work in steps of its own"
        );
        return Err(Error::invalid(format!("work[{at}]"), message));
    }
    Ok(first.then_some(vocabulary))
}

/// A step's whole rows, which are those of the draft model if it has its own vocabulary.
fn whole_rows(
    wire: proto::step::Logits,
    step_id: u64,
    draft_model: Option<&Arc<DraftVocabulary>>,
    config: &Config,
) -> Result<LogitsBlock, Error> {
    let columns = draft_model.map_or(config.vocab_size, |vocabulary| vocabulary.columns());
    let rows = match wire {
        proto::step::Logits::Inline(inline) => {
            inline_logits(inline, columns, config).map_err(|e| Error::Invalid(e.within("inline")))
        }
        proto::step::Logits::Region(_) if !config.has_regions => {
            let message = "this server has no region data path (see GetServerInfo); send inline logits";
            return Err(Error::Unimplemented(FieldError::new("region", message)));
        }
        proto::step::Logits::Region(region) => region_logits(&region, columns, config).map_err(|e| e.within("region")),
        proto::step::Logits::Sharded(_) if draft_model.is_some() => {
            let message = "cannot be combined with draft work where there is a draft_vocabulary; send these rows inline \
                           or in a region";
            return Err(Error::invalid("sharded", message));
        }
        proto::step::Logits::Sharded(sharded) => shards::rows(sharded, step_id, config),
    };
    match (rows, draft_model) {
        (Ok(rows), Some(vocabulary)) => Ok(rows.of_draft_model(vocabulary)),
        (Err(Error::Invalid(error)), Some(_)) => Err(Error::Invalid(DraftVocabulary::told(error))),
        (rows, _) => rows,
    }
}

/// Rows of `columns` logits that the message carries.
pub(in crate::rpc) fn inline_logits(
    wire: proto::InlineLogits,
    columns: u32,
    config: &Config,
) -> Result<LogitsBlock, FieldError> {
    LogitsBlock::new(wire.data, config.dtype, columns, wire.row_stride)
}

/// Adds to `logits` the rows of which only the largest logits were sent.
///
/// # Errors
/// At `top_n`, relative to the message.
pub(in crate::rpc) fn with_listed(
    logits: LogitsBlock,
    wire: Option<proto::TopNRows>,
    config: &Config,
) -> Result<LogitsBlock, Error> {
    let Some(wire) = wire else { return Ok(logits) };
    if logits.data_path() == DataPath::VocabShards {
        return Err(Error::invalid("top_n", "cannot be combined with sharded logits; send inline or region logits"));
    }
    let listed = blocking(top_n::takes_long(&wire), || top_n::rows(&wire, config));
    let listed = listed.map_err(|e| Error::Invalid(e.within("top_n")))?;
    Ok(logits.with_listed(listed))
}

/// Logits that lie in a region of the stream.
fn region_logits(wire: &proto::RegionLogits, columns: u32, config: &Config) -> Result<LogitsBlock, Error> {
    let (region, place) = region_rows(wire, regions(config)?)?;
    LogitsBlock::in_region(region, place, config.dtype, columns).map_err(Error::Invalid)
}

/// The place in a region of the stream where a step's tokens go.
fn slots(wire: &proto::TokenSlots, work: &[Work], config: &Config) -> Result<Slots, Error> {
    let region = region(regions(config)?, wire.region_id, wire.generation)?;
    Slots::new(region, wire.offset, wire.instead_of_result, work).map_err(Error::Invalid)
}

fn regions(config: &Config) -> Result<&StreamRegions, Error> {
    let Some(invitation) = &config.invitation else {
        let message = "is not leased: the stream did not ask for regions (wants_regions) when it was configured";
        return Err(Error::UnknownRegion(FieldError::new("region_id", message)));
    };
    Ok(invitation.regions())
}

/// A region of a stream, and the place of rows in it.
pub(super) fn region_rows(
    wire: &proto::RegionLogits,
    regions: &StreamRegions,
) -> Result<(Arc<Region>, RegionRows), Error> {
    let region = region(regions, wire.region_id, wire.generation)?;
    Ok((region, RegionRows { offset: wire.offset, rows: wire.rows, row_stride: wire.row_stride }))
}

fn region(regions: &StreamRegions, id: u64, generation: u64) -> Result<Arc<Region>, Error> {
    regions.get(id, generation).map_err(|error| match error {
        LookUpError::Unknown { .. } => Error::UnknownRegion(FieldError::new("region_id", error.to_string())),
        LookUpError::Stale { .. } => Error::StaleRegion(FieldError::new("generation", error.to_string())),
    })
}

/// Whether a field of a work is its kind.
fn is_kind(field: &FieldError) -> bool {
    !field.field.contains('.')
}

/// The works with the rows they use. A work that names no first row starts after the rows of the work before it. So a
/// work without a kind, or with two, is no mistake of this work alone: the next work's rows would be unknown too.
fn works(
    wire: Vec<proto::Work>,
    dropped: &mut AllDropped,
    logits: &LogitsBlock,
    config: &Config,
) -> Result<Vec<Work>, Error> {
    let (mut next_row, mut last_row, mut used, mut bytes) = (0, 0, 0, 0usize);
    let mut works = Vec::with_capacity(wire.len());
    for (at, wire) in wire.into_iter().enumerate() {
        let first_row = wire.first_row.map_or(next_row, u64::from);
        let dropped = dropped.of_work(at);
        let Some(kind) = wire.kind else {
            return Err(match dropped {
                Some(dropped) => Error::from(dropped).within(&format!("work[{at}]")),
                None => Error::invalid(format!("work[{at}].kind"), "is not set; set sample, draft, score or verify"),
            });
        };
        let (rows, kind) = work_kind(kind, wire.sequence_id.is_some(), config);
        let kind = match dropped {
            None => kind,
            Some(Dropped::Together(field)) if is_kind(&field) => {
                return Err(Error::Invalid(field).within(&format!("work[{at}]")));
            }
            Some(Dropped::Together(field)) => Err(RowFailure::new(RowStatus::InvalidWork, field.to_string())),
            Some(Dropped::Unknown(field)) => Err(RowFailure::new(RowStatus::Unimplemented, field.to_string())),
        };
        next_row = first_row + rows as u64;
        last_row = next_row.max(last_row);
        used += rows.max(1);
        bytes = bytes.saturating_add(logits.bytes_of(first_row, rows.max(1)));
        if let Some(limit) = config.exceeded_by(used, bytes) {
            let way = if used == rows { "one work cannot be split: give it fewer tokens" } else { "split the step" };
            return Err(Error::invalid("work", format!("uses {used} rows up to work[{at}], {limit}; {way}")));
        }
        let work = Work { sequence_id: wire.sequence_id, first_row, kind, masks: Masks::default() };
        works.push(with_masks(work, wire.token_masks, rows, config));
    }
    let part = if logits.data_path() == DataPath::VocabShards { "sharded.inline" } else { "inline" };
    logits.check_used(last_row).map_err(|e| Error::Invalid(e.within(part)))?;
    Ok(works)
}

/// How many rows a work uses, and what to do with them.
fn work_kind(wire: proto::work::Kind, has_sequence: bool, config: &Config) -> (usize, Result<WorkKind, RowFailure>) {
    use proto::work::Kind;
    match wire {
        Kind::Sample(proto::SampleWork {}) => (1, Ok(WorkKind::Sample)),
        Kind::Score(score) => (score.token_ids.len(), score_work(score, has_sequence, config)),
        Kind::Draft(proto::DraftWork { restart, parent }) => (1, Ok(WorkKind::Draft(DraftWork { restart, parent }))),
        Kind::Verify(verify) => (verify.draft_token_ids.len() + 1, verify_work(verify, config)),
    }
}

/// Adds to a work the masks of its rows, or the error that they cause.
fn with_masks(work: Work, words: Bytes, rows: usize, config: &Config) -> Work {
    let is_raw = matches!(&work.kind, Ok(WorkKind::Score(score)) if score.is_raw());
    let masks = if is_raw && !words.is_empty() {
        Err(FieldError::new(
            "token_masks",
            "has no effect on raw scores; leave it out, or score in mode PROCESSED or TEMPERED",
        ))
    } else {
        Masks::new("token_masks", words, rows, config.vocab_size)
    };
    masked(work, masks)
}

/// Adds masks to a work. The work's own error takes precedence over an error in the masks.
pub(in crate::rpc) fn masked(work: Work, masks: Result<Masks, FieldError>) -> Work {
    match masks {
        Ok(masks) => Work { masks, ..work },
        Err(error) => {
            let failure = RowFailure::new(RowStatus::InvalidWork, error.to_string());
            Work { kind: work.kind.and(Err(failure)), ..work }
        }
    }
}

fn score_work(wire: proto::ScoreWork, has_sequence: bool, config: &Config) -> Result<WorkKind, RowFailure> {
    let logprobs = match &wire.logprobs {
        Some(wire) => logprobs(wire)
            .map_err(|e| RowFailure::new(RowStatus::InvalidWork, e.within("score.logprobs").to_string()))?,
        None => LogprobsParams { top_n: 0, mode: LogprobsMode::Raw, token_ids: Vec::new() },
    };
    let score = Score { tokens: wire.token_ids, logprobs };
    score.check(has_sequence, config.vocab_size, config.limits.max_top_logprobs)?;
    Ok(WorkKind::Score(score))
}

fn verify_work(wire: proto::VerifyWork, config: &Config) -> Result<WorkKind, RowFailure> {
    let invalid = |e: FieldError| RowFailure::new(RowStatus::InvalidWork, e.within("verify").to_string());
    let from = drafts_from(wire.draft_distribution, config).map_err(invalid)?;
    let parents = (!wire.parents.is_empty()).then_some(wire.parents);
    let work = VerifyWork { tokens: wire.draft_token_ids, parents, from, measure: wire.measure };
    work.check(config.vocab_size)?;
    Ok(WorkKind::Verify(work))
}

fn drafts_from(wire: Option<proto::verify_work::DraftDistribution>, config: &Config) -> Result<DraftsFrom, FieldError> {
    use proto::verify_work::DraftDistribution as Wire;
    match wire {
        None | Some(Wire::Kept(proto::KeptDraft {})) => Ok(DraftsFrom::Kept),
        Some(Wire::Deterministic(proto::DeterministicDraft {})) => Ok(DraftsFrom::Nowhere),
        Some(Wire::Dense(dense)) => {
            let dtype = match proto::LogitsDtype::try_from(dense.dtype) {
                Ok(proto::LogitsDtype::Unspecified) => config.dtype,
                _ => dtype("dense.dtype", dense.dtype)?,
            };
            let bytes = dense.probs.len();
            let rows = LogitsBlock::new(dense.probs, dtype, config.vocab_size, 0).map_err(|_| {
                let (vocab, size) = (config.vocab_size, dtype.size());
                let message =
                    format!("has {bytes} bytes, must have draft tokens * vocab_size {vocab} * {size}, without padding");
                FieldError::new("dense.probs", message)
            })?;
            Ok(DraftsFrom::Dense(rows))
        }
        Some(Wire::Sparse(sparse)) => {
            Ok(DraftsFrom::Sparse { counts: sparse.counts, tokens: sparse.token_ids, probs: sparse.probs })
        }
    }
}
