//! A row that lists some of its tokens gives the same result as the whole row, bit for bit, or is refused. Each reason to refuse rows is
//! needed: without it, some results would differ.

use crate::cases::{Case, bits, case, row, summary};
use croupier::backend::cpu::CpuBackend;
use croupier::backend::{Backend, RowJob};
use croupier::sampling::adjust::{Penalties, TokenAdjust};
use croupier::sampling::listed::{BeyondTopN, Listed, MAX_LISTED, NeedsUnlisted};
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::order::Candidate;
use croupier::sampling::row::{Action, Filters, LogprobsMode, RowError, RowOutput, RowResult};
use croupier::sampling::sample_row;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::BTreeMap;

/// The order in which a worker lists tokens: larger logits first, then by ids or, if it does not promise that, in the reverse order. NaNs
/// come first, so that they are noticed.
fn in_order(logits: &[f32], ties_in_order: bool) -> Vec<Candidate> {
    let mut all: Vec<_> = (0..).zip(logits).map(|(token, &logit)| Candidate { token, logit }).collect();
    all.sort_by(|a, b| {
        let ids = if ties_in_order { a.token.cmp(&b.token) } else { b.token.cmp(&a.token) };
        b.logit.is_nan().cmp(&a.logit.is_nan()).then(b.logit.total_cmp(&a.logit).then(ids))
    });
    all
}

/// The first `n` of a row's tokens, and the log-sum-exp of the others.
fn first_of(logits: &[f32], n: usize, ties_in_order: bool, beyond: BeyondTopN) -> Listed {
    let mut all = in_order(logits, ties_in_order);
    let rest = log_sum_exp(all.split_off(n).iter().map(|other| f64::from(other.logit)));
    Listed::new(logits.len() as u32, all, rest, ties_in_order, beyond).expect("a row as it should be")
}

fn log_sum_exp(logits: impl Iterator<Item = f64> + Clone) -> f32 {
    let max = logits.clone().fold(f64::NEG_INFINITY, f64::max);
    if !max.is_finite() {
        return f32::NEG_INFINITY;
    }
    (max + logits.map(|x| (x - max).exp()).sum::<f64>().ln()).max(f64::from(f32::MIN)) as f32
}

/// A case, how many of its tokens are listed, and whether ties are in order.
#[derive(Debug, Clone)]
struct Thin {
    case: Case,
    n: usize,
    ties_in_order: bool,
}

impl Thin {
    /// Zeros lose their signs, so that ties have one order here.
    fn whole(&self) -> Vec<f32> {
        self.case.job().logits.widen().iter().map(|x| x + 0.0).collect()
    }

    fn result(&self, beyond: BeyondTopN) -> RowResult {
        let listed = first_of(&self.whole(), self.n, self.ties_in_order, beyond);
        sample_row(&Logits::of_list(&listed), &self.case.job().spec)
    }

    fn expected(&self) -> RowResult {
        sample_row(&Logits::new(Dtype::F32, &Dtype::F32.encode(&self.whole())), &self.case.job().spec)
    }

    /// The result of the row with −∞ for all tokens that are not listed.
    fn cut(&self) -> RowResult {
        let listed = first_of(&self.whole(), self.n, self.ties_in_order, BeyondTopN::Mark);
        let mut cut = vec![f32::NEG_INFINITY; listed.vocab_size()];
        listed.entries().iter().for_each(|entry| cut[entry.token as usize] = entry.logit);
        sample_row(&Logits::new(Dtype::F32, &Dtype::F32.encode(&cut)), &self.case.job().spec)
    }

    fn has_raw_logprobs(&self) -> bool {
        self.case.logprobs.as_ref().is_some_and(|wanted| wanted.1 == LogprobsMode::Raw)
    }
}

fn thin() -> impl Strategy<Value = Thin> {
    let share = prop_oneof![2 => 0.0f64..0.1, 2 => 0.0f64..1.0, 1 => Just(1.0)];
    (case(), share, any::<bool>(), any::<bool>()).prop_map(|(case, share, ties_in_order, plain)| {
        let vocab = case.job().logits.vocab_size();
        let n = ((share * vocab as f64) as usize).clamp(1, vocab.min(MAX_LISTED));
        // Most requests are like this.
        let report = case.report.clone().filter(|_| !plain);
        let chain = case.chain.clone().filter(|_| !plain);
        Thin { case: Case { report, chain, ..case }, n, ties_in_order }
    })
}

/// Takes raw logprobs out of a result, so that they can be compared as numbers.
fn without_logprobs(result: &RowResult) -> (RowResult, Vec<f32>, String) {
    let mut result = result.clone();
    let logprobs = result.as_mut().ok().and_then(|output| output.logprobs.take());
    let Some(told) = logprobs else { return (result, vec![], String::new()) };
    let (tokens, top): (Vec<u32>, Vec<f32>) = told.top.into_iter().unzip();
    let values = [vec![told.logprob], top, told.requested].concat();
    (result, values, format!("{} {tokens:?}", told.rank))
}

