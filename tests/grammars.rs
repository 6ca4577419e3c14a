//! Structured output over real sockets: the output matches the grammar, whatever the other parameters; drafts are verified in the grammar;
//! a text that is opened again goes on in it, on any server; errors in a grammar are reported where it was given.

mod begins;
mod refused;
mod waits;

use crate::support::*;
use crate::work::*;
use croupier::proto::grammar_params::Kind;
use croupier::proto::*;

fn by(kind: Kind) -> Option<GrammarParams> {
    Some(GrammarParams { kind: Some(kind), ..GrammarParams::default() })
}

fn regex(text: &str) -> Option<GrammarParams> {
    by(Kind::Regex(text.to_owned()))
}

const EOS: u32 = 0;
/// The texts that the grammar of most of these tests allows.
const WORDS: [&str; 4] = ["abba", "abab", "baab", "b"];

fn with_eos() -> StreamConfig {
    StreamConfig { eos_token_ids: vec![EOS], ..config() }
}

fn matching(seed: u64) -> SamplingParams {
    SamplingParams { grammar: regex("abba|abab|baab|b"), ..seeded(seed) }
}

fn written(tokens: &[u32]) -> String {
    let known = vocabulary();
    tokens.iter().map(|&token| String::from_utf8(known.text(token).to_vec()).unwrap()).collect()
}

/// The mask of the tokens with which a text may go on towards one of [`WORDS`].
fn mask(so_far: &[u32]) -> Vec<u8> {
    let so_far = written(so_far);
    let goes_on = |token: u32| {
        let longer = format!("{so_far}{}", written(&[token]));
        if token == EOS { WORDS.contains(&&*so_far) } else { WORDS.iter().any(|word| word.starts_with(&longer)) }
    };
    let mut words = vec![0u32; VOCAB.div_ceil(32) as usize];
    (0..VOCAB).filter(|&token| goes_on(token)).for_each(|token| words[token as usize / 32] |= 1 << (token % 32));
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A top-n row is short, but its mask has a bit for each token.
#[tokio::test(flavor = "multi_thread")]
async fn masks_of_short_rows_count_as_rows_do() {
    const LONG: u32 = 6400;
    let server = TestServer::with_limits(|limits| limits.max_row_bytes_per_step = 6 * LONG as usize / 8).await;
    let mut worker = server.worker_with(StreamConfig { vocab_size: LONG, ..with_eos() }).await;
    worker.step(open_step(vec![open(1, matching(1)), open(2, seeded(2))])).await;
    let listed = |rows: usize| TopNRows {
        counts: vec![1; rows],
        token_ids: vec![2; rows],
        logits: vec![0; 4 * rows],
        rest_logsumexp: vec![0.0; rows],
        beyond: vec![BeyondTopN::Mark.into(); rows],
        ..Default::default()
    };
    let score = |id: u64, rows: usize, mode: LogprobsMode| {
        let logprobs = LogprobsParams { mode: mode.into(), ..Default::default() };
        let score = ScoreWork { token_ids: vec![1; rows], logprobs: Some(logprobs) };
        Step { work: vec![score_work(Some(id), score)], top_n: Some(listed(rows)), ..Default::default() }
    };
    let mut told = async |id, rows, mode| {
        let done = worker.step(score(id, rows, mode)).await.work.remove(0);
        (done.status(), done.message)
    };
    for (id, rows, mode) in
        [(1, 6, LogprobsMode::Processed), (2, 7, LogprobsMode::Processed), (1, 7, LogprobsMode::Raw)]
    {
        assert_eq!(told(id, rows, mode).await, (RowStatus::Ok, String::new()), "{id} {rows} {mode:?}");
    }
    let (status, message) = told(1, 7, LogprobsMode::Processed).await;
    assert_eq!(status, RowStatus::InvalidWork);
    assert!(message.starts_with("params.grammar: the masks of this step's rows would take 5600 bytes"), "{message}");
    assert!(message.contains("max_row_bytes_per_step is 4800; split the step"), "{message}");
}

/// Draws tokens until the text ends.
async fn drawn(worker: &mut Worker, id: u64, masked: bool) -> Vec<u32> {
    let mut tokens = Vec::new();
    loop {
        let masks = if masked { mask(&tokens) } else { vec![] };
        let work = Work { token_masks: masks.into(), ..sample_work(id) };
        let done = only(worker.step(step_of(work, &[logits(id, tokens.len() as u64)])).await);
        tokens.push(token(&done));
        if done.finish_reason() == FinishReason::Eos {
            return tokens;
        }
        assert!(tokens.len() < 10, "{tokens:?} does not end");
    }
}

/// Parameters to use together with the grammar.
fn others(seed: u64) -> [SamplingParams; 4] {
    let bias = vec![LogitBias { token_id: 9, bias: 50.0 }, LogitBias { token_id: EOS, bias: 2.0 }];
    [
        seeded(seed),
        SamplingParams { temperature: Some(0.0), logit_bias: bias, ..seeded(seed) },
        SamplingParams { top_k: Some(3), top_p: Some(0.8), repetition_penalty: Some(1.5), ..seeded(seed) },
        SamplingParams { typical_p: Some(0.7), xtc_probability: Some(0.5), mirostat: Some(2), ..seeded(seed) },
    ]
}

/// With and without masks that the worker makes. Each word comes up.
#[tokio::test(flavor = "multi_thread")]
async fn a_text_is_a_word_of_its_grammar_and_the_one_that_masks_would_give() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(with_eos()).await;
    let mut seen = std::collections::BTreeSet::new();
    for id in 0..120 {
        let params = others(id)[id as usize % 4].clone();
        worker.step(open_step(vec![open(id, params.clone())])).await;
        let masked = drawn(&mut worker, id, true).await;
        worker.step(Step { close_sequence_ids: vec![id], ..Default::default() }).await;
        worker.step(open_step(vec![open(id, SamplingParams { grammar: matching(1).grammar, ..params })])).await;
        let tokens = drawn(&mut worker, id, false).await;
        assert_eq!(tokens, masked, "{id}");
        seen.insert(written(&tokens));
    }
    assert_eq!(seen.len(), WORDS.len(), "{seen:?}");
}

