//! Whether rows that are shifted against the draft can be told from a bad draft, in a worker's results and in the metrics.

use crate::support::*;
use crate::work::*;
use croupier::proto::*;
use croupier::sampling::philox::{Purpose, uniform};

const TEXTS: u64 = 16;
const ROUNDS: u64 = 40;
/// Draft tokens per verification.
const LENGTH: usize = 3;
/// If rows fit better one place further on by this many standard errors, that is not chance (3 in a million for each shift). Every number
/// here is fixed, so a test that passes always passes.
const NOT_CHANCE: f64 = 4.5;

/// The logits and the draft distribution after each token.
struct Models {
    target: Vec<Vec<f32>>,
    draft: Vec<Vec<f32>>,
}

/// About normal, with deviation 1; a different value for each number.
fn normal(number: u64) -> f32 {
    let each = (0..12).map(|part| uniform(3, number, Purpose::Draft).rotate_left(5 * part) >> 40);
    (each.map(|bits| bits as f64 / (1u64 << 24) as f64).sum::<f64>() - 6.0) as f32
}

impl Models {
    /// A draft model that takes the share `like` of its logits from the target.
    fn new(like: f32) -> Self {
        let logits = |of: u64, after: u64| -> Vec<f32> {
            (0..u64::from(VOCAB)).map(|token| 2.5 * normal((of * 1000 + after) * 1000 + token)).collect()
        };
        let target: Vec<Vec<f32>> = (0..u64::from(VOCAB)).map(|after| logits(0, after)).collect();
        let draft = |(after, target): (usize, &Vec<f32>)| {
            let own = logits(1, after as u64);
            let mixed: Vec<f32> = target.iter().zip(own).map(|(t, o)| (like * t + (1.0 - like) * o).exp()).collect();
            let total: f32 = mixed.iter().sum();
            mixed.iter().map(|p| p / total).collect()
        };
        let draft = target.iter().enumerate().map(draft).collect();
        Self { target, draft }
    }

    /// A draft head that proposes the same token whatever comes before, and a target that likes to repeat that token.
    fn stuck() -> Self {
        let Self { mut target, .. } = Self::new(0.0);
        let token = 5;
        target[token as usize][token as usize] += 4.0;
        let always = |other| if other == token { 0.97 } else { 0.03 / (VOCAB - 1) as f32 };
        let draft = vec![(0..VOCAB).map(always).collect(); VOCAB as usize];
        Self { target, draft }
    }
}

/// What is wrong with the worker.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Nothing,
    /// The row before the first one is sent too.
    Late,
    /// The first row is left out.
    Early,
    /// The draft model does not see its own draft tokens.
    BlindDraft,
    /// The target does not see the draft tokens.
    BlindTarget,
}

impl Fault {
    /// The token after which the next draft distribution comes, for a text that ends with `last`.
    fn drafted_after(self, last: u32, tokens: &[u32]) -> u32 {
        if self == Self::BlindDraft { last } else { tokens.last().copied().unwrap_or(last) }
    }

    /// The tokens after which the sent rows come, for a text that ends with `text` and then the draft.
    fn rows_after(self, text: [u32; 2], draft: &[u32], models: &Models) -> Vec<u32> {
        let likeliest = |after: u32| {
            let row = &models.target[after as usize];
            (0..VOCAB).max_by(|&a, &b| row[a as usize].total_cmp(&row[b as usize])).unwrap()
        };
        let all: Vec<u32> = text.iter().chain(draft).copied().collect();
        let behind = likeliest(all[all.len() - 1]);
        match self {
            Self::Nothing | Self::BlindDraft => all[1..].to_vec(),
            Self::Late => all[..all.len() - 1].to_vec(),
            Self::Early => all[2..].iter().copied().chain([behind]).collect(),
            Self::BlindTarget => vec![text[1]; draft.len() + 1],
        }
    }
}

/// The kind of draft.
#[derive(Clone, Copy, Debug)]
enum Source {
    Dense,
    /// The most likely token, sent as certain.
    Certain,
}

