//! Rows that aim at the boundaries, for all tests that compare with the specification.
#![allow(dead_code)] // Each test file uses a part.

mod shares;

pub(crate) use crate::rows::{Chained, SHAPES, chained, filters, mark, row};
use crate::rows::{ascending, masking};
use croupier::backend::RowJob;
use croupier::params::Decay;
use croupier::params::report::ReportParams;
use croupier::params::watermark::KgwParams;
use croupier::sampling::adjust::{Adjusts, Nudge, Penalties, TokenAdjust};
use croupier::sampling::chain::ChainStep;
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::mask::TokenMask;
use croupier::sampling::mass::{MASS_ONE, exponent, fraction, mass, min_p_need, scale};
use croupier::sampling::report::{Bans, ReportSpec};
use croupier::sampling::row::{Action, Filters, LogprobsMode, LogprobsSpec, RowResult, RowSpec};
use croupier::sampling::sample_row;
use croupier::sampling::watermark::RowWatermark;
use croupier::sampling::watermark::greenlist::{Greenlist, Seeds};
use proptest::prelude::*;

/// A row with everything it borrows.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) dtype: Dtype,
    /// Bytes before the row, so that it is unaligned.
    pub(crate) shift: usize,
    pub(crate) bytes: Vec<u8>,
    pub(crate) filters: Filters,
    pub(crate) chain: Option<Chained>,
    pub(crate) penalties: Penalties,
    pub(crate) adjusts: Vec<TokenAdjust>,
    pub(crate) nudges: Vec<Nudge>,
    pub(crate) banned: Vec<u32>,
    pub(crate) allowed: Option<Vec<u32>>,
    pub(crate) mask: Option<Vec<u8>>,
    pub(crate) mark: Option<RowWatermark>,
    pub(crate) action: Action,
    pub(crate) logprobs: Option<(u32, LogprobsMode, Vec<u32>)>,
    pub(crate) report: Option<ReportParams>,
}

impl Case {
    pub(crate) fn new(dtype: Dtype, logits: &[f32]) -> Self {
        Self {
            dtype,
            shift: 0,
            bytes: dtype.encode(logits),
            filters: Filters::OFF,
            chain: None,
            penalties: Penalties::OFF,
            adjusts: vec![],
            nudges: vec![],
            banned: vec![],
            allowed: None,
            mask: None,
            mark: None,
            action: Action::Draw { uniform: 0x9E37_79B9_7F4A_7C15 },
            logprobs: Some((5, LogprobsMode::Processed, vec![0])),
            report: None,
        }
    }

    pub(crate) fn job(&self) -> RowJob<'_> {
        let logprobs = self.logprobs.as_ref();
        let logits = Logits::new(self.dtype, &self.bytes[self.shift..]);
        let vocab_size = logits.vocab_size();
        RowJob {
            logits,
            spec: RowSpec {
                filters: self.filters,
                chain: self.chain.as_ref().filter(|_| self.filters.temperature != 0.0).map(Chained::chain),
                penalties: self.penalties,
                adjusts: Adjusts::from(self.adjusts.as_slice()).nudged(&self.nudges),
                banned: &self.banned,
                allowed: self.allowed.as_deref(),
                mask: self.mask.as_deref().map(|words| TokenMask::new(words, vocab_size)),
                mark: self.mark,
                action: self.action,
                logprobs: logprobs.map(|(top_n, mode, tokens)| LogprobsSpec { top_n: *top_n, mode: *mode, tokens }),
                report: self.report.as_ref().map(|params| ReportSpec { params, bans: Bans::default() }),
            },
        }
    }

    pub(crate) fn expected(&self) -> RowResult {
        let job = self.job();
        sample_row(&job.logits, &job.spec)
    }
}

