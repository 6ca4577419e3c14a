//! The rules that are not lossless, reports for metrics, and rows without a distribution.

use crate::chi_square::{DEVIATE, deviate};
use crate::speculative::world::{Model, Source, World, distribution};
use croupier::params::SamplingParams;
use croupier::sampling::distribution::Distribution;
use croupier::sampling::listed::NeedsUnlisted;
use croupier::sampling::row::{Action, RowError};
use croupier::sequence::Sequence;
use croupier::speculative::draft::{Draft, DraftDistribution};
use croupier::speculative::numbers::Numbers;
use croupier::speculative::plain::{self, Target};
use croupier::speculative::plan::Plan;
use croupier::speculative::relaxed::Relaxed;
use croupier::speculative::rule::AcceptanceRule::{self, Block, Greedy, Rejection, Synthetic, Typical};
use croupier::speculative::tree::Tree;
use croupier::speculative::verified::Verified;
use croupier::speculative::{VerifyError, synthetic, typical};

const NUMBERS: Numbers = Numbers { seed: 7, start: 0 };

/// Rows given as probabilities, in the order of the draft tokens. Token 3 ends the text.
struct Given {
    drafts: Vec<u32>,
    rows: Vec<Vec<f32>>,
    temperature: f32,
    asked: Vec<usize>,
    /// Whether rows that are asked for now do not affect the result.
    looks_aside: bool,
    /// From this row on, rows list too few tokens.
    short_from: usize,
}

impl Given {
    fn new(rows: &[&[f32]]) -> Self {
        Self {
            rows: rows.iter().map(|row| row.to_vec()).collect(),
            temperature: 1.0,
            asked: Vec::new(),
            looks_aside: false,
            drafts: Vec::new(),
            short_from: usize::MAX,
        }
    }

    fn at(&self, row: usize, temperature: f32) -> Result<Distribution, RowError> {
        let params = SamplingParams { temperature, ..SamplingParams::default() };
        let world = World { params, ..World::new(Rejection, Source::Kept) };
        let sequence: Sequence = world.open(0, &[]);
        let logits: Vec<f32> = self.rows[row].iter().map(|p| p.ln()).collect();
        distribution(&logits, &sequence.spec(Action::Score { token: 0 }))
    }
}

impl Target for Given {
    fn distribution(&mut self, row: usize) -> Result<Distribution, RowError> {
        self.asked.extend((!self.looks_aside).then_some(row));
        if row >= self.short_from {
            return Err(RowError::Beyond(NeedsUnlisted::Draw));
        }
        self.at(row, self.temperature)
    }

    fn relaxed(&mut self, row: usize) -> Result<Distribution, RowError> {
        self.at(row, 1.0)
    }

    fn ends(&self, node: usize) -> bool {
        self.drafts[node] == 3
    }

    fn look_aside(&mut self) {
        self.looks_aside = true;
    }
}

fn certain(tokens: &[u32]) -> Vec<Draft> {
    tokens.iter().map(|&token| Draft::deterministic(token)).collect()
}

/// Draft tokens from a flat distribution over four tokens.
fn flat(tokens: &[u32]) -> Vec<Draft> {
    let flat = DraftDistribution::sparse(&[0, 1, 2, 3], &[0.25; 4], 4).unwrap();
    tokens.iter().map(|&token| Draft::new(token, flat.clone()).unwrap()).collect()
}

fn verify_tree(
    drafts: &[Draft],
    tree: &Tree,
    rule: &AcceptanceRule,
    numbers: &Numbers,
    rows: &mut Given,
) -> Result<Verified, VerifyError> {
    rows.drafts = drafts.iter().map(Draft::token).collect();
    plain::verify(drafts, &Plan { tree, rule: *rule, strict: &[], numbers: *numbers, measure: true }, rows)
}

fn verify_chain(drafts: &[Draft], rule: &AcceptanceRule, rows: &mut Given) -> Result<Verified, VerifyError> {
    verify_tree(drafts, &Tree::chain(drafts.len()), rule, &NUMBERS, rows)
}