/// Alone, in a large batch, and opened again at every token on another server.
#[tokio::test(flavor = "multi_thread")]
async fn a_text_goes_on_where_it_was_whoever_opens_it_again() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(with_eos()).await;
    let ids: Vec<u64> = (0..30).collect();
    worker.step(open_step(ids.iter().map(|&id| open(id, matching(id))).collect())).await;
    let (mut left, mut texts) = (ids.clone(), vec![Vec::new(); ids.len()]);
    while !left.is_empty() {
        let rows: Vec<_> = left.iter().map(|&id| (id, logits(id, texts[id as usize].len() as u64))).collect();
        let result = worker.step(sample_step(&rows)).await;
        let done: Vec<u64> = left.clone();
        for (id, work) in done.into_iter().zip(&result.work) {
            texts[id as usize].push(token(work));
            if work.finish_reason() == FinishReason::Eos {
                left.retain(|&other| other != id);
            }
        }
    }
    let other = TestServer::start().await;
    for id in ids {
        let whole = &texts[id as usize];
        assert!(WORDS.contains(&&*written(whole)), "{whole:?}");
        for position in 0..whole.len() {
            let mut worker = other.worker_with(with_eos()).await;
            let opened = OpenSequence { output_token_ids: whole[..position].to_vec(), ..open(id, matching(id)) };
            worker.step(open_step(vec![opened])).await;
            let done = worker.step(sample_step(&[(id, logits(id, position as u64))])).await;
            assert_eq!(token(&done.work[0]), whole[position], "{id} at {position}");
        }
    }
}

