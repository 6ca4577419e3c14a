//! Emitted tokens have the target's distribution, and observed acceptance is as expected.

use crate::chi_square::{DEVIATE, FALSE_ALARM, deviate};
use crate::speculative::planted::Planted;
use crate::speculative::reference;
use crate::speculative::rounds::Rounds;
use crate::speculative::world::{Model, PROMPT, Source, VOCAB, World, parameters};
use croupier::params::SamplingParams;
use croupier::speculative::rule::AcceptanceRule::{Block, Greedy, Rejection};

const TEXTS: u64 = 8_000;
/// The number of texts if rounds are cheap.
const MANY_TEXTS: u64 = 1_000_000;
/// [`DEVIATE`] for a two-sided test.
const TWO_SIDED: f64 = 4.891_638;
/// In counts of tokens: the text ended before.
const NONE: u32 = VOCAB;
pub const CELLS: usize = VOCAB as usize + 1;
/// Two children of the root; the first of them has two children, the second one.
pub const TREE: [i32; 5] = [-1, -1, 0, 0, 1];

/// What the observation of many texts of a world shows.
struct Seen {
    /// The largest deviate of first, second and third tokens, and of pairs of neighbours.
    deviate: f64,
    /// Observed minus expected accepted tokens, in standard errors.
    acceptance: f64,
    /// Accepted tokens per round.
    mean: f64,
}

fn observe(world: &World, texts: u64) -> Seen {
    observe_against(world, &world.target, texts)
}

/// Compares texts of `world` with the distribution of texts of `model`.
fn observe_against(world: &World, model: &Model, texts: u64) -> Seen {
    let mut counts = vec![0u64; CELLS.pow(3)];
    let (mut sum, mut squares, mut rounds, mut accepted) = (0.0, 0.0, 0.0, 0.0);
    for seed in 0..texts {
        let text = world.text(seed, 3, |verified| {
            let expected: f64 = verified.trials.iter().filter_map(|trial| trial.expected).sum();
            let difference = verified.accepted_count() as f64 - expected;
            sum += difference;
            squares += difference * difference;
            rounds += 1.0;
            accepted += verified.accepted_count() as f64;
        });
        counts[cell([0, 1, 2].map(|i| text.get(i).copied().unwrap_or(NONE)))] += 1;
    }
    let expected = texts_of(model, &world.params);
    let worst = VIEWS.iter().map(|view| deviate(&seen_by(view, &counts), &seen_by(view, &expected)));
    Seen {
        deviate: worst.fold(0.0, f64::max),
        acceptance: if squares == 0.0 { 0.0 } else { sum / f64::sqrt(squares) },
        mean: accepted / rounds,
    }
}

pub fn cell(text: [u32; 3]) -> usize {
    text.iter().fold(0, |cell, &token| cell * CELLS + token as usize)
}

/// Each token alone, and each pair of neighbours.
pub const VIEWS: [[bool; 3]; 5] =
    [[true, false, false], [false, true, false], [false, false, true], [true, true, false], [false, true, true]];

/// Sums over the tokens that a view leaves out.
pub fn seen_by<T: Copy + std::ops::AddAssign + Default>(view: &[bool; 3], cells: &[T]) -> Vec<T> {
    let mut seen = vec![T::default(); cells.len()];
    for (at, &count) in cells.iter().enumerate() {
        let tokens = [at / (CELLS * CELLS), at / CELLS % CELLS, at % CELLS];
        let kept = [0, 1, 2].map(|i| if view[i] { tokens[i] as u32 } else { 0 });
        seen[cell(kept)] += count;
    }
    seen
}

/// The probability of every text of three tokens.
fn texts_of(model: &Model, params: &SamplingParams) -> Vec<f64> {
    let mut cells = vec![0.0; CELLS.pow(3)];
    extend(model, params, &mut Vec::new(), 1.0, &mut cells);
    cells
}

fn extend(model: &Model, params: &SamplingParams, text: &mut Vec<u32>, probability: f64, cells: &mut [f64]) {
    let stopped = text.last().is_some_and(|last| params.stop_token_ids.contains(last));
    if text.len() == 3 || stopped || (params.max_tokens > 0 && text.len() == params.max_tokens as usize) {
        cells[cell([0, 1, 2].map(|i| text.get(i).copied().unwrap_or(NONE)))] += probability;
        return;
    }
    let next = reference::probabilities(model.logits(text), params, &PROMPT, text);
    for (token, p) in (0..).zip(next).filter(|&(_, p)| p > 0.0) {
        text.push(token);
        extend(model, params, text, probability * p, cells);
        text.pop();
    }
}

