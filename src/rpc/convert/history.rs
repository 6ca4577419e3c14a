//! Parameters of the tools that work on the history.

use crate::params::history::HistoryParams;
use crate::proto;
use std::mem::take;

/// The fields of `wire` over `defaults`, of which lists are left out; they are taken out of `wire`. Not yet checked
/// against ranges.
pub(super) fn merged(wire: &mut proto::SamplingParams, defaults: &HistoryParams) -> HistoryParams {
    let breakers = take(&mut wire.dry_sequence_breakers);
    HistoryParams {
        dry_multiplier: wire.dry_multiplier.unwrap_or(defaults.dry_multiplier),
        dry_base: wire.dry_base.unwrap_or(defaults.dry_base),
        dry_allowed_length: wire.dry_allowed_length.unwrap_or(defaults.dry_allowed_length),
        dry_penalty_last_n: wire.dry_penalty_last_n.unwrap_or(defaults.dry_penalty_last_n),
        dry_sequence_breakers: breakers.into_iter().map(|breaker| breaker.token_ids).collect(),
    }
}