/// Right draft tokens, wrong ones and some that the grammar forbids, in chains and in trees, do not change a single token.
#[tokio::test(flavor = "multi_thread")]
async fn drafts_without_chance_change_not_one_token() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(with_eos()).await;
    let (mut accepted, mut refused) = (0, 0);
    for id in 0..60 {
        worker.step(open_step(vec![open(id, matching(id))])).await;
        let plain = drawn(&mut worker, id, false).await;
        worker.step(Step { close_sequence_ids: vec![id], ..Default::default() }).await;
        worker.step(open_step(vec![open(id, matching(id))])).await;
        let mut tokens: Vec<u32> = Vec::new();
        while tokens.last() != Some(&EOS) {
            let at = tokens.len();
            let right = &plain[at..(at + 3).min(plain.len())];
            // Any token, which the grammar may forbid, and after it the token that is right at the first position of the draft.
            let wrong = [3 + (id as u32 + at as u32) % 9, right[0]];
            let tree = if id % 3 == 0 || wrong[0] == right[0] {
                Tree { tokens: right.to_vec(), parents: vec![] }
            } else if id % 3 == 1 {
                Tree { tokens: [&right[..1], &wrong].concat(), parents: vec![] }
            } else {
                let parents = [vec![-1, 0, -1], (2..).take(right.len() - 1).collect()].concat();
                Tree { tokens: [&wrong[..], right].concat(), parents }
            };
            let rows: Vec<_> =
                (0..=tree.tokens.len()).map(|row| logits(id, (at + tree.path(row).len()) as u64)).collect();
            let verify = VerifyWork { parents: tree.parents.clone(), ..chain(&tree.tokens, deterministic()) };
            let work = worker.verify(id, verify, &rows).await;
            let found = work.verify.as_ref().unwrap().accepted_count as usize;
            accepted += found;
            refused += usize::from(found < right.len());
            tokens.extend(ids(&work));
        }
        assert_eq!(tokens, plain, "{id}");
    }
    assert!(accepted > 60 && refused > 20, "{accepted} accepted, {refused} refused");
}

/// A model that prefers long tokens.
fn long_ones(id: u64, at: usize) -> Vec<f32> {
    let long = |(logit, token): (f32, u32)| logit + 2.0 * written(&[token]).len() as f32;
    logits(id, at as u64).into_iter().zip(0..).map(long).collect()
}

/// Text that the grammar forces is proposed, even by proposers that find nothing themselves, and does not change a single token. What
/// proposers find in the text is proposed only as far as the grammar allows it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_grammar_forces_is_drafted_and_changes_not_one_token() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(StreamConfig { model: "m".to_owned(), ..with_eos() }).await;
    let forced = "(aaaa|bbbb)abbabaabbaab(a|b)babaababba(ab)?";
    let (mut tokens, mut passes) = (0, 0);
    for id in 0..45 {
        let length = Some(DraftLengthParams { draft_cost: 10.0, verify_cost: 1.0, ..Default::default() });
        let plain =
            SamplingParams { grammar: regex(forced), draft_length: length.filter(|_| id % 2 == 0), ..seeded(id) };
        worker.step(open_step(vec![open(id, plain.clone())])).await;
        let mut expected = Vec::new();
        while expected.last() != Some(&EOS) {
            let row = long_ones(id, expected.len());
            let work = only(worker.step(step_of(sample_work(id), &[row])).await);
            assert!(work.proposed_token_ids.is_empty(), "nobody asked");
            expected.push(token(&work));
        }
        worker.step(Step { close_sequence_ids: vec![id], ..Default::default() }).await;
        let kind = [ProposerKind::Grammar, ProposerKind::Ngram, ProposerKind::Suffix][id as usize % 3];
        let proposer = Some(ProposerParams { kind: kind.into(), ..Default::default() });
        worker.step(open_step(vec![open(id, SamplingParams { proposer, ..plain })])).await;
        let (mut text, mut draft) = (Vec::new(), Vec::new());
        while text.last() != Some(&EOS) {
            let rows: Vec<_> = (0..=draft.len()).map(|row| long_ones(id, text.len() + row)).collect();
            let work = worker.verify(id, chain(&draft, deterministic()), &rows).await;
            text.extend(ids(&work));
            let advised = work.advised_draft_length.unwrap_or(u32::MAX);
            draft = work.proposed_token_ids;
            assert!(advised as usize >= draft.len(), "{advised} advised, {draft:?} proposed");
            passes += 1;
        }
        assert_eq!(text, expected, "{id}");
        tokens += text.len();
    }
    let count =
        |name, proposer| server.series(&format!("croupier_spec_decode_{name}{{model=\"m\",proposer=\"{proposer}\"}}"));
    let (drafted, accepted) =
        (count("num_draft_tokens_total", "grammar"), count("num_accepted_tokens_total", "grammar"));
    assert!(drafted > 100.0 && accepted > drafted / 3.0, "{accepted} of {drafted} accepted");
    assert!(f64::from(passes) <= tokens as f64 - accepted, "{passes} passes for {tokens} tokens");
}

