//! Suffix matching (SuffixDecoding, Oliaro et al. 2024; Arctic Inference), on the sequence's own text.
//!
//! The earlier places of the longest match are voters, and each votes for the token that followed it. The token with
//! the most votes is proposed, of equals the one seen last; those who voted otherwise vote no more. The estimate of a
//! token's probability is its share of the votes, so that of the whole draft is the share of all voters who are still
//! there. The draft ends before that share falls below `min_token_prob`. It is also no longer than the match, because
//! long matches are good evidence for long drafts (in Arctic: `max_spec_factor` 1).
//!
//! Arctic differs in three ways. There the context of each length makes a draft and the one with the highest sum of
//! estimates wins; all occurrences vote; and the texts of earlier requests vote too. Here the longest context decides,
//! its latest occurrences vote, and no other sequence's text is used, so that what one user sees never depends on
//! another, unless the worker gives one as what is predicted.

use super::END;
use super::index::{CANDIDATES, Index};

/// The draft, and the latest place where all of it stands.
pub(super) fn propose(index: &Index, min_token_prob: f32, limit: usize) -> (Vec<u32>, usize) {
    let Some(found) = index.longest_match(CANDIDATES) else { return (Vec::new(), 0) };
    let all = found.positions.len();
    let mut voters = found.positions;
    let limit = limit.min(found.length);
    let mut draft = Vec::with_capacity(limit);
    while draft.len() < limit {
        let votes: Vec<u32> = voters.iter().map(|at| index.token(at + draft.len(), &draft)).collect();
        let (token, count) = winner(&votes);
        if token == END || (count as f32) / (all as f32) < min_token_prob {
            break;
        }
        let mut vote = votes.iter();
        voters.retain(|_| vote.next() == Some(&token));
        draft.push(token);
    }
    // The latest comes first.
    let latest = voters[0];
    (draft, latest)
}

/// The token with the most votes, of equals the first in `votes`, and its number of votes.
fn winner(votes: &[u32]) -> (u32, usize) {
    let mut counts: Vec<(u32, usize)> = Vec::new();
    for &token in votes {
        match counts.iter_mut().find(|(counted, _)| *counted == token) {
            Some((_, count)) => *count += 1,
            None => counts.push((token, 1)),
        }
    }
    // `max_by_key` returns the last of equals, hence `rev`.
    counts.into_iter().rev().max_by_key(|&(_, count)| count).expect("somebody votes; this is a bug")
}
