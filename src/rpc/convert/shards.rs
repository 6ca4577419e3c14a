//! The columns of ranks: those of rank 0, which come in a step, and those that other ranks announce.

use super::config::{Config, dtype};
use super::step::region_rows;
use crate::engine::shards::attachment::{AnnounceError, AttachError, Attachment};
use crate::engine::shards::layout::Layout;
use crate::engine::step::LogitsBlock;
use crate::error::{Error, Refusal};
use crate::params::FieldError;
use crate::proto;
use crate::region::{StreamRegions, Token};
use std::sync::Arc;

/// The rows of a step that carries the columns of rank 0.
///
/// # Errors
/// The field at fault, relative to the step.
pub(super) fn rows(wire: proto::ShardedLogits, step_id: u64, config: &Config) -> Result<LogitsBlock, Error> {
    let Some(owner) = &config.ranks else {
        let message = "needs StreamConfig.vocab_shards, which says which columns each rank holds";
        return Err(Error::invalid("sharded", message));
    };
    let last = owner.last_step();
    if step_id <= last {
        let message =
            format!("is {step_id}, must be above {last}, the step_id of the previous step with sharded logits");
        return Err(Error::invalid("step_id", message));
    }
    use proto::sharded_logits::Columns;
    let wire = wire.columns.map(|columns| match columns {
        Columns::Inline(inline) => Sent::Inline(inline),
        Columns::Region(region) => Sent::Region(region),
    });
    let regions = config.invitation.as_ref().map(|invitation| &**invitation.regions());
    let own = shard(wire, owner.layout(), 0, regions).map_err(|e| e.within("sharded"))?;
    Ok(LogitsBlock::awaiting(own, owner.awaited(step_id), config.vocab_size))
}

/// The columns that a rank announces.
///
/// # Errors
/// The field at fault, relative to the shard.
pub(in crate::rpc) fn announced(wire: proto::VocabShard, rank: &Attachment) -> Result<LogitsBlock, Error> {
    use proto::vocab_shard::Columns;
    let place = wire.columns.map(|columns| match columns {
        Columns::Inline(inline) => Sent::Inline(inline),
        Columns::Region(region) => Sent::Region(region),
    });
    shard(place, rank.layout(), rank.rank(), rank.regions().map(Arc::as_ref))
}

/// Where a rank's columns are.
enum Sent {
    Inline(proto::InlineLogits),
    Region(proto::RegionLogits),
}

fn shard(
    wire: Option<Sent>,
    layout: &Layout,
    rank: usize,
    regions: Option<&StreamRegions>,
) -> Result<LogitsBlock, Error> {
    match wire {
        None => Err(Error::invalid("columns", "is required; set inline or region")),
        Some(Sent::Inline(inline)) => {
            let block = layout.inline(rank, inline.data, inline.row_stride);
            block.map_err(|e| Error::Invalid(e.within("inline")))
        }
        Some(Sent::Region(region)) => {
            let Some(regions) = regions else {
                let message = "is not leased: rank 0 did not ask for regions (wants_regions), or this server has none";
                return Err(Error::UnknownRegion(FieldError::new("region.region_id", message)));
            };
            let (region, place) = region_rows(&region, regions).map_err(|e| e.within("region"))?;
            layout.in_region(rank, region, place).map_err(|e| Error::Invalid(e.within("region")))
        }
    }
}

/// The rank's number, if the rank describes itself as rank 0 described it.
///
/// # Errors
/// The field at fault, relative to the message.
pub(in crate::rpc) fn rank(wire: &proto::AttachRank, layout: &Layout) -> Result<usize, Error> {
    let rank = wire.rank as usize;
    if rank == 0 || rank >= layout.ranks() {
        let message = match layout.ranks() - 1 {
            0 => format!("is {rank}, but the stream has no ranks beside rank 0, which is the stream itself"),
            last => format!("is {rank}, must be in 1 ..= {last}; the stream itself is rank 0"),
        };
        return Err(Error::invalid("rank", message));
    }
    let columns = layout.columns(rank);
    for (field, said, is) in [
        ("vocab_start_index", wire.vocab_start_index, columns.start),
        ("vocab_end_index", wire.vocab_end_index, columns.end),
    ] {
        if said != is {
            let message = format!("is {said}, but the stream's vocab_shards give rank {rank} the columns {columns:?}");
            return Err(Error::invalid(field, message));
        }
    }
    let said = dtype("logits_dtype", wire.logits_dtype).map_err(Error::Invalid)?;
    if said != layout.dtype() {
        let message = format!("is {}, but the stream's logits are {}", said.name(), layout.dtype().name());
        return Err(Error::invalid("logits_dtype", message));
    }
    Ok(rank)
}

/// The token that a rank shows.
pub(in crate::rpc) fn token(wire: &proto::AttachRank) -> Option<Token> {
    Token::read(&wire.token)
}

/// The answer to a shard for which there was no room.
pub(in crate::rpc) fn refused(step_id: u64, refusal: Refusal) -> proto::ShardResult {
    proto::ShardResult { step_id, joined: false, refusal: Some(super::reply::told(refusal)) }
}

impl From<AttachError> for Error {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::UnknownToken => Self::UnknownShardToken(FieldError::new("token", error.to_string())),
            AttachError::Taken { .. } => Self::RankTaken(FieldError::new("rank", error.to_string())),
        }
    }
}

/// The error of the call whose announcement was refused.
pub(in crate::rpc) fn of_announcement(error: AnnounceError, step_id: u64) -> Error {
    match error {
        AnnounceError::Order { last } => {
            Error::invalid("step_id", format!("is {step_id}, must be above {last}, the step_id of the previous shard"))
        }
        AnnounceError::TooLarge { limit } => Error::invalid(
            "inline.data",
            format!("is longer than all shards together may be (max_shard_bytes is {limit})"),
        ),
        AnnounceError::Refused(refusal) => Error::Refused(refusal),
    }
}