/// Fails if texts do not have their distribution, or acceptance is not as expected.
fn check(name: &str, world: &World) -> Seen {
    let seen = observe(world, TEXTS);
    println!("{name}: {:.1} deviations (false alarms {FALSE_ALARM})", seen.deviate);
    assert!(seen.deviate < DEVIATE, "{name}: not the target's distribution ({:.1} deviations)", seen.deviate);
    assert!(seen.acceptance.abs() < TWO_SIDED, "{name}: acceptance is {:.1} errors off", seen.acceptance);
    seen
}

#[test]
fn chains_with_every_parameter_and_source() {
    for rule in [Rejection, Block] {
        for source in [Source::Kept, Source::Dense, Source::Sparse, Source::Deterministic] {
            for (name, params) in parameters() {
                let world = World { params, ..World::new(rule, source) };
                check(&format!("{rule:?} {source:?} {name}"), &world);
            }
        }
    }
}

#[test]
fn trees_with_every_parameter_and_source() {
    for source in [Source::Kept, Source::Dense, Source::Sparse, Source::Distinct, Source::Deterministic] {
        for (name, params) in parameters() {
            let world = World { params, parents: TREE.to_vec(), ..World::new(Rejection, source) };
            let tree = check(&format!("tree {source:?} {name}"), &world).mean;
            let chain = observe(&World { parents: vec![-1, 0], ..world }, TEXTS).mean;
            assert!(tree > chain, "siblings of {source:?} with {name} do not help: {tree:.3} against {chain:.3}");
        }
    }
}

/// Drafts that agree with the target, contradict it, or are certain.
#[test]
fn adversarial_drafts() {
    let target = Model::random(1, 5.0);
    let below = |token: u32, limit: u32| if token < limit { 0.0 } else { f32::NEG_INFINITY };
    let cases = [
        ("identical", target.clone(), target.clone()),
        ("disjoint", target.map(|token, x| x + below(token, 3)), target.map(|token, x| x + below(5 - token, 3))),
        ("narrow", target.clone(), target.map(|token, x| x + below(token, 2))),
        ("wide", target.map(|token, x| x + below(token, 2)), target.clone()),
        ("opposite", target.clone(), target.map(|_, x| -x)),
        ("one-hot", target.clone(), target.map(|token, _| if token == 4 { 60.0 } else { 0.0 })),
        ("certain target", target.map(|token, _| if token == 4 { 60.0 } else { 0.0 }), target.clone()),
    ];
    for (name, target, draft) in cases {
        for (rule, parents) in [(Rejection, vec![-1, 0, 1]), (Block, vec![-1, 0, 1]), (Rejection, TREE.to_vec())] {
            let world =
                World { target: target.clone(), draft: draft.clone(), parents, ..World::new(rule, Source::Kept) };
            let mean = check(&format!("{name} {rule:?}"), &world).mean;
            match name {
                "identical" => assert!(mean > 1.99, "{mean}"),
                "disjoint" => assert_eq!(mean, 0.0),
                _ => {}
            }
        }
    }
}

/// Stops, maximum and minimum lengths inside a draft, for every lossless rule.
#[test]
fn ends_inside_a_draft() {
    let stop = SamplingParams { stop_token_ids: vec![0, 2], ..SamplingParams::default() };
    let late = SamplingParams { min_tokens: 2, ..stop.clone() };
    let short = SamplingParams { max_tokens: 2, ..SamplingParams::default() };
    for (name, params) in [("stop", stop), ("min_tokens", late), ("max_tokens", short)] {
        for (rule, parents) in [(Rejection, vec![-1, 0, 1]), (Block, vec![-1, 0, 1]), (Rejection, TREE.to_vec())] {
            for source in [Source::Kept, Source::Dense, Source::Deterministic] {
                let world = World { params: params.clone(), parents: parents.clone(), ..World::new(rule, source) };
                check(&format!("{name} {rule:?} {source:?}"), &world);
            }
        }
    }
}

#[test]
fn no_draft_is_a_plain_row() {
    for rule in [Rejection, Block, Greedy] {
        let world = World { parents: Vec::new(), ..World::new(rule, Source::Kept) };
        if rule == Greedy {
            let greedy = World { params: SamplingParams { temperature: 0.0, ..world.params.clone() }, ..world };
            assert_eq!(greedy.text(5, 20, |v| assert!(v.lossless)), greedy.plain(5, 20));
        } else {
            assert_eq!(world.text(5, 20, |v| assert!(v.lossless)), world.plain(5, 20));
        }
    }
}