/// Whether a result is the expected one. Rounded logprobs may differ within their rounding.
fn is_same(got: &RowResult, expected: &RowResult, rounding: f32) -> bool {
    let Ok(RowOutput { approximation, .. }) = got else { return bits(got) == bits(expected) };
    if !approximation.rounded {
        return bits(got) == bits(expected);
    }
    let (got, values, told) = without_logprobs(got);
    let (expected, exact, expected_told) = without_logprobs(expected);
    let near = |(a, b): (&f32, &f32)| a == b || (a - b).abs() <= 1e-6 + rounding + b.abs() * f32::EPSILON;
    bits(&got) == bits(&expected) && told == expected_told && values.iter().zip(&exact).all(near)
}

/// At least half a unit in the last place of the other tokens' log-sum-exp.
fn rounding(thin: &Thin) -> f32 {
    let others = in_order(&thin.whole(), true).split_off(thin.n);
    let rest = log_sum_exp(others.iter().map(|other| f64::from(other.logit)));
    if rest.is_finite() { rest.abs() * f32::EPSILON } else { 0.0 }
}

/// Rows refused for one reason, and how many of them would have had another result.
#[derive(Debug, Default)]
struct Refused {
    rows: u32,
    others: u32,
}

#[test]
fn results_are_the_whole_rows_or_refused_and_every_reason_is_one() {
    let mut runner = TestRunner::deterministic();
    let strategy = thin();
    let (mut taken, mut refused) = (0, BTreeMap::<String, Refused>::new());
    for _ in 0..6000 {
        let thin = strategy.new_tree(&mut runner).expect("a case").current();
        let (got, expected) = (thin.result(BeyondTopN::Refuse), thin.expected());
        let marked = thin.result(BeyondTopN::Mark);
        if let Err(RowError::Beyond(reach)) = got {
            check_marked(&thin, &marked);
            let reason = refused.entry(format!("{reach:?}")).or_default();
            reason.rows += 1;
            reason.others += u32::from(!is_same(&marked, &expected, rounding(&thin)));
        } else {
            taken += 1;
            let of = || format!("{} of {}, {}", thin.n, thin.whole().len(), summary(&thin.case));
            assert!(is_same(&got, &expected, rounding(&thin)), "{got:?} for {expected:?}\n{}", of());
            assert_eq!(bits(&marked), bits(&got), "{}", of());
            assert!(!marked.is_ok_and(|output| output.approximation.truncated), "{}", of());
        }
    }
    println!("{taken} of 6000 rows taken; refused, and of these others without the rule: {refused:#?}");
    assert!(taken > 1500, "most of what is refused need not be: {taken}");
    // If a rule is left out, rows that it refuses have other results.
    let reasons = [
        "First",
        "Draw",
        "TopLogprobs",
        "Logprob",
        "Rank",
        "Report",
        "Sampler(TopK)",
        "Sampler(TopP)",
        "Sampler(MinP)",
    ];
    for reason in reasons {
        assert!(refused.get(reason).is_some_and(|refused| refused.others > 0), "{reason}: {:?}", refused.get(reason));
    }
}

/// A marked row that needs unlisted tokens gives the result of the row with −∞ for them, except that its raw logprobs count them.
fn check_marked(thin: &Thin, marked: &RowResult) {
    let cut = thin.cut();
    assert!(!marked.as_ref().is_ok_and(|output| !output.approximation.truncated), "{}", summary(&thin.case));
    if thin.has_raw_logprobs() {
        assert_eq!(bits(&without_logprobs(marked).0), bits(&without_logprobs(&cut).0), "{}", summary(&thin.case));
    } else {
        assert_eq!(bits(marked), bits(&cut), "{}", summary(&thin.case));
    }
}

/// A masked token does not compete with the listed ones, and neither does a token that a list does not allow.
#[test]
fn masked_tokens_that_are_not_listed_refuse_no_row() {
    const OTHER: u32 = 9;
    let logits = [vec![5.0, 4.0], vec![1.0; 14]].concat();
    let adjust = |flags, bias| vec![TokenAdjust { token: OTHER, flags, bias, output_count: 0 }];
    let longer = Penalties { length: 1.0, ..Penalties::OFF };
    let greedy = Filters { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0 };
    let plain = Case { filters: greedy, logprobs: None, ..Case::new(Dtype::F32, &logits) };
    let cases = [
        ("a bias", Case { adjusts: adjust(2, 5.0), ..plain.clone() }),
        (
            "a penalty on long texts",
            Case { adjusts: adjust(TokenAdjust::END, 0.0), penalties: longer, ..plain.clone() },
        ),
        ("an allowed list", Case { adjusts: adjust(2, 5.0), allowed: Some(vec![0, 1, OTHER]), ..plain }),
    ];
    for (name, case) in cases {
        let thin = |case| Thin { case, n: 2, ties_in_order: true };
        let open = thin(case.clone());
        assert_eq!(
            open.result(BeyondTopN::Refuse),
            Err(RowError::Beyond(NeedsUnlisted::First)),
            "{name}, without a mask"
        );
        // Token 2 is not masked and not listed.
        let masked = thin(Case { mask: Some(vec![0b111, 0]), ..case });
        assert_eq!(bits(&masked.result(BeyondTopN::Refuse)), bits(&masked.expected()), "{name}");
        assert!(masked.result(BeyondTopN::Refuse).is_ok(), "{name}");
    }
}

