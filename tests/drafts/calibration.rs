//! Whether measured draft tokens show what they were drawn from, in what a worker is told and in the metrics.

use crate::support::*;
use crate::work::*;
use croupier::proto::*;
use croupier::sampling::philox::{Purpose, uniform};

/// Verifications of two draft tokens each, so many in a step.
const ROUNDS: u64 = 50;
const TEXTS: u64 = 16;

/// Beyond it a pair of sums is not equal up to chance: two-sided 7 in a million. Every number here is fixed, so a test that
/// passes always passes.
const NOT_CHANCE: f64 = 4.5;

/// Numbers of 0 to 1 that a worker draws.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> f64 {
        self.0 += 1;
        uniform(7, self.0, Purpose::Draft) as f64 / u64::MAX as f64
    }

    /// About normal, of deviation 1.
    fn normal(&mut self) -> f32 {
        ((0..12).map(|_| self.next()).sum::<f64>() - 6.0) as f32
    }
}

/// How the worker draws what it says it draws from a distribution.
#[derive(Clone, Copy, Debug)]
enum Draws {
    AsClaimed,
    Greedily,
    /// Any token that has a probability, as if at a high temperature.
    Evenly,
}

impl Draws {
    fn draw(self, draft: &[f32], chance: &mut Chance) -> u32 {
        let largest = || (0..VOCAB).max_by(|&a, &b| draft[a as usize].total_cmp(&draft[b as usize])).unwrap();
        match self {
            Self::Greedily => largest(),
            Self::Evenly => (chance.next() * f64::from(VOCAB)) as u32 % VOCAB,
            Self::AsClaimed => {
                let mut left = chance.next() * draft.iter().map(|&p| f64::from(p)).sum::<f64>();
                let crossing = |&token: &u32| {
                    left -= f64::from(draft[token as usize]);
                    left < 0.0
                };
                (0..VOCAB).find(crossing).unwrap_or_else(largest)
            }
        }
    }
}

/// A target row, and the distribution of a draft model that is nearly the target.
fn models(chance: &mut Chance) -> (Vec<f32>, Vec<f32>) {
    let target: Vec<f32> = (0..VOCAB).map(|_| 2.0 * chance.normal()).collect();
    let draft: Vec<f32> = target.iter().map(|x| (x + 0.2 * chance.normal()).exp()).collect();
    let total: f32 = draft.iter().sum();
    (target, draft.iter().map(|p| p / total).collect())
}

/// What is as it is, what it has to be, and how many there are.
#[derive(Default)]
struct Pair {
    is: f64,
    expected: f64,
    count: f64,
}

impl Pair {
    fn add(&mut self, is: f64, expected: f64) {
        self.is += is;
        self.expected += expected;
        self.count += 1.0;
    }

    /// As docs/speculative.md has it.
    fn standard_errors(&self) -> f64 {
        (self.is - self.expected) / (self.expected * (1.0 - self.expected / self.count)).sqrt()
    }
}

/// Probabilities of draft tokens against their distributions', and acceptance against the expected one: as the worker is told.
async fn run(worker: &mut Worker, rule: AcceptanceRule, draws: Draws) -> [Pair; 2] {
    let acceptance = Some(AcceptanceParams { rule: rule.into(), ..Default::default() });
    let params = |id| SamplingParams { acceptance, ..seeded(id) };
    worker.step(open_step((0..TEXTS).map(|id| open(id, params(id))).collect())).await;
    let (mut chance, mut drawn, mut accepted) = (Chance(0), Pair::default(), Pair::default());
    for _ in 0..ROUNDS {
        let (mut step, mut rows) = (Step::default(), Vec::new());
        for id in 0..TEXTS {
            let (targets, drafts): (Vec<_>, Vec<_>) = (0..3).map(|_| models(&mut chance)).unzip();
            let tokens: Vec<u32> = drafts[..2].iter().map(|draft| draws.draw(draft, &mut chance)).collect();
            step.work.push(verify_work(id, VerifyWork { measure: true, ..chain(&tokens, dense(&drafts[..2])) }));
            rows.extend(targets);
        }
        let result = worker.step(Step { logits: inline(&rows), ..step }).await;
        for test in result.work.iter().flat_map(|work| &work.verify.as_ref().unwrap().tests) {
            drawn.add(f64::from(test.draft_probability), f64::from(test.expected_draft_probability));
            accepted.add(f64::from(u8::from(test.accepted)), f64::from(test.expected_acceptance));
        }
    }
    [drawn, accepted]
}

