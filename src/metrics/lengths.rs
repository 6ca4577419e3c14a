//! Counts how often first draft tokens are accepted, by the length of their text. A draft model that was trained on
//! short texts, or that has few positions, is good only up to some length.

use super::catalog as cat;
use super::speculative::{FIRST, Labels};
use metrics::{Counter, Recorder};
use std::sync::OnceLock;

/// The most tokens of a text for each value of the label `text_tokens`; longer texts count as "more".
const UP_TO: [u64; 5] = [256, 1024, 4096, 16_384, 65_536];

/// Counters by [`UP_TO`], then by [`FIRST`]. Series are registered at first sight, like all of speculation.
#[derive(Debug, Default)]
pub(super) struct Lengths([OnceLock<[Counter; 2]>; UP_TO.len() + 1]);

impl Lengths {
    /// Every length that has a label of its own.
    #[cfg(test)]
    pub(super) fn all() -> impl Iterator<Item = u64> {
        UP_TO.into_iter().chain([u64::MAX])
    }

    /// Counts a verification in a text of `tokens` tokens.
    pub(super) fn record(&self, r: &dyn Recorder, labels: Labels<'_>, tokens: u64, accepted: bool) {
        let at = UP_TO.partition_point(|&most| most < tokens);
        let counters = self.0[at].get_or_init(|| {
            let name = UP_TO.get(at).map_or_else(|| "more".to_owned(), u64::to_string);
            let [model, proposer] = labels;
            FIRST.map(|first| {
                let labels = [model, proposer, ("text_tokens", name.as_str()), ("first", first)];
                cat::SPEC_ROUNDS_BY_LENGTH.as_counter(r, &labels)
            })
        });
        counters[usize::from(accepted)].increment(1);
    }
}