/// Steps of a stream are answered in order, whether or not they wait for what a grammar forces.
#[tokio::test(flavor = "multi_thread")]
async fn replies_are_in_order_whoever_waits_for_a_grammar() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(with_eos()).await;
    let proposer = Some(ProposerParams { kind: ProposerKind::Grammar.into(), ..Default::default() });
    let forced = SamplingParams { grammar: regex("(ab)*"), proposer, ..seeded(1) };
    worker.step(open_step(vec![open(1, forced), open(2, seeded(2)), open(3, seeded(3))])).await;
    let heavy = SamplingParams { grammar: regex(&"a?".repeat(2_000)), ..seeded(9) };
    for round in 0..10 {
        // The engine waits for a mask while the other steps arrive, so they make one batch.
        let first = sample_step(&[(10 + round, logits(9, 0))]);
        let first = Step { open: vec![open(10 + round, heavy.clone())], ..first };
        let mut sent = vec![worker.send_step(first).await];
        for id in 1..=3 {
            sent.push(worker.send_step(sample_step(&[(id, logits(id, round))])).await);
        }
        for id in sent {
            assert_eq!(worker.step_reply().await.unwrap().step_id, id);
        }
    }
}

struct Tree {
    tokens: Vec<u32>,
    /// Empty for a chain.
    parents: Vec<i32>,
}

impl Tree {
    /// The draft tokens before a row.
    fn path(&self, row: usize) -> Vec<u32> {
        let mut path = Vec::new();
        let mut next = row as i32 - 1;
        while let Ok(at) = usize::try_from(next) {
            path.push(self.tokens[at]);
            next = self.parents.get(at).copied().unwrap_or(next - 1);
        }
        path.reverse();
        path
    }
}

