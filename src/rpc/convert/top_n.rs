//! Rows of which only the largest logits were sent. Lists that do not fit one another are a mistake of the message; any
//! other mistake belongs to its row.

use super::config::Config;
use super::params::unknown_value;
use crate::engine::step::ListedRows;
use crate::params::FieldError;
use crate::proto;
use crate::sampling::listed::{BeyondTopN, Listed};
use crate::sampling::logits::Logits;
use crate::sampling::order::Candidate;

/// How many tokens can be put in order within a few milliseconds.
const MAX_AT_ONCE: usize = 1 << 16;

/// Whether it takes long to read these rows, since each one is sorted.
pub(super) fn takes_long(wire: &proto::TopNRows) -> bool {
    wire.token_ids.len() > MAX_AT_ONCE
}

/// The rows.
///
/// # Errors
/// A mistake in the shape of `wire`, relative to it.
pub(super) fn rows(wire: &proto::TopNRows, config: &Config) -> Result<ListedRows, FieldError> {
    check_shape(wire, config)?;
    let logits = Logits::new(config.dtype, &wire.logits);
    let mut rows = Vec::with_capacity(wire.counts.len());
    let mut first = 0;
    for (row, (&count, &rest)) in wire.counts.iter().zip(&wire.rest_logsumexp).enumerate() {
        let places = first..first + count as usize;
        first = places.end;
        // The shape was checked, so all places are there.
        let entry = |place: usize| Candidate { token: wire.token_ids[place], logit: logits.get(place as u32) };
        let beyond = beyond(wire.beyond.get(row).copied().unwrap_or_default(), row)?;
        let listed = Listed::new(config.vocab_size, places.map(entry).collect(), rest, wire.ties_in_order, beyond);
        rows.push(
            listed.map_err(|error| FieldError::new(format!("top_n.{}[{row}]", error.field()), error.to_string())),
        );
    }
    Ok(ListedRows::new(rows))
}

fn check_shape(wire: &proto::TopNRows, config: &Config) -> Result<(), FieldError> {
    let (rows, tokens) = (wire.counts.len(), wire.token_ids.len());
    // Every row is sorted as it is read, so rows that no work uses count too.
    if let Some(limit) = config.exceeded_by(rows, tokens.saturating_mul(ListedRows::TOKEN_BYTES)) {
        let message = format!("has {rows} rows of {tokens} tokens, {limit}; split the step");
        return Err(FieldError::new("counts", message));
    }
    let counted: u64 = wire.counts.iter().map(|&count| u64::from(count)).sum();
    if counted != tokens as u64 {
        return Err(FieldError::new("counts", format!("sum to {counted}, but there are {tokens} token_ids")));
    }
    let (bytes, size) = (wire.logits.len(), config.dtype.size());
    if Some(bytes) != tokens.checked_mul(size) {
        let message = format!("has {bytes} bytes, must have {size} for each of {tokens} token_ids");
        return Err(FieldError::new("logits", message));
    }
    if wire.rest_logsumexp.len() != rows {
        let message = format!("has {} entries, must have one for each of {rows} rows", wire.rest_logsumexp.len());
        return Err(FieldError::new("rest_logsumexp", message));
    }
    let choices = wire.beyond.len();
    if choices != 0 && choices != rows {
        return Err(FieldError::new(
            "beyond",
            format!("has {choices} entries, must have none, or one for each of {rows} rows"),
        ));
    }
    Ok(())
}

fn beyond(wire: i32, row: usize) -> Result<BeyondTopN, FieldError> {
    match proto::BeyondTopN::try_from(wire) {
        Ok(proto::BeyondTopN::Unspecified | proto::BeyondTopN::Refuse) => Ok(BeyondTopN::Refuse),
        Ok(proto::BeyondTopN::Mark) => Ok(BeyondTopN::Mark),
        Err(_) => Err(unknown_value(&format!("beyond[{row}]"), wire, proto::BeyondTopN::as_str_name)),
    }
}
