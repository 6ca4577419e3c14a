//! Whether measurements show the distribution that draft tokens were really drawn from, in a worker's results and in the metrics.

use crate::support::*;
use crate::work::*;
use croupier::proto::*;
use croupier::sampling::philox::{Purpose, uniform};

/// Steps, each with a verification of two draft tokens for every text.
const ROUNDS: u64 = 50;
const TEXTS: u64 = 16;

/// If two sums differ by more standard errors than this, that is not chance (two-sided 7 in a million). Every number here is fixed, so a
/// test that passes always passes.
pub(super) const NOT_CHANCE: f64 = 4.5;

/// Random numbers from 0 to 1 that a worker draws.
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn next(&mut self) -> f64 {
        self.0 += 1;
        uniform(7, self.0, Purpose::Draft) as f64 / u64::MAX as f64
    }

    /// About normal, with deviation 1.
    pub(super) fn normal(&mut self) -> f32 {
        ((0..12).map(|_| self.next()).sum::<f64>() - 6.0) as f32
    }
}

/// How the worker really draws the tokens that it claims to draw from a distribution.
#[derive(Clone, Copy, Debug)]
enum Draws {
    AsClaimed,
    Greedily,
    /// Any token that has a probability, all equally likely.
    Evenly,
    /// At twice the temperature.
    Hotter,
    /// From the most likely tokens, which have half of the mass.
    TopP,
    /// From the distribution of another row.
    OfAnother,
}

impl Draws {
    fn draw(self, draft: &[f32], chance: &mut Chance) -> u32 {
        let from: Vec<f32> = match self {
            Self::AsClaimed => draft.to_vec(),
            Self::Greedily => only(draft, 1e-9),
            Self::Evenly => vec![1.0; draft.len()],
            Self::Hotter => draft.iter().map(|p| p.sqrt()).collect(),
            Self::TopP => only(draft, 0.5),
            Self::OfAnother => models(chance).1,
        };
        let mut left = chance.next() * from.iter().map(|&p| f64::from(p)).sum::<f64>();
        let crossing = from.iter().position(|&p| {
            left -= f64::from(p);
            left < 0.0
        });
        crossing.unwrap_or(0) as u32
    }
}

/// The most likely tokens that together have this much of the mass.
fn only(draft: &[f32], mass: f32) -> Vec<f32> {
    let mut tokens: Vec<usize> = (0..draft.len()).collect();
    tokens.sort_by(|&a, &b| draft[b].total_cmp(&draft[a]));
    let (mut kept, mut sum) = (vec![0.0; draft.len()], 0.0);
    for token in tokens {
        if sum >= mass {
            break;
        }
        kept[token] = draft[token];
        sum += draft[token];
    }
    kept
}

/// A target row, and the distribution of a draft model that is close to it.
fn models(chance: &mut Chance) -> (Vec<f32>, Vec<f32>) {
    let target: Vec<f32> = (0..VOCAB).map(|_| 2.0 * chance.normal()).collect();
    let draft: Vec<f32> = target.iter().map(|x| (x + 0.2 * chance.normal()).exp()).collect();
    let total: f32 = draft.iter().sum();
    (target, draft.iter().map(|p| p / total).collect())
}

/// The sum of observed values, the sum of expected values, and their count.
#[derive(Default)]
struct Pair {
    is: f64,
    expected: f64,
    /// If variances are reported.
    variance: Option<f64>,
    count: f64,
}

impl Pair {
    fn add(&mut self, is: f64, expected: f64, variance: Option<f64>) {
        self.is += is;
        self.expected += expected;
        self.variance = variance.map(|variance| self.variance.unwrap_or_default() + variance);
        self.count += 1.0;
    }

    /// The formula is in docs/speculative.md.
    fn standard_errors(&self) -> f64 {
        let most = self.expected * (1.0 - self.expected / self.count);
        (self.is - self.expected) / (4.0 + self.variance.unwrap_or(most)).sqrt()
    }
}

/// The shape of a draft.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Chain,
    /// Both tokens drawn from one distribution, one after the other.
    Siblings,
}

