//! The reference is exact, by enumeration. And each draft is decided as by the reference.

use crate::speculative::lossless::TREE;
use crate::speculative::reference;
use crate::speculative::world::{Model, Source, World, dense, parameters};
use croupier::sampling::philox::{Purpose, uniform_at};
use croupier::speculative::numbers::unit;
use croupier::speculative::plain::Target;
use croupier::speculative::rule::AcceptanceRule::{Block, Rejection};
use croupier::speculative::weights::Weights;
use std::collections::BTreeMap;

const FEW: usize = 3;

/// A distribution over [`FEW`] tokens for every context.
fn few(seed: u64, context: &[u32]) -> Vec<f64> {
    let hash = context.iter().fold(seed, |h, &t| h * 31 + u64::from(t) + 1);
    let weight = |token| unit(uniform_at(hash, token, Purpose::Sample, 9)).powi(3) + 1e-3;
    reference::normalised(&(0..FEW as u64).map(weight).collect::<Vec<_>>())
}

fn contexts(len: usize) -> Vec<Vec<u32>> {
    (0..len).fold(vec![vec![]], |shorter, _| {
        shorter.iter().flat_map(|c: &Vec<u32>| (0..FEW as u32).map(|t| [c.clone(), vec![t]].concat())).collect()
    })
}

/// The probability that exactly i of k draft tokens are accepted, for i = 0 .. k.
fn standard_counts(tokens: &[u32], drafts: &[Vec<f64>], targets: &[Vec<f64>]) -> Vec<f64> {
    let accept = |i: usize| (targets[i][tokens[i] as usize] / drafts[i][tokens[i] as usize]).min(1.0);
    let reached = |i: usize| (0..i).map(accept).product::<f64>();
    (0..=tokens.len()).map(|i| reached(i) * if i < tokens.len() { 1.0 - accept(i) } else { 1.0 }).collect()
}

fn block_counts(tokens: &[u32], drafts: &[Vec<f64>], targets: &[Vec<f64>]) -> Vec<f64> {
    let h: Vec<f64> = reference::block_tests(tokens, drafts, targets).iter().map(|test| test.1).collect();
    let none_after = |i: usize| h[i..].iter().map(|h| 1.0 - h).product::<f64>();
    (0..=tokens.len()).map(|i| none_after(i) * if i > 0 { h[i - 1] } else { 1.0 }).collect()
}

type Counts = fn(&[u32], &[Vec<f64>], &[Vec<f64>]) -> Vec<f64>;
type Verify = fn(&[u32], &[Vec<f64>], &[Vec<f64>], &[f64]) -> (usize, Vec<f64>);

/// Over all drafts of k tokens: the probability of each text of k + 1 tokens that begins with the emitted tokens and goes on with the
/// target's, and the expected number of accepted tokens.
fn enumerate(seed: u64, k: usize, counts: Counts, verify: Verify) -> (Vec<(Vec<u32>, f64)>, f64) {
    let mut texts: Vec<_> = contexts(k + 1).into_iter().map(|text| (text, 0.0)).collect();
    let mut mean = 0.0;
    for draft in contexts(k) {
        let drafts: Vec<_> = (0..k).map(|i| few(seed + 1, &draft[..i])).collect();
        let targets: Vec<_> = (0..=k).map(|i| few(seed, &draft[..i])).collect();
        let proposed: f64 = (0..k).map(|i| drafts[i][draft[i] as usize]).product();
        for (accepted, chance) in counts(&draft, &drafts, &targets).into_iter().enumerate().filter(|c| c.1 > 0.0) {
            // Numbers that lead to this count: all tests before it pass, all later ones fail.
            let u: Vec<f64> = (0..k).map(|i| if i < accepted { 0.0 } else { 1.0 - 1e-16 }).collect();
            let (found, next) = verify(&draft, &drafts, &targets, &u);
            assert_eq!(found, accepted);
            mean += proposed * chance * accepted as f64;
            for (text, probability) in texts.iter_mut().filter(|t| t.0.starts_with(&draft[..accepted])) {
                let rest = (accepted + 1..=k).map(|i| few(seed, &text[..i])[text[i] as usize]).product::<f64>();
                *probability += proposed * chance * next[text[accepted] as usize] * rest;
            }
        }
    }
    (texts, mean)
}