/// Bits instead of values, so that −0 differs from 0, and a NaN would show.
pub(crate) fn bits(result: &RowResult) -> String {
    match result {
        Ok(output) => {
            let logprobs = output.logprobs.as_ref().map(|l| {
                let top: Vec<(u32, u32)> = l.top.iter().map(|&(t, x)| (t, x.to_bits())).collect();
                let requested: Vec<u32> = l.requested.iter().map(|x| x.to_bits()).collect();
                (l.logprob.to_bits(), l.rank, top, requested)
            });
            let kept = output.kept.as_ref().map(|kept| (kept.total(), kept.entries()));
            // Floats are printed so that different values look different, and zeros have their signs.
            format!("{} {logprobs:?} {:?} {:?} {kept:?}", output.token, output.observed, output.report)
        }
        Err(error) => format!("{error:?}"),
    }
}

pub(crate) fn summary(case: &Case) -> String {
    let mut short = case.clone();
    short.bytes.truncate(64);
    format!("{} bytes, {short:?}", case.bytes.len())
}

fn decay() -> impl Strategy<Value = Decay> {
    (any::<u16>(), 1..2000u16, 1..60_000u16).prop_map(|(place, last_n, decay_n)| Decay { place, last_n, decay_n })
}

/// Any report. Its tokens have yet to be reduced to the vocabulary.
fn report() -> impl Strategy<Value = ReportParams> {
    let most = prop_oneof![Just(0u32), 1..20u32, Just(4096)];
    (any::<bool>(), most, any::<bool>(), prop::collection::vec(any::<u32>(), 0..6)).prop_map(
        |(support_size, max_surviving_token_ids, entropy, why_not_token_ids)| ReportParams {
            support_size,
            max_surviving_token_ids,
            entropy,
            why_not_token_ids,
        },
    )
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        5 => any::<u64>().prop_map(|uniform| Action::Draw { uniform }),
        2 => any::<u64>().prop_map(|uniform| Action::Propose { uniform }),
        2 => any::<u32>().prop_map(|token| Action::Score { token }),
    ]
}

prop_compose! {
    pub(crate) fn case()(
        vocab in prop_oneof![
            1..300usize,
            Just(127usize), Just(128), Just(129), Just(2047), Just(2049), 4000..9000usize
        ],
        shape in 0..SHAPES,
        dtype in prop::sample::select(&Dtype::ALL[..]),
        shift in 0..3usize,
        filters in filters(),
        (repetition, frequency, presence, history, subtract_first) in (
            prop_oneof![Just(1.0f32), 0.5f32..2.0], prop_oneof![Just(0.0f32), -2.0f32..2.0],
            prop_oneof![Just(0.0f32), -2.0f32..2.0],
            prop::option::weighted(0.2, (0.5f32..2.0, prop_oneof![Just(Decay::OFF), decay()], -1.0f32..3.0)),
            any::<bool>()
        ),
        touched in prop_oneof![
            2 => Just(vec![]),
            2 => prop::collection::vec((any::<u32>(), 0..32u32, -5.0f32..5.0, 0..4u32), 1..40),
            1 => prop::collection::vec((any::<u32>(), 0..32u32, -5.0f32..5.0, 0..4u32), 100..400)
        ],
        (ban_first, nudged) in (any::<bool>(), prop::option::weighted(0.3, nudged())),
        banned in prop_oneof![Just(vec![]), prop::collection::vec(any::<u32>(), 1..10)],
        allowed in prop_oneof![
            4 => Just(None),
            1 => prop::collection::vec(any::<u32>(), 1..50).prop_map(Some),
            1 => prop::collection::vec(any::<u32>(), 300..3000).prop_map(Some)
        ],
        (chain, mark) in (prop::option::weighted(0.4, chained()), prop::option::weighted(0.25, mark())),
        (action, seed) in (action(), any::<u64>()),
        logprobs in prop::option::of((
            0..40u32, prop::sample::select(&[LogprobsMode::Raw, LogprobsMode::Processed, LogprobsMode::Tempered][..]),
            prop::collection::vec(any::<u32>(), 0..5)
        )),
        (report, masking) in (prop::option::weighted(0.3, report()), prop::option::weighted(0.35, masking())),
    ) -> Case {
        let logits = row(shape, vocab, seed);
        let mut tokens: Vec<_> = touched;
        tokens.iter_mut().for_each(|t| t.0 %= vocab as u32);
        if ban_first && let Some(first) = tokens.first_mut() {
            // The most likely token, so that the adjusted maximum is another token.
            let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(t, _)| t);
            *first = (best as u32, 1, 0.0, 0);
        }
        tokens.sort_by_key(|t| t.0);
        tokens.dedup_by_key(|t| t.0);
        let adjusts: Vec<_> = tokens.into_iter().map(|(token, flags, bias, output_count)| {
            // Mostly unbanned: bit 0 bans.
            let flags = if output_count == 3 { flags } else { flags & !1 };
            let adjust = TokenAdjust { token, flags, bias, output_count };
            if history.is_some() { adjust.at((token as u16).wrapping_mul(40_503)) } else { adjust }
        }).collect();
        let nudges = nudges(nudged.unwrap_or_default(), &adjusts, vocab);
        let (encoder, decay, length) = history.unwrap_or((1.0, Decay::OFF, 0.0));
        let case = Case::new(dtype, &logits);
        let mut bytes = vec![0xAB; shift];
        bytes.extend_from_slice(&case.bytes);
        Case {
            shift, bytes, filters, chain, mark, adjusts, nudges,
            penalties: Penalties { repetition, frequency, presence, encoder, decay, length, subtract_first },
            banned: ascending(banned, vocab),
            allowed: allowed.map(|a| ascending(a, vocab)),
            mask: masking.map(|masking| masking.words(vocab)),
            action: match action {
                Action::Score { token } => Action::Score { token: token % vocab as u32 },
                _ => action,
            },
            report: report.map(|mut report| {
                report.why_not_token_ids.iter_mut().for_each(|t| *t %= vocab as u32);
                report
            }),
            logprobs: logprobs.map(|(n, mode, ids)| (n, mode, ids.into_iter().map(|t| t % vocab as u32).collect())),
            ..case
        }
    }
}