/// Overlaps with one shift, and of the same rows without it.
#[derive(Clone, Copy, Default, Debug)]
struct Shift {
    /// The overlap of the first draft token and its own row.
    first: f64,
    /// The overlap that the shifted one is compared with.
    own: f64,
    shifted: f64,
    count: f64,
    /// Shifts that are obvious from a single verification.
    large: f64,
}

/// The difference that makes a shift obvious, as in docs/metrics.md.
const LARGE: f64 = 0.3;

impl Shift {
    /// Adds a test that reports the shifted overlap. If `next` is given, it is compared with that too.
    fn add(&mut self, test: &DraftTest, shifted: Option<f32>, next: Option<f32>) {
        let Some(shifted) = shifted.map(f64::from) else { return };
        let first = 1.0 - f64::from(test.total_variation);
        let own = first.max(next.map_or(0.0, f64::from));
        self.first += first;
        self.own += own;
        self.shifted += shifted;
        self.count += 1.0;
        self.large += f64::from(u8::from(shifted - own > LARGE));
    }

    /// The formula is in docs/speculative.md.
    fn standard_errors(&self) -> f64 {
        (self.shifted - self.own) / (4.0 + self.shifted + self.own).sqrt()
    }

    /// The same, if it were compared only with the first draft token and its row.
    fn standard_errors_beyond_first(&self) -> f64 {
        Self { own: self.first, ..*self }.standard_errors()
    }
}

/// Late and early overlaps of many verifications, from the worker's results.
async fn run(worker: &mut Worker, models: &Models, rule: AcceptanceRule, source: Source, fault: Fault) -> [Shift; 2] {
    let acceptance = Some(AcceptanceParams { rule: rule.into(), ..Default::default() });
    let params = |id| SamplingParams { acceptance, ..seeded(id) };
    worker.step(open_step((0..TEXTS).map(|id| open(id, params(id))).collect())).await;
    let mut texts: Vec<[u32; 2]> = (0..TEXTS as u32).map(|id| [id, (id + 7) % VOCAB]).collect();
    let (mut number, mut found) = (0, [Shift::default(); 2]);
    for _ in 0..ROUNDS {
        let (mut step, mut rows) = (Step::default(), Vec::new());
        for (id, text) in (0..).zip(&texts) {
            let (mut tokens, mut drafts) = (Vec::new(), Vec::new());
            while tokens.len() < LENGTH {
                let draft = &models.draft[fault.drafted_after(text[1], &tokens) as usize];
                number += 1;
                tokens.push(draw(draft, source, number));
                drafts.push(draft.clone());
            }
            let from = if matches!(source, Source::Dense) { dense(&drafts) } else { deterministic() };
            let verify = VerifyWork { measure: true, ..chain(&tokens, from) };
            step.work.push(verify_work(id, verify));
            let after = fault.rows_after(*text, &tokens, models);
            rows.extend(after.iter().map(|&token| models.target[token as usize].clone()));
        }
        let result = worker.step(Step { logits: inline(&rows), ..step }).await;
        for (work, text) in result.work.iter().zip(&mut texts) {
            let test = &work.verify.as_ref().unwrap().tests[0];
            found[0].add(test, test.late_overlap, test.next_overlap);
            found[1].add(test, test.early_overlap, None);
            let all: Vec<u32> = text.iter().copied().chain(ids(work)).collect();
            text.copy_from_slice(&all[all.len() - 2..]);
        }
    }
    found
}

fn draw(draft: &[f32], source: Source, number: u64) -> u32 {
    let mut left = (uniform(9, number, Purpose::Draft) as f64 / u64::MAX as f64) as f32;
    let crossing = draft.iter().position(|p| {
        left -= p;
        left < 0.0
    });
    match source {
        Source::Dense => crossing.unwrap_or(0) as u32,
        Source::Certain => (0..VOCAB).max_by(|&a, &b| draft[a as usize].total_cmp(&draft[b as usize])).unwrap(),
    }
}

