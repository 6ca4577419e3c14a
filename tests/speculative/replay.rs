//! Texts that speculation does not change at all: the same seed gives the same tokens with and without it.

use crate::speculative::world::{Model, Source, World, parameters};
use croupier::params::SamplingParams;
use croupier::speculative::rule::AcceptanceRule::{self, Block, Greedy, Rejection};

const LEN: usize = 24;

fn shapes() -> [Vec<i32>; 4] {
    [vec![-1], (-1..7).collect(), vec![-1, -1, 0, 0, 1], vec![-1, -1, -1]]
}

/// Fails if a text differs from the plain one. Returns how many draft tokens were accepted.
fn same_as_plain(name: &str, world: &World, seeds: u64) -> usize {
    let mut accepted = 0;
    for seed in 0..seeds {
        let text = world.text(seed, LEN, |verified| {
            assert!(verified.lossless);
            accepted += verified.accepted_count();
        });
        assert_eq!(text[..LEN], world.plain(seed, LEN), "{name}, seed {seed}");
    }
    accepted
}

/// Deterministic proposers do not change a single token, whatever the parameters, the rule, the draft's length and shape, and the
/// proposer's quality.
#[test]
fn deterministic_drafts_change_nothing() {
    for (name, params) in parameters() {
        for rule in [Rejection, Block] {
            for parents in shapes() {
                let name = format!("{name} {rule:?} {parents:?}");
                let world = World { params: params.clone(), parents, ..World::new(rule, Source::Deterministic) };
                assert!(same_as_plain(&name, &world, 20) > 0);
                let world = World { draft: world.target.clone(), ..world };
                assert!(same_as_plain(&name, &world, 20) > 20 * LEN / 10);
            }
        }
    }
}

/// Nor does a draft model whose tokens are certain and that sends or keeps its distribution.
#[test]
fn certain_distributions_change_nothing() {
    let one = Model::random(2, 4.0).map(|token, x| if token == 1 { x + 60.0 } else { x });
    for rule in [Rejection, Block] {
        for source in [Source::Kept, Source::Dense] {
            let draft = match source {
                Source::Kept => one.clone(),
                // Probabilities are sent as f32, so the other tokens must have exactly 0 to be impossible.
                _ => one.map(|token, x| if token == 1 { x } else { -1e4 }),
            };
            let world = World { draft, ..World::new(rule, source) };
            assert!(same_as_plain(&format!("{rule:?} {source:?}"), &world, 40) > 0);
        }
    }
}

/// A greedy sequence has one text, whatever the draft and the rule (typical acceptance included).
#[test]
fn greedy_sequences_have_one_text() {
    let params = SamplingParams { temperature: 0.0, frequency_penalty: 0.3, ..SamplingParams::default() };
    for rule in [Rejection, Block, Greedy, AcceptanceRule::Typical(Default::default())] {
        for source in [Source::Kept, Source::Dense, Source::Sparse, Source::Distinct, Source::Deterministic] {
            for parents in shapes() {
                let name = format!("{rule:?} {source:?} {parents:?}");
                let world = World { params: params.clone(), parents, ..World::new(rule, source) };
                same_as_plain(&name, &world, 5);
            }
        }
    }
}

/// After a draft that is accepted completely, the next token is the one that a plain row would have drawn.
#[test]
fn the_bonus_is_the_plain_rows_token() {
    for rule in [Rejection, Block] {
        let target = Model::random(1, 5.0);
        let world = World { draft: target.clone(), target, ..World::new(rule, Source::Kept) };
        for seed in 0..200 {
            let verified = world.round(&world.open(seed, &[]), &[]);
            assert_eq!(verified.accepted_count(), 3);
            let plain = World { parents: Vec::new(), ..world.clone() };
            let next = plain.round(&world.open(seed, &verified.emitted[..3]), &verified.emitted[..3]);
            assert_eq!(verified.emitted[3..], next.emitted);
        }
    }
}

/// Verification is a function of tokens, seed and draft: a sequence that is opened again in the middle of a text goes on as if nothing had
/// happened.
#[test]
fn a_restart_changes_nothing() {
    for rule in [Rejection, Block] {
        for source in [Source::Kept, Source::Dense, Source::Sparse] {
            // Penalties, because with them distributions depend on earlier tokens.
            let penalties = parameters().into_iter().find(|(name, _)| *name == "penalties");
            let (_, params) = penalties.expect("they are among the parameters");
            let world = World { params, ..World::new(rule, source) };
            for seed in 0..50 {
                let mut output = Vec::new();
                while output.len() < LEN {
                    output.extend(world.round(&world.open(seed, &output), &output).emitted);
                }
                assert_eq!(world.text(seed, LEN, |_| ()), output);
            }
        }
    }
}
