//! Whether rows and draft distributions are shifted against each other, which is a worker's likeliest mistake: rows that are
//! one late (the row before the first one is sent too) or one early (the first one is left out). Little is accepted then,
//! just as from a draft model that is unlike the target, and no pair of sums disagrees. But the draft fits the target one
//! place further on.
//!
//! With `t_i` the row sent for draft token `x_i` (from 0 on) and `d_i` its draft distribution, three numbers tell, each a sum
//! of min over all tokens:
//!
//! | | of | most where |
//! |---|---|---|
//! | own | `t_0`, `d_0` | nothing is shifted |
//! | late | `t_1`, `d_0` | row i has the distribution of the position before it |
//! | early | `t_0`, `d_1` | row i has the distribution of the position behind it |
//!
//! - **All at the beginning of the draft**, which every verification comes to: what is further on is only seen where draft tokens
//!   were accepted, and in shifted rows next to none is.
//! - **`t_0`, `d_0` is the measure of both.** A draft model that does not see its own draft tokens has `d_1 = d_0`, which fits the row
//!   before its own, and nothing is shifted. Here early is then as large as own, and not larger; so is late where the target does
//!   not see them.
//! - **Late is held against `t_1`, `d_1` as well**, whichever is larger. A draft head that is stuck on one token, or knows little more
//!   than how often tokens come, may fit `t_1` better than `t_0`: but as well with `d_1`, which is `d_0` again. In rows that are late
//!   `d_1` does not fit. Drafts of one token have no `d_1`.
//! - Of a certain draft token the number is its probability in the row, so that proposers without chance are found out too.
//! - In a tree `x_1` is the first draft token after `x_0`, and `t_1` the row after `x_0`.
//! - There is nothing to compare where `x_0` ends the text, or the row has no distribution: a row that acceptance does not come to
//!   fails nothing.

use super::plan::{Plan, overlap};
use super::positions::Positions;
use super::tree::Tree;
use super::verified::{Shifts, Trial};

/// Measures it, for the first of the tests that were made. At most two rows are come to and three sums are made, whatever the draft.
pub(super) fn measure(plan: &Plan<'_>, positions: &mut impl Positions, trials: &mut [Trial]) {
    let Some(first) = trials.first_mut().filter(|first| !positions.ends(first.index)) else { return };
    positions.look_aside();
    let mut in_common = |row, node| {
        positions.come_to(row).ok()?;
        Some(overlap(positions, 1.0, node).in_common)
    };
    let second = plan.tree.children(Some(first.index)).first();
    // In this order: where the first draft token was rejected, row 0 is the one that was come to last.
    let early = second.and_then(|&second| in_common(0, second));
    let late = in_common(first.index + 1, first.index);
    let next = second.filter(|_| late.is_some()).and_then(|&second| in_common(first.index + 1, second));
    first.shifts = Shifts { late, early, next };
}

/// The draft tokens whose probabilities it asks for at a row, beside those that were proposed there.
pub fn asked(tree: &Tree, row: usize) -> impl Iterator<Item = usize> {
    let parent = row.checked_sub(1).filter(|&node| tree.children(None).contains(&node));
    let second = (row == 0).then(|| tree.children(None).iter().filter_map(|&first| tree.children(Some(first)).first()));
    parent.into_iter().chain(second.into_iter().flatten().copied())
}