fn chain(drafts: &[Draft], rule: AcceptanceRule, rows: &mut Given) -> Verified {
    verify_chain(drafts, &rule, rows).unwrap()
}

const A: &[f32] = &[0.6, 0.3, 0.1, 0.0];
const B: &[f32] = &[0.1, 0.2, 0.7, 0.0];
const C: &[f32] = &[0.0, 0.0, 0.5, 0.5];

#[test]
fn greedy_match_is_greedy_at_any_temperature() {
    let rows = || Given::new(&[A, B, A]);
    for (tokens, path, emitted) in
        [([0, 2], vec![0, 1], vec![0, 2, 0]), ([0, 1], vec![0], vec![0, 2]), ([2, 2], vec![], vec![0])]
    {
        let verified = chain(&flat(&tokens), Greedy, &mut rows());
        assert_eq!(
            (verified.accepted_path, verified.emitted, verified.lossless),
            (path.clone(), emitted.clone(), false)
        );
        let verified = chain(&flat(&tokens), Greedy, &mut Given { temperature: 0.0, ..rows() });
        assert_eq!((verified.accepted_path, verified.emitted, verified.lossless), (path, emitted, true));
    }
}

#[test]
fn typical_acceptance_by_hand() {
    // H(A) = 0.898 nats: min(0.2, 0.3 * 0.407) = 0.122, so tokens 0 and 1 pass. H(C) = ln 2: 0.15.
    let rule = Typical(typical::Typical { epsilon: 0.2, alpha: 0.3 });
    for (token, accepted) in [(0, 1), (1, 1), (2, 0), (3, 0)] {
        let verified = chain(&flat(&[token]), rule, &mut Given::new(&[A, C]));
        assert_eq!(verified.accepted_count(), accepted, "{token}");
        assert!(!verified.lossless);
        assert_eq!(verified.trials[0].expected, Some(0.5), "two of four flat draft tokens pass");
    }
    // Four equal tokens have a quarter each, which is epsilon. A probability equal to epsilon passes.
    let rule = Typical(typical::Typical { epsilon: 0.25, alpha: 9.0 });
    let verified = chain(&flat(&[1]), rule, &mut Given::new(&[&[0.25; 4], C]));
    assert_eq!((verified.accepted_count(), verified.trials[0].expected), (1, Some(1.0)));
}

#[test]
fn relaxed_acceptance_by_hand() {
    let accepted = |top_n, delta, token, temperature| {
        let mut rows = Given { temperature, ..Given::new(&[A, C]) };
        let verified =
            chain(&flat(&[token]), AcceptanceRule::Relaxed(Relaxed { top_n, delta, ..Relaxed::default() }), &mut rows);
        assert!(!verified.lossless);
        verified.accepted_count() == 1
    };
    for temperature in [0.0, 1.0] {
        assert_eq!([0, 1, 2, 3].map(|t| accepted(10, 0.31, t, temperature)), [true, true, false, false]);
        assert_eq!([0, 1, 2, 3].map(|t| accepted(1, 1.0, t, temperature)), [true, false, false, false]);
        assert_eq!([0, 1, 2, 3].map(|t| accepted(10, 1.0, t, temperature)), [true, true, true, false]);
        assert_eq!([0, 1, 2, 3].map(|t| accepted(10, 0.0, t, temperature)), [true, false, false, false]);
    }
    // After a rejection, a greedy sequence goes on greedily.
    let mut rows = Given { temperature: 0.0, ..Given::new(&[A, C]) };
    assert_eq!(
        chain(&flat(&[2]), AcceptanceRule::Relaxed(Relaxed { top_n: 2, delta: 1.0, ..Relaxed::default() }), &mut rows)
            .emitted,
        [0]
    );
}