#[tokio::test]
async fn a_draft_that_is_not_drawn_as_claimed_shows_under_either_rule() {
    for rule in [AcceptanceRule::Rejection, AcceptanceRule::Block] {
        for draws in [Draws::AsClaimed, Draws::Greedily, Draws::Evenly] {
            let server = TestServer::start().await;
            let [drawn, accepted] = run(&mut server.worker().await, rule, draws).await;
            let errors = drawn.standard_errors();
            let shows = match draws {
                Draws::AsClaimed => errors.abs() < NOT_CHANCE,
                Draws::Greedily => errors > 2.0 * NOT_CHANCE,
                Draws::Evenly => errors < -2.0 * NOT_CHANCE,
            };
            assert!(shows, "{rule:?}, {draws:?}: {errors:+.1} standard errors");
            // The target is nearly the draft: acceptance is as expected whatever a draft token was drawn from.
            assert!(accepted.standard_errors().abs() < NOT_CHANCE, "{rule:?}, {draws:?}");
            let metric = |name: &str| {
                server.series(&format!("croupier_spec_decode_{name}{{model=\"default\",proposer=\"sent\"}}"))
            };
            let counted = [metric("draft_probability_sum"), metric("expected_draft_probability_sum")];
            assert_eq!(metric("draft_probability_count"), drawn.count);
            for (counted, told) in counted.iter().zip([drawn.is, drawn.expected]) {
                assert!((counted - told).abs() < 1e-4 * told, "{counted} counted, {told} told");
            }
        }
    }
}

/// The sum of squares, by hand, from each kind of source.
#[tokio::test]
async fn what_a_draft_probability_has_to_be_is_the_sum_of_the_squares() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let row: Vec<f32> = (0..VOCAB).map(|t| if t < 4 { 0.0 } else { f32::NEG_INFINITY }).collect();
    let mut even = vec![0.0; VOCAB as usize];
    even[0] = 0.75;
    even[3] = 0.25;
    worker.step(open_step((0..4).map(|id| open(id, seeded(id))).collect())).await;
    let kept_token = worker.draft(3, DraftWork::default(), row.clone()).await;
    let sources = [
        (0, sparse(&[&[(0, 0.75), (3, 0.25)]]), (0.75, 0.625)),
        (0, dense(&[even]), (0.75, 0.625)),
        (0, deterministic(), (1.0, 1.0)),
        (kept_token, kept(), (0.25, 0.25)),
    ];
    for (id, (token, source, expected)) in (0..).zip(sources) {
        let verify = VerifyWork { measure: true, ..chain(&[token], source) };
        let work = worker.verify(id, verify, &[row.clone(), row.clone()]).await;
        let test = &work.verify.as_ref().unwrap().tests[0];
        assert_eq!((test.draft_probability, test.expected_draft_probability), expected, "source {id}");
    }
    // Certain tokens are not among those that are counted.
    let count =
        |proposer| format!("croupier_spec_decode_draft_probability_count{{model=\"default\",proposer=\"{proposer}\"}}");
    assert_eq!((server.series(&count("sent")), server.series(&count("kept"))), (2.0, 1.0));
    assert!(!server.metrics.render().contains(&count("deterministic")));
}

/// Texts of one seed have one random number for all their first tokens.
#[tokio::test]
async fn texts_that_share_a_seed_are_measured_and_each_number_counts_once() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let row: Vec<f32> = (0..VOCAB).map(|t| if t < 2 { 0.0 } else { f32::NEG_INFINITY }).collect();
    for id in 0..40 {
        worker.step(open_step(vec![open(id, seeded(42))])).await;
        let verify = VerifyWork { measure: true, ..chain(&[id as u32 % 2], sparse(&[&[(0, 0.5), (1, 0.5)]])) };
        let work = worker.verify(id, verify, &[row.clone(), row.clone()]).await;
        assert_eq!(work.verify.unwrap().tests.len(), 1);
    }
    let metric = |name: &str, more: &str| {
        server.series(&format!("croupier_spec_decode_{name}{{model=\"default\",proposer=\"sent\"{more}}}"))
    };
    assert_eq!(metric("expected_acceptance_count", ",position=\"0\""), 1.0);
    assert_eq!(metric("draft_probability_count", ""), 1.0);
    // What is said of the two models needs no chance.
    assert_eq!(metric("total_variation_count", ""), 40.0);
}

#[tokio::test]
async fn verifications_are_told_apart_by_what_came_before() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let sure = |token: u32| -> Vec<f32> { (0..VOCAB).map(|t| if t == token { 30.0 } else { 0.0 }).collect() };
    let params = || SamplingParams { temperature: Some(0.0), ..seeded(1) };
    worker.step(open_step(vec![open(1, params()), open(2, params())])).await;
    let rows = [sure(5), sure(6)];
    // Opened, and accepted; then after a bonus, and rejected; then after a recovered token.
    for token in [5, 9, 5] {
        worker.verify(1, chain(&[token], deterministic()), &rows).await;
    }
    // No draft token: a plain row by another name.
    worker.verify(2, chain(&[], deterministic()), &rows[..1]).await;
    worker.verify(2, chain(&[9], deterministic()), &rows).await;
    worker.step(sample_step(&[(2, sure(3))])).await;
    worker.verify(2, chain(&[5], deterministic()), &rows).await;
    for (after, rejected, accepted) in [
        ("opened", 0.0, 1.0),
        ("bonus", 1.0, 0.0),
        ("recovered", 0.0, 1.0),
        ("sampled", 1.0, 1.0),
        ("accepted", 0.0, 0.0),
    ] {
        let counted = ["rejected", "accepted"].map(|first| {
            let labels = format!("model=\"default\",proposer=\"deterministic\",after=\"{after}\",first=\"{first}\"");
            server.series(&format!("croupier_spec_decode_num_rounds_total{{{labels}}}"))
        });
        assert_eq!(counted, [rejected, accepted], "{after}");
    }
}