/// Random nudges: a token, whether it is to be one that has an adjust, a bias, and an amount that is added after
/// penalties.
pub(crate) type Nudged = Vec<(u32, bool, f32, f32)>;

pub(crate) fn nudged() -> impl Strategy<Value = Nudged> {
    let (bias, late) = (prop_oneof![Just(0.0f32), -3.0f32..3.0], prop_oneof![Just(0.0f32), -30.0f32..0.0]);
    prop::collection::vec((any::<u32>(), any::<bool>(), bias, late), 1..30)
}

pub(crate) fn nudges(drawn: Nudged, known: &[TokenAdjust], vocab: usize) -> Vec<Nudge> {
    let token = |(at, is_known): (u32, bool)| match known.get(at as usize % known.len().max(1)) {
        Some(known) if is_known => known.token,
        _ => at % vocab as u32,
    };
    let nudge = |(at, is_known, bias, late)| Nudge { token: token((at, is_known)), bias, late };
    let mut nudges: Vec<_> = drawn.into_iter().map(nudge).collect();
    nudges.sort_by_key(|nudge| nudge.token);
    nudges.dedup_by_key(|nudge| nudge.token);
    nudges
}

/// A greenlist without the first tokens of a block.
fn greens() -> Greenlist {
    let params = KgwParams { bias: 2.0, ..KgwParams::default() };
    let of = |seed| Greenlist::new(&params, Seeds::new(&params, vec![seed]));
    (0..).map(of).find(|greens| (128..131).all(|token| greens.raise(token, 0.0) == 0.0)).expect("one of eight")
}