#[test]
fn where_relaxed_acceptance_is_strict_the_text_is_the_plain_one() {
    let rule = AcceptanceRule::Relaxed(Relaxed { top_n: 9, delta: 1.0, ..Relaxed::default() });
    let mut accepted = 0;
    for source in [Source::Kept, Source::Dense, Source::Distinct, Source::Deterministic] {
        for parents in [vec![-1, 0, 1], vec![-1, -1, 0, 0, 1]] {
            let strict = vec![true; parents.len() + 1];
            let world = World { parents, strict, ..World::new(rule, source) };
            for seed in 0..30 {
                let text = world.text(seed, 12, |verified| {
                    assert!(verified.lossless);
                    accepted += verified.accepted_count();
                });
                assert_eq!(text, world.plain(seed, text.len()), "{source:?} {seed}");
            }
            // Strict only at the root.
            let mut strict = vec![false; world.parents.len() + 1];
            strict[0] = true;
            let world = World { strict, ..world };
            let (mut exact, mut relaxed) = (0, 0);
            for seed in 0..30 {
                world.text(seed, 1, |verified| {
                    assert_eq!(verified.emitted[0], world.plain(seed, 1)[0]);
                    assert_eq!(verified.lossless, verified.accepted_path.is_empty());
                    if verified.lossless { exact += 1 } else { relaxed += 1 }
                });
            }
            assert!(exact > 0 && relaxed > 0, "{source:?} {exact} {relaxed}");
        }
    }
    assert!(accepted > 500, "{accepted}");
}

/// A test that the plain row's draw decides tells the number of that draw, so that it counts once however often it is
/// made.
#[test]
fn a_strict_test_tells_the_plain_rows_number() {
    let rule = AcceptanceRule::Relaxed(Relaxed { top_n: 9, delta: 1.0, ..Relaxed::default() });
    let numbers = |strict: [bool; 3], first: u32| {
        let (tree, drafts) = (Tree::chain(2), flat(&[first, 2]));
        let mut rows = Given { drafts: vec![first, 2], ..Given::new(&[A, B, C]) };
        let plan = Plan { tree: &tree, rule, strict: &strict, numbers: NUMBERS, measure: true };
        let verified = plain::verify(&drafts, &plan, &mut rows).unwrap();
        verified.trials.iter().map(|trial| trial.number).collect::<Vec<_>>()
    };
    let plain = [NUMBERS.sample(0), NUMBERS.sample(1)];
    for first in 0..3 {
        let relaxed = numbers([false; 3], first);
        assert!(relaxed.len() == 2 && relaxed != plain);
        assert_eq!(numbers([false, true, false], first), [relaxed[0], plain[1]]);
        let strict = numbers([true, false, false], first);
        assert_eq!(strict, [plain[0], relaxed[1]][..strict.len()]);
    }
}

#[test]
fn synthetic_acceptance_has_its_rate() {
    for rate in [0.0f32, 0.3, 1.0] {
        let world =
            World { parents: (-1..3).collect(), ..World::new(Synthetic(synthetic::Synthetic { rate }), Source::Dense) };
        let (mut rounds, mut accepted, mut expected) = (0u32, 0usize, 0.0);
        for seed in 0..2000 {
            world.text(seed, 1, |verified| {
                assert!(!verified.lossless);
                rounds += 1;
                accepted += verified.accepted_count();
                expected += verified.trials.iter().filter_map(|trial| trial.expected).sum::<f64>();
            });
        }
        let mean = accepted as f64 / f64::from(rounds);
        let rate = f64::from(rate);
        let should = rate + rate.powi(2) + rate.powi(3) + rate.powi(4);
        assert!((mean - should).abs() < 0.08 && (mean - expected / f64::from(rounds)).abs() < 0.08, "{mean} {should}");
    }
}