#[test]
fn the_papers_rules_are_exact() {
    for seed in (0..400).step_by(2) {
        for k in 1..=4 {
            let (standard, standard_mean) = enumerate(seed, k, standard_counts, reference::rejection);
            let (block, block_mean) = enumerate(seed, k, block_counts, reference::block);
            for (text, probability) in standard.iter().chain(&block) {
                let expected: f64 = (0..=k).map(|i| few(seed, &text[..i])[text[i] as usize]).product();
                assert!((probability - expected).abs() < 1e-12, "k {k}, {text:?}: {probability} for {expected}");
            }
            assert!(block_mean > standard_mean - 1e-12, "k {k}: {block_mean} accepted for {standard_mean}");
        }
    }
}

/// The enumeration notices errors that were made in the field: a residual of the target without the draft, and one of the block rule
/// without its factor.
#[test]
fn the_enumeration_has_power() {
    let plain: Verify = |tokens, drafts, targets, u| {
        let accepted = reference::rejection(tokens, drafts, targets, u).0;
        (accepted, targets[accepted].clone())
    };
    let no_factor: Verify = |tokens, drafts, targets, u| {
        let accepted = reference::block(tokens, drafts, targets, u).0;
        let beyond = || reference::normalised(&reference::beyond(1.0, &targets[accepted], &drafts[accepted]));
        (accepted, if accepted < tokens.len() { beyond() } else { targets[accepted].clone() })
    };
    for (counts, verify) in [(standard_counts as Counts, plain), (block_counts, no_factor)] {
        let largest = (0..10).map(|seed| {
            let (texts, _) = enumerate(seed, 3, counts, verify);
            let expected = |text: &[u32]| (0..=3).map(|i| few(seed, &text[..i])[text[i] as usize]).product::<f64>();
            texts.iter().map(|(text, probability)| (probability - expected(text)).abs()).fold(0.0, f64::max)
        });
        let largest: Vec<f64> = largest.collect();
        println!("probabilities are off by {largest:.4?}");
        // Without its factor, the block rule is still right if the factor is 1.
        assert!(largest.iter().filter(|&&off| off > 1e-3).count() >= 5, "{largest:?}");
    }
}

/// With the same random numbers, chains are decided as in the papers.
#[test]
fn chains_are_decided_as_in_the_papers() {
    let (all, mut accepted) = (parameters(), [0; 6]);
    let mut compared = BTreeMap::new();
    for seed in 0..6000 {
        // The period of parameters differs from that of rules and sources, whatever the number of parameters.
        let (name, params) = all[seed as usize / 6 % all.len()].clone();
        let (rule, verify): (_, Verify) =
            if seed % 2 == 0 { (Rejection, reference::rejection) } else { (Block, reference::block) };
        let source = [Source::Kept, Source::Dense, Source::Sparse][seed as usize % 3];
        let world = World {
            target: Model::random(seed + 1000, 3.0),
            draft: Model::random(seed + 5000, 3.0),
            parents: (-1..4).collect(),
            params,
            ..World::new(rule, source)
        };
        let sequence = world.open(seed, &[2, 5]);
        let (drafts, mut rows) = world.propose(&sequence, &[2, 5]);
        let tokens: Vec<u32> = drafts.iter().map(|draft| draft.token()).collect();
        if drafts.iter().any(|draft| draft.is_certain()) {
            continue; // Decided by the plain row's draw; see `replay`.
        }
        let targets: Vec<_> = (0..=5).map(|i| dense(&Weights::from(&rows.distribution(i).unwrap()))).collect();
        let proposed: Vec<_> = drafts.iter().map(|draft| dense(draft.weights())).collect();
        let number = |depth: usize, purpose, index| uniform_at(seed, 2 + depth as u64, purpose, index as u32);
        let u: Vec<f64> = (0..5).map(|i| unit(number(i, Purpose::Accept, i))).collect();
        let (count, next) = verify(&tokens, &proposed, &targets, &u);
        let purpose = if count < 5 { Purpose::Residual } else { Purpose::Sample };
        // A skewed row is not drawn in token-id order.
        let last = match count < 5 || world.params.samplers.skew == 0.0 {
            true => reference::draw(&next, unit(number(count, purpose, 0))),
            false => rows.distribution(count).unwrap().draw(number(count, purpose, 0)),
        };

        let verified = world.round(&sequence, &[2, 5]);
        assert_eq!(verified.accepted_path, (0..count).collect::<Vec<_>>(), "seed {seed}");
        assert_eq!(verified.emitted, [&tokens[..count], &[last]].concat(), "seed {seed}");
        accepted[count] += 1;
        *compared.entry((name, seed % 2)).or_insert(0) += 1;
    }
    assert!(compared.len() == 2 * all.len() && compared.values().all(|&n| n > 50), "too few of some: {compared:?}");
    assert!(accepted.iter().all(|&n| n > 20), "too few of some outcome: {accepted:?}");
}

