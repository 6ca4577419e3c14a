//! Whether siblings in a tree repeat as often as their distributions say.

use super::calibration::{Chance, NOT_CHANCE};
use crate::support::*;
use crate::work::*;
use croupier::proto::*;

const ROUNDS: u64 = 40;
const TEXTS: u64 = 16;
const SIBLINGS: usize = 3;

/// How a worker draws siblings, and which distributions it sends for them.
#[derive(Clone, Copy, Debug)]
enum Draws {
    /// Draws all from one distribution, and sends that for each.
    Independently,
    /// Draws without replacement, and sends for each the distribution that was left.
    WithoutReplacement,
    /// Draws without replacement, and sends for each the distribution of the first.
    AsIfAlone,
}

fn row(chance: &mut Chance) -> Vec<f32> {
    (0..VOCAB).map(|_| 2.0 * chance.normal()).collect()
}

fn normalised(weights: &[f32]) -> Vec<f32> {
    let total: f32 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

fn draw(from: &[f32], chance: &mut Chance) -> usize {
    let mut left = chance.next() * from.iter().map(|&p| f64::from(p)).sum::<f64>();
    let crossing = from.iter().position(|&p| {
        left -= f64::from(p);
        left < 0.0
    });
    crossing.unwrap_or(0)
}

impl Draws {
    /// The tokens, and the distribution that is sent for each.
    fn siblings(self, chance: &mut Chance) -> (Vec<u32>, Vec<Vec<f32>>) {
        let first: Vec<f32> = normalised(&row(chance).iter().map(|logit| logit.exp()).collect::<Vec<_>>());
        let (mut left, mut tokens, mut sent) = (first.clone(), Vec::new(), Vec::new());
        for _ in 0..SIBLINGS {
            let token = draw(&left, chance);
            sent.push(if matches!(self, Self::WithoutReplacement) { left.clone() } else { first.clone() });
            tokens.push(token as u32);
            if !matches!(self, Self::Independently) {
                left[token] = 0.0;
                left = normalised(&left);
            }
        }
        (tokens, sent)
    }
}

/// How many later siblings repeated an earlier one, and how many were expected to, according to the metrics.
async fn repeats(rule: AcceptanceRule, draws: Draws) -> (f64, f64) {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let acceptance = Some(AcceptanceParams { rule: rule.into(), ..Default::default() });
    let params = |id| SamplingParams { acceptance, ..seeded(id) };
    worker.step(open_step((0..TEXTS).map(|id| open(id, params(id))).collect())).await;
    let mut chance = Chance(0);
    for _ in 0..ROUNDS {
        let (mut step, mut rows) = (Step::default(), Vec::new());
        for id in 0..TEXTS {
            let (tokens, sent) = draws.siblings(&mut chance);
            let verify = VerifyWork { measure: true, parents: vec![-1; SIBLINGS], ..chain(&tokens, dense(&sent)) };
            step.work.push(verify_work(id, verify));
            rows.extend((0..=SIBLINGS).map(|_| row(&mut chance)));
        }
        let result = worker.step(Step { logits: inline(&rows), ..step }).await;
        assert!(result.work.iter().all(|work| work.status == i32::from(RowStatus::Ok)), "{draws:?}");
    }
    let metric = |name| server.series(&format!("croupier_spec_decode_{name}{{model=\"default\",proposer=\"sent\"}}"));
    (metric("num_repeated_siblings_total"), metric("expected_repeated_siblings_sum"))
}

fn standard_errors((found, expected): (f64, f64)) -> f64 {
    (found - expected) / (4.0 + expected).sqrt()
}

#[tokio::test]
async fn siblings_that_are_drawn_as_they_are_sent_come_again_as_often_as_expected() {
    for rule in [AcceptanceRule::Rejection, AcceptanceRule::Typical] {
        let found = repeats(rule, Draws::Independently).await;
        assert!(found.1 > 40.0 && standard_errors(found).abs() < NOT_CHANCE, "{rule:?}: {found:?}");
        assert_eq!(repeats(rule, Draws::WithoutReplacement).await, (0.0, 0.0), "{rule:?}");
    }
}

#[tokio::test]
async fn siblings_that_are_drawn_without_replacement_and_sent_as_if_alone_show() {
    for rule in [AcceptanceRule::Rejection, AcceptanceRule::Typical] {
        let found = repeats(rule, Draws::AsIfAlone).await;
        assert!(found.0 == 0.0 && standard_errors(found) < -NOT_CHANCE, "{rule:?}: {found:?}");
    }
}
