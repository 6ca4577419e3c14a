//! What a stream is offered beside its answers: ranks that hold columns of its rows, and shared memory.

use super::convert::config::Config;
use super::{RegionSide, Shared};
use crate::error::Error;
use crate::proto;
use crate::region::{TOKEN_LIFE, Token};
use std::sync::Arc;

/// Makes the group of the stream's ranks, if the stream has ranks. The group lives as long as the stream's
/// configuration.
pub(super) fn ranks(shared: &Shared, config: &mut Config) -> Result<Option<proto::ShardOffer>, Error> {
    let Some(layout) = config.layout.take() else { return Ok(None) };
    let regions = config.invitation.as_ref().map(|invitation| Arc::clone(invitation.regions()));
    let owner = shared.shards.open(layout, regions).map_err(|error| {
        tracing::error!(%error, "ranks cannot be admitted");
        Error::invalid("config.vocab_shards", format!("cannot be set up: {error}"))
    })?;
    let token = owner.token().bytes().to_vec();
    config.ranks = Some(owner);
    Ok(Some(proto::ShardOffer { token }))
}

/// Lets the stream lease regions for as long as its configuration lives.
pub(super) fn offer(side: &RegionSide, config: &mut Config) -> Option<proto::RegionOffer> {
    let invitation = match side.regions.invite() {
        Ok(invitation) => invitation,
        Err(error) => {
            tracing::error!(%error, "regions cannot be offered");
            return None;
        }
    };
    let offer = region_offer(side, invitation.token());
    config.invitation = Some(invitation);
    Some(offer)
}

/// Where a client finds the regions that its token admits it to.
pub(super) fn region_offer(side: &RegionSide, token: &Token) -> proto::RegionOffer {
    let socket_path = side.socket.display().to_string();
    proto::RegionOffer { socket_path, token: token.bytes().to_vec(), expires_in_ms: TOKEN_LIFE.as_millis() as u32 }
}