#[test]
fn blocks_accept_at_least_as_many() {
    for seed in 0..6 {
        let world = World {
            target: Model::random(100 + seed, 4.0),
            draft: Model::random(200 + seed, 4.0),
            parents: (-1..5).collect(),
            ..World::new(Rejection, Source::Kept)
        };
        let standard = observe(&world, TEXTS).mean;
        let block = observe(&World { rule: Block, ..world }, TEXTS).mean;
        println!("models {seed}: {standard:.3} accepted by the standard rule, {block:.3} by blocks");
        // These models differ, so the means differ by a quarter: a hundred times more than by chance.
        assert!(block > 1.1 * standard, "models {seed}: {block:.3} accepted, {standard:.3} by the standard rule");
    }
}

/// The tests have power: they notice errors that were made in the field.
#[test]
fn planted_errors_are_seen() {
    // Wrong rules, and as a control the reference without an error.
    for planted in [Planted::Nothing, Planted::AcceptOnTarget, Planted::NoResidual, Planted::OnlyNotTheSame] {
        let world = World { planted: Some(planted), ..World::new(Rejection, Source::Kept) };
        let seen = observe(&world, TEXTS).deviate;
        println!("{planted:?}: {seen:.1} deviations");
        assert_eq!(seen > DEVIATE, planted != Planted::Nothing, "{planted:?}: {seen:.1}");
    }
    // Draft tokens drawn at another temperature than claimed: the text is wrong, and acceptance shows it.
    for drawn_at in [0.7, 1.4] {
        let world = World { drawn_at: Some(drawn_at), ..World::new(Rejection, Source::Kept) };
        let seen = observe(&world, TEXTS);
        assert!(seen.deviate > DEVIATE && seen.acceptance.abs() > DEVIATE, "drawn at {drawn_at}: not noticed");
    }
    // One logit of the target is off by a quarter.
    let world = World::new(Block, Source::Dense);
    let off = world.target.map(|token, x| if token == 1 { x + 0.25 } else { x });
    assert!(observe_against(&world, &off, TEXTS).deviate > DEVIATE, "a target that is off is not noticed");
    // A typical rule claims to be lossless.
    let typical = World::new(croupier::speculative::rule::AcceptanceRule::Typical(Default::default()), Source::Kept);
    assert!(observe(&typical, TEXTS).deviate > DEVIATE, "typical acceptance is not noticed");
}

/// Shows why a position that is proposed again needs fresh numbers: with stale ones, block verification is wrong.
#[test]
fn stale_numbers_are_seen() {
    let fresh = World { parents: (-1..5).collect(), ..World::new(Block, Source::Kept) };
    let stale = World { stale_numbers: true, ..fresh.clone() };
    let (fresh, stale) = (observe(&fresh, 4 * TEXTS).deviate, observe(&stale, 4 * TEXTS).deviate);
    println!("fresh numbers: {fresh:.1} deviations, stale ones: {stale:.1}");
    assert!(fresh < DEVIATE && stale > DEVIATE);
}

/// How far texts are from the target's distribution if their drafts have these shapes in turn.
fn of_shapes(shapes: &[&[i32]], by_index: bool) -> f64 {
    let (target, draft) = (Model::random(1, 5.0), Model::random(2, 4.0));
    let rounds = Rounds::new(&target, &draft, shapes, by_index);
    let mut counts = vec![0u64; CELLS.pow(3)];
    for seed in 0..MANY_TEXTS {
        let text = rounds.text(seed, 3);
        counts[cell([text[0], text[1], text[2]])] += 1;
    }
    let expected = texts_of(&target, &SamplingParams::default());
    let worst =
        VIEWS.iter().map(|view| deviate(&seen_by(view, &counts), &seen_by(view, &expected))).fold(0.0, f64::max);
    println!("{shapes:?}, by index {by_index}: {worst:.1} deviations (false alarms {FALSE_ALARM})");
    worst
}

/// A chain is verified as a block, which looks at tokens after the rejected one. The tree after it, at the same positions, is verified by
/// rejection.
#[test]
fn chains_and_trees_in_turn() {
    const CHAIN: &[i32] = &[-1, 0, 1, 2];
    let cases: [&[&[i32]]; 5] = [
        &[CHAIN, &[-1, 0]],
        &[&[-1, -1, 0], &TREE],
        &[CHAIN, &[-1, -1]],
        &[CHAIN, &[-1, -1, 0]],
        &[CHAIN, &[-1, -1, -1, 2, 3], &[-1, 0, 1], &TREE],
    ];
    for shapes in cases {
        let seen = of_shapes(shapes, false);
        assert!(seen < DEVIATE, "{shapes:?}: not the target's distribution ({seen:.1} deviations)");
    }
    // The test has power: if draws are numbered by the draft token's index, a tree repeats draws of a chain.
    assert!(of_shapes(&[CHAIN, &[-1, -1, 0]], true) > DEVIATE, "stale numbers are not noticed");
}