#[tokio::test]
async fn rows_that_are_shifted_show_under_any_rule_and_sound_ones_do_not() {
    let models = Models::new(0.8);
    for rule in [AcceptanceRule::Rejection, AcceptanceRule::Block, AcceptanceRule::Greedy] {
        for source in [Source::Dense, Source::Certain] {
            for fault in [Fault::Nothing, Fault::Late, Fault::Early] {
                let server = TestServer::start().await;
                let found = run(&mut server.worker().await, &models, rule, source, fault).await;
                let shows = found.map(|shift| shift.standard_errors() > NOT_CHANCE);
                let expected = [fault == Fault::Late, fault == Fault::Early];
                assert_eq!(shows, expected, "{rule:?}, {source:?}, {fault:?}: {found:?}");
                // So one faulty stream in ten would show among sound ones. Certain tokens are left out, as in the alert: such a token may
                // be what another row is certain of, just as often.
                for (shift, is_shifted) in found.iter().zip(expected).filter(|_| matches!(source, Source::Dense)) {
                    let share = shift.large / shift.count;
                    let is_as_it_must = match (fault, is_shifted) {
                        (Fault::Nothing, _) => share < 0.03,
                        (_, is_shifted) => share > 0.3 || !is_shifted,
                    };
                    assert!(is_as_it_must, "{rule:?}, {fault:?}: {shift:?}");
                }
                counted_as_told(&server, source, &found);
            }
        }
    }
}

/// Other faults that make acceptance low: a draft model that has nothing in common with the target, and models that do not see draft
/// tokens.
#[tokio::test]
async fn other_faults_are_not_taken_for_shifted_rows() {
    for source in [Source::Dense, Source::Certain] {
        for (like, fault) in [(0.0, Fault::Nothing), (0.8, Fault::BlindDraft), (0.8, Fault::BlindTarget)] {
            let server = TestServer::start().await;
            let (models, rule) = (Models::new(like), AcceptanceRule::Rejection);
            let found = run(&mut server.worker().await, &models, rule, source, fault).await;
            let errors = found.map(|shift| shift.standard_errors());
            assert!(errors.iter().all(|&errors| errors < NOT_CHANCE), "{source:?}, {like}, {fault:?}: {found:?}");
            // Nothing is shifted: the draft or row one place further on is the same as the one here.
            let same = |shift: &Shift| (shift.first - shift.shifted).abs() < 1e-3;
            assert_eq!(same(&found[0]), fault == Fault::BlindTarget, "{source:?}: {found:?}");
            assert_eq!(same(&found[1]), fault == Fault::BlindDraft, "{source:?}: {found:?}");
        }
    }
}

/// Even with sound rows, a stuck draft head fits the row after its token better than its own row. But it does that without any shift: its
/// next distribution fits that row as well.
#[tokio::test]
async fn a_draft_head_that_is_stuck_is_not_taken_for_late_rows() {
    for source in [Source::Dense, Source::Certain] {
        let server = TestServer::start().await;
        let (models, rule) = (Models::stuck(), AcceptanceRule::Rejection);
        let found = run(&mut server.worker().await, &models, rule, source, Fault::Nothing).await;
        assert!(found[0].standard_errors_beyond_first() > NOT_CHANCE, "too little repeats itself: {found:?}");
        assert!(found.iter().all(|shift| shift.standard_errors() < NOT_CHANCE), "{source:?}: {found:?}");
        counted_as_told(&server, source, &found);
    }
}

/// The metrics agree with the worker's results.
fn counted_as_told(server: &TestServer, source: Source, found: &[Shift; 2]) {
    let proposer = if matches!(source, Source::Dense) { "sent" } else { "deterministic" };
    for (shift, told) in ["late", "early"].iter().zip(found) {
        let metric = |name: &str| {
            let labels = format!("model=\"default\",proposer=\"{proposer}\",shift=\"{shift}\"");
            server.series(&format!("croupier_spec_decode_{name}{{{labels}}}"))
        };
        assert_eq!((metric("own_overlap_count"), metric("shifted_overlap_count")), (told.count, told.count));
        assert_eq!(told.count, (TEXTS * ROUNDS) as f64);
        let large = if matches!(source, Source::Dense) { told.large } else { 0.0 };
        assert_eq!(metric("num_shifted_drafts_total"), large, "tokens that are certain say nothing");
        for (counted, told) in [("own_overlap_sum", told.own), ("shifted_overlap_sum", told.shifted)] {
            assert!((metric(counted) - told).abs() < 1e-4 * told.max(1.0), "{counted}: {} and {told}", metric(counted));
        }
    }
}

