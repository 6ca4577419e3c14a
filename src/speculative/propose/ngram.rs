//! Prompt lookup (Saxena 2023, `prompt-lookup-decoding`): find the text's last tokens earlier in the text, longer
//! matches first, and propose what followed them.
//!
//! Of several equally long matches, vLLM and transformers take the *first* of the text. This takes the *latest*,
//! because recently written text is likelier to be continued (an edited function, a table's last row), and because a
//! chain of positions begins with it. The latest match may be so close to the end that little followed it. The proposal
//! then continues into itself: after `a b a b` it is `a b a b …`, where copying from the first match ends after two
//! tokens.

use super::END;
use super::index::Index;

/// The draft, and the place that it was copied from.
pub(super) fn propose(index: &Index, limit: usize) -> (Vec<u32>, usize) {
    let Some(found) = index.longest_match(1) else { return (Vec::new(), 0) };
    let (first, mut draft) = (found.positions[0], Vec::with_capacity(limit));
    for position in first..first + limit {
        let token = index.token(position, &draft);
        if token == END {
            break;
        }
        draft.push(token);
    }
    (draft, first)
}
