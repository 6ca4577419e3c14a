use super::super::BeyondTopN;
use super::*;
use crate::params::Penalties;
use crate::params::watermark::KgwParams;
use crate::sampling::adjust::{Adjusts, Nudge};
use crate::sampling::mask::TokenMask;
use crate::sampling::row::{Action, Filters};
use crate::sampling::steps::steps;
use crate::sampling::watermark::RowWatermark;
use crate::sampling::watermark::greenlist::Seeds;
use proptest::prelude::*;

/// The definition: each token that is not listed is treated separately.
fn one_by_one(row: &Listed, spec: &RowSpec<'_>, least: f32) -> (Vec<Candidate>, f64) {
    let (mut edges, mut known) = (Vec::new(), 0.0);
    for token in (0..row.vocab_size).filter(|&token| row.find(token).is_none()) {
        let adjust = spec.adjusts.iter().find(|adjust| adjust.token() == token);
        let is_banned = spec.banned.contains(&token);
        known += f64::from(u8::from(adjust.is_some())) + f64::from(u8::from(is_banned));
        let is_single = adjust.is_some() || spec.allowed.is_some();
        if is_banned || !is_single || spec.allowed.is_some_and(|allowed| !allowed.contains(&token)) {
            continue;
        }
        let logit = adjust.map_or(Some(least), |adjust| highest(&adjust, spec, least));
        let raise = |logit| spec.greens().map_or(logit, |greens| greens.raise(token, logit));
        edges.extend(logit.map(|logit| Candidate { token, logit: raise(logit) }));
    }
    (edges, known)
}

fn plain() -> RowSpec<'static> {
    RowSpec {
        penalties: Penalties { repetition: 1.5, length: 0.5, ..Penalties::OFF },
        ..RowSpec::plain(Filters::OFF, Action::Score { token: 0 })
    }
}

fn listed(vocab_size: u32, tokens: impl IntoIterator<Item = u32>, least: f32) -> Listed {
    let entries: Vec<_> = tokens.into_iter().map(|token| Candidate { token, logit: least }).collect();
    let rest = if entries.len() == vocab_size as usize { f32::NEG_INFINITY } else { -1e3 };
    Listed::new(vocab_size, entries, rest, false, BeyondTopN::Refuse).expect("a row")
}

fn green(bias: f32) -> RowWatermark {
    let params = KgwParams { bias, ..KgwParams::default() };
    RowWatermark::Green(Greenlist::new(&params, Seeds::new(&params, [1, 2, 3])))
}

prop_compose! {
    /// Some tokens, in ascending order.
    fn some()(is_in in prop::collection::vec(any::<bool>(), 12)) -> Vec<u32> {
        (0..12).filter(|&token| is_in[token as usize]).collect()
    }
}

proptest! {
    #[test]
    fn singles_are_those_of_the_definition(
        tokens in some().prop_filter("one", |tokens| !tokens.is_empty()),
        (known, over, nudged, banned) in (some(), some(), some(), some()),
        allowed in prop::option::of(some()),
        flags in prop::collection::vec((0u32..16, prop_oneof![Just(0.0f32), -3.0f32..3.0]), 12),
        (bias, late, least) in (prop::option::of(0.0f32..3.0), prop_oneof![Just(0.0f32), -2.0f32..0.0], prop_oneof![Just(0.0f32), -5.0f32..5.0]),
    ) {
        let entry = |token: u32| {
            let (flags, bias) = flags[token as usize];
            TokenAdjust { token, flags, bias, output_count: 0 }
        };
        let known: Vec<_> = known.into_iter().map(entry).collect();
        let over: Vec<_> = over.into_iter().map(|token| TokenAdjust { flags: TokenAdjust::SEEN, ..entry(token) }).collect();
        let nudges: Vec<_> = nudged.into_iter().map(|token| Nudge { token, bias: -0.5, late: late * (token % 2) as f32 }).collect();
        let adjusts = Adjusts::new(&known, &over).nudged(&nudges);
        let mark = bias.map(green);
        let spec = RowSpec { adjusts, banned: &banned, allowed: allowed.as_deref(), mark, ..plain() };
        let row = listed(12, tokens, least);
        let (edges, known) = one_by_one(&row, &spec, least);
        let found = singles(&row, &spec, least);
        let first = edges.iter().copied().reduce(|first, next| if next.precedes(&first) { next } else { first });
        prop_assert_eq!(found.edge, first);
        prop_assert_eq!(found.known, known);
        prop_assert_eq!(found.each.iter().map(|(_, count)| count).sum::<usize>(), edges.len());
        if spec.mark.is_none() {
            let mut logits: Vec<_> = found.each.iter().flat_map(|&(logit, count)| vec![logit; count]).collect();
            let mut expected: Vec<_> = edges.iter().map(|edge| edge.logit).collect();
            logits.sort_by(f32::total_cmp);
            expected.sort_by(f32::total_cmp);
            prop_assert_eq!(logits, expected);
        }
    }
}

