//! Detects rows and draft distributions that are shifted against each other. This is a worker's likeliest mistake: rows
//! come one late (the row before the first one is sent too) or one early (the first one is left out). Acceptance is
//! then low, just as with a draft model that is unlike the target, and all expected sums still agree with the observed
//! ones. What gives a shift away is that the draft fits the target one place further on.
//!
//! `t_i` is the row sent for draft token `x_i` (from 0 on), and `d_i` is that token's draft distribution. Three numbers
//! show a shift, each a sum of min over all tokens:
//!
//! | | of | most where |
//! |---|---|---|
//! | own | `t_0`, `d_0` | nothing is shifted |
//! | late | `t_1`, `d_0` | row i has the distribution of the position before it |
//! | early | `t_0`, `d_1` | row i has the distribution of the position behind it |
//!
//! - **All are measured at the beginning of the draft**, which every verification visits. Later rows are visited only
//!   where draft tokens were accepted, and in shifted rows almost none are.
//! - **`t_0`, `d_0` is what both are compared with.** A draft model that does not see its own draft tokens has
//!   `d_1 = d_0`, which fits the row before its own although nothing is shifted. Early is then as large as own, but not
//!   larger. The same holds for late where the target does not see them.
//! - **Late is compared with `t_1`, `d_1` as well**, whichever is larger. A draft head that is stuck on one token, or
//!   knows little more than token frequencies, may fit `t_1` better than `t_0`; but then `d_1`, which equals `d_0`,
//!   fits `t_1` just as well. In rows that are late, `d_1` does not fit `t_1`. Drafts of one token have no `d_1`.
//! - For a certain draft token the number is its probability in the row, so that shifts show with proposers without
//!   chance too.
//! - In a tree, `x_1` is the first draft token after `x_0`, and `t_1` is the row after `x_0`.
//! - Nothing is compared where `x_0` ends the text or the row has no distribution, because a row that acceptance does
//!   not reach must not fail anything.

use super::plan::{Plan, overlap};
use super::positions::Positions;
use super::tree::Tree;
use super::verified::{Shifts, Trial};

/// Measures shifts and stores them in the first trial. This visits at most two rows and makes three sums, whatever the
/// draft.
pub(super) fn measure(plan: &Plan<'_>, positions: &mut impl Positions, trials: &mut [Trial]) {
    let Some(first) = trials.first_mut().filter(|first| !positions.ends(first.index)) else { return };
    positions.look_aside();
    let mut in_common = |row, node| {
        positions.come_to(row).ok()?;
        Some(overlap(positions, 1.0, node).in_common)
    };
    let second = plan.tree.children(Some(first.index)).first();
    // This order saves a visit: if the first draft token was rejected, row 0 is still the current row.
    let early = second.and_then(|&second| in_common(0, second));
    let late = in_common(first.index + 1, first.index);
    let next = second.filter(|_| late.is_some()).and_then(|&second| in_common(first.index + 1, second));
    first.shifts = Shifts { late, early, next };
}

/// The draft tokens whose distributions `measure` compares with a row, besides those that were proposed at that row.
pub fn asked(tree: &Tree, row: usize) -> impl Iterator<Item = usize> {
    let parent = row.checked_sub(1).filter(|&node| tree.children(None).contains(&node));
    let second = (row == 0).then(|| tree.children(None).iter().filter_map(|&first| tree.children(Some(first)).first()));
    parent.into_iter().chain(second.into_iter().flatten().copied())
}