/// Chains with min-p on a row with two neighbouring logits. The smaller logit has the larger mass, which is just what
/// min-p requires.
pub(crate) fn masses_the_wrong_way_round() -> [Case; 3] {
    let (more, less) = (f32::from_bits(0xBE99_99B6), f32::from_bits(0xBE99_99B7));
    let mut values = vec![-20.0f32; 3000];
    (values[0], values[1], values[2]) = (0.0, more, less);
    let mass_of = |logit: f32| mass(exponent(logit, 0.0, scale(1.0)));
    let min_p = (mass_of(less) as f64 / MASS_ONE as f64) as f32;
    assert!(more > less && (mass_of(more) + 1..=mass_of(less)).contains(&min_p_need(min_p)));
    let filters = Filters { top_k: 2, min_p, ..Filters::OFF };
    [
        (vec![ChainStep::Temperature, ChainStep::MinP, ChainStep::TopK], None),
        (vec![ChainStep::TopK, ChainStep::MinP, ChainStep::Temperature], None),
        (vec![ChainStep::MinP], Some((3, LogprobsMode::Processed, vec![]))),
    ]
    .map(|(steps, logprobs)| {
        let chain = Some(Chained { steps, min_keep: 1, ..Chained::default() });
        let action = Action::Draw { uniform: u64::MAX };
        Case { filters, chain, logprobs, action, ..Case::new(Dtype::F32, &values) }
    })
}

/// Cases in which the property tests once found faults, by name, and edges that they could miss.
pub(crate) fn named_edges() -> Vec<(&'static str, Case)> {
    let inverted = masses_the_wrong_way_round().map(|case| ("min_p in a chain, between two such masses", case));
    [single_edges(), inverted.to_vec(), shares::edges()].concat()
}

fn single_edges() -> Vec<(&'static str, Case)> {
    let flat = |filters| Case { filters, ..Case::new(Dtype::F32, &vec![1.0; 5000]) };
    let off = Filters::OFF;
    let zeros: Vec<f32> = (0..300).map(|i| if i % 3 == 0 { -0.0 } else { 0.0 }).collect();
    let processed = |top_n| Some((top_n, LogprobsMode::Processed, vec![0, 299]));
    vec![
        ("top_p 0 among more ties than are listed", flat(Filters { top_p: 0.0, ..off })),
        ("top_p 1 bit below 1, all equal", flat(Filters { top_p: 1.0f32.next_down(), ..off })),
        ("top_k beyond the blocks, all equal", flat(Filters { top_k: 4999, ..off })),
        ("top_k, top_p, min_p through ties", flat(Filters { top_k: 3000, top_p: 0.5, min_p: 1.0, ..off })),
        ("zeros of both signs", Case { logprobs: processed(5), ..Case::new(Dtype::F32, &zeros) }),
        (
            "rank of a token that is not allowed",
            Case {
                allowed: Some(vec![3, 200]),
                action: Action::Score { token: 299 },
                logprobs: processed(5),
                ..Case::new(Dtype::Bf16, &row(0, 300, 1))
            },
        ),
        (
            "greens behind a mask that hides what lies far above them",
            Case {
                filters: Filters { temperature: 0.0, ..off },
                mask: Some([[0; 16], [0xFF; 16]].concat()),
                mark: Some(RowWatermark::Green(greens())),
                logprobs: None,
                ..Case::new(Dtype::F32, &[vec![100.0], vec![0.0; 127], vec![1.0; 128]].concat())
            },
        ),
        (
            "the most likely token banned, far above the rest",
            Case { banned: vec![7], ..Case::new(Dtype::F32, &[vec![0.0; 7], vec![3e38], vec![0.5; 900]].concat()) },
        ),
        (
            "min_p between two masses that stand in the wrong order",
            Case {
                filters: Filters { temperature: std::f32::consts::LOG2_E, min_p: 0.757_854_7, ..off },
                logprobs: processed(2).map(|(n, mode, _)| (n, mode, vec![])),
                ..Case::new(Dtype::F32, &[0.0, -0.400_006_95, -0.400_006_98, -30.0])
            },
        ),
        (
            "banned giants that a sample still sees",
            Case {
                filters: Filters { temperature: 1e-5, top_p: 0.5, ..off },
                banned: vec![0, 1, 2, 3],
                ..Case::new(
                    Dtype::F32,
                    &(0..20_000).map(|i| if i < 4 { 1e6 } else { (i % 4) as f32 * 1e-6 }).collect::<Vec<_>>(),
                )
            },
        ),
        ("top_p one unit of mass beyond the first token", one_unit_beyond_the_first()),
        ("one token", Case::new(Dtype::F16, &[-3.0])),
        ("one token left", Case::new(Dtype::F32, &[vec![f32::NEG_INFINITY; 400], vec![-5.0]].concat())),
        ("NaN in the tail", Case::new(Dtype::F32, &[vec![0.0; 400], vec![f32::NAN]].concat())),
        ("negative NaN and infinity", Case::new(Dtype::F32, &[-f32::NAN, f32::INFINITY])),
        ("infinity", Case::new(Dtype::Bf16, &[vec![0.0; 140], vec![f32::INFINITY]].concat())),
        ("a banned NaN", Case { banned: vec![9], ..zeros_but(Dtype::F16, f32::NAN) }),
        ("a banned infinity", Case { banned: vec![9], ..zeros_but(Dtype::Bf16, f32::INFINITY) }),
        ("a banned infinity, all banned", Case { banned: (0..11).collect(), ..zeros_but(Dtype::F32, f32::INFINITY) }),
        ("nothing left", Case::new(Dtype::F32, &[f32::NEG_INFINITY; 130])),
        ("everything banned", Case { banned: (0..130).collect(), ..Case::new(Dtype::F32, &[1.0; 130]) }),
        (
            "a bias that overflows",
            Case {
                adjusts: vec![TokenAdjust { token: 1, flags: 0, bias: f32::MAX, output_count: 0 }],
                ..Case::new(Dtype::F32, &[0.0, f32::MAX, 1.0])
            },
        ),
        (
            "a token raised to the logit of the first one",
            Case {
                filters: Filters { temperature: 0.0, ..off },
                adjusts: vec![TokenAdjust { token: 1, flags: 0, bias: 1.0, output_count: 0 }],
                ..Case::new(Dtype::F32, &[0.0, 0.0, 0.0, 1.0])
            },
        ),
        (
            "a bias that overflows, for a token that ends a text",
            Case {
                adjusts: vec![TokenAdjust { token: 1, flags: TokenAdjust::END, bias: f32::MAX, output_count: 0 }],
                penalties: Penalties { length: 0.5, ..Penalties::OFF },
                ..Case::new(Dtype::F32, &[0.0, f32::MAX, 1.0])
            },
        ),
        ("denormals", Case::new(Dtype::F32, &row(11, 1000, 3))),
        (
            "denormals of 16 bits",
            Case {
                filters: Filters { temperature: 1e-5, ..off },
                ..Case::new(
                    Dtype::F16,
                    &(0..1024u16).map(|i| f32::from(i * 37 % 1024) / 16_777_216.0).collect::<Vec<_>>(),
                )
            },
        ),
    ]
}

