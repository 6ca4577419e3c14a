//! Prompt lookup (Saxena 2023, `prompt-lookup-decoding`): find the text's last tokens earlier in the text, longer
//! matches first, and propose what followed.
//!
//! Of several equally long matches vLLM and transformers take the *first* of the text. This takes the *latest*: what
//! was written last is likelier to be what goes on (an edited function, a table's last row), and a chain of
//! positions has it at once. The latest match stands closest to the end, where little may have followed it yet, so
//! the proposal goes on into itself: after `a b a b` it is `a b a b …`, where copying from the first match ends
//! after two tokens.

use super::index::Index;

pub(super) fn propose(index: &Index, limit: usize) -> Vec<u32> {
    let mut draft = Vec::new();
    if let Some(found) = index.longest_match(1) {
        draft.reserve_exact(limit);
        for position in found.positions[0]..found.positions[0] + limit {
            draft.push(index.token(position, &draft));
        }
    }
    draft
}