/// Parameters as workers use them: a list of the 64 largest is enough for each of these.
#[test]
fn usual_parameters_never_reach_beyond_usual_lists() {
    let plain = Filters { temperature: 0.8, top_k: 0, top_p: 1.0, min_p: 0.0 };
    let usual = [
        Filters { temperature: 0.0, ..plain },
        Filters { top_k: 50, top_p: 0.95, min_p: 0.05, ..plain },
        Filters { top_k: 64, ..plain },
        Filters { min_p: 0.1, ..plain },
        Filters { top_p: 0.9, ..plain },
        Filters { top_p: 0.9, temperature: 1.3, ..plain },
    ];
    for seed in 0..40u64 {
        for (at, filters) in usual.into_iter().enumerate() {
            // Peaked like the rows of language models.
            let logits: Vec<f32> = row(1, 32_000, seed).iter().map(|x| x + 0.09 * x * x * x.max(0.0)).collect();
            let action = Action::Draw { uniform: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) };
            let logprobs = Some((5, LogprobsMode::Raw, vec![]));
            let case = Case { filters, action, logprobs, ..Case::new(Dtype::F32, &logits) };
            let thin = Thin { case, n: 64, ties_in_order: true };
            let got = thin.result(BeyondTopN::Refuse);
            assert!(is_same(&got, &thin.expected(), rounding(&thin)), "{at} of row {seed}: {got:?}");
        }
    }
}

/// A log-sum-exp of 1e6 in f32 is off by up to 1/30, so a list may not rely on it more precisely than that.
#[test]
fn lists_of_large_logits_count_on_no_more_than_the_log_sum_exp_says() {
    let (mut taken, mut refused, mut others) = (0, 0, 0);
    for (at, shift) in (0..).zip([0.0, 2e3, -1e4, 1e5, -1e5, 1e6, 1e7]) {
        for seed in 0..60u64 {
            let logits: Vec<f32> = row(0, 4000, seed + 100 * at).iter().map(|x| x + shift).collect();
            let top_p = 0.02 + seed as f32 / 200.0;
            let filters = Filters { temperature: 1.0, top_k: 0, top_p, min_p: 0.0 };
            let action = Action::Draw { uniform: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) };
            let case = Case { filters, action, ..Case::new(Dtype::F32, &logits) };
            let thin = Thin { case, n: 1000, ties_in_order: true };
            let (got, expected) = (thin.result(BeyondTopN::Refuse), thin.expected());
            if matches!(got, Err(RowError::Beyond(_))) {
                refused += 1;
                others += i32::from(!is_same(&thin.result(BeyondTopN::Mark), &expected, 0.0));
            } else {
                taken += 1;
                assert!(is_same(&got, &expected, 0.0), "{shift} {seed}: {got:?} for {expected:?}");
            }
        }
    }
    println!("{taken} taken, {refused} refused, {others} of them other results when they are marked instead");
    assert!(taken > 100 && refused > 100 && others > 20, "{taken} {refused} {others}");
}

#[test]
fn backends_take_lists_among_whole_rows() {
    let rows: Vec<Thin> = {
        let (mut runner, strategy) = (TestRunner::deterministic(), thin());
        (0..60).map(|_| strategy.new_tree(&mut runner).expect("a case").current()).collect()
    };
    let listed: Vec<Listed> =
        rows.iter().map(|thin| first_of(&thin.whole(), thin.n, false, BeyondTopN::Mark)).collect();
    let jobs = rows.iter().zip(&listed).enumerate().map(|(at, (thin, listed))| {
        let job = thin.case.job();
        if at % 3 == 0 { job } else { RowJob { logits: Logits::of_list(listed), ..job } }
    });
    let jobs: Vec<RowJob<'_>> = jobs.collect();
    let expected: Vec<String> = jobs.iter().map(|job| bits(&sample_row(&job.logits, &job.spec))).collect();
    for threads in [1, 3] {
        let got = CpuBackend::new(threads).sharing_above(0).run(&jobs);
        assert_eq!(got.iter().map(bits).collect::<Vec<_>>(), expected, "{threads} threads");
    }
}