/// The probability of each emitted token, over all pairs of siblings, drawn with or without replacement. With `forgets`, each sibling is
/// compared with the whole target, whatever earlier ones took from it.
fn enumerate_siblings(seed: u64, with_replacement: bool, forgets: bool) -> Vec<f64> {
    let (target, draft) = (few(seed, &[]), few(seed + 1, &[]));
    let mut emitted = vec![0.0; FEW];
    for (first, second) in (0..FEW as u32).flat_map(|first| (0..FEW as u32).map(move |second| (first, second))) {
        let others: Vec<f64> = (0..FEW as u32).map(|t| if t == first { 0.0 } else { draft[t as usize] }).collect();
        let then = if with_replacement { draft.clone() } else { reference::normalised(&others) };
        let proposed = draft[first as usize] * then[second as usize];
        if proposed == 0.0 {
            continue;
        }
        let (tokens, drafts) = ([first, second], [draft.clone(), then]);
        let (mut reached, mut left) = (proposed, target.clone());
        for at in 0..2 {
            let against = if forgets { &target } else { &left };
            let accept = (against[tokens[at] as usize] / drafts[at][tokens[at] as usize]).min(1.0);
            emitted[tokens[at] as usize] += reached * accept;
            reached *= 1.0 - accept;
            if accept > 1.0 - 1e-12 {
                break; // It is accepted for sure, up to rounding.
            }
            // Numbers with which this sibling and the earlier ones fail.
            let (from, fail) = (if forgets { at } else { 0 }, [1.0 - 1e-16; 2]);
            left = reference::siblings(&tokens[from..=at], &drafts[from..=at], &target, &fail).expect_err("they fail");
        }
        (0..FEW).for_each(|token| emitted[token] += reached * left[token]);
    }
    emitted
}

/// SpecInfer's rule is exact for siblings that may be equal and for distinct ones. A rule that forgets what the first sibling took from the
/// target is noticed.
#[test]
fn the_papers_rule_for_siblings_is_exact() {
    for with_replacement in [true, false] {
        let off = |seed, forgets| {
            let found = enumerate_siblings(seed, with_replacement, forgets);
            found.iter().zip(few(seed, &[])).map(|(found, target)| (found - target).abs()).fold(0.0, f64::max)
        };
        for seed in (0..400).step_by(2) {
            assert!(off(seed, false) < 1e-12, "seed {seed}");
        }
        let seen = (0..20).step_by(2).filter(|&seed| off(seed, true) > 1e-3).count();
        assert!(seen >= 5, "{seen} of 10 models show that a sibling was forgotten");
    }
}

