//! Cases calculated by hand.

use super::*;
use crate::params::TypicalRule;
use crate::params::state::SamplerState;
use crate::params::watermark::SynthidParams;
use crate::sampling::adjust::{Penalties, TokenAdjust};
use crate::sampling::logits::Dtype;
use crate::sampling::mask::TokenMask;
use crate::sampling::row::{Action, Filters};
use crate::sampling::sample_row;
use crate::sampling::watermark::RowWatermark;
use crate::sampling::watermark::race::Race;
use crate::sampling::watermark::tournament::{Table, Tournament};
use std::collections::HashSet;

const OFF: Filters = Filters::OFF;

fn spec<'a>(filters: Filters, wanted: &'a ReportParams) -> RowSpec<'a> {
    RowSpec {
        report: Some(ReportSpec { params: wanted, bans: Bans::default() }),
        ..RowSpec::plain(filters, Action::Draw { uniform: 0 })
    }
}

fn told(logits: &[f32], spec: &RowSpec<'_>) -> Report {
    let bytes = Dtype::F32.encode(logits);
    *sample_row(&Logits::new(Dtype::F32, &bytes), spec).unwrap().report.unwrap()
}

fn why(tokens: &[u32]) -> ReportParams {
    ReportParams { why_not_token_ids: tokens.to_vec(), ..ReportParams::default() }
}

fn removed(report: &Report) -> Vec<Option<Removed>> {
    report.why_not.iter().map(|fate| fate.removed).collect()
}

/// ln 1, ln 2, ln 4, ln 1: probabilities 1/8, 1/4, 1/2, 1/8.
const LOGITS: [f32; 4] = [0.0, std::f32::consts::LN_2, 2.0 * std::f32::consts::LN_2, 0.0];

#[test]
fn support_and_entropy() {
    let wanted = ReportParams { max_surviving_token_ids: 3, entropy: true, ..ReportParams::default() };
    let report = told(&LOGITS, &spec(OFF, &wanted));
    assert_eq!((report.support_size, &report.surviving[..]), (4, &[2, 1, 0][..]), "ties by the smaller id, and capped");
    let (drawn, raw) = report.entropy.unwrap();
    // 1/2 + 1/2 + 3/8 + 3/8 bits.
    assert!((drawn - 1.75 * std::f64::consts::LN_2).abs() < 1e-6 && drawn == raw, "{drawn} {raw}");
    let two = told(&LOGITS, &spec(Filters { top_k: 2, ..OFF }, &wanted));
    assert_eq!((two.support_size, &two.surviving[..]), (2, &[2, 1][..]));
    assert!(two.entropy.unwrap().0 < drawn && two.entropy.unwrap().1 == raw);
    let greedy = told(&LOGITS, &spec(Filters { temperature: 0.0, ..OFF }, &wanted));
    assert_eq!((greedy.support_size, &greedy.surviving[..], greedy.entropy.unwrap().0), (1, &[2][..], 0.0));
    let hidden = told(&[0.0, -30.0, f32::NEG_INFINITY], &spec(OFF, &wanted));
    assert_eq!(hidden.support_size, 1, "less than 2^-40 of the largest is not drawn");
}

#[test]
fn the_first_sampler_that_removed_a_token_is_named() {
    let wanted = why(&[0, 1, 2, 3]);
    let filters = Filters { temperature: 1.0, top_k: 3, top_p: 0.75, min_p: 0.9 };
    let report = told(&LOGITS, &spec(filters, &wanted));
    let by = |sampler| Some(Removed::Sampler(sampler));
    // Top-k leaves 2, 1, 0. Of these, 6/7 reaches 0.75 with the second. Min-p removes that one.
    assert_eq!(removed(&report), [by(Sampler::TopP), by(Sampler::MinP), None, by(Sampler::TopK)]);
    assert_eq!((report.why_not[2].rank, report.why_not[2].probability), (1, 1.0));
    assert_eq!((report.why_not[1].rank, report.why_not[1].probability), (0, 0.0));
    let steps = [ChainStep::TypicalP(TypicalRule::Reached, 0.6), ChainStep::TopK];
    let chain = Chain {
        steps: &steps,
        min_keep: 1,
        protected: &[],
        eos: &[],
        xtc: 0,
        state: SamplerState::default(),
        infill: None,
        tournament: None,
    };
    let chained = RowSpec { chain: Some(chain), ..spec(Filters { top_k: 1, ..OFF }, &wanted) };
    // Surprises of 3, 2, 1, 3 bits; the entropy is 1.75, so token 1 is nearest, then token 2.
    let report = told(&LOGITS, &chained);
    assert_eq!(removed(&report), [by(Sampler::TypicalP), by(Sampler::TopK), None, by(Sampler::TypicalP)]);
}