/// A tree's report has all tokens that were judged. Without the rejected ones off the path, acceptance would seem better than expected.
#[test]
fn judged_trees_accept_as_often_as_is_to_be_expected() {
    let relaxed = AcceptanceRule::Relaxed(Relaxed { top_n: 3, delta: 0.3, ..Relaxed::default() });
    let rules =
        [Greedy, Typical(Default::default()), relaxed, Synthetic(synthetic::Synthetic { rate: 0.4 }), Rejection];
    for rule in rules {
        let world = World { parents: vec![-1, -1, 0, 0, 1, 1], ..World::new(rule, Source::Dense) };
        let (mut accepted, mut expected, mut variance) = (0.0, 0.0, 0.0);
        for seed in 0..3000 {
            world.text(seed, 1, |verified| {
                for trial in &verified.trials {
                    let chance = trial.expected.unwrap();
                    accepted += f64::from(u8::from(trial.accepted));
                    expected += chance;
                    variance += chance * (1.0 - chance);
                }
            });
        }
        // The seeds are fixed. By chance alone this would fail once in 100,000.
        let errors: f64 = (accepted - expected) / variance.sqrt();
        assert!(errors.abs() < 4.5, "{rule:?}: {accepted} accepted, {expected} expected, {errors} standard errors");
    }
}

#[test]
fn judges_take_the_longest_path() {
    // 0 - 2, 1 - 3: both children of the root are typical, but only below the second are more tokens accepted.
    let tree = Tree::new(&[-1, -1, 0, 1, 3], 5).unwrap();
    let mut rows = Given::new(&[A, B, &[0.0, 1.0, 0.0, 0.0], A, &[0.0, 1.0, 0.0, 0.0], C]);
    let rule = Typical(typical::Typical { epsilon: 0.2, alpha: 1.0 });
    let verified = verify_tree(&certain(&[0, 1, 0, 1, 1]), &tree, &rule, &NUMBERS, &mut rows).unwrap();
    assert_eq!(verified.accepted_path, [1, 3, 4]);
    assert_eq!(verified.emitted[..3], [1, 1, 1]);
    let judged: Vec<_> = verified.trials.iter().map(|trial| (trial.index, trial.accepted)).collect();
    assert_eq!(judged, [(0, true), (1, true), (2, false), (3, true), (4, true)], "all that was judged is told");
    let firsts: Vec<_> = verified.trials.iter().filter(|trial| trial.is_first).map(|trial| trial.index).collect();
    assert_eq!(firsts, [0, 2, 3, 4], "1 is a later sibling");
    let brothers = Tree::new(&[-1, -1], 2).unwrap();
    let verified = verify_tree(&certain(&[0, 1]), &brothers, &rule, &NUMBERS, &mut Given::new(&[A, B, B])).unwrap();
    assert_eq!((verified.accepted_path, verified.trials[1].accepted), (vec![0], true), "of equals the earlier one");
}

#[test]
fn trials_by_hand() {
    let verified = chain(&flat(&[3]), Rejection, &mut Given::new(&[A, C]));
    let trial = verified.trials[0];
    assert!(!trial.accepted && trial.rejected_rank == Some(4) && verified.emitted.len() == 1);
    // min(target, draft): 0.25 + 0.25 + 0.1; the target has 0.35 + 0.05 beyond the draft.
    assert!((trial.expected.unwrap() - 0.6).abs() < 1e-6 && (trial.total_variation.unwrap() - 0.4).abs() < 1e-6);
    let tree = Tree::new(&[-1, -1], 2).unwrap();
    let verified = verify_tree(&flat(&[3, 3]), &tree, &Rejection, &NUMBERS, &mut Given::new(&[A, C, C])).unwrap();
    // What is left is 7/8 and 1/8 on tokens 0 and 1.
    let second = verified.trials[1];
    assert!((second.expected.unwrap() - 0.375).abs() < 1e-6 && (second.total_variation.unwrap() - 0.625).abs() < 1e-6);
    // Deterministic candidates: 0.3 for the first, then 0.1 of the 0.7 that are left.
    let verified =
        verify_tree(&certain(&[1, 2]), &tree, &Rejection, &Numbers { seed: 7, start: 3 }, &mut Given::new(&[A, B, B]))
            .unwrap();
    assert!((verified.trials[0].expected.unwrap() - 0.3).abs() < 1e-6);
    assert!(verified.trials.get(1).is_none_or(|trial| (trial.expected.unwrap() - 1.0 / 7.0).abs() < 1e-6));
}