/// Eleven tokens, of which the tenth has this logit.
fn zeros_but(dtype: Dtype, tenth: f32) -> Case {
    Case::new(dtype, &[vec![0.0; 9], vec![tenth, 0.0]].concat())
}

/// Two tokens, and a top-p whose share of their mass is a fraction of a unit more than the first one's mass: rounded
/// up, it needs both.
fn one_unit_beyond_the_first() -> Case {
    let share_of = |logit: f32| {
        let total = MASS_ONE + mass(exponent(logit, 0.0, scale(1.0)));
        let top_p = (MASS_ONE as f64 / total as f64) as f32;
        let candidates = [top_p.next_down(), top_p, top_p.next_up()];
        let beyond = |p: &f32| u128::from(fraction(*p)) * u128::from(total);
        candidates.into_iter().find(|p| (1 << 32) > beyond(p).wrapping_sub(1 << 72) && beyond(p) > 1 << 72)
    };
    let found = (0..4_000_000).map(|i| -1e-6 * i as f32).find_map(|logit| Some((logit, share_of(logit)?)));
    let (logit, top_p) = found.expect("one in 65,536 logits has such a share");
    let filters = Filters { temperature: 1.0, top_k: 0, top_p, min_p: 0.0 };
    let action = Action::Draw { uniform: u64::MAX };
    Case { filters, action, ..Case::new(Dtype::F32, &[0.0, logit]) }
}