#[test]
fn a_watermark_removes_by_its_key() {
    let wanted = why(&[0, 1, 2, 3, 4]);
    let logits = [&LOGITS[..], &[-40.0]].concat();
    let (watermark, precision) = (Some(Removed::Watermark), Some(Removed::Precision));
    // Only the winner of the race can be drawn.
    let mut winners = HashSet::new();
    for context in 0..32 {
        let raced = RowSpec { mark: Some(RowWatermark::Race(Some(Race { key: 5, context }))), ..spec(OFF, &wanted) };
        let report = told(&logits, &raced);
        let winner = sample_row(&Logits::new(Dtype::F32, &Dtype::F32.encode(&logits)), &raced).unwrap().token;
        let mut expected = [watermark, watermark, watermark, watermark, precision];
        expected[winner as usize] = None;
        assert_eq!(removed(&report), expected);
        assert_eq!((report.why_not[winner as usize].rank > 0, report.support_size), (true, 4));
        assert!(report.why_not.iter().all(|told| (told.probability > 0.0) == (told.token == winner)));
        winners.insert(winner);
    }
    assert!(winners.len() > 1, "each context has its own winner");
    // Thirty layers leave one or two of four tokens. A token without mass before is not removed by the tournament.
    let (keys, table) = ((1..=30).collect::<Vec<u64>>(), Table::of(&SynthidParams::new(vec![])));
    for context in 0..32 {
        let chain = Chain {
            steps: &[ChainStep::Tournament],
            min_keep: 1,
            protected: &[],
            eos: &[],
            xtc: 0,
            state: SamplerState::default(),
            infill: None,
            tournament: Some(Tournament { context, keys: &keys, table: &table }),
        };
        let played = RowSpec { chain: Some(chain), ..spec(OFF, &wanted) };
        let report = told(&logits, &played);
        let left = removed(&report)[..4].iter().filter(|removed| removed.is_none()).count();
        assert_eq!(left, report.support_size as usize);
        assert!(removed(&report)[..4].iter().all(|&removed| removed.is_none() || removed == watermark));
        assert_eq!(removed(&report)[4], precision);
        winners.insert(10 + left as u32);
    }
    assert!(winners.iter().any(|&left| (11..14).contains(&left)), "none was removed in 32 contexts");
}

#[test]
fn what_survives_has_its_rank_and_probability() {
    let wanted = why(&[3, 1]);
    let report = told(&LOGITS, &spec(OFF, &wanted));
    let [last, second] = report.why_not[..] else { panic!("two were asked for") };
    assert_eq!((last.rank, second.rank), (4, 2));
    assert!((last.probability - 0.125).abs() < 1e-6 && (second.probability - 0.25).abs() < 1e-6);
    assert_eq!((second.raw, second.adjusted), (LOGITS[1], LOGITS[1]));
    let greedy = told(&LOGITS, &spec(Filters { temperature: 0.0, ..OFF }, &wanted));
    assert_eq!(removed(&greedy), [Some(Removed::Greedy); 2]);
    let far = told(&[0.0, -30.0, 0.0, f32::NEG_INFINITY], &spec(OFF, &wanted));
    assert_eq!(removed(&far), [Some(Removed::RawLogit), Some(Removed::Precision)]);
}

#[test]
fn what_was_sent_as_no_choice_is_named_before_the_mask_and_that_before_the_list() {
    let wanted = why(&[1, 2, 3]);
    let words = 0b1001u32.to_le_bytes();
    let masked = RowSpec { mask: Some(TokenMask::new(&words, 4)), allowed: Some(&[0]), ..spec(OFF, &wanted) };
    let report = told(&[0.0, f32::NEG_INFINITY, 0.0, 0.0], &masked);
    assert_eq!(removed(&report), [Removed::RawLogit, Removed::TokenMask, Removed::AllowedTokenIds].map(Some));
}

#[test]
fn masks_are_told_apart() {
    let logits = [1.0; 12];
    let wanted = why(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let banned = |token| TokenAdjust { token, flags: TokenAdjust::BANNED, ..TokenAdjust::default() };
    let overflowing = TokenAdjust { token: 8, bias: f32::MIN, output_count: 1, ..TokenAdjust::default() };
    let adjusts = [banned(1), banned(2), overflowing];
    // Token 1 ends a word too, but not here; and 3 and 4 have further causes behind the first.
    let words = [vec![2], vec![9, 3], vec![8, 7], vec![8, 1]];
    let ranges = [
        TokenBanRange { token_ids: vec![3, 4, 5], start: 4, length: 2 },
        TokenBanRange { token_ids: vec![6], start: 0, length: 2 },
    ];
    let bans = Bans { forced: false, position: 4, ends: &[3, 4], words: &words, tail: &[9], ranges: &ranges };
    let row = RowSpec {
        penalties: Penalties { presence: f32::MAX, ..Penalties::OFF },
        adjusts: adjusts.as_slice().into(),
        banned: &[3, 4, 5, 6, 7],
        report: Some(ReportSpec { params: &wanted, bans }),
        ..spec(OFF, &wanted)
    };
    let expected = [
        Removed::BannedTokenIds,
        Removed::BadWords,
        Removed::BadWords,
        Removed::MinTokens,
        Removed::TokenBanRanges,
        Removed::NoRepeatNgram,
        Removed::NoRepeatNgram,
        Removed::Penalties,
    ];
    assert_eq!(removed(&told(&logits, &row)), expected.map(Some));
    let greedy = RowSpec { filters: Filters { temperature: 0.0, ..OFF }, ..row };
    assert_eq!(removed(&told(&logits, &greedy)), expected.map(Some), "they come before the greedy choice");
    for (forced, expected) in [(false, Removed::AllowedTokenIds), (true, Removed::ForcedToken)] {
        let bans = Bans { forced, ..Bans::default() };
        let only =
            RowSpec { allowed: Some(&[0]), report: Some(ReportSpec { params: &wanted, bans }), ..spec(OFF, &wanted) };
        assert_eq!(removed(&told(&logits, &only)), [Some(expected); 8]);
    }
}