/// Draft tokens that the sidecar draws match the grammar, also several in sequence, and whatever is accepted is a word.
#[tokio::test(flavor = "multi_thread")]
async fn drafts_are_drawn_in_the_grammar_and_verified_in_it() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(with_eos()).await;
    let mut accepted = 0;
    for id in 0..40 {
        worker.step(open_step(vec![open(id, matching(id))])).await;
        let mut tokens: Vec<u32> = Vec::new();
        while tokens.last() != Some(&EOS) {
            let mut draft: Vec<u32> = Vec::new();
            while draft.len() < 3 && draft.last() != Some(&EOS) {
                let at = (tokens.len() + draft.len()) as u64;
                let drawn = worker.draft(id, DraftWork::default(), logits(id + 1000 * (id % 2), at)).await;
                let so_far = [&tokens[..], &draft].concat();
                assert!(mask(&so_far)[drawn as usize / 8] >> (drawn % 8) & 1 == 1, "{drawn} behind {so_far:?}");
                draft.push(drawn);
            }
            let rows: Vec<_> = (0..=draft.len()).map(|row| logits(id, (tokens.len() + row) as u64)).collect();
            let work = worker.verify(id, chain(&draft, kept()), &rows).await;
            accepted += work.verify.as_ref().unwrap().accepted_count;
            tokens.extend(ids(&work));
        }
        assert!(WORDS.contains(&&*written(&tokens)), "{tokens:?}");
    }
    assert!(accepted > 40, "{accepted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_scored_is_scored_in_the_grammar() {
    let server = TestServer::start().await;
    let mut worker = server.worker_with(with_eos()).await;
    worker.step(open_step(vec![open(1, matching(1))])).await;
    let score = |tokens: &[u32], mode: LogprobsMode| {
        let logprobs = LogprobsParams { mode: mode.into(), ..Default::default() };
        let score = ScoreWork { token_ids: tokens.to_vec(), logprobs: Some(logprobs) };
        let rows: Vec<_> = (0..tokens.len() as u64).map(|at| logits(1, at)).collect();
        step_of(
            Work { sequence_id: Some(1), kind: Some(croupier::proto::work::Kind::Score(score)), ..Default::default() },
            &rows,
        )
    };
    // First "b", the end, and a token that cannot come after the end. Then "b", "b" and a token after what the grammar forbids.
    let scored = only(worker.step(score(&[2, EOS, 1], LogprobsMode::Processed)).await);
    let logprobs: Vec<f32> = scored.tokens.iter().map(|token| token.logprob.unwrap()).collect();
    assert!(logprobs[0] < 0.0 && logprobs[1] < 0.0 && logprobs[2] == f32::NEG_INFINITY, "{logprobs:?}");
    let wrong = only(worker.step(score(&[2, 2, 5], LogprobsMode::Processed)).await);
    assert_eq!(wrong.tokens[1].logprob, Some(f32::NEG_INFINITY));
    assert!(wrong.tokens[2].logprob.unwrap().is_finite());
    let raw = only(worker.step(score(&[2, 2, 5], LogprobsMode::Raw)).await);
    assert!(raw.tokens.iter().all(|token| token.logprob.unwrap().is_finite()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_without_a_stream_has_grammars_too() {
    let server = TestServer::start().await;
    let row = |words: &str, output: &[u32]| SampleRow {
        params: Some(SamplingParams { temperature: Some(0.0), grammar: regex(words), ..seeded(1) }),
        output_token_ids: output.to_vec(),
        ..Default::default()
    };
    let rows =
        vec![row("abba", &[]), row("abba", &[4, 2]), row("abba", &[4, 4]), row("abba", &[4, 2, 1]), row("(", &[])];
    let data = (0..rows.len() as u64).flat_map(|at| logits(7, at)).flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
    let request = SampleRequest {
        vocab_size: VOCAB,
        logits_dtype: LogitsDtype::F32.into(),
        eos_token_ids: vec![EOS],
        rows,
        logits: Some(InlineLogits { data: data.into(), row_stride: 0 }),
        ..Default::default()
    };
    let rows = server.client().await.sample(request).await.unwrap().into_inner().rows;
    let token = |at: usize| rows[at].token.as_ref().unwrap().token_id;
    assert!("abba".starts_with(&written(&[token(0)])) && written(&[token(1)]) == "a" && token(3) == EOS);
    let told = |at: usize| (rows[at].status(), rows[at].message.as_str());
    assert_eq!(
        told(2),
        (RowStatus::InvalidWork, "output_token_ids[1]: is not allowed by the grammar at this position")
    );
    assert_eq!(told(4).0, RowStatus::InvalidWork);
    assert!(told(4).1.starts_with("params.grammar.regex: "), "{}", told(4).1);
}
