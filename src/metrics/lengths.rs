//! How often first draft tokens are accepted, by how long their text is: a draft model that was trained on short texts, or whose positions
//! end, is good up to some length.

use super::catalog as cat;
use super::speculative::{FIRST, Labels};
use metrics::{Counter, Recorder};
use std::sync::OnceLock;

/// Tokens of a text, at most, of each value of the label `text_tokens`; longer ones are "more".
const UP_TO: [u64; 5] = [256, 1024, 4096, 16_384, 65_536];

/// By [`UP_TO`], then by [`FIRST`]. Series are made at first sight, like all of speculation.
#[derive(Debug, Default)]
pub(super) struct Lengths([OnceLock<[Counter; 2]>; UP_TO.len() + 1]);

impl Lengths {
    /// Every length that has a label of its own.
    #[cfg(test)]
    pub(super) fn all() -> impl Iterator<Item = u64> {
        UP_TO.into_iter().chain([u64::MAX])
    }

    /// A verification of a text of so many tokens.
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