#[test]
fn behind_a_mask_others_may_be_gone() {
    let row = listed(12, 0..3, 0.0);
    let rest = |bits: u32| {
        let words = bits.to_le_bytes();
        Rest::bound(&row, &RowSpec { mask: Some(TokenMask::new(&words, 12)), penalties: Penalties::OFF, ..plain() })
    };
    let (max, scale) = (0.0, mass::scale(1.0));
    // The sum that a worker sends covers all others. A mask may leave anything of it, including nothing.
    let masked = rest(0b1000).expect("token 3 is left");
    let all = Rest::bound(&row, &RowSpec { penalties: Penalties::OFF, ..plain() }).expect("others");
    let ((low, high), (_, most)) = (masked.masses(max, scale, 1.0), all.masses(max, scale, 1.0));
    assert!(low == 0 && high == most);
    // Bits beyond the vocabulary have no effect.
    assert!(rest(0b101).is_none() && rest(0xFFFF_F007).is_none());
}

/// One token is listed, or a hundred, and all of 2^20 are allowed.
#[test]
fn a_row_costs_what_it_lists_whatever_is_allowed() {
    let allowed: Vec<u32> = (0..1 << 20).collect();
    for (listed_tokens, mark) in [(1, None), (100, None), (1, Some(green(2.0))), (100, Some(green(2.0)))] {
        let row = listed(1 << 20, 0..listed_tokens, 0.0);
        let spec = |allowed| RowSpec { allowed: Some(allowed), mark, ..plain() };
        let cost = |allowed| steps(|| Rest::bound(&row, &spec(allowed)));
        let (half, whole) = (cost(&allowed[..1 << 19]), cost(&allowed));
        // One token of four is green: the first 200 all are not with probability 10^-25.
        let most = listed_tokens as usize + if mark.is_some() { 2 * 200 } else { 2 };
        assert!(half == whole && whole <= most, "{listed_tokens} listed: {half} {whole}");
        let rest = Rest::bound(&row, &spec(&allowed)).expect("others");
        assert_eq!(rest.each.iter().map(|(_, count)| count).sum::<usize>(), (1 << 20) - listed_tokens as usize);
    }
}

/// With hardly any green token, the edge may be too early in the order, but never too late.
#[test]
fn a_greenlist_is_not_searched_for_ever() {
    let tokens: Vec<u32> = (0..1 << 20).collect();
    let late = |green: u32| move |token: u32| if token == green { 1.0 } else { 0.0 };
    let first = |green| first_of(tokens.iter().copied(), late(green), 1.0).expect("one");
    assert_eq!(first(1000), Candidate { token: 1000, logit: 1.0 });
    assert_eq!(first(1 << 19), Candidate { token: GREENS as u32, logit: 1.0 });
    assert!(steps(|| first(1 << 19)) <= GREENS + 1);
    let none = first_of(tokens[..500].iter().copied(), late(u32::MAX), 1.0);
    assert_eq!(none, Some(Candidate { token: 0, logit: 0.0 }));
}

/// Four tokens that are not listed, each as likely as the listed ones: banned ones among them have no weight.
#[test]
fn what_is_banned_among_the_others_is_taken_off() {
    let entries = (0..2).map(|token| Candidate { token, logit: 0.0 }).collect();
    let row = Listed::new(6, entries, 4f32.ln(), false, BeyondTopN::Refuse).expect("a row");
    let penalties = Penalties::OFF;
    for (banned, there) in [(&[][..], 4u64), (&[3], 3), (&[1, 2, 5], 2), (&[2, 3, 4], 1)] {
        let rest = Rest::bound(&row, &RowSpec { banned, penalties, ..plain() }).expect("there are others");
        let (low, high) = rest.masses(0.0, mass::scale(1.0), 1.0);
        let exact = there * MASS_ONE;
        assert!(low <= exact && exact <= high && low > exact - MASS_ONE / 100, "{banned:?}: {low} {exact} {high}");
    }
}