/// A token that several earlier siblings have counts once.
#[test]
fn repeats_among_siblings_by_hand() {
    let tree = Tree::new(&[-1; 4], 4).unwrap();
    let rule = Typical(typical::Typical { epsilon: 0.2, alpha: 1.0 });
    let verified = verify_tree(&flat(&[2, 2, 1, 2]), &tree, &rule, &NUMBERS, &mut Given::new(&[A; 5])).unwrap();
    let repeats = verified.trials.iter().map(|trial| trial.repeat.map(|repeat| (repeat.expected, repeat.found)));
    let expected = [None, Some((0.25, true)), Some((0.25, false)), Some((0.5, true))];
    assert_eq!(repeats.collect::<Vec<_>>(), expected);
}

#[test]
fn blocks_report_what_they_expect() {
    let verified = chain(&flat(&[1, 2]), Block, &mut Given::new(&[&[0.5, 0.125, 0.25, 0.125], B, C]));
    // p_1 = 1/2. Then min(p_1 * target, draft): 0.05 + 0.1 + 0.25.
    assert!((verified.trials[0].expected.unwrap() - 0.75).abs() < 1e-6);
    assert!((verified.trials[1].expected.unwrap() - 0.4).abs() < 1e-6);
    assert!((verified.trials[1].total_variation.unwrap() - 0.45).abs() < 1e-6);
    // A certain draft token behind p_1 = 1/2: 0.7 / 2.
    let drafts = [flat(&[1]), certain(&[2])].concat();
    let verified = chain(&drafts, Block, &mut Given::new(&[&[0.5, 0.125, 0.25, 0.125], B, C]));
    assert!((verified.trials[1].expected.unwrap() - 0.35).abs() < 1e-6);
    assert!((verified.trials[1].total_variation.unwrap() - 0.3).abs() < 1e-6);
}

/// Draft tokens after the end of the text are dropped, and no token follows it.
#[test]
fn a_draft_token_may_end_the_text() {
    let ending = &[0.0, 0.0, 0.0, 1.0];
    for rule in [Rejection, Block, Greedy, Typical(Default::default())] {
        for drafts in [certain(&[3, 1]), flat(&[3, 1])] {
            let mut rows = Given::new(&[ending, A, A]);
            let verified = chain(&drafts, rule, &mut rows);
            assert_eq!((verified.accepted_path, verified.emitted), (vec![0], vec![3]), "{rule:?}");
            assert!(rows.asked.iter().all(|&row| row == 0), "{rule:?}");
        }
    }
}

/// A row without a distribution fails the verification if it is needed, and is not asked for if it is not.
#[test]
fn rows_without_a_distribution() {
    let nan: &[f32] = &[f32::NAN, 0.1, 0.1, 0.1];
    let masked: &[f32] = &[0.0; 4];
    for rule in [Rejection, Block, Greedy, Typical(Default::default()), Synthetic(synthetic::Synthetic { rate: 1.0 })] {
        for (bad, error) in [(nan, RowError::Nan), (masked, RowError::AllMasked)] {
            for (row, rows) in [(0, [bad, A, A]), (1, [A, bad, A]), (2, [A, A, bad])] {
                // Token 0 is the most likely one, so it is certainly accepted with this draft.
                let found = verify_chain(&flat(&[0, 0]), &rule, &mut Given::new(&rows));
                if (rule, row) == (Block, 1) {
                    // A block ends before this row, and no token follows.
                    assert_eq!(found.map(|verified| verified.emitted), Ok(vec![0]));
                } else {
                    assert_eq!(found, Err(VerifyError { row, error }), "{rule:?}");
                }
            }
        }
        let fine = chain(&flat(&[3, 0]), rule, &mut Given::new(&[A, nan, nan]));
        assert_eq!(fine.emitted.len(), 1, "{rule:?}");
    }
}