/// The total variation is the target's own for the first sibling that is tried at a position; for later ones, it is the residual's.
#[test]
fn only_the_first_of_siblings_is_held_against_the_target() {
    let parents = vec![-1, -1, 0, 0, -1, 1];
    let firsts = [0, 2, 5];
    let world = World { parents: parents.clone(), ..World::new(Rejection, Source::Kept) };
    let mut later = 0;
    for seed in 0..200 {
        world.text(seed, 9, |verified| {
            for trial in &verified.trials {
                assert_eq!(trial.is_first, firsts.contains(&trial.index), "seed {seed}: {trial:?}");
                later += usize::from(!trial.is_first);
            }
        });
    }
    assert!(later > 100, "{later}");
}

/// With the same random numbers, trees are decided as in SpecInfer, for several groups of siblings and every parameter.
#[test]
fn trees_are_decided_as_in_the_paper() {
    let shapes: [&[i32]; 3] = [&[-1, -1, -1], &TREE, &[-1, 0, 0, -1, 1, 3, 3, 4, 4, 4]];
    let (all, mut ends, mut compared) = (parameters(), BTreeMap::new(), BTreeMap::new());
    for seed in 0..12_000 {
        let source = [Source::Kept, Source::Dense, Source::Sparse, Source::Distinct][seed as usize % 4];
        let (name, params) = all[seed as usize / 4 % all.len()].clone();
        let parents = shapes[seed as usize / 4 / all.len() % 3].to_vec();
        let world = World {
            target: Model::random(seed + 1000, 5.0),
            draft: Model::random(seed + 5000, 5.0),
            parents: parents.clone(),
            params,
            ..World::new(Rejection, source)
        };
        let sequence = world.open(seed, &[2, 5]);
        let (drafts, mut rows) = world.propose(&sequence, &[2, 5]);
        if drafts.iter().any(|draft| draft.is_certain()) {
            continue; // Decided by the plain row's draw; see `replay`.
        }
        let tokens: Vec<u32> = drafts.iter().map(|draft| draft.token()).collect();
        let depth_of =
            |node: usize| std::iter::successors(Some(node), |&at| usize::try_from(parents[at]).ok()).count() - 1;
        let number = |depth: usize, purpose, index| uniform_at(seed, 2 + depth as u64, purpose, index);
        let mut path: Vec<usize> = Vec::new();
        let last = loop {
            let (depth, parent) = (path.len(), path.last().map_or(-1, |&node| node as i32));
            let children: Vec<usize> = (0..tokens.len()).filter(|&node| parents[node] == parent).collect();
            let row = rows.distribution((parent + 1) as usize).unwrap();
            if children.is_empty() {
                break row.draw(number(depth, Purpose::Sample, 0));
            }
            let of = |node: usize| {
                let nth = (0..node).filter(|&other| depth_of(other) == depth).count() as u32;
                unit(number(depth, Purpose::Accept, depth as u32 + (nth << 16)))
            };
            let each: Vec<u32> = children.iter().map(|&node| tokens[node]).collect();
            let proposed: Vec<_> = children.iter().map(|&node| dense(drafts[node].weights())).collect();
            let u: Vec<f64> = children.iter().map(|&node| of(node)).collect();
            match reference::siblings(&each, &proposed, &dense(&Weights::from(&row)), &u) {
                Ok(child) => path.push(children[child]),
                Err(left) => break reference::draw(&left, unit(number(depth, Purpose::Residual, 0))),
            }
        };
        let emitted: Vec<u32> = path.iter().map(|&node| tokens[node]).chain([last]).collect();
        let verified = world.round(&sequence, &[2, 5]);
        assert_eq!((&verified.accepted_path, &verified.emitted), (&path, &emitted), "seed {seed}, {name}");
        *ends.entry((parents.len(), path.last().copied())).or_insert(0) += 1;
        *compared.entry(name).or_insert(0) += 1;
    }
    assert!(compared.len() == all.len() && compared.values().all(|&n| n > 100), "too few of some: {compared:?}");
    // Every node of every tree was the last accepted one in some cases, and in others none was accepted.
    assert!(ends.len() == 4 + 6 + 11 && ends.values().all(|&n| n > 10), "too few of some outcome: {ends:?}");
}