/// The probabilities of draft tokens against the expected ones, and acceptance against the expected one, from the worker's results.
async fn run(worker: &mut Worker, rule: AcceptanceRule, shape: Shape, draws: Draws) -> [Pair; 2] {
    let acceptance = Some(AcceptanceParams { rule: rule.into(), ..Default::default() });
    let params = |id| SamplingParams { acceptance, ..seeded(id) };
    worker.step(open_step((0..TEXTS).map(|id| open(id, params(id))).collect())).await;
    let (mut chance, mut drawn, mut accepted) = (Chance(0), Pair::default(), Pair::default());
    for _ in 0..ROUNDS {
        let (mut step, mut rows) = (Step::default(), Vec::new());
        for id in 0..TEXTS {
            let (targets, mut drafts): (Vec<_>, Vec<_>) = (0..3).map(|_| models(&mut chance)).unzip();
            let parents = match shape {
                Shape::Chain => vec![-1, 0],
                Shape::Siblings => vec![-1, -1],
            };
            if matches!(shape, Shape::Siblings) {
                drafts[1] = drafts[0].clone();
            }
            let tokens: Vec<u32> = drafts[..2].iter().map(|draft| draws.draw(draft, &mut chance)).collect();
            let verify = VerifyWork { measure: true, parents, ..chain(&tokens, dense(&drafts[..2])) };
            step.work.push(verify_work(id, verify));
            rows.extend(targets);
        }
        let result = worker.step(Step { logits: inline(&rows), ..step }).await;
        for test in result.work.iter().flat_map(|work| &work.verify.as_ref().unwrap().tests) {
            let variance = f64::from(test.draft_probability_variance);
            drawn.add(f64::from(test.draft_probability), f64::from(test.expected_draft_probability), Some(variance));
            accepted.add(f64::from(u8::from(test.accepted)), f64::from(test.expected_acceptance), None);
        }
    }
    [drawn, accepted]
}

#[tokio::test]
async fn a_draft_that_is_not_drawn_as_claimed_shows_under_either_rule() {
    for rule in [AcceptanceRule::Rejection, AcceptanceRule::Block] {
        for draws in [Draws::Greedily, Draws::Evenly, Draws::Hotter, Draws::TopP, Draws::OfAnother] {
            let server = TestServer::start().await;
            let [drawn, accepted] = run(&mut server.worker().await, rule, Shape::Chain, draws).await;
            let (errors, others) = (drawn.standard_errors(), accepted.standard_errors());
            let shows = match draws {
                Draws::Greedily | Draws::TopP => errors > NOT_CHANCE,
                _ => errors < -NOT_CHANCE,
            };
            assert!(shows, "{rule:?}, {draws:?}: {errors:+.1} standard errors, and {others:+.1} of acceptance");
            // The draft is close to the target, so acceptance is as expected, whatever a draft token was drawn from.
            assert!(others.abs() < NOT_CHANCE, "{rule:?}, {draws:?}: {others:+.1} standard errors of acceptance");
            counted_as_told(&server, &drawn);
        }
    }
}

#[tokio::test]
async fn a_draft_that_is_drawn_as_claimed_does_not_show() {
    for rule in [AcceptanceRule::Rejection, AcceptanceRule::Block, AcceptanceRule::Typical] {
        for shape in [Shape::Chain, Shape::Siblings] {
            let server = TestServer::start().await;
            let pairs = run(&mut server.worker().await, rule, shape, Draws::AsClaimed).await;
            let errors = pairs.each_ref().map(Pair::standard_errors);
            assert!(errors.iter().all(|errors| errors.abs() < NOT_CHANCE), "{rule:?}, {shape:?}: {errors:?}");
            counted_as_told(&server, &pairs[0]);
        }
    }
}

/// The metrics agree with the worker's results.
fn counted_as_told(server: &TestServer, drawn: &Pair) {
    let metric =
        |name: &str| server.series(&format!("croupier_spec_decode_{name}{{model=\"default\",proposer=\"sent\"}}"));
    assert_eq!(metric("draft_probability_count"), drawn.count);
    let counted =
        ["draft_probability_sum", "expected_draft_probability_sum", "draft_probability_variance_sum"].map(metric);
    for (counted, told) in counted.iter().zip([drawn.is, drawn.expected, drawn.variance.unwrap()]) {
        assert!((counted - told).abs() < 1e-4 * told, "{counted} counted, {told} told");
    }
}