const DRAFTS: [&[(u32, f32)]; 3] = [&[(0, 0.5), (1, 0.5)], &[(2, 0.25), (3, 0.75)], &[(1, 0.25), (4, 0.75)]];

/// Rows in which these tokens are equally likely, and the others impossible.
fn rows(among: &[&[u32]]) -> Vec<Vec<f32>> {
    let row = |tokens: &&[u32]| (0..VOCAB).map(|t| if tokens.contains(&t) { 0.0 } else { f32::NEG_INFINITY }).collect();
    among.iter().map(row).collect()
}

/// The overlaps in the first test of a verification: own, late, early, next.
fn told(work: &WorkResult) -> (f32, [Option<f32>; 3]) {
    let tests = &work.verify.as_ref().unwrap().tests;
    let overlaps = |test: &DraftTest| [test.late_overlap, test.early_overlap, test.next_overlap];
    assert!(tests[1..].iter().all(|test| overlaps(test) == [None; 3]));
    (1.0 - tests[0].total_variation, overlaps(&tests[0]))
}

#[tokio::test]
async fn overlaps_by_hand() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(StreamConfig { eos_token_ids: vec![9], ..config() }).await;
    worker.step(open_step((0..8).map(|id| open(id, seeded(id))).collect())).await;
    let measured = |verify| VerifyWork { measure: true, ..verify };
    // Row 0 is {0, 2}, row 1 {1, 3}, row 2 {4}. The first draft token's {0, 1} overlaps rows 0 and 1 by a half each. The second one's
    // overlaps row 0 by a quarter and its own row by a half.
    let three: &[&[u32]] = &[&[0, 2], &[1, 3], &[4]];
    let verify = measured(chain(&[0, 3], sparse(&DRAFTS[..2])));
    assert_eq!(told(&worker.verify(0, verify, &rows(three)).await), (0.5, [Some(0.5), Some(0.25), Some(0.5)]));
    // There is nothing after a single draft token.
    let verify = measured(chain(&[0], sparse(&DRAFTS[..1])));
    assert_eq!(told(&worker.verify(1, verify, &rows(&three[..2])).await), (0.5, [Some(0.5), None, None]));
    // For certain tokens, the overlaps are their probabilities.
    let verify = measured(chain(&[1, 0], deterministic()));
    assert_eq!(told(&worker.verify(2, verify, &rows(three)).await), (0.0, [Some(0.5), Some(0.5), Some(0.0)]));
    // In a tree, it is the row after the first draft token, and the first draft token after it, which is the third one.
    let verify = VerifyWork { parents: vec![-1, -1, 0], ..chain(&[0, 3, 4], sparse(&DRAFTS)) };
    let four: &[&[u32]] = &[&[0, 4], &[1], &[9], &[9]];
    assert_eq!(told(&worker.verify(3, measured(verify), &rows(four)).await), (0.5, [Some(0.5), Some(0.5), Some(0.25)]));
    // A row that acceptance does not reach may be anything.
    let verify = measured(chain(&[1, 3], sparse(&DRAFTS[..2])));
    let with_nan = [rows(&[&[0, 2]]), vec![vec![f32::NAN; VOCAB as usize]; 2]].concat();
    assert_eq!(told(&worker.verify(4, verify, &with_nan).await), (0.5, [None, Some(0.25), None]));
    // There is nothing after the end of a text.
    let verify = measured(chain(&[9, 3], deterministic()));
    assert_eq!(told(&worker.verify(5, verify, &rows(&[&[9], &[1], &[1]])).await), (1.0, [None; 3]));
}
