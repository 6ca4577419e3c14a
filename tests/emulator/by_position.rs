//! Which rows of drafts are asked for, and when.

use super::harness::{Emulator, built};
use super::verification::{LAYOUT, check_on};
use crate::draft_jobs::{Case, OFF, Row, Source};
use croupier::sampling::logits::Dtype;
use croupier::speculative::rule::AcceptanceRule;

/// Where there are more rows than two turns of the device, those behind a rejection are not asked for.
#[test]
fn rows_are_asked_for_as_drafts_come_to_them() {
    if !built() {
        return;
    }
    let (drafted, vocab) = (8, 300);
    let likely = |token: u32| {
        Row::new(Dtype::F32, &(0..vocab).map(|at| if at == token { 9.0 } else { 0.0 }).collect::<Vec<f32>>(), OFF)
    };
    // Each accepts so many tokens and rejects the next.
    let accepting = |accepted: u32| Case {
        rows: (0..=drafted).map(|at| likely(at + u32::from(at >= accepted))).collect(),
        rule: AcceptanceRule::Greedy,
        measure: false,
        ..Case::new((0..drafted).map(|token| (token, Source::None)).collect())
    };
    let mut emulator = Emulator::start("narrow");
    let mut launches = |at_once: usize, accepted: [u32; 4]| {
        let cases = accepted.map(accepting);
        assert!(cases.iter().zip(accepted).all(|(case, accepted)| {
            case.expected().is_ok_and(|found| found.accepted_count() == accepted as usize)
        }));
        check_on(&mut emulator, &cases, LAYOUT, at_once)
    };
    assert_eq!(launches(18, [0, 0, 0, 8]), [36], "two turns");
    assert_eq!(launches(17, [0, 0, 0, 0]), [16], "four rows of each are one turn");
    assert_eq!(launches(17, [3, 3, 3, 3]), [16]);
    assert_eq!(launches(17, [4, 0, 0, 0]), [16, 5], "all that are left");
    assert_eq!(launches(17, [8, 8, 8, 8]), [16, 16, 4]);
    assert_eq!(launches(17, [8, 8, 8, 1]), [16, 15]);
    assert_eq!(launches(1, [8, 2, 0, 0]), [8, 4, 2, 2, 1], "two at least");
}