/// The expected probability is the sum of squares, and its variance the sum of cubes less the square of that sum. By hand, for each kind of
/// source.
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
        (0, sparse(&[&[(0, 0.75), (3, 0.25)]]), (0.75, 0.625, 0.046_875)),
        (0, dense(&[even]), (0.75, 0.625, 0.046_875)),
        (0, deterministic(), (1.0, 1.0, 0.0)),
        (kept_token, kept(), (0.25, 0.25, 0.0)),
    ];
    for (id, (token, source, expected)) in (0..).zip(sources) {
        let verify = VerifyWork { measure: true, ..chain(&[token], source) };
        let work = worker.verify(id, verify, &[row.clone(), row.clone()]).await;
        let test = &work.verify.as_ref().unwrap().tests[0];
        let told = (test.draft_probability, test.expected_draft_probability, test.draft_probability_variance);
        assert_eq!(told, expected, "source {id}");
    }
    // Certain tokens are not counted.
    let count =
        |proposer| format!("croupier_spec_decode_draft_probability_count{{model=\"default\",proposer=\"{proposer}\"}}");
    assert_eq!((server.series(&count("sent")), server.series(&count("kept"))), (2.0, 1.0));
    assert!(!server.metrics.render().contains(&count("deterministic")));
}

/// Texts with the same seed share one random number for their first draft tokens. Deterministic drafts share one number for each position
/// of the text, wherever it is in the draft.
#[tokio::test]
async fn texts_that_share_a_seed_are_measured_and_each_number_counts_once() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let row: Vec<f32> = (0..VOCAB).map(|t| if t < 2 { 0.0 } else { f32::NEG_INFINITY }).collect();
    let metric = |proposer: &str, name: &str, more: &str| {
        let labels = format!("model=\"default\",proposer=\"{proposer}\"{more}");
        server.series(&format!("croupier_spec_decode_{name}{{{labels}}}"))
    };
    for id in 0..40 {
        worker.step(open_step(vec![open(id, seeded(42))])).await;
        let verify = VerifyWork { measure: true, ..chain(&[id as u32 % 2], sparse(&[&[(0, 0.5), (1, 0.5)]])) };
        let work = worker.verify(id, verify, &[row.clone(), row.clone()]).await;
        assert_eq!(work.verify.unwrap().tests.len(), 1);
    }
    assert_eq!(metric("sent", "expected_acceptance_count", ",position=\"0\""), 1.0);
    assert_eq!(metric("sent", "draft_probability_count", ""), 1.0);
    // Statistics about the two models do not depend on random numbers.
    assert_eq!(metric("sent", "total_variation_count", ""), 40.0);
    // The number of position 3 decides the draft token at that position, whatever its depth in the draft.
    for (id, before) in (40..).zip([0, 1, 2, 3]) {
        worker.step(open_step(vec![opened_after(id, before)])).await;
        let only_zero: Vec<f32> = (0..VOCAB).map(|t| if t == 0 { 0.0 } else { f32::NEG_INFINITY }).collect();
        let len = 4 - before;
        let verify = VerifyWork { measure: true, ..chain(&vec![0; len], deterministic()) };
        worker.verify(id, verify, &vec![only_zero; len + 1]).await;
    }
    let counted =
        [0, 1, 2, 3].map(|at| metric("deterministic", "expected_acceptance_count", &format!(",position=\"{at}\"")));
    assert_eq!(counted, [1.0; 4]);
}

/// A text with the common seed that has emitted this many tokens.
fn opened_after(id: u64, before: usize) -> OpenSequence {
    OpenSequence { output_token_ids: vec![0; before], ..open(id, seeded(42)) }
}

#[tokio::test]
async fn verifications_are_told_apart_by_what_came_before() {
    let server = TestServer::start().await;
    let mut worker = server.worker().await;
    let sure = |token: u32| -> Vec<f32> { (0..VOCAB).map(|t| if t == token { 30.0 } else { 0.0 }).collect() };
    let params = || SamplingParams { temperature: Some(0.0), ..seeded(1) };
    worker.step(open_step(vec![open(1, params()), open(2, params())])).await;
    let rows = [sure(5), sure(6)];
    // After opening, and accepted. Then after a bonus token, and rejected. Then after a recovered token.
    for token in [5, 9, 5] {
        worker.verify(1, chain(&[token], deterministic()), &rows).await;
    }
    // No draft token: in effect a plain row.
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