/// A block ends before a row without a distribution. Texts reach that row as often as they would without a draft, and once the row is
/// correct, their next token is drawn from it alone. If the verification failed there and was repeated, it would reuse the random numbers
/// of the texts that came so far.
#[test]
fn a_block_ends_before_a_row_without_a_distribution() {
    let verified = |seed, tokens: &[u32], behind: &[f32]| {
        let (rule, tree) = (Block, Tree::chain(tokens.len()));
        verify_tree(&flat(tokens), &tree, &rule, &Numbers { seed, start: 0 }, &mut Given::new(&[A, behind, A]))
    };
    let (nan, masked) = ([f32::NAN, 0.1, 0.1, 0.1], [0.0; 4]);
    for (bad, error) in [(nan, RowError::Nan), (masked, RowError::AllMasked)] {
        let mut counts = [0; 16];
        let texts = 200_000;
        for seed in 0..texts {
            // A flat draft. After token 2, which the target emits in a tenth of the texts, there is no distribution at first.
            let tokens = [seed as u32 % 4, (seed / 4) as u32 % 4];
            let mut text =
                verified(seed, &tokens, if tokens[0] == 2 { &bad } else { B }).expect("it ends before").emitted;
            assert!(text[0] != 2 || text.len() == 1, "nothing comes behind what has no distribution");
            while text.len() < 2 {
                let numbers = Numbers { seed, start: text.len() as u64 };
                let plain = |row| verify_tree(&[], &Tree::chain(0), &Block, &numbers, &mut Given::new(&[row]));
                assert_eq!(plain(&bad), Err(VerifyError { row: 0, error }));
                text.extend(plain(B).expect("it is drawn from").emitted);
            }
            counts[(4 * text[0] + text[1]) as usize] += 1;
        }
        let expected: Vec<f64> = A.iter().flat_map(|&a| B.iter().map(move |&b| f64::from(a) * f64::from(b))).collect();
        assert!(deviate(&counts, &expected) < DEVIATE, "{counts:?} of {texts} texts");
    }
}

/// If a row lists too few tokens, a block fails, whatever its numbers are. The whole rows, which are sent then, are verified as if they had
/// come at once. Otherwise the longer block would be tested with numbers that were chosen for the shorter one.
#[test]
fn a_block_fails_where_a_row_lists_too_few_tokens() {
    let error = RowError::Beyond(NeedsUnlisted::Draw);
    for seed in 0..200 {
        let tokens = [seed as u32 % 4, 1];
        let numbers = Numbers { seed, start: 0 };
        let rows = &mut Given { short_from: 1, ..Given::new(&[A, B, C]) };
        let found = verify_tree(&flat(&tokens), &Tree::chain(2), &Block, &numbers, rows);
        // After token 3, which cannot be accepted, no row is read.
        let is_come_to = tokens[0] != 3;
        assert_eq!(found.err(), is_come_to.then_some(VerifyError { row: 1, error }));
    }
}

/// A token that the target removed is never emitted, however it was drafted.
#[test]
fn removed_tokens_stay_removed() {
    let rules = [Rejection, Block, Greedy, Typical(typical::Typical { epsilon: 0.0, alpha: 0.3 })];
    let relaxed = AcceptanceRule::Relaxed(Relaxed { top_n: 100, delta: 1.0, ..Relaxed::default() });
    let synthetic = Synthetic(synthetic::Synthetic { rate: 1.0 });
    for rule in rules.into_iter().chain([relaxed, synthetic]) {
        for source in [Source::Kept, Source::Dense, Source::Deterministic] {
            let params = SamplingParams { banned_token_ids: vec![1, 3], ..SamplingParams::default() };
            // A draft model that prefers banned tokens. Kept drafts have the ban as well.
            let draft = Model::random(2, 4.0).map(|token, x| if token % 2 == 1 { x + 8.0 } else { x });
            let world = World { params, draft, ..World::new(rule, source) };
            for seed in 0..100 {
                let text = world.text(seed, 12, |_| ());
                assert!(!text.contains(&1) && !text.contains(&3), "{rule:?} {source:?}");
            }
        }
    }
}
